//! What all dialects share of HTTP: keys, bodies, errors, events, downloads, and the middleware around them.

pub(crate) mod body;
pub(crate) mod callers;
pub(crate) mod dialect;
pub(crate) mod download;
pub(crate) mod events;
pub(crate) mod middleware;
pub(crate) mod problem;
pub(crate) mod query;
pub(crate) mod range;
pub(crate) mod request_id;
pub(crate) mod utf8;
