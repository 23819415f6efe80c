//! Makes packages available to runs without installing them for each run.
//!
//! ```text
//! Needs ─ requirements.rs ─▶ missing packages ─ resolve ─▶ versions, hashes ─ find ─▶ an existing layer
//!           imports, names, manifests               │                          └ install ─▶ a new layer
//!           minus the image's packages              └── runs of installer_sandbox.rs ──┘
//! ```
//!
//! - [`shelf`]: the layer store. Layers on disk are complete, verified and immutable.
//! - [`Library`]: implements the engine's `Packages` port. Every installer runs in a sandbox, through the
//!   same provider as user code. Installer sandboxes have network access but never run code of packages. If a
//!   profile allows building packages (`build`), their code runs in a sandbox without network access.

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
