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

mod admin;
mod admission;
mod app_state;
mod authentication;
mod batches;
mod body;
mod check_workers;
mod connection;
mod connections;
mod docs;
mod error;
mod events;
mod executions;
mod executor;
mod fair_share;
mod health;
mod listeners;
mod live_executions;
mod mcp;
mod metrics;
mod middleware;
mod mismatches;
mod openapi;
mod places;
mod provider_registry;
mod query;
mod resource_need;
mod result_json;
mod retention_trigger;
mod revocation;
mod routes;
mod run_queue;
mod sandboxes;
mod schema;
mod serve;
mod settings;
mod share_pool;
mod startup;
mod streams;
mod tls;
mod tools;
mod trace;
mod uncancellable;

pub use app_state::AppState;
pub use error::{Code, Error};
pub use listeners::Listeners;
pub use openapi::document;
pub use provider_registry::{InitialProviderConfig, InitialProviders};
pub use serve::run;
pub use settings::Settings;
pub use share_pool::ShareKind;
pub use startup::{AdminKey, FirstKey, prepare};
pub use tls::Tls;
pub use trace::TraceCollector;
