//! The vocabulary as plain data: what a request may ask for, what a run was allowed, did and used, and what
//! was enforced. Jail, guest, engine, store, server and tools share these types.
//!
//! The JSON and OpenAPI schemas are derived from them, so a field comment is also the API documentation of the
//! field. There is no I/O here, and no logic but the checks of a single type: admission and policies are the
//! engine's.

pub mod artifact;
pub mod command;
pub mod denial;
pub mod error_code;
pub mod files;
pub mod finding;
pub mod gpus;
pub mod json_text;
pub mod layer;
pub mod limits;
pub mod outcome;
pub mod pool;
pub mod process;
pub mod report;
pub mod request;
pub mod sandbox;
pub mod schema;
pub mod stats;
pub mod tun;
pub mod warm;
