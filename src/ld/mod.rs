//! What would the dynamic loader do? Reads no disk, environment or clock but through [`System`](crate::system::System).

pub mod cache;
pub mod config;
