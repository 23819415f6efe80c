//! Tests of the server over real sockets. A fake provider interprets small scripts, so that the service
//! itself is under test; the tests of the command line run the real binary with real sandboxes.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod abuse;
mod admin;
mod artifacts;
mod attacks;
mod catalog;
mod client;
mod code_checks;
mod dialects;
mod docs;
mod drain;
mod executions;
mod fair_shares;
mod fairness;
mod fake_places;
mod fake_provider;
mod harness;
mod inputs;
mod log;
mod metrics;
mod policy;
mod providers;
mod tenant_deletion;
mod tenant_usage;
mod tls;
mod traces;
mod volumes;
