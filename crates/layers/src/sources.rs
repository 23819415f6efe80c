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

use std::path::PathBuf;

use belljar_engine::packages::{Needs, PackagesError, Progress};

use crate::build::{Sources, failed};
use crate::library::Library;
use crate::locked::constraints;
use crate::order::{Order, Resolved};
use crate::python::{Answer, Lack, Offer};
use crate::shelf::{Held, Package, Recipe, Shelf, Stage};

/// Maximum number of packages of one set that are built.
const MAX_BUILT: usize = 16;

/// A built wheel.
#[derive(Debug)]
struct Wheel {
    sources: Sources,
    held: Held,
    hash: String,
}

/// The versions among which the installer chooses.
#[derive(Debug)]
struct Choice {
    sources: Vec<Sources>,
    stage: Stage,
}

/// Wheels and placeholder wheels offered in addition to the registry.
#[derive(Debug, Default)]
struct Beside {
    wheels: Vec<Wheel>,
    choices: Vec<(String, Choice)>,
}

impl Beside {
    fn knows(&self, name: &str) -> bool {
        self.wheels.iter().any(|wheel| wheel.sources.name == name)
            || self.choices.iter().any(|(known, _)| known == name)
    }

    fn folders(&self) -> Vec<PathBuf> {
        let wheels = self.wheels.iter().map(|wheel| wheel.held.files().to_owned());
        wheels.chain(self.choices.iter().map(|(_, choice)| choice.stage.files().to_owned())).collect()
    }

