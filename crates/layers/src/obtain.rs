//! Obtains one layer of packages: resolves exact versions, then finds or installs the layer.

use std::time::Instant;

use belljar_analysis::imports::PackageRegistry;
use belljar_engine::packages::{CacheResult, PackageLayer, PackagesError, Progress};

use crate::layer_request::{LayerRequest, ResolvedPackages};
use crate::library::{Library, PreparedPackages};
use crate::store::{ExactPackage, LayerOrigin};

impl Library {
    /// Mounts the layer with exactly these packages; installs it if it does not exist.
    pub(crate) async fn layer(
        &self,
        order: &LayerRequest<'_>,
        resolved: &ResolvedPackages,
        destination: &'static str,
        progress: &mut dyn Progress,
        ready: &mut PreparedPackages,
    ) -> Result<(), PackagesError> {
        let (shelf, started) = (self.store()?, Instant::now());
        let recipe = order.recipe(self.installer_sandbox(), resolved.packages.clone())?;
        let obtained = shelf
            .obtain(&self.layers, &recipe.key(), async {
                progress.report(&format!("installing {}", names(&resolved.packages)));
                let stage = shelf.stage()?;
                match order.registry {
                    PackageRegistry::Pypi => {
                        let install = self.install_python(shelf, order, resolved, stage.files(), progress);
                        Box::pin(install).await?;
                    }
                    PackageRegistry::Npm => {
                        order.install_npm(self.installer_sandbox(), resolved, stage.files()).await?;
                    }
                }
                Ok(shelf.publish(stage, recipe.clone()).await?)
            })
            .await?;
        let (separator, below) = match order.registry {
            PackageRegistry::Pypi => ("==", None),
            PackageRegistry::Npm => ("@", Some("node_modules")),
        };
        let files = obtained.layer.files();
        let source = below.map_or_else(|| files.to_owned(), |below| files.join(below));
        let prepared = &mut ready.prepared;
        prepared.layers.push(PackageLayer { source, destination });
        prepared
            .packages
            .extend(resolved.packages.iter().map(|one| format!("{}{separator}{}", one.name, one.version)));
        self.counters.count_layer(obtained.origin, started.elapsed());
        if obtained.origin == LayerOrigin::Built {
            self.installer_sandbox().trim_caches().await;
            (prepared.cache, prepared.install_time) =
                (CacheResult::Miss, prepared.install_time + started.elapsed());
        } else if prepared.cache == CacheResult::None {
            prepared.cache = CacheResult::Hit;
        }
        ready.import_pattern =
            ready.import_pattern.take().map(|habit| habit.with_layer(&obtained.layer.key()));
        ready.held.push(obtained.layer);
        Ok(())
    }

    /// Resolves exact versions, from the cache or else from the registry. Concurrent callers share one
    /// resolution.
    pub(crate) async fn resolve(
        &self,
        order: &LayerRequest<'_>,
        progress: &mut dyn Progress,
    ) -> Result<ResolvedPackages, PackagesError> {
        let shelf = self.store()?;
        let (question, ttl) = (order.digest(self.installer_sandbox())?, self.settings.ttl);
        if let Some(known) =
            shelf.resolution::<ResolvedPackages>(&question, ttl).await.filter(|known| known.fresh)
        {
            return Ok(known.value);
        }
        let work = async {
            let _turn = shelf.lock_work(&question).await?;
            let before = shelf.resolution::<ResolvedPackages>(&question, ttl).await;
            if let Some(known) = before.as_ref().filter(|known| known.fresh) {
                return Ok(known.value.clone());
            }
            match (self.ask_registry(order, progress).await, before) {
                (Ok(resolved), _) => {
                    shelf.store_resolution(&question, &resolved).await?;
                    Ok(resolved)
                }
                // An outdated answer is better than none if the registry cannot be reached.
                (Err(PackagesError::Host(_)), Some(old)) => Ok(old.value),
                (Err(error), _) => Err(error),
            }
        };
        self.resolving.run(&question, work).await
    }

    /// Resolves exact versions from the registry.
    pub(crate) async fn ask_registry(
        &self,
        order: &LayerRequest<'_>,
        progress: &mut dyn Progress,
    ) -> Result<ResolvedPackages, PackagesError> {
        let wanted: Vec<_> = order.requirements.requirements.iter().map(|(one, _)| one.as_str()).collect();
        progress.report(&format!("resolving {}", wanted.join(", ")));
        let shelf = self.store()?;
        match order.registry {
            PackageRegistry::Pypi => Box::pin(self.resolve_python(shelf, order, progress)).await,
            PackageRegistry::Npm => order.resolve_npm(self.installer_sandbox(), shelf).await,
        }
    }
}

fn names(packages: &[ExactPackage]) -> String {
    const SHOWN: usize = 6;
    let mut shown: Vec<_> =
        packages.iter().take(SHOWN).map(|one| format!("{} {}", one.name, one.version)).collect();
    if packages.len() > SHOWN {
        shown.push(format!("and {} more", packages.len() - SHOWN));
    }
    shown.join(", ")
}
