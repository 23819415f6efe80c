//! Python's two layers: the profile's locked packages, and the packages that a request adds.
//!
//! ```text
//! profile's list ─▶ lock (profile_lock.rs) ─▶ layer at PYTHON_PROFILE ── constraints ─┐
//! request's list ────────────────────────────▶ resolve ─▶ layer at PYTHON, without locked packages
//!                                                 └ conflict ─▶ both lists in one layer at PYTHON
//! ```
//!
//! Only a layer that is mounted exactly as locked may be preimported: no request influences its content.

use belljar_analysis::imports::{DetectedImports, PackageRegistry, Resolver};
use belljar_engine::packages::{PYTHON_LAYER, PYTHON_PROFILE_LAYER, PackageNeeds, PackagesError, Progress};

use crate::interpreter::ImageInterpreter;
use crate::layer_request::{LayerRequest, ResolvedPackages, python_name};
use crate::library::{Library, PreparedPackages, RegistryNeeds};
use crate::preimport_stats::ImportPattern;
use crate::requirements::{self, PackageList, PackageRequirements};
use crate::store::{ExactPackage, LayerScope};

impl Library {
    /// Mounts the profile's and the request's layer, or one combined layer if their versions conflict.
    pub(crate) async fn python_layers(
        &self,
        needs: &PackageNeeds<'_>,
        asked: RegistryNeeds,
        progress: &mut dyn Progress,
        ready: &mut PreparedPackages,
    ) -> Result<(), PackagesError> {
        let interpreter = self.interpreter(needs, PackageRegistry::Pypi).await?;
        let RegistryNeeds { found, mut given, profile } = asked;
        let own = self.profile_requirements(needs, &profile, &interpreter)?;
        given.requirements.extend(profile);
        let resolver = Resolver::new(PackageRegistry::Pypi, &self.settings.names);
        let mut all = requirements::missing_requirements(needs, &resolver, found, given, &interpreter)?;
        ready.prepared.findings.extend(all.findings.iter().cloned());
        // In a sandbox's own folder, a module of the folder can have any name.
        if !needs.has_host_workspace {
            ready.import_pattern = ImportPattern::new(needs, &all.modules);
        }
        let request = |package_requirements, scope, constraints| LayerRequest {
            needs,
            registry: PackageRegistry::Pypi,
            interpreter: &interpreter,
            requirements: package_requirements,
            scope,
            constraints,
        };
        if own.requirements.is_empty() {
            requirements::merge_with_open_sandbox(&mut all, PackageRegistry::Pypi, needs);
            return self.combined_layer(&request(&all, self.scope(needs.tenant), &[]), progress, ready).await;
        }
        let profile = request(&own, LayerScope::Shared, &[]);
        let locked = self.locked_packages(&profile, progress).await?;
        let mut more = additional_requirements(&all, &own, &locked.packages);
        requirements::merge_with_open_sandbox(&mut more, PackageRegistry::Pypi, needs);
        if needs.open_sandbox.is_some() && more.requirements.is_empty() {
            return Ok(());
        }
        let more = request(&more, self.scope(needs.tenant), &locked.packages);
        let Some(resolved) = self.constrained(&more, progress, ready).await? else {
            let together = request(&all, self.scope(needs.tenant), &[]);
            return self.combined_layer(&together, progress, ready).await;
        };
        self.layer(&profile, &locked, PYTHON_PROFILE_LAYER, progress, ready).await?;
        match resolved.packages.is_empty() {
            true => Ok(()),
            false => self.layer(&more, &resolved, PYTHON_LAYER, progress, ready).await,
        }
    }

