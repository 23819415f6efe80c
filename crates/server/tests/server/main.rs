//! Drives the server over real sockets. Programs are played by a provider that understands a few words, so that what is
//! tried here is the service; the command line's tests drive the real binary with real sandboxes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod abuse;
mod admin;
mod attacks;
mod catalog;
mod client;
mod docs;
mod drain;
mod executions;
mod fair_shares;
mod fairness;
mod log;
mod metrics;
mod place;
mod player;
mod policy;
mod providers;
mod reading;
mod shelf;
mod tls;
mod traces;
mod volumes;