    /// Returns the placeholders that the installer selected, and removes them from the choices.
    fn chosen(&mut self, packages: &[Package]) -> Vec<Sources> {
        let mut chosen = Vec::new();
        for package in packages {
            let among = |(_, choice): &(String, Choice)| {
                choice
                    .sources
                    .iter()
                    .find(|one| is(package, &one.name) && one.version == package.version)
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
        shelf: &Shelf,
        order: &Order<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Resolved, PackagesError> {
        let (mut beside, mut offer, mut cache) = (Beside::default(), None, None);
        // Each round but the last builds a wheel or adds choices.
        for _ in 0..=2 * MAX_BUILT {
            let python = order.python(self.workshop(), offer.as_ref());
            let constraints = constraints(order.question.lock.as_ref(), order.constraints);
            match python.resolve(&beside.asked(order), &constraints).await? {
                Answer::Found(packages) => {
                    let chosen = beside.chosen(&packages);
                    if chosen.is_empty() {
                        let resolved = beside.resolved(order, packages)?;
                        let packages = order.locked(resolved.packages)?;
                        return Ok(Resolved { packages, ..resolved });
                    }
                    for sources in chosen {
                        order.accepts(&sources)?;
                        beside.wheels.push(self.wheel(shelf, order, sources, progress).await?);
                    }
                }
                Answer::Lacking { names, why } => {
                    self.offer_choices(shelf, order, &mut beside, names, why).await?;
                }
            }
            // uv's cache of one round's wheels is wrong for the next round, so each round has its own.
            let stage = cache.insert(shelf.stage()?);
            offer = Some(Offer { folders: beside.folders(), cache: stage.files().to_owned() });
        }
        Err(PackagesError::BuildFailed(format!("more than {MAX_BUILT} packages must be built from source")))
    }

    /// Lists sources of packages without a wheel. Fails if there are no new ones, or if building is not
    /// allowed.
    async fn offer_choices(
        &self,
        shelf: &Shelf,
        order: &Order<'_>,
        beside: &mut Beside,
        names: Vec<Lack>,
        why: PackagesError,
    ) -> Result<(), PackagesError> {
        let before = beside.choices.len();
        for Lack { name, is_said } in names {
            if beside.knows(&name) || beside.wheels.len() + beside.choices.len() >= MAX_BUILT {
                continue;
            }
            let stage = shelf.stage()?;
            let listed = order.python(self.workshop(), None).sources(&name, stage.files()).await?;
            if listed.sources.is_empty() || (listed.has_wheels && !is_said) {
                continue;
            }
            if !order.needs.build {
                return Err(PackagesError::Unresolvable(format!(
                    "'{name}' has no wheel for this interpreter, only sources, which must be built: name a \
                     version that has a wheel, or use a profile with build_packages = true"
                )));
            }
            beside.choices.push((name, Choice { sources: listed.sources, stage }));
        }
        if beside.choices.len() == before { Err(why) } else { Ok(()) }
    }

    /// Installs a set into a folder. Rebuilds wheels that no longer exist.
    pub(crate) async fn install_python(
        &self,
        shelf: &Shelf,
        order: &Order<'_>,
        resolved: &Resolved,
        folder: &std::path::Path,
        progress: &mut dyn Progress,
    ) -> Result<(), PackagesError> {
        if resolved.built.is_empty() {
            return order.python(self.workshop(), None).install(&resolved.packages, folder).await;
        }
        let (mut packages, mut beside) = (resolved.packages.clone(), Beside::default());
        for sources in &resolved.built {
            let wheel = self.wheel(shelf, order, sources.clone(), progress).await?;
            for package in packages.iter_mut().filter(|package| is(package, &sources.name)) {
                package.hashes = vec![wheel.hash.clone()];
            }
            beside.wheels.push(wheel);
        }
        let cache = shelf.stage()?;
        let offer = Offer { folders: beside.folders(), cache: cache.files().to_owned() };
        order.python(self.workshop(), Some(&offer)).install(&packages, folder).await
    }

    /// Returns the wheel of these sources; builds it if it does not exist.
    async fn wheel(
        &self,
        shelf: &Shelf,
        order: &Order<'_>,
        sources: Sources,
        progress: &mut dyn Progress,
    ) -> Result<Wheel, PackagesError> {
        let mut recipe = order.recipe(self.workshop(), vec![package(&sources)])?;
        recipe.options.push("wheel".to_owned());
        let build = async {
            progress.at(&format!("building {} {}", sources.name, sources.version));
            Box::pin(self.build(shelf, order, &sources, recipe.clone())).await
        };
        let held = shelf.obtain(&self.layers, &recipe.key(), build).await?.held;
        let hash = order.python(self.workshop(), None).hash(held.files()).await?;
        Ok(Wheel { sources, held, hash })
    }

    async fn build(
        &self,
        shelf: &Shelf,
        order: &Order<'_>,
        sources: &Sources,
        recipe: Recipe,
    ) -> Result<Held, PackagesError> {
        let (python, stage) = (order.python(self.workshop(), None), shelf.stage()?);
        let system = python.unpacked(sources, stage.files()).await?;
        let mut bench = self.bench(shelf, order, sources, &system.requires).await?;
        let more = python.required(sources, &system, bench.as_ref(), stage.files()).await?;
        if more.iter().any(|one| !system.requires.contains(one)) {
            let all = [&system.requires[..], &more].concat();
            bench = self.bench(shelf, order, sources, &all).await?;
        }
        python.wheel(sources, &system, bench.as_ref(), stage.files()).await?;
        // The build's code could write to its stage until now, so the wheel is copied to a clean one.
        let clean = shelf.stage()?;
        python.take(sources, stage.files(), clean.files()).await?;
        Ok(shelf.publish(clean, recipe).await?)
    }

    /// Returns a layer with the build requirements: an ordinary layer, made from wheels only.
    async fn bench(
        &self,
        shelf: &Shelf,
        order: &Order<'_>,
        sources: &Sources,
        requires: &[String],
    ) -> Result<Option<Held>, PackagesError> {
        if requires.is_empty() {
            return Ok(None);
        }
        let needs = Needs { build: false, ..*order.needs };
        let order = Order { needs: &needs, scope: order.scope.clone(), constraints: &[], ..*order };
        let python = order.python(self.workshop(), None);
        let asked: Vec<_> = requires.iter().map(|one| (one.clone(), Vec::new())).collect();
        let needed = |why: &PackagesError| {
            let why = why.to_string();
            let why = why.strip_prefix("dependencies: ").unwrap_or(&why);
            failed(sources, &format!("its build requirements cannot be installed: {why}"))
        };
        let packages = match python.resolve(&asked, "").await {
            Ok(Answer::Found(packages)) => packages,
            Ok(Answer::Lacking { why, .. }) | Err(why @ PackagesError::Unresolvable(_)) => {
                return Err(needed(&why));
            }
            Err(error) => return Err(error),
        };
        let recipe = order.recipe(self.workshop(), packages.clone())?;
        let install = async {
            let stage = shelf.stage()?;
            python.install(&packages, stage.files()).await?;
            Ok(shelf.publish(stage, recipe.clone()).await?)
        };
        Ok(Some(shelf.obtain(&self.layers, &recipe.key(), install).await?.held))
    }
}

impl Beside {
    /// Returns the requirements. Stated hashes of a built package are those of its sources, which no wheel
    /// has.
    fn asked(&self, order: &Order<'_>) -> Vec<(String, Vec<String>)> {
        let asked = order.question.requirements.iter().map(|(text, hashes)| {
            let known = crate::order::name_of(text).is_some_and(|name| self.knows(&name));
            (text.clone(), if known { Vec::new() } else { hashes.clone() })
        });
        asked.collect()
    }

    /// Pins built packages by their sources. Drops builds that are not part of the result.
    fn resolved(self, order: &Order<'_>, mut packages: Vec<Package>) -> Result<Resolved, PackagesError> {
        let mut built = Vec::new();
        for found in &mut packages {
            let own = self.wheels.iter().find(|wheel| is(found, &wheel.sources.name));
            match own {
                Some(wheel) if found.hashes.contains(&wheel.hash) => {
                    *found = package(&wheel.sources);
                    built.push(wheel.sources.clone());
                }
                _ => {
                    // Offered packages were requested without their hashes, so the hashes are checked here.
                    let name = crate::order::name_of(&found.name).filter(|name| self.knows(name));
                    name.map_or(Ok(()), |name| order.hold(found, &name))?;
                }
            }
        }
        Ok(Resolved { packages, lock: None, built })
    }
}

/// Compares normalized names: pip reports a name as its author wrote it.
fn is(package: &Package, name: &str) -> bool {
    crate::order::name_of(&package.name).is_some_and(|own| own == name)
}

fn package(sources: &Sources) -> Package {
    Package {
        name: sources.name.clone(),
        version: sources.version.clone(),
        hashes: vec![sources.hash.clone()],
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use belljar_analysis::imports::Registry;
    use belljar_engine::plan::Image;

    use super::*;
    use crate::interpreter::Interpreter;
    use crate::question::Question;
    use crate::shelf::{Bounds, Scope};

    /// The installer could have chosen sources, but chose a wheel from the registry.
    #[test]
    fn stated_hashes_hold_for_what_is_not_built_after_all() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(&folder.path().join("s"), Bounds::default(), Arc::new(|_| {})).unwrap();
        let needs = Needs {
            tenant: "t",
            image: &Image::Host,
            language: None,
            detect: false,
            code: None,
            files: &[],
            playground: false,
            packages: &[],
            standing: &[],
            build: true,
        };
        let requirements = vec![("x==1".to_owned(), vec!["sha256:aa".to_owned()])];
        let order = Order {
            needs: &needs,
            registry: Registry::Pypi,
            interpreter: &Interpreter::default(),
            question: &Question { requirements, ..Question::default() },
            scope: Scope::Shared,
            constraints: &[],
        };
        let resolved = |hashes: &[&str]| {
            let choice = Choice { sources: Vec::new(), stage: shelf.stage().unwrap() };
            let mut beside = Beside { wheels: Vec::new(), choices: vec![("x".to_owned(), choice)] };
            let hashes = hashes.iter().map(|hash| (*hash).to_owned()).collect();
            let found = vec![Package { name: "x".to_owned(), version: "1".to_owned(), hashes }];
            assert!(beside.chosen(&found).is_empty());
            assert_eq!(beside.asked(&order), [("x==1".to_owned(), Vec::new())]);
            beside.resolved(&order, found)
        };
        assert_eq!(resolved(&["sha256:bb", "sha256:aa"]).unwrap().packages[0].hashes, ["sha256:aa"]);
        assert!(resolved(&["sha256:bb"]).is_err());
    }
}
