//! Python sets with packages that only exist as sources. They are found by trying, and built if that is
//! allowed.
//!
//! ```text
//! resolve ─▶ no wheel of x ─▶ list x's sources, offer an empty wheel of each ─▶ resolve ─▶ chooses x 1.2
//!    ▲                                                                                            │
//!    └──────────── offer the wheel of x 1.2 instead, with its dependencies ◀── build it ◀─────────┘
//! ```
//!
//! A built wheel is a layer of its own, keyed by the hash of its sources, so it is built once.
//!
//! The empty wheels let the installer choose a version by its own rules. No step has both code of packages
//! and a network (see `installer_sandbox`).

use std::path::PathBuf;

use belljar_engine::packages::{PackageNeeds, PackagesError, Progress};

use crate::build::{SourceArchive, build_failed};
use crate::layer_request::{LayerRequest, ResolvedPackages};
use crate::library::Library;
use crate::python::{LocalWheels, MissingWheel, ResolveOutcome};
use crate::request_lock::constraints;
use crate::store::{ExactPackage, LayerLease, LayerRecipe, LayerStore, StagedLayer};

/// Maximum number of packages of one set that are built.
const MAX_BUILT: usize = 16;

/// A built wheel.
#[derive(Debug)]
struct BuiltWheel {
    sources: SourceArchive,
    held: LayerLease,
    hash: String,
}

/// The versions among which the installer chooses.
#[derive(Debug)]
struct SourceChoice {
    sources: Vec<SourceArchive>,
    stage: StagedLayer,
}

/// Wheels and placeholder wheels offered in addition to the registry.
#[derive(Debug, Default)]
struct LocalBuilds {
    wheels: Vec<BuiltWheel>,
    choices: Vec<(String, SourceChoice)>,
}

impl LocalBuilds {
    fn knows(&self, name: &str) -> bool {
        self.wheels.iter().any(|wheel| wheel.sources.name == name)
            || self.choices.iter().any(|(known, _)| known == name)
    }

    fn folders(&self) -> Vec<PathBuf> {
        let wheels = self.wheels.iter().map(|wheel| wheel.held.files().to_owned());
        wheels.chain(self.choices.iter().map(|(_, choice)| choice.stage.files().to_owned())).collect()
    }

    /// Returns the placeholders that the installer selected, and removes them from the choices.
    fn take_chosen(&mut self, packages: &[ExactPackage]) -> Vec<SourceArchive> {
        let mut chosen = Vec::new();
        for package in packages {
            let among = |(_, choice): &(String, SourceChoice)| {
                choice
                    .sources
                    .iter()
                    .find(|one| has_name(package, &one.name) && one.version == package.version)
                    .cloned()
            };
            let Some(sources) = self.choices.iter().find_map(among) else { continue };
            self.choices.retain(|(name, _)| *name != sources.name);
            chosen.push(sources);
        }
        chosen
    }
}

impl Library {
    /// Resolves exact versions of a set from the registry.
    pub(crate) async fn resolve_python(
        &self,
        store: &LayerStore,
        request: &LayerRequest<'_>,
        progress: &mut dyn Progress,
    ) -> Result<ResolvedPackages, PackagesError> {
        let (mut beside, mut offer, mut cache) = (LocalBuilds::default(), None, None);
        // Each round but the last builds a wheel or adds choices.
        for _ in 0..=2 * MAX_BUILT {
            let python = request.python(self.installer_sandbox(), offer.as_ref());
            let constraints = constraints(request.requirements.lock.as_ref(), request.constraints);
            match python.resolve(&beside.requirements(request), &constraints).await? {
                ResolveOutcome::Resolved(packages) => {
                    let chosen = beside.take_chosen(&packages);
                    if chosen.is_empty() {
                        let resolved = beside.resolved(request, packages)?;
                        let packages = request.apply_lock(resolved.packages)?;
                        return Ok(ResolvedPackages { packages, ..resolved });
                    }
                    for sources in chosen {
                        request.check_hash(&sources)?;
                        beside.wheels.push(self.wheel(store, request, sources, progress).await?);
                    }
                }
                ResolveOutcome::MissingWheels { names, why } => {
                    self.offer_choices(store, request, &mut beside, names, why).await?;
                }
            }
            // uv's cache of one round's wheels is wrong for the next round, so each round has its own.
            let stage = cache.insert(store.stage()?);
            offer = Some(LocalWheels { folders: beside.folders(), cache: stage.files().to_owned() });
        }
        Err(PackagesError::BuildFailed(format!("more than {MAX_BUILT} packages must be built from source")))
    }

