//! Packages made available to runs, without an install at each of them.
//!
//! ```text
//! Needs ─ question.rs ─▶ what is missing ─ resolve ─▶ exact versions and hashes ─ shelf ─▶ a layer that is there
//!            imports, names, manifests        │                                    └ install ─▶ a new one
//!            minus what the image has         └────── executions: workshop.rs by python/, javascript/ ─────┘
//! ```
//!
//! - [`shelf`]: layers on disk. What is on the shelf is whole, verified and never changes.
//! - [`Library`]: the port of the engine. Everything that an installer does happens in a sandbox, through the same provider
//!   as everybody's code: with network, and without any package's code; or, where a profile lets packages be built (`build`),
//!   with their code, and without network.

mod build;
mod explain;
mod interpreter;
mod javascript;
mod library;
mod locked;
mod memo;
mod obtain;
mod order;
mod popular;
mod profile_lock;
mod python;
mod python_layers;
mod question;
mod registries;
pub mod shelf;
mod site;
mod sources;
mod tally;
mod tools;
mod workshop;

pub use library::{Equip, Library, Settings};
pub use profile_lock::LockChange;
pub use registries::Registries;
pub use tools::{Tool, Tools};
