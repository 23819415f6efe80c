//! The service: executions, batches, sandboxes, tenants, keys and profiles over HTTP.
//!
//! ```text
//! connection ─▶ edge (request id, Host, Origin, one shape of error)
//!   ─▶ handler: two conversions and a call ─▶ Caller (key → tenant, scopes, quotas)
//!   ─▶ gate (turns between tenants) ─▶ engine ─▶ store: committed ─▶ answer
//! ```
//!
//! - What a program did is an answer (200); an error is about the request or about us, with a code of a closed list.
//! - Another tenant's id is an unknown id.
//! - A client that waits and goes away takes its execution with it.
//! - Everything has a bound: connections, bodies, what waits, what runs, how long anybody may be slow.

mod accounts;
mod admin;
mod admission;
mod batches;
mod bearers;
mod body;
mod conduct;
mod connection;
mod connections;
mod docs;
mod doors;
mod edge;
mod errand;
mod error;
mod events;
mod executions;
mod fair_share;
mod gate;
mod health;
mod live;
mod mcp;
mod metrics;
mod mismatches;
mod need;
mod object;
mod openapi;
mod places;
mod pool;
mod query;
mod readers;
mod roster;
mod routes;
mod sandboxes;
mod schema;
mod serve;
mod settings;
mod start;
mod streams;
mod tls;
mod tools;
mod trace;
mod world;
mod written;

pub use doors::Doors;
pub use error::{Code, Error};
pub use openapi::document;
pub use pool::ShareKind;
pub use roster::{Providers, Seed};
pub use serve::run;
pub use settings::Settings;
pub use start::{AdminKey, FirstKey, prepare};
pub use tls::Tls;
pub use trace::Collector;
pub use world::World;
