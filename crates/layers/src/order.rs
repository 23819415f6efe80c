//! A request for one layer: its recipe, its digest and how to fill it.

use std::path::Path;

use belljar_analysis::imports::{Registry, Requirement};
use belljar_engine::packages::{Needs, PackagesError};
use belljar_engine::plan::Image;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::build::Sources;
use crate::interpreter::Interpreter;
use crate::javascript::JavaScript;
use crate::locked;
use crate::python::{Offer, Python};
use crate::question::Question;
use crate::shelf::{Digest, Package, Recipe, Scope, Shelf};
use crate::workshop::Workshop;

/// The result of resolving a set of requirements; cached on disk for a while.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Resolved {
    pub(crate) packages: Vec<Package>,
    /// The lock file from which the installer installs exactly these packages.
    pub(crate) lock: Option<String>,
    /// The packages that are built from source, and their source archives.
    #[serde(default)]
    pub(crate) built: Vec<Sources>,
}

/// A request for one layer.
pub(crate) struct Order<'a> {
    pub(crate) needs: &'a Needs<'a>,
    pub(crate) registry: Registry,
    pub(crate) interpreter: &'a Interpreter,
    pub(crate) question: &'a Question,
    pub(crate) scope: Scope,
    /// Versions that Python packages must have if they are needed.
    pub(crate) constraints: &'a [Package],
}

