//! Python's two layers: the profile's locked packages, and the packages that a request adds.
//!
//! ```text
//! profile's list ─▶ lock (profile_lock.rs) ─▶ layer at PYTHON_PROFILE ── constraints ─┐
//! request's list ────────────────────────────▶ resolve ─▶ layer at PYTHON, without locked packages
//!                                                 └ conflict ─▶ both lists in one layer at PYTHON
//! ```
//!
//! Only a layer that is mounted exactly as locked may be preimported: no request influences its content.

use belljar_analysis::imports::{Found, Registry, Resolver};
use belljar_engine::packages::{Needs, PYTHON, PYTHON_PROFILE, PackagesError, Progress};

use crate::interpreter::Interpreter;
use crate::library::{Asked, Library, Ready};
use crate::order::{Order, Resolved, name_of};
use crate::popular::Habit;
use crate::question::{self, Listed, Question};
use crate::shelf::{Package, Scope};

impl Library {
    /// Mounts the profile's and the request's layer, or one combined layer if their versions conflict.
    pub(crate) async fn python_layers(
        &self,
        needs: &Needs<'_>,
        asked: Asked,
        progress: &mut dyn Progress,
        ready: &mut Ready,
    ) -> Result<(), PackagesError> {
        let interpreter = self.interpreter(needs, Registry::Pypi).await?;
        let Asked { found, mut given, profile } = asked;
        let own = self.profile_question(needs, &profile, &interpreter)?;
        given.requirements.extend(profile);
        let resolver = Resolver::new(Registry::Pypi, &self.settings.names);
        let all = question::question(needs, &resolver, found, given, &interpreter)?;
        ready.prepared.findings.extend(all.findings.iter().cloned());
        // In a sandbox's own folder, a module of the folder can have any name.
        if !needs.playground {
            ready.habit = Habit::new(needs, &all.modules);
        }
        let order = |question, scope, constraints| Order {
            needs,
            registry: Registry::Pypi,
            interpreter: &interpreter,
            question,
            scope,
            constraints,
        };
        let together = order(&all, self.scope(needs.tenant), &[]);
        if own.requirements.is_empty() {
            return self.one_layer(&together, progress, ready).await;
        }
        let profile = order(&own, Scope::Shared, &[]);
        let locked = self.locked(&profile, progress).await?;
        let more = beside(&all, &own, &locked.packages);
        let more = order(&more, self.scope(needs.tenant), &locked.packages);
        let Some(resolved) = self.constrained(&more, progress, ready).await? else {
            return self.one_layer(&together, progress, ready).await;
        };
        self.layer(&profile, &locked, PYTHON_PROFILE, progress, ready).await?;
        match resolved.packages.is_empty() {
            true => Ok(()),
            false => self.layer(&more, &resolved, PYTHON, progress, ready).await,
        }
    }

    /// Returns what a request needs in addition to its profile's locked packages, or `None` if they conflict.
    async fn constrained(
        &self,
        order: &Order<'_>,
        progress: &mut dyn Progress,
        ready: &mut Ready,
    ) -> Result<Option<Resolved>, PackagesError> {
        if order.question.requirements.is_empty() {
            return Ok(Some(Resolved { packages: Vec::new(), lock: None, built: Vec::new() }));
        }
        match self.resolve(order, progress).await {
            Ok(resolved) => Ok(Some(without(resolved, order.constraints))),
            Err(PackagesError::Unresolvable(why)) => {
                ready.prepared.profile_replaced = true;
                ready.prepared.findings.push(replaced(&why));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns what a profile's list requires in an image. No part of a request influences it, not even its
    /// folder.
    pub(crate) fn profile_question(
        &self,
        needs: &Needs<'_>,
        profile: &[belljar_analysis::imports::Requirement],
        interpreter: &Interpreter,
    ) -> Result<Question, PackagesError> {
        let resolver = Resolver::new(Registry::Pypi, &self.settings.names);
        let listed = Listed { requirements: profile.to_vec(), lock: None };
        question::question(needs, &resolver, Found::default(), listed, interpreter)
    }

    async fn one_layer(
        &self,
        order: &Order<'_>,
        progress: &mut dyn Progress,
        ready: &mut Ready,
    ) -> Result<(), PackagesError> {
        if order.question.requirements.is_empty() {
            return Ok(());
        }
        let resolved = self.resolve(order, progress).await?;
        self.layer(order, &resolved, PYTHON, progress, ready).await
    }
}

/// Returns what a request needs beyond its profile: neither packages that the profile names, nor unversioned
/// names that its lock contains.
fn beside(all: &Question, profile: &Question, locked: &[Package]) -> Question {
    let is_there = |text: &str| locked.iter().any(|one| name_of(&one.name).is_some_and(|name| name == text));
    let mut more = all.clone();
    let is_known = |one: &(String, Vec<String>)| {
        profile.requirements.contains(one) || one.1.is_empty() && is_there(&one.0)
    };
    more.requirements.retain(|one| !is_known(one));
    more
}

/// Removes locked packages from a set: the profile's layer has them in exactly that version.
fn without(resolved: Resolved, locked: &[Package]) -> Resolved {
    let is_locked = |name: &str| {
        let name = name_of(name);
        name.is_some() && locked.iter().any(|one| name_of(&one.name) == name)
    };
    let Resolved { mut packages, lock, mut built } = resolved;
    packages.retain(|one| !is_locked(&one.name));
    built.retain(|one| !is_locked(&one.name));
    Resolved { packages, lock, built }
}

fn replaced(why: &str) -> belljar_engine::finding::Finding {
    let mut finding = question::finding(
        format!(
            "these packages conflict with the profile's locked versions, so both were resolved together and \
             nothing is preimported: {why}"
        ),
        None,
        "remove version requirements, or ask the operator to renew the lock: belljar deps lock --upgrade",
    );
    finding.rule = "dependency-profile-replaced".to_owned();
    finding.decided_by = "profile.packages".to_owned();
    finding
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> Package {
        Package { name: name.to_owned(), version: version.to_owned(), hashes: vec!["sha256:a".to_owned()] }
    }

    fn question(requirements: &[&str]) -> Question {
        let requirements = requirements.iter().map(|text| ((*text).to_owned(), Vec::new())).collect();
        Question { requirements, ..Question::default() }
    }

    #[test]
    fn a_request_asks_for_nothing_that_its_profile_has() {
        let (profile, locked) = (question(&["pandas"]), [package("pandas", "2.1"), package("NumPy", "2.0")]);
        let all = question(&["idna", "numpy", "numpy==1.26", "pandas"]);
        let more = beside(&all, &profile, &locked);
        assert_eq!(more.requirements, question(&["idna", "numpy==1.26"]).requirements);
    }

    #[test]
    fn what_is_locked_is_installed_once() {
        let packages = vec![package("numpy", "2.0"), package("idna", "3.4")];
        let resolved = Resolved { packages, lock: None, built: Vec::new() };
        assert_eq!(without(resolved, &[package("NumPy", "2.0")]).packages, [package("idna", "3.4")]);
    }
}
