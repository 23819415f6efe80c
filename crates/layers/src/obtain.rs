//! Obtains one layer of packages: resolves exact versions, then finds or installs the layer.

use std::time::Instant;

use belljar_analysis::imports::Registry;
use belljar_engine::packages::{Cache, PackageLayer, PackagesError, Progress};

use crate::library::{Library, Ready};
use crate::order::{Order, Resolved};
use crate::shelf::{Origin, Package};

impl Library {
    /// Mounts the layer with exactly these packages; installs it if it does not exist.
    pub(crate) async fn layer(
        &self,
        order: &Order<'_>,
        resolved: &Resolved,
        destination: &'static str,
        progress: &mut dyn Progress,
        ready: &mut Ready,
    ) -> Result<(), PackagesError> {
        let (shelf, started) = (self.shelf()?, Instant::now());
        let recipe = order.recipe(self.workshop(), resolved.packages.clone())?;
        let obtained = shelf
            .obtain(&self.layers, &recipe.key(), async {
                progress.at(&format!("installing {}", names(&resolved.packages)));
                let stage = shelf.stage()?;
                match order.registry {
                    Registry::Pypi => {
                        let install = self.install_python(shelf, order, resolved, stage.files(), progress);
                        Box::pin(install).await?;
                    }
                    Registry::Npm => {
                        order.install_npm(self.workshop(), resolved, stage.files()).await?;
                    }
                }
                Ok(shelf.publish(stage, recipe.clone()).await?)
            })
            .await?;
        let (separator, below) = match order.registry {
            Registry::Pypi => ("==", None),
            Registry::Npm => ("@", Some("node_modules")),
        };
        let files = obtained.held.files();
        let source = below.map_or_else(|| files.to_owned(), |below| files.join(below));
        let prepared = &mut ready.prepared;
        prepared.layers.push(PackageLayer { source, destination });
        prepared
            .packages
            .extend(resolved.packages.iter().map(|one| format!("{}{separator}{}", one.name, one.version)));
        self.tally.had(obtained.origin, started.elapsed());
        if obtained.origin == Origin::Built {
            self.workshop().tidy().await;
            (prepared.cache, prepared.install) = (Cache::Miss, prepared.install + started.elapsed());
        } else if prepared.cache == Cache::None {
            prepared.cache = Cache::Hit;
        }
        ready.habit = ready.habit.take().map(|habit| habit.with(&obtained.held.key()));
        ready.held.push(obtained.held);
        Ok(())
    }

    /// Resolves exact versions, from the cache or else from the registry. Concurrent callers share one
    /// resolution.
    pub(crate) async fn resolve(
        &self,
        order: &Order<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Resolved, PackagesError> {
        let shelf = self.shelf()?;
        let (question, ttl) = (order.digest(self.workshop())?, self.settings.ttl);
        if let Some(known) = shelf.resolution::<Resolved>(&question, ttl).await.filter(|known| known.fresh) {
            return Ok(known.value);
        }
        let work = async {
            let _turn = shelf.turn(&question).await?;
            let before = shelf.resolution::<Resolved>(&question, ttl).await;
            if let Some(known) = before.as_ref().filter(|known| known.fresh) {
                return Ok(known.value.clone());
            }
            match (self.ask_registry(order, progress).await, before) {
                (Ok(resolved), _) => {
                    shelf.remember(&question, &resolved).await?;
                    Ok(resolved)
                }
                // An outdated answer is better than none if the registry cannot be reached.
                (Err(PackagesError::Host(_)), Some(old)) => Ok(old.value),
                (Err(error), _) => Err(error),
            }
        };
        self.resolving.once(&question, work).await
    }

    /// Resolves exact versions from the registry.
    pub(crate) async fn ask_registry(
        &self,
        order: &Order<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Resolved, PackagesError> {
        let wanted: Vec<_> = order.question.requirements.iter().map(|(one, _)| one.as_str()).collect();
        progress.at(&format!("resolving {}", wanted.join(", ")));
        let shelf = self.shelf()?;
        match order.registry {
            Registry::Pypi => Box::pin(self.resolve_python(shelf, order, progress)).await,
            Registry::Npm => order.resolve_npm(self.workshop(), shelf).await,
        }
    }
}

fn names(packages: &[Package]) -> String {
    const SHOWN: usize = 6;
    let mut shown: Vec<_> =
        packages.iter().take(SHOWN).map(|one| format!("{} {}", one.name, one.version)).collect();
    if packages.len() > SHOWN {
        shown.push(format!("and {} more", packages.len() - SHOWN));
    }
    shown.join(", ")
}
