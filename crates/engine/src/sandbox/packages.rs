//! Packages of an open sandbox, which grow with the needs of the executions in it.
//!
//! ```text
//! needs of a task ─ without what the sandbox has ─▶ resolver ─▶ layers ─▶ SandboxHandle::attach_packages
//! ```
//!
//! A new layer contains the packages of the one whose place it takes, in the same versions: a program that runs
//! meanwhile finds what it found before.

use std::any::Any;
use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard};

use crate::package_layer::{NODE_MODULES, PackageLayer};
use crate::packages::ProvidedPackages;
use crate::provider::ProviderError;
use crate::sandbox_handle::{SandboxError, SandboxHandle};

/// How often packages can be added to one sandbox. Each time leaves mounts below the new ones.
const MAX_ADDITIONS: usize = 32;

/// The packages of an open sandbox.
#[derive(Debug, Default)]
pub struct SandboxPackages(Mutex<AttachedPackages>);

/// Packages and layers that are attached to a sandbox.
#[derive(Debug, Default)]
pub(super) struct AttachedPackages {
    /// Packages with versions.
    pub(super) packages: Vec<String>,
    layers: Vec<PackageLayer>,
    /// Keep the layers from being removed, also those below others.
    leases: Vec<Arc<dyn Any + Send + Sync>>,
    additions: usize,
}

impl From<&ProvidedPackages> for SandboxPackages {
    /// Creates the packages of a sandbox that was opened with these.
    fn from(provided: &ProvidedPackages) -> Self {
        let mut attached = AttachedPackages::default();
        attached.record(provided);
        Self(Mutex::new(attached))
    }
}

impl SandboxPackages {
    /// Locks the packages: they are added by one task at a time.
    pub(super) async fn lock(&self) -> MutexGuard<'_, AttachedPackages> {
        self.0.lock().await
    }

    /// Returns the packages with their versions; `None` while packages are being added.
    pub fn names(&self) -> Option<Vec<String>> {
        self.0.try_lock().ok().map(|attached| attached.packages.clone())
    }
}

impl AttachedPackages {
    /// Attaches the layers that the sandbox does not have yet.
    pub(super) async fn attach(
        &mut self,
        sandbox: &dyn SandboxHandle,
        provided: &ProvidedPackages,
    ) -> Result<(), SandboxError> {
        let layers: Vec<_> =
            provided.layers.iter().filter(|layer| !self.layers.contains(layer)).cloned().collect();
        if layers.is_empty() {
            return Ok(());
        }
        if !self.has_node_modules() && layers.iter().any(|layer| layer.destination == NODE_MODULES) {
            let message = "JavaScript packages can only be added to a sandbox that was created with one: \
                           sandbox create --dep npm:NAME";
            return Err(ProviderError::unsupported("dependencies.packages", message).into());
        }
        if self.additions >= MAX_ADDITIONS {
            let message = format!(
                "packages were added to this sandbox {MAX_ADDITIONS} times; open another, and name all of them"
            );
            return Err(ProviderError::unsupported("dependencies", message).into());
        }
        // Counted also if it fails, because some layers may be attached then.
        self.additions += 1;
        sandbox.attach_packages(&layers).await?;
        self.record(provided);
        Ok(())
    }

    /// Returns whether the sandbox has the mount point of JavaScript packages, because it was created with some.
    pub(super) fn has_node_modules(&self) -> bool {
        self.layers.iter().any(|layer| layer.destination == NODE_MODULES)
    }

    fn record(&mut self, provided: &ProvidedPackages) {
        let is_replaced =
            |known: &PackageLayer| provided.layers.iter().any(|new| new.destination == known.destination);
        self.layers.retain(|known| !is_replaced(known));
        self.layers.extend(provided.layers.iter().cloned());
        self.leases.extend(provided.lease.clone());
        self.packages.extend(provided.packages.iter().cloned());
        self.packages.sort();
        self.packages.dedup();
    }
}