impl Order<'_> {
    pub(crate) fn python<'a>(&'a self, workshop: &'a Workshop, offer: Option<&'a Offer>) -> Python<'a> {
        let (image, interpreter, scope) = (self.needs.image, self.interpreter, &self.scope);
        Python { workshop, image, interpreter, scope, offer }
    }

    fn javascript<'a>(&'a self, workshop: &'a Workshop) -> JavaScript<'a> {
        JavaScript {
            workshop,
            image: self.needs.image,
            scope: &self.scope,
            came_along: self.question.lock.as_ref(),
        }
    }

    fn plain(&self) -> Vec<String> {
        self.question.requirements.iter().map(|(requirement, _)| requirement.clone()).collect()
    }

    pub(crate) fn recipe(
        &self,
        workshop: &Workshop,
        packages: Vec<Package>,
    ) -> Result<Recipe, PackagesError> {
        let (registry, installer) = match self.registry {
            Registry::Pypi => (workshop.registries.python(), self.python(workshop, None).installer()?),
            Registry::Npm => (workshop.registries.npm(), self.javascript(workshop).installer()),
        };
        Ok(Recipe {
            registry: registry.to_owned(),
            packages,
            interpreter: self.interpreter.name.clone(),
            platform: self.interpreter.platform.clone(),
            options: std::iter::once(installer.to_owned()).chain(self.whereabouts()).collect(),
            scope: self.scope.clone(),
        })
    }

    /// Returns what ties a layer or a lock file to one image. A build only fits the image that it was built
    /// in. Programs of an image that the operator does not control can influence the result, so it is never
    /// shared outside that image.
    pub(crate) fn whereabouts(&self) -> Vec<String> {
        let image = self.needs.image;
        let build = match image {
            _ if !self.needs.build => None,
            Image::Host => Some("build".to_owned()),
            image => Some(format!("build in {}", image.identity())),
        };
        let image = (!image.is_operators()).then(|| format!("image {}", image.identity()));
        build.into_iter().chain(image).collect()
    }

    /// Returns the key under which the resolution is cached.
    pub(crate) fn digest(&self, workshop: &Workshop) -> Result<Digest, PackagesError> {
        let recipe = self.recipe(workshop, Vec::new())?.key().to_string();
        let mut parts = vec![recipe];
        for (requirement, hashes) in &self.question.requirements {
            parts.push(requirement.clone());
            parts.push(hashes.join(" "));
        }
        if let Some(lock) = &self.question.lock {
            parts.extend(lock.pins.iter().map(|pin| format!("{pin} {}", pin.hashes.join(" "))));
            parts.push(Value::from(lock.tree.clone()).to_string());
        }
        parts.extend(self.constraints.iter().map(|one| format!("constraint {}=={}", one.name, one.version)));
        Ok(Digest::of("belljar question 1", parts))
    }

    /// Checks a source archive against the hashes that the caller stated.
    pub(crate) fn accepts(&self, sources: &Sources) -> Result<(), PackagesError> {
        match self.stated(&sources.name).is_some_and(|stated| !stated.contains(&sources.hash)) {
            true => Err(unstated(&sources.name)),
            false => Ok(()),
        }
    }

    /// Keeps only the hashes that the caller stated for a package.
    pub(crate) fn hold(&self, package: &mut Package, name: &str) -> Result<(), PackagesError> {
        if let Some(stated) = self.stated(name) {
            package.hashes.retain(|hash| stated.contains(hash));
        }
        if package.hashes.is_empty() { Err(unstated(name)) } else { Ok(()) }
    }

    /// Returns the hashes that the caller stated for a Python package.
    fn stated(&self, name: &str) -> Option<&[String]> {
        let mut stated = self.question.requirements.iter().filter(|(_, hashes)| !hashes.is_empty());
        stated.find(|(text, _)| name_of(text).is_some_and(|own| own == name)).map(|(_, hashes)| &**hashes)
    }

    /// Resolves exact versions of JavaScript packages.
    pub(crate) async fn resolve_npm(
        &self,
        workshop: &Workshop,
        shelf: &Shelf,
    ) -> Result<Resolved, PackagesError> {
        let stage = shelf.stage()?;
        let locked = self.javascript(workshop).resolve(&self.plain(), stage.files()).await?;
        let packages = self.locked(locked.packages)?;
        Ok(Resolved { packages, lock: Some(locked.lock), built: Vec::new() })
    }

    /// Applies the request's own lock file, if there is one.
    pub(crate) fn locked(&self, packages: Vec<Package>) -> Result<Vec<Package>, PackagesError> {
        match &self.question.lock {
            Some(lock) => locked::hold(lock, packages),
            None => Ok(packages),
        }
    }

    /// Installs JavaScript packages into a folder and runs their install scripts if that is allowed.
    pub(crate) async fn install_npm(
        &self,
        workshop: &Workshop,
        resolved: &Resolved,
        folder: &Path,
    ) -> Result<(), PackagesError> {
        let (javascript, lock) = (self.javascript(workshop), resolved.lock.as_deref().unwrap_or_default());
        javascript.install(&self.plain(), lock, folder).await?;
        if self.needs.build { javascript.build(folder).await } else { Ok(()) }
    }
}

fn unstated(name: &str) -> PackagesError {
    PackagesError::Unresolvable(format!("no file of {name} has a stated hash"))
}

/// Returns the package name in a Python requirement.
pub(crate) fn name_of(text: &str) -> Option<String> {
    Requirement::parse(Registry::Pypi, text).ok().map(|requirement| requirement.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_image_had_a_hand_in_is_that_images_alone() {
        let (interpreter, question) = (Interpreter::default(), Question::default());
        let of = |image: &Image, build| {
            let needs = Needs {
                tenant: "t",
                image,
                language: None,
                detect: false,
                code: None,
                files: &[],
                playground: false,
                packages: &[],
                standing: &[],
                build,
            };
            let order = Order {
                needs: &needs,
                registry: Registry::Pypi,
                interpreter: &interpreter,
                question: &question,
                scope: Scope::Shared,
                constraints: &[],
            };
            order.whereabouts()
        };
        assert_eq!(of(&Image::Host, false), Vec::<String>::new());
        assert_eq!(of(&Image::Host, true), ["build"]);
        assert_eq!(of(&Image::Folder("/i".into()), false), ["image /i"]);
        assert_ne!(of(&Image::Named("a".to_owned()), false), of(&Image::Named("b".to_owned()), false));
    }
}
