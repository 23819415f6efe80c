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

use belljar_analysis::imports::Registry;
use belljar_engine::packages::{Needs, PYTHON_PROFILE, PackagesError, Progress};
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};

use crate::library::{Library, Ready};
use crate::order::{Order, Resolved};
use crate::question;
use crate::shelf::{Digest, Folder, Package, Scope, ShelfError, random_name};

const MAX_BYTES: u64 = 4 << 20;

/// The lock file. All fields but `resolved` are for people.
#[derive(Debug, Serialize, Deserialize)]
struct Lock {
    requirements: Vec<String>,
    registry: String,
    interpreter: String,
    platform: String,
    resolved: Resolved,
}

/// The result of creating or renewing a lock.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LockChange {
    /// The packages of the previous lock, if there was one.
    pub before: Vec<Package>,
    /// The packages of the current lock.
    pub now: Vec<Package>,
}

impl Library {
    /// Returns a profile's locked packages. The first use creates the lock, from the profile's list alone.
    pub(crate) async fn locked(
        &self,
        order: &Order<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Resolved, PackagesError> {
        let digest = lock_digest(self, order);
        if let Some(lock) = read(&self.settings.folder, &digest)? {
            return Ok(lock);
        }
        let work = async {
            let _turn = self.shelf()?.turn(&digest).await?;
            match read(&self.settings.folder, &digest)? {
                Some(lock) => Ok(lock),
                None => self.make_lock(order, &digest, progress).await,
            }
        };
        self.resolving.once(&digest, work).await
    }

    async fn make_lock(
        &self,
        order: &Order<'_>,
        digest: &Digest,
        progress: &mut dyn Progress,
    ) -> Result<Resolved, PackagesError> {
        let resolved = self.ask_registry(order, progress).await?;
        let lock = Lock {
            requirements: order.question.requirements.iter().map(|(text, _)| text.clone()).collect(),
            registry: self.workshop().registries.python().to_owned(),
            interpreter: order.interpreter.name.clone(),
            platform: order.interpreter.platform.clone(),
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
        needs: Needs<'_>,
        upgrade: bool,
        progress: &mut dyn Progress,
    ) -> Result<LockChange, PackagesError> {
        let named = question::named(&needs, true)?;
        if named.profile.is_empty() {
            return Ok(LockChange::default());
        }
        let interpreter = self.interpreter(&needs, Registry::Pypi).await?;
        let question = self.profile_question(&needs, &named.profile, &interpreter)?;
        if question.requirements.is_empty() {
            return Ok(LockChange::default());
        }
        let order = Order {
            needs: &needs,
            registry: Registry::Pypi,
            interpreter: &interpreter,
            question: &question,
            scope: Scope::Shared,
            constraints: &[],
        };
        let digest = lock_digest(self, &order);
        let before = read(&self.settings.folder, &digest)?;
        let resolved = match (&before, upgrade) {
            (Some(lock), false) => lock.clone(),
            _ => {
                let _turn = self.shelf()?.turn(&digest).await?;
                self.make_lock(&order, &digest, progress).await?
            }
        };
        let before = before.map(|lock| lock.packages).unwrap_or_default();
        self.layer(&order, &resolved, PYTHON_PROFILE, progress, &mut Ready::default()).await?;
        Ok(LockChange { before, now: resolved.packages })
    }
}

fn lock_digest(library: &Library, order: &Order<'_>) -> Digest {
    let mut parts = vec![
        library.workshop().registries.python().to_owned(),
        order.interpreter.name.clone(),
        order.interpreter.platform.clone(),
        order.whereabouts().join("\n"),
    ];
    for (requirement, hashes) in &order.question.requirements {
        parts.extend([requirement.clone(), hashes.join(" ")]);
    }
    Digest::of("belljar profile lock 1", parts)
}

fn folder(layers: &Path) -> Result<Folder, ShelfError> {
    Folder::top(layers)?.child("locks")
}

/// Reads a lock. An unreadable lock is an error: creating another one would renew it without the operator.
fn read(layers: &Path, digest: &Digest) -> Result<Option<Resolved>, PackagesError> {
    let name = format!("{digest}.json");
    let Some(text) = folder(layers)?.read(&name, MAX_BYTES)? else { return Ok(None) };
    let lock: Lock = serde_json::from_slice(&text).map_err(|error| {
        PackagesError::Host(format!(
            "the profile's lock {name} cannot be read ({error}); remove it, and run: belljar deps lock"
        ))
    })?;
    Ok(Some(lock.resolved))
}

fn write(layers: &Path, digest: &Digest, lock: &Lock) -> Result<(), PackagesError> {
    let text = serde_json::to_vec_pretty(lock).map_err(|error| PackagesError::Host(error.to_string()))?;
    let (folder, half, name) = (folder(layers)?, random_name()?, format!("{digest}.json"));
    folder.write(&half, &text, Mode::RUSR | Mode::WUSR)?;
    let moved = rustix::fs::renameat(&folder, &half, &folder, &name);
    Ok(moved.map_err(|errno| folder.failed("write", &name, errno))?)
}
