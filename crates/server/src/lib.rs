//! The service: executions, batches, sandboxes, tenants, keys and profiles over HTTP.
//!
//! ```text
//! connection ─▶ middleware: request id, Host, Origin, errors in the format of the dialect
//!   ─▶ a handler of a dialect: two conversions and a call ─▶ Caller (key → tenant, scopes, quotas)
//!   ─▶ an operation ─▶ run queue (fair slots per tenant) ─▶ engine ─▶ store: committed ─▶ answer
//! ```
//!
//! - A dialect (`dialects`) is an HTTP API. The operations (`executions`, `sandboxes`, `storage`) know no dialect,
//!   and the handles that they share (`app_state`) know no operation.
//! - The outcome of a program is a 200 response. An error is about the request or the server, and its code
//!   comes from a closed list.
//! - Another tenant's id answers exactly like an unknown id.
//! - If a waiting client disconnects, its execution is canceled.
//! - Everything is bounded: connections, bodies, queues, running work, and how long a client may be slow.

mod app_state;
mod audit;
mod authentication;
mod body_memory;
mod check_workers;
mod closed_tenants;
mod connection;
mod connections;
mod dialects;
mod error;
mod executions;
mod fair_share;
mod health;
mod http;
mod last_answer;
mod listeners;
mod metrics;
mod mismatches;
mod profiles;
mod provider_registry;
mod resource_need;
mod retention_trigger;
mod revocation;
mod routes;
mod run_queue;
mod sandboxes;
mod serve;
mod settings;
mod share_pool;
mod startup;
mod storage;
mod streams;
mod tenant_deletion;
mod tenant_usage;
mod tls;
mod tool_backend;
mod trace;
mod uncancellable;

pub use app_state::AppState;
pub use dialects::v1::document;
pub use error::{Code, Error};
pub use listeners::{DialectListener, Listeners};
pub use provider_registry::{InitialProviderConfig, InitialProviders};
pub use serve::run;
pub use settings::Settings;
pub use share_pool::ShareKind;
pub use startup::{AdminKey, FirstKey, prepare};
pub use tls::Tls;
pub use trace::TraceCollector;