    /// Returns what a request needs in addition to its profile's locked packages, or `None` if they conflict.
    async fn constrained(
        &self,
        request: &LayerRequest<'_>,
        progress: &mut dyn Progress,
        ready: &mut PreparedPackages,
    ) -> Result<Option<ResolvedPackages>, PackagesError> {
        if request.requirements.requirements.is_empty() {
            return Ok(Some(ResolvedPackages { packages: Vec::new(), lock: None, built: Vec::new() }));
        }
        match self.resolve(request, progress).await {
            Ok(resolved) => Ok(Some(without_locked(resolved, request.constraints))),
            // The profile's layer of an open sandbox is in use, and stays.
            Err(PackagesError::Unresolvable(why)) if request.needs.open_sandbox.is_none() => {
                ready.prepared.profile_replaced = true;
                ready.prepared.findings.push(profile_replaced_finding(&why));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns what a profile's list requires in an image. No part of a request influences it, not even its
    /// folder.
    pub(crate) fn profile_requirements(
        &self,
        needs: &PackageNeeds<'_>,
        profile: &[belljar_analysis::imports::Requirement],
        interpreter: &ImageInterpreter,
    ) -> Result<PackageRequirements, PackagesError> {
        let resolver = Resolver::new(PackageRegistry::Pypi, &self.settings.names);
        let listed = PackageList { requirements: profile.to_vec(), lock: None };
        requirements::missing_requirements(needs, &resolver, DetectedImports::default(), listed, interpreter)
    }

    async fn combined_layer(
        &self,
        request: &LayerRequest<'_>,
        progress: &mut dyn Progress,
        ready: &mut PreparedPackages,
    ) -> Result<(), PackagesError> {
        if request.requirements.requirements.is_empty() {
            return Ok(());
        }
        let resolved = self.resolve(request, progress).await?;
        self.layer(request, &resolved, PYTHON_LAYER, progress, ready).await
    }
}

/// Returns what a request needs beyond its profile: neither packages that the profile names, nor unversioned
/// names that its lock contains.
fn additional_requirements(
    all: &PackageRequirements,
    profile: &PackageRequirements,
    locked: &[ExactPackage],
) -> PackageRequirements {
    let is_there =
        |text: &str| locked.iter().any(|one| python_name(&one.name).is_some_and(|name| name == text));
    let mut more = all.clone();
    let is_known = |one: &(String, Vec<String>)| {
        profile.requirements.contains(one) || one.1.is_empty() && is_there(&one.0)
    };
    more.requirements.retain(|one| !is_known(one));
    more
}

/// Removes locked packages from a set: the profile's layer has them in exactly that version.
fn without_locked(resolved: ResolvedPackages, locked: &[ExactPackage]) -> ResolvedPackages {
    let is_locked = |name: &str| {
        let name = python_name(name);
        name.is_some() && locked.iter().any(|one| python_name(&one.name) == name)
    };
    let ResolvedPackages { mut packages, lock, mut built } = resolved;
    packages.retain(|one| !is_locked(&one.name));
    built.retain(|one| !is_locked(&one.name));
    ResolvedPackages { packages, lock, built }
}

fn profile_replaced_finding(why: &str) -> belljar_engine::finding::Finding {
    let mut finding = requirements::finding(
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

    fn package(name: &str, version: &str) -> ExactPackage {
        ExactPackage {
            name: name.to_owned(),
            version: version.to_owned(),
            hashes: vec!["sha256:a".to_owned()],
        }
    }

    fn package_requirements(requirements: &[&str]) -> PackageRequirements {
        let requirements = requirements.iter().map(|text| ((*text).to_owned(), Vec::new())).collect();
        PackageRequirements { requirements, ..PackageRequirements::default() }
    }

    #[test]
    fn a_request_omits_packages_of_its_profile() {
        let (profile, locked) =
            (package_requirements(&["pandas"]), [package("pandas", "2.1"), package("NumPy", "2.0")]);
        let all = package_requirements(&["idna", "numpy", "numpy==1.26", "pandas"]);
        let more = additional_requirements(&all, &profile, &locked);
        assert_eq!(more.requirements, package_requirements(&["idna", "numpy==1.26"]).requirements);
    }

    #[test]
    fn locked_packages_are_installed_once() {
        let packages = vec![package("numpy", "2.0"), package("idna", "3.4")];
        let resolved = ResolvedPackages { packages, lock: None, built: Vec::new() };
        assert_eq!(without_locked(resolved, &[package("NumPy", "2.0")]).packages, [package("idna", "3.4")]);
    }
}
