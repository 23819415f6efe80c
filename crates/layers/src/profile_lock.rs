//! Profile locks: the exact versions and hashes that a profile's package list resolved to.
//!
//! A lock is derived from the profile's list alone and stays until the operator renews it: it does not
//! expire, and no request changes it. Its name is a hash of the list, the registry, the Python version and
//! the platform, so a profile with a different list has a different lock.
//!
//! ```text
//! LAYERS/locks/DIGEST.json
//! ```

use std::path::Path;

use belljar_analysis::imports::PackageRegistry;
use belljar_beneath::{ContentDigest, FolderError, StoreFolder, random_name};
use belljar_engine::packages::{PYTHON_PROFILE_LAYER, PackageNeeds, PackagesError, Progress};
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};

use crate::layer_request::{LayerRequest, ResolvedPackages};
use crate::library::{Library, PreparedPackages};
use crate::requirements;
use crate::store::{ExactPackage, LayerScope, LayerStoreError};

const MAX_LOCK_BYTES: u64 = 4 << 20;

/// The lock file. All fields but `resolved` are for people.
#[derive(Debug, Serialize, Deserialize)]
struct ProfileLock {
    requirements: Vec<String>,
    registry: String,
    interpreter: String,
    platform: String,
    resolved: ResolvedPackages,
}

/// The result of creating or renewing a lock.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LockChange {
    /// The packages of the previous lock, if there was one.
    pub before: Vec<ExactPackage>,
    /// The packages of the current lock.
    pub now: Vec<ExactPackage>,
}

impl Library {
    /// Returns a profile's locked packages. The first use creates the lock, from the profile's list alone.
    pub(crate) async fn locked_packages(
        &self,
        request: &LayerRequest<'_>,
        progress: &mut dyn Progress,
    ) -> Result<ResolvedPackages, PackagesError> {
        let digest = lock_digest(self, request);
        if let Some(lock) = read(&self.settings.folder, &digest)? {
            return Ok(lock);
        }
        let work = async {
            let _turn = self.store()?.lock_work(&digest).await?;
            match read(&self.settings.folder, &digest)? {
                Some(lock) => Ok(lock),
                None => self.make_lock(request, &digest, progress).await,
            }
        };
        self.resolving.run(&digest, work).await
    }

    async fn make_lock(
        &self,
        request: &LayerRequest<'_>,
        digest: &ContentDigest,
        progress: &mut dyn Progress,
    ) -> Result<ResolvedPackages, PackagesError> {
        let resolved = self.ask_registry(request, progress).await?;
        let lock = ProfileLock {
            requirements: request.requirements.requirements.iter().map(|(text, _)| text.clone()).collect(),
            registry: self.installer_sandbox().registries.python().to_owned(),
            interpreter: request.interpreter.name.clone(),
            platform: request.interpreter.platform.clone(),
            resolved,
        };
        write(&self.settings.folder, digest, &lock)?;
        Ok(lock.resolved)
    }

    /// Locks a profile's packages (`needs.standing`) and installs them. `upgrade` resolves them again even if
    /// a lock exists.
    ///
    /// # Errors
    /// Returns why the packages cannot be resolved or installed. The previous lock then stays.
    pub async fn lock_profile(
        &self,
        needs: PackageNeeds<'_>,
        upgrade: bool,
        progress: &mut dyn Progress,
    ) -> Result<LockChange, PackagesError> {
        let named = requirements::parse_named(&needs, true)?;
        if named.profile.is_empty() {
            return Ok(LockChange::default());
        }
        let interpreter = self.interpreter(&needs, PackageRegistry::Pypi).await?;
        let package_requirements = self.profile_requirements(&needs, &named.profile, &interpreter)?;
        if package_requirements.requirements.is_empty() {
            return Ok(LockChange::default());
        }
        let request = LayerRequest {
            needs: &needs,
            registry: PackageRegistry::Pypi,
            interpreter: &interpreter,
            requirements: &package_requirements,
            scope: LayerScope::Shared,
            constraints: &[],
        };
        let digest = lock_digest(self, &request);
        let before = read(&self.settings.folder, &digest)?;
        let resolved = match (&before, upgrade) {
            (Some(lock), false) => lock.clone(),
            _ => {
                let _turn = self.store()?.lock_work(&digest).await?;
                self.make_lock(&request, &digest, progress).await?
            }
        };
        let before = before.map(|lock| lock.packages).unwrap_or_default();
        self.layer(&request, &resolved, PYTHON_PROFILE_LAYER, progress, &mut PreparedPackages::default())
            .await?;
        Ok(LockChange { before, now: resolved.packages })
    }
}

fn lock_digest(library: &Library, request: &LayerRequest<'_>) -> ContentDigest {
    let mut parts = vec![
        library.installer_sandbox().registries.python().to_owned(),
        request.interpreter.name.clone(),
        request.interpreter.platform.clone(),
        request.image_ties().join("\n"),
    ];
    for (requirement, hashes) in &request.requirements.requirements {
        parts.extend([requirement.clone(), hashes.join(" ")]);
    }
    ContentDigest::from_parts("belljar profile lock 1", parts)
}

fn folder(layers: &Path) -> Result<StoreFolder, FolderError> {
    StoreFolder::open_top(layers)?.open_or_create("locks")
}

/// Reads a lock. An unreadable lock is an error: creating another one would renew it without the operator.
fn read(layers: &Path, digest: &ContentDigest) -> Result<Option<ResolvedPackages>, PackagesError> {
    let name = format!("{digest}.json");
    let text = folder(layers).and_then(|folder| folder.read(&name, MAX_LOCK_BYTES));
    let Some(text) = text.map_err(LayerStoreError::from)? else { return Ok(None) };
    let lock: ProfileLock = serde_json::from_slice(&text).map_err(|error| {
        PackagesError::Host(format!(
            "the profile's lock {name} cannot be read ({error}); remove it, and run: belljar deps lock"
        ))
    })?;
    Ok(Some(lock.resolved))
}

fn write(layers: &Path, digest: &ContentDigest, lock: &ProfileLock) -> Result<(), PackagesError> {
    let text = serde_json::to_vec_pretty(lock).map_err(|error| PackagesError::Host(error.to_string()))?;
    Ok(write_text(layers, &format!("{digest}.json"), &text).map_err(LayerStoreError::from)?)
}

fn write_text(layers: &Path, name: &str, text: &[u8]) -> Result<(), FolderError> {
    let (folder, half) = (folder(layers)?, random_name()?);
    folder.write(&half, text, Mode::RUSR | Mode::WUSR)?;
    let moved = rustix::fs::renameat(&folder, &half, &folder, name);
    moved.map_err(|errno| folder.error("write", name, errno))
}
