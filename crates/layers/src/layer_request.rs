//! A request for one layer: its recipe, its digest and how to fill it.

use std::path::Path;

use belljar_analysis::imports::{PackageRegistry, Requirement};
use belljar_beneath::ContentDigest;
use belljar_engine::packages::{PackageNeeds, PackagesError};
use belljar_engine::plan::Image;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::build::SourceArchive;
use crate::installer_sandbox::InstallerSandbox;
use crate::interpreter::ImageInterpreter;
use crate::javascript::JavaScript;
use crate::python::{LocalWheels, Python};
use crate::request_lock;
use crate::requirements::PackageRequirements;
use crate::store::{ExactPackage, LayerRecipe, LayerScope, LayerStore};

/// The result of resolving a set of requirements; cached on disk for a while.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ResolvedPackages {
    pub(crate) packages: Vec<ExactPackage>,
    /// The lock file from which the installer installs exactly these packages.
    pub(crate) lock: Option<String>,
    /// The packages that are built from source, and their source archives.
    #[serde(default)]
    pub(crate) built: Vec<SourceArchive>,
}

/// A request for one layer.
pub(crate) struct LayerRequest<'a> {
    pub(crate) needs: &'a PackageNeeds<'a>,
    pub(crate) registry: PackageRegistry,
    pub(crate) interpreter: &'a ImageInterpreter,
    pub(crate) requirements: &'a PackageRequirements,
    pub(crate) scope: LayerScope,
    /// Versions that Python packages must have if they are needed.
    pub(crate) constraints: &'a [ExactPackage],
}

