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
        request: &LayerRequest<'_>,
        resolved: &ResolvedPackages,
        destination: &'static str,
        progress: &mut dyn Progress,
        ready: &mut PreparedPackages,
    ) -> Result<(), PackagesError> {
        let (store, started) = (self.store()?, Instant::now());
        let recipe = request.recipe(self.installer_sandbox(), resolved.packages.clone())?;
        let obtained = store
            .obtain(&self.layers, &recipe.key(), async {
                progress.report(&format!("installing {}", names(&resolved.packages)));
                let stage = store.stage()?;
                match request.registry {
                    PackageRegistry::Pypi => {
                        let install = self.install_python(store, request, resolved, stage.files(), progress);
                        Box::pin(install).await?;
                    }
                    PackageRegistry::Npm => {
                        request.install_npm(self.installer_sandbox(), resolved, stage.files()).await?;
                    }
                }
                Ok(store.publish(stage, recipe.clone()).await?)
            })
            .await?;
        let (separator, below) = match request.registry {
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
            ready.import_pattern.take().map(|pattern| pattern.with_layer(&obtained.layer.key()));
        ready.held.push(obtained.layer);
        Ok(())
    }

    /// Resolves exact versions, from the cache or else from the registry. Concurrent callers share one
    /// resolution.
    pub(crate) async fn resolve(
        &self,
        request: &LayerRequest<'_>,
        progress: &mut dyn Progress,
    ) -> Result<ResolvedPackages, PackagesError> {
        let store = self.store()?;
        let (digest, ttl) = (request.digest(self.installer_sandbox())?, self.settings.ttl);
        if let Some(known) =
            store.resolution::<ResolvedPackages>(&digest, ttl).await.filter(|known| known.fresh)
        {
            return Ok(known.value);
        }
        let work = async {
            let _turn = store.lock_work(&digest).await?;
            let before = store.resolution::<ResolvedPackages>(&digest, ttl).await;
            if let Some(known) = before.as_ref().filter(|known| known.fresh) {
                return Ok(known.value.clone());
            }
            match (self.ask_registry(request, progress).await, before) {
                (Ok(resolved), _) => {
                    store.store_resolution(&digest, &resolved).await?;
                    Ok(resolved)
                }
                // An outdated answer is better than none if the registry cannot be reached.
                (Err(PackagesError::Host(_)), Some(old)) => Ok(old.value),
                (Err(error), _) => Err(error),
            }
        };
        self.resolving.run(&digest, work).await
    }

    /// Resolves exact versions from the registry.
    pub(crate) async fn ask_registry(
        &self,
        request: &LayerRequest<'_>,
        progress: &mut dyn Progress,
    ) -> Result<ResolvedPackages, PackagesError> {
        let wanted: Vec<_> = request.requirements.requirements.iter().map(|(one, _)| one.as_str()).collect();
        progress.report(&format!("resolving {}", wanted.join(", ")));
        let store = self.store()?;
        match request.registry {
            PackageRegistry::Pypi => Box::pin(self.resolve_python(store, request, progress)).await,
            PackageRegistry::Npm => request.resolve_npm(self.installer_sandbox(), store).await,
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