    /// Lists sources of packages without a wheel. Fails if there are no new ones, or if building is not
    /// allowed.
    async fn offer_choices(
        &self,
        store: &LayerStore,
        request: &LayerRequest<'_>,
        beside: &mut LocalBuilds,
        names: Vec<MissingWheel>,
        why: PackagesError,
    ) -> Result<(), PackagesError> {
        let before = beside.choices.len();
        for MissingWheel { name, is_explicit: is_said } in names {
            if beside.knows(&name) || beside.wheels.len() + beside.choices.len() >= MAX_BUILT {
                continue;
            }
            let stage = store.stage()?;
            let listed = request.python(self.installer_sandbox(), None).sources(&name, stage.files()).await?;
            if listed.sources.is_empty() || (listed.has_wheels && !is_said) {
                continue;
            }
            if !request.needs.allow_build {
                return Err(PackagesError::Unresolvable(format!(
                    "'{name}' has no wheel for this interpreter, only sources, which must be built: name a \
                     version that has a wheel, or use a profile with build_packages = true"
                )));
            }
            beside.choices.push((name, SourceChoice { sources: listed.sources, stage }));
        }
        if beside.choices.len() == before { Err(why) } else { Ok(()) }
    }

    /// Installs a set into a folder. Rebuilds wheels that no longer exist.
    pub(crate) async fn install_python(
        &self,
        store: &LayerStore,
        request: &LayerRequest<'_>,
        resolved: &ResolvedPackages,
        folder: &std::path::Path,
        progress: &mut dyn Progress,
    ) -> Result<(), PackagesError> {
        if resolved.built.is_empty() {
            return request.python(self.installer_sandbox(), None).install(&resolved.packages, folder).await;
        }
        let (mut packages, mut beside) = (resolved.packages.clone(), LocalBuilds::default());
        for sources in &resolved.built {
            let wheel = self.wheel(store, request, sources.clone(), progress).await?;
            for package in packages.iter_mut().filter(|package| has_name(package, &sources.name)) {
                package.hashes = vec![wheel.hash.clone()];
            }
            beside.wheels.push(wheel);
        }
        let cache = store.stage()?;
        let offer = LocalWheels { folders: beside.folders(), cache: cache.files().to_owned() };
        request.python(self.installer_sandbox(), Some(&offer)).install(&packages, folder).await
    }

    /// Returns the wheel of these sources; builds it if it does not exist.
    async fn wheel(
        &self,
        store: &LayerStore,
        request: &LayerRequest<'_>,
        sources: SourceArchive,
        progress: &mut dyn Progress,
    ) -> Result<BuiltWheel, PackagesError> {
        let mut recipe = request.recipe(self.installer_sandbox(), vec![package(&sources)])?;
        recipe.options.push("wheel".to_owned());
        let build = async {
            progress.report(&format!("building {} {}", sources.name, sources.version));
            Box::pin(self.build(store, request, &sources, recipe.clone())).await
        };
        let held = store.obtain(&self.layers, &recipe.key(), build).await?.layer;
        let hash = request.python(self.installer_sandbox(), None).hash(held.files()).await?;
        Ok(BuiltWheel { sources, held, hash })
    }

    async fn build(
        &self,
        store: &LayerStore,
        request: &LayerRequest<'_>,
        sources: &SourceArchive,
        recipe: LayerRecipe,
    ) -> Result<LayerLease, PackagesError> {
        let (python, stage) = (request.python(self.installer_sandbox(), None), store.stage()?);
        let system = python.fetch_and_unpack(sources, stage.files()).await?;
        let mut build_layer =
            self.build_requirements_layer(store, request, sources, &system.requires).await?;
        let more = python.dynamic_requirements(sources, &system, build_layer.as_ref(), stage.files()).await?;
        if more.iter().any(|one| !system.requires.contains(one)) {
            let all = [&system.requires[..], &more].concat();
            build_layer = self.build_requirements_layer(store, request, sources, &all).await?;
        }
        python.wheel(sources, &system, build_layer.as_ref(), stage.files()).await?;
        // The build's code could write to its stage until now, so the wheel is copied to a clean one.
        let clean = store.stage()?;
        python.copy_wheel(sources, stage.files(), clean.files()).await?;
        Ok(store.publish(clean, recipe).await?)
    }