impl LayerRequest<'_> {
    pub(crate) fn python<'a>(
        &'a self,
        sandbox: &'a InstallerSandbox,
        offer: Option<&'a LocalWheels>,
    ) -> Python<'a> {
        let (image, interpreter, scope) = (self.needs.image, self.interpreter, &self.scope);
        Python { sandbox, image, interpreter, scope, local_wheels: offer }
    }

    fn javascript<'a>(&'a self, sandbox: &'a InstallerSandbox) -> JavaScript<'a> {
        JavaScript {
            sandbox,
            image: self.needs.image,
            scope: &self.scope,
            request_lock: self.requirements.lock.as_ref(),
        }
    }

    fn requirement_strings(&self) -> Vec<String> {
        self.requirements.requirements.iter().map(|(requirement, _)| requirement.clone()).collect()
    }

    pub(crate) fn recipe(
        &self,
        sandbox: &InstallerSandbox,
        packages: Vec<ExactPackage>,
    ) -> Result<LayerRecipe, PackagesError> {
        let (registry, installer) = match self.registry {
            PackageRegistry::Pypi => (sandbox.registries.python(), self.python(sandbox, None).installer()?),
            PackageRegistry::Npm => (sandbox.registries.npm(), self.javascript(sandbox).installer()),
        };
        Ok(LayerRecipe {
            registry: registry.to_owned(),
            packages,
            interpreter: self.interpreter.name.clone(),
            platform: self.interpreter.platform.clone(),
            options: std::iter::once(installer.to_owned()).chain(self.image_ties()).collect(),
            scope: self.scope.clone(),
        })
    }

    /// Returns what ties a layer or a lock file to one image. A build only fits the image that it was built
    /// in. Programs of an image that the operator does not control can influence the result, so it is never
    /// shared outside that image.
    pub(crate) fn image_ties(&self) -> Vec<String> {
        let image = self.needs.image;
        let build = match image {
            _ if !self.needs.allow_build => None,
            Image::Host => Some("build".to_owned()),
            image => Some(format!("build in {}", image.identity())),
        };
        let image = (!image.is_trusted()).then(|| format!("image {}", image.identity()));
        build.into_iter().chain(image).collect()
    }

    /// Returns the key under which the resolution is cached.
    pub(crate) fn digest(&self, sandbox: &InstallerSandbox) -> Result<ContentDigest, PackagesError> {
        let recipe = self.recipe(sandbox, Vec::new())?.key().to_string();
        let mut parts = vec![recipe];
        for (requirement, hashes) in &self.requirements.requirements {
            parts.push(requirement.clone());
            parts.push(hashes.join(" "));
        }
        if let Some(lock) = &self.requirements.lock {
            parts.extend(lock.pins.iter().map(|pin| format!("{pin} {}", pin.hashes.join(" "))));
            parts.push(Value::from(lock.tree.clone()).to_string());
        }
        parts.extend(self.constraints.iter().map(|one| format!("constraint {}=={}", one.name, one.version)));
        Ok(ContentDigest::from_parts("belljar question 1", parts))
    }

    /// Checks a source archive against the hashes that the caller stated.
    pub(crate) fn check_hash(&self, sources: &SourceArchive) -> Result<(), PackagesError> {
        match self.stated_hashes(&sources.name).is_some_and(|stated| !stated.contains(&sources.hash)) {
            true => Err(no_stated_hash(&sources.name)),
            false => Ok(()),
        }
    }

    /// Keeps only the hashes that the caller stated for a package.
    pub(crate) fn restrict_hashes(
        &self,
        package: &mut ExactPackage,
        name: &str,
    ) -> Result<(), PackagesError> {
        if let Some(stated) = self.stated_hashes(name) {
            package.hashes.retain(|hash| stated.contains(hash));
        }
        if package.hashes.is_empty() { Err(no_stated_hash(name)) } else { Ok(()) }
    }

    /// Returns the hashes that the caller stated for a Python package.
    fn stated_hashes(&self, name: &str) -> Option<&[String]> {
        let mut stated = self.requirements.requirements.iter().filter(|(_, hashes)| !hashes.is_empty());
        stated.find(|(text, _)| python_name(text).is_some_and(|own| own == name)).map(|(_, hashes)| &**hashes)
    }

    /// Resolves exact versions of JavaScript packages.
    pub(crate) async fn resolve_npm(
        &self,
        sandbox: &InstallerSandbox,
        store: &LayerStore,
    ) -> Result<ResolvedPackages, PackagesError> {
        let stage = store.stage()?;
        let locked = self.javascript(sandbox).resolve(&self.requirement_strings(), stage.files()).await?;
        let packages = self.apply_lock(locked.packages)?;
        Ok(ResolvedPackages { packages, lock: Some(locked.lock), built: Vec::new() })
    }

    /// Applies the request's own lock file, if there is one.
    pub(crate) fn apply_lock(&self, packages: Vec<ExactPackage>) -> Result<Vec<ExactPackage>, PackagesError> {
        match &self.requirements.lock {
            Some(lock) => request_lock::restrict_to_lock(lock, packages),
            None => Ok(packages),
        }
    }

    /// Installs JavaScript packages into a folder and runs their install scripts if that is allowed.
    pub(crate) async fn install_npm(
        &self,
        sandbox: &InstallerSandbox,
        resolved: &ResolvedPackages,
        folder: &Path,
    ) -> Result<(), PackagesError> {
        let (javascript, lock) = (self.javascript(sandbox), resolved.lock.as_deref().unwrap_or_default());
        javascript.install(&self.requirement_strings(), lock, folder).await?;
        if self.needs.allow_build { javascript.build(folder).await } else { Ok(()) }
    }
}

fn no_stated_hash(name: &str) -> PackagesError {
    PackagesError::Unresolvable(format!("no file of {name} has a stated hash"))
}

/// Returns the package name in a Python requirement.
pub(crate) fn python_name(text: &str) -> Option<String> {
    Requirement::parse(PackageRegistry::Pypi, text).ok().map(|requirement| requirement.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_influenced_by_an_image_are_tied_to_it() {
        let (interpreter, package_requirements) =
            (ImageInterpreter::default(), PackageRequirements::default());
        let of = |image: &Image, build| {
            let needs = PackageNeeds { allow_build: build, ..PackageNeeds::new("t", image) };
            let request = LayerRequest {
                needs: &needs,
                registry: PackageRegistry::Pypi,
                interpreter: &interpreter,
                requirements: &package_requirements,
                scope: LayerScope::Shared,
                constraints: &[],
            };
            request.image_ties()
        };
        assert_eq!(of(&Image::Host, false), Vec::<String>::new());
        assert_eq!(of(&Image::Host, true), ["build"]);
        assert_eq!(of(&Image::Folder("/i".into()), false), ["image /i"]);
        assert_ne!(of(&Image::Named("a".to_owned()), false), of(&Image::Named("b".to_owned()), false));
    }
}
