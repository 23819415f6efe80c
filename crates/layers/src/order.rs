//! One layer that is wanted: what it is called, what it comes to, and how it is filled.

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

/// What a question came to: kept on disk for a while.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Resolved {
    pub(crate) packages: Vec<Package>,
    /// What an installer needs to install exactly that.
    pub(crate) lock: Option<String>,
    /// Which of them are built, and of what.
    #[serde(default)]
    pub(crate) built: Vec<Sources>,
}

/// One layer that is wanted.
pub(crate) struct Order<'a> {
    pub(crate) needs: &'a Needs<'a>,
    pub(crate) registry: Registry,
    pub(crate) interpreter: &'a Interpreter,
    pub(crate) question: &'a Question,
    pub(crate) scope: Scope,
    /// Versions that packages of Python must have where they are needed.
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

    /// Returns what ties a layer or a lock to the image for which it is made. What is built fits where it was built; and
    /// programs of an image that is not the operator's have a hand in it, so nobody outside that image may have it.
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

    /// The same question has the same answer for a while.
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

    /// Whether sources are such as were asked for.
    pub(crate) fn accepts(&self, sources: &Sources) -> Result<(), PackagesError> {
        match self.stated(&sources.name).is_some_and(|stated| !stated.contains(&sources.hash)) {
            true => Err(unstated(&sources.name)),
            false => Ok(()),
        }
    }

    /// Leaves a package the hashes that were stated for it.
    pub(crate) fn hold(&self, package: &mut Package, name: &str) -> Result<(), PackagesError> {
        if let Some(stated) = self.stated(name) {
            package.hashes.retain(|hash| stated.contains(hash));
        }
        if package.hashes.is_empty() { Err(unstated(name)) } else { Ok(()) }
    }

    /// The hashes that were stated for a package of Python.
    fn stated(&self, name: &str) -> Option<&[String]> {
        let mut stated = self.question.requirements.iter().filter(|(_, hashes)| !hashes.is_empty());
        stated.find(|(text, _)| name_of(text).is_some_and(|own| own == name)).map(|(_, hashes)| &**hashes)
    }

    /// Exact versions of packages of JavaScript.
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

    /// Packages as the lock that came along has them, if one did.
    pub(crate) fn locked(&self, packages: Vec<Package>) -> Result<Vec<Package>, PackagesError> {
        match &self.question.lock {
            Some(lock) => locked::hold(lock, packages),
            None => Ok(packages),
        }
    }

    /// Puts packages of JavaScript into a folder, and has them run their scripts where that is allowed.
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
    PackagesError::Unresolvable(format!("what there is of {name} does not have the hash that was stated"))
}

/// The name in a requirement of Python.
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
