//! The service: executions, batches, sandboxes, tenants, keys and profiles over HTTP.
//!
//! ```text
//! connection ─▶ middleware (request id, Host, Origin, uniform errors)
//!   ─▶ handler: two conversions and a call ─▶ Caller (key → tenant, scopes, quotas)
//!   ─▶ run queue (fair slots per tenant) ─▶ engine ─▶ store: committed ─▶ answer
//! ```
//!
//! - The outcome of a program is a 200 response. An error is about the request or the server, and its code
//!   comes from a closed list.
//! - Another tenant's id answers exactly like an unknown id.
//! - If a waiting client disconnects, its execution is canceled.
//! - Everything is bounded: connections, bodies, queues, running work, and how long a client may be slow.

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