    /// Returns a layer with the build requirements: an ordinary layer, made from wheels only.
    async fn build_requirements_layer(
        &self,
        store: &LayerStore,
        request: &LayerRequest<'_>,
        sources: &SourceArchive,
        requires: &[String],
    ) -> Result<Option<LayerLease>, PackagesError> {
        if requires.is_empty() {
            return Ok(None);
        }
        let needs = PackageNeeds { allow_build: false, ..*request.needs };
        let request =
            LayerRequest { needs: &needs, scope: request.scope.clone(), constraints: &[], ..*request };
        let python = request.python(self.installer_sandbox(), None);
        let asked: Vec<_> = requires.iter().map(|one| (one.clone(), Vec::new())).collect();
        let needed = |why: &PackagesError| {
            let why = why.to_string();
            let why = why.strip_prefix("dependencies: ").unwrap_or(&why);
            build_failed(sources, &format!("its build requirements cannot be installed: {why}"))
        };
        let packages = match python.resolve(&asked, "").await {
            Ok(ResolveOutcome::Resolved(packages)) => packages,
            Ok(ResolveOutcome::MissingWheels { why, .. }) | Err(why @ PackagesError::Unresolvable(_)) => {
                return Err(needed(&why));
            }
            Err(error) => return Err(error),
        };
        let recipe = request.recipe(self.installer_sandbox(), packages.clone())?;
        let install = async {
            let stage = store.stage()?;
            python.install(&packages, stage.files()).await?;
            Ok(store.publish(stage, recipe.clone()).await?)
        };
        Ok(Some(store.obtain(&self.layers, &recipe.key(), install).await?.layer))
    }
}

impl LocalBuilds {
    /// Returns the requirements. Stated hashes of a built package are those of its sources, which no wheel
    /// has.
    fn requirements(&self, request: &LayerRequest<'_>) -> Vec<(String, Vec<String>)> {
        let asked = request.requirements.requirements.iter().map(|(text, hashes)| {
            let known = crate::layer_request::python_name(text).is_some_and(|name| self.knows(&name));
            (text.clone(), if known { Vec::new() } else { hashes.clone() })
        });
        asked.collect()
    }

    /// Pins built packages by their sources. Drops builds that are not part of the result.
    fn resolved(
        self,
        request: &LayerRequest<'_>,
        mut packages: Vec<ExactPackage>,
    ) -> Result<ResolvedPackages, PackagesError> {
        let mut built = Vec::new();
        for found in &mut packages {
            let own = self.wheels.iter().find(|wheel| has_name(found, &wheel.sources.name));
            match own {
                Some(wheel) if found.hashes.contains(&wheel.hash) => {
                    *found = package(&wheel.sources);
                    built.push(wheel.sources.clone());
                }
                _ => {
                    // Offered packages were requested without their hashes, so the hashes are checked here.
                    let name = crate::layer_request::python_name(&found.name).filter(|name| self.knows(name));
                    name.map_or(Ok(()), |name| request.restrict_hashes(found, &name))?;
                }
            }
        }
        Ok(ResolvedPackages { packages, lock: None, built })
    }
}

/// Compares normalized names: pip reports a name as its author wrote it.
fn has_name(package: &ExactPackage, name: &str) -> bool {
    crate::layer_request::python_name(&package.name).is_some_and(|own| own == name)
}

fn package(sources: &SourceArchive) -> ExactPackage {
    ExactPackage {
        name: sources.name.clone(),
        version: sources.version.clone(),
        hashes: vec![sources.hash.clone()],
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use belljar_analysis::imports::PackageRegistry;
    use belljar_engine::plan::Image;

    use super::*;
    use crate::interpreter::ImageInterpreter;
    use crate::requirements::PackageRequirements;
    use crate::store::{LayerBounds, LayerScope};

    /// The installer could have chosen sources, but chose a wheel from the registry.
    #[test]
    fn stated_hashes_apply_to_offered_packages_that_are_not_built() {
        let folder = tempfile::tempdir().unwrap();
        let store =
            LayerStore::open(&folder.path().join("s"), LayerBounds::default(), Arc::new(|_| {})).unwrap();
        let needs = PackageNeeds { allow_build: true, ..PackageNeeds::new("t", &Image::Host) };
        let requirements = vec![("x==1".to_owned(), vec!["sha256:aa".to_owned()])];
        let request = LayerRequest {
            needs: &needs,
            registry: PackageRegistry::Pypi,
            interpreter: &ImageInterpreter::default(),
            requirements: &PackageRequirements { requirements, ..PackageRequirements::default() },
            scope: LayerScope::Shared,
            constraints: &[],
        };
        let resolved = |hashes: &[&str]| {
            let choice = SourceChoice { sources: Vec::new(), stage: store.stage().unwrap() };
            let mut beside = LocalBuilds { wheels: Vec::new(), choices: vec![("x".to_owned(), choice)] };
            let hashes = hashes.iter().map(|hash| (*hash).to_owned()).collect();
            let found = vec![ExactPackage { name: "x".to_owned(), version: "1".to_owned(), hashes }];
            assert!(beside.take_chosen(&found).is_empty());
            assert_eq!(beside.requirements(&request), [("x==1".to_owned(), Vec::new())]);
            beside.resolved(&request, found)
        };
        assert_eq!(resolved(&["sha256:bb", "sha256:aa"]).unwrap().packages[0].hashes, ["sha256:aa"]);
        assert!(resolved(&["sha256:bb"]).is_err());
    }
}
