//! torch
use super::*;
/// ph
pub fn import(session: &mut Session<'_>) -> Ending {
    plain_module(session, "torch")
}
