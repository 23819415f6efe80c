//! One layer that is wanted: what it is called, what it comes to, and how it is filled.

use std::path::Path;

use belljar_analysis::imports::Registry;
use belljar_engine::packages::{Needs, PackagesError};
use serde::{Deserialize, Serialize};

use crate::interpreter::Interpreter;
use crate::javascript::JavaScript;
use crate::python::Python;
use crate::question::Question;
use crate::shelf::{Digest, Package, Recipe, Scope, Shelf};
use crate::workshop::Workshop;

/// What a question came to: kept on disk for a while.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Resolved {
    pub(crate) packages: Vec<Package>,
    /// What an installer needs to install exactly that.
    pub(crate) lock: Option<String>,
}

/// One layer that is wanted.
pub(crate) struct Order<'a> {
    pub(crate) needs: &'a Needs<'a>,
    pub(crate) registry: Registry,
    pub(crate) interpreter: &'a Interpreter,
    pub(crate) question: &'a Question,
    pub(crate) scope: Scope,
}

impl Order<'_> {
    fn python<'a>(&'a self, workshop: &'a Workshop) -> Python<'a> {
        Python { workshop, image: self.needs.image, interpreter: self.interpreter, scope: &self.scope }
    }

    fn javascript<'a>(&'a self, workshop: &'a Workshop) -> JavaScript<'a> {
        JavaScript { workshop, image: self.needs.image, scope: &self.scope }
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
            Registry::Pypi => (workshop.registries.python(), self.python(workshop).installer()?),
            Registry::Npm => (workshop.registries.npm(), self.javascript(workshop).installer()),
        };
        Ok(Recipe {
            registry: registry.to_owned(),
            packages,
            interpreter: self.interpreter.name.clone(),
            platform: self.interpreter.platform.clone(),
            options: vec![installer.to_owned()],
            scope: self.scope.clone(),
        })
    }

    /// The same question has the same answer for a while.
    pub(crate) fn digest(&self, workshop: &Workshop) -> Result<Digest, PackagesError> {
        let recipe = self.recipe(workshop, Vec::new())?.key().to_string();
        let mut parts = vec![recipe];
        for (requirement, hashes) in &self.question.requirements {
            parts.push(requirement.clone());
            parts.push(hashes.join(" "));
        }
        Ok(Digest::of("belljar question 1", parts))
    }

    pub(crate) async fn resolve(
        &self,
        workshop: &Workshop,
        shelf: &Shelf,
    ) -> Result<Resolved, PackagesError> {
        match self.registry {
            Registry::Pypi => {
                let packages = self.python(workshop).resolve(&self.question.requirements).await?;
                Ok(Resolved { packages, lock: None })
            }
            Registry::Npm => {
                let stage = shelf.stage()?;
                let locked = self.javascript(workshop).resolve(&self.plain(), stage.files()).await?;
                Ok(Resolved { packages: locked.packages, lock: Some(locked.lock) })
            }
        }
    }

    pub(crate) async fn install(
        &self,
        workshop: &Workshop,
        resolved: &Resolved,
        folder: &Path,
    ) -> Result<(), PackagesError> {
        match self.registry {
            Registry::Pypi => self.python(workshop).install(&resolved.packages, folder).await,
            Registry::Npm => {
                let lock = resolved.lock.as_deref().unwrap_or_default();
                self.javascript(workshop).install(&self.plain(), lock, folder).await
            }
        }
    }
}
