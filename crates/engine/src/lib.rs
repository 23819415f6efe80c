//! Core types, and the pipeline that turns a request into a report.
//!
//! ```text
//! Request → admit → AdmittedRequest → PackageResolver::prepare → Plan + Task
//!         → Provider::run(plan, task, sink) → Outcome → Report
//! ```
//!
//! A long-lived sandbox is opened once and used many times: [`sandbox`] has the requests, [`sandbox_handle`]
//! the port.
//!
//! Each stage is a type that only the previous stage can create: [`plan::Plan`] and [`plan::Task`] are
//! `#[non_exhaustive]`, so no other crate can build one. This crate touches memory only: disk, network and
//! processes are behind the ports in [`provider`].

pub mod admit;
pub mod batch;
mod capture;
pub mod catalog;
pub mod defaults;
mod error;
pub mod explain;
pub mod host_storage;
pub mod images;
pub mod inputs;
pub mod json;
pub mod language;
pub mod limits;
pub mod network;
mod package_layer;
pub mod packages;
mod pipeline;
pub mod plan;
pub mod policy;
pub mod profile;
pub mod provider;
pub mod provider_set;
pub mod quantity;
pub mod report;
pub mod request;
pub mod sandbox;
pub mod sandbox_handle;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use belljar_model::{artifact, finding, gpus, json_text, layer, outcome, schema, tun, warm};
pub use capture::Capture;
pub use error::{Error, ErrorCode, Fault};
pub use pipeline::{Engine, TenantRules};
