//! Makes packages available to runs without installing them for each run.
//!
//! ```text
//! Needs ─ requirements.rs ─▶ missing packages ─ resolve ─▶ versions, hashes ─ find ─▶ an existing layer
//!           imports, names, manifests               │                          └ install ─▶ a new layer
//!           minus the image's packages              └── runs of installer_sandbox.rs ──┘
//! ```
//!
//! - [`store`]: the layer store. Layers on disk are complete, verified and immutable.
//! - [`Library`]: implements the engine's `PackageResolver` port. Every installer runs in a sandbox, through
//!   the same provider as user code. Installer sandboxes have network access but never run code of packages.
//!   If a profile allows building packages (`build`), their code runs in a sandbox without network access.
//! - [`ProviderLibraries`]: one library for each provider, over the same layer store.

mod bootstrap_layer;
mod build;
mod explain;
mod go_library;
mod installer_sandbox;
mod interpreter;
mod javascript;
mod layer_request;
mod library;
mod metrics;
mod obtain;
mod preimport_stats;
mod profile_lock;
mod provider_libraries;
mod python;
mod python_layers;
mod registries;
mod request_lock;
mod requirements;
mod sources;
pub mod store;
mod tools;
mod ttl_cache;

pub use library::{FindInstallers, Library, Settings};
pub use profile_lock::LockChange;
pub use provider_libraries::ProviderLibraries;
pub use registries::PackageRegistries;
pub use tools::{InstallerTool, InstallerTools};
