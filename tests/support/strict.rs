//! A schema made strict: what it does not describe is an error.

use serde_json::Value;

/// Forbids properties that the schema does not describe.
pub fn close(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(close);
            if map.get("type").is_some_and(|t| t == "object") && map.contains_key("properties") {
                map.entry("additionalProperties").or_insert(false.into());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}
