//! Resolves imports and requirements to packages, or to reasons why not.
//!
//! Declared requirements take precedence over detected imports, and earlier declarations over later ones. An
//! import is resolved only by a table: the administrator's, the built-in one, or the list of well-known
//! names. Every package to be installed passes [`Resolver::refusal`], wherever its name came from.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::requirement::normalize_name;
use super::{
    DeclaredRequirement, DetectedImports, Import, ImportOrigin, PackageRegistry, Requirement, catalog, typos,
};

/// The administrator's rules for packages, `[dependencies]` in the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolverSettings {
    /// Rules for Python packages.
    pub python: EcosystemRules,
    /// Rules for JavaScript packages.
    pub npm: EcosystemRules,
    /// Whether URLs, paths and repositories are accepted in place of registry packages.
    pub direct: bool,
}

/// Rules for the packages of one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EcosystemRules {
    /// Additional modules, each with the requirement that provides it.
    pub imports: BTreeMap<String, String>,
    /// If not empty, the only packages that may be installed.
    pub allow: BTreeSet<String>,
    /// Packages that are never installed.
    pub deny: BTreeSet<String>,
    /// The only version of a package that may be installed, such as `==1.26.4`.
    pub pins: BTreeMap<String, String>,
}

/// Why a package was requested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PackageReason {
    /// Name as imported or declared.
    pub name: String,
    /// Line in the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// How it was found.
    pub how: ImportOrigin,
}

/// A package to install.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResolvedPackage {
    /// Name of the package.
    pub name: String,
    /// Requirement as an installer accepts it.
    pub requirement: String,
    /// Digests that its files must match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hashes: Vec<String>,
    /// Whether the code handles its absence.
    pub optional: bool,
    /// Imports and declarations that need it.
    pub because: Vec<PackageReason>,
}

/// Why an import or requirement is not installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum UnresolvedReason {
    /// No table contains the module.
    Unknown,
    /// No table contains the module, but one of these declared packages may provide it.
    Covered {
        /// The declared packages.
        by: Vec<String>,
    },
    /// The name is unknown, and similar to a well-known one.
    Misspelt {
        /// The well-known package.
        likely: &'static str,
    },
    /// The administrator denies the package.
    Denied,
    /// The administrator's allow list does not contain the package.
    NotAllowed,
    /// The administrator pins another version.
    Pinned {
        /// The pinned version.
        version: String,
    },
    /// The package is required in two different versions.
    Conflict {
        /// The earlier requirement.
        with: String,
    },
    /// The requirement is a URL, path or repository.
    Direct,
    /// The requirement is invalid.
    Invalid {
        /// Why it is invalid.
        message: String,
    },
}

/// An import or requirement that is not installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnresolvedName {
    /// The import or requirement.
    #[serde(flatten)]
    pub reason: PackageReason,
    /// Whether the code handles its absence.
    pub optional: bool,
    /// Why it is not installed.
    pub why: UnresolvedReason,
}

impl UnresolvedName {
    /// Returns whether the code is expected to fail without it.
    pub fn is_fatal(&self) -> bool {
        !self.optional && !matches!(self.why, UnresolvedReason::Covered { .. })
    }
}

/// Result of resolving: the packages to install, and everything that is not installed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PackageResolution {
    /// Packages to install, in the order in which they were declared and imported.
    pub packages: Vec<ResolvedPackage>,
    /// Imports and requirements that are not installed.
    pub unresolved: Vec<UnresolvedName>,
}

/// Resolves the packages of one registry.
#[derive(Debug, Clone, Copy)]
pub struct Resolver<'a> {
    registry: PackageRegistry,
    rules: &'a EcosystemRules,
    direct: bool,
}

impl<'a> Resolver<'a> {
    /// Creates a resolver with the administrator's settings.
    pub fn new(registry: PackageRegistry, settings: &'a ResolverSettings) -> Self {
        let rules = match registry {
            PackageRegistry::Pypi => &settings.python,
            PackageRegistry::Npm => &settings.npm,
        };
        Self { registry, rules, direct: settings.direct }
    }

    /// Resolves detected imports and declarations, and the caller's requirements.
    pub fn resolve(&self, found: &DetectedImports, given: &[Requirement]) -> PackageResolution {
        let mut draft = ResolutionBuilder::default();
        for requirement in given {
            let reason =
                PackageReason { name: requirement.to_string(), line: None, how: ImportOrigin::Given };
            self.add(&mut draft, requirement.clone(), reason, false);
        }
        for declared in &found.declared {
            self.add_declared(&mut draft, declared);
        }
        for import in &found.imports {
            self.add_import(&mut draft, import);
        }
        draft.finish()
    }

    fn add_declared(&self, draft: &mut ResolutionBuilder, declared: &DeclaredRequirement) {
        let reason =
            PackageReason { name: declared.text.clone(), line: Some(declared.line), how: declared.how };
        match Requirement::parse(self.registry, &declared.text) {
            Err(error) => {
                draft.refuse(reason, false, UnresolvedReason::Invalid { message: error.to_string() })
            }
            // A comment may be prose after all, so only known names in it count.
            Ok(one) if declared.how == ImportOrigin::Comment && !self.is_known(&one.name) => {
                draft.refuse(reason, false, self.unknown_reason(&one.name));
            }
            Ok(requirement) => self.add(draft, requirement, reason, false),
        }
    }

    fn add_import(&self, draft: &mut ResolutionBuilder, import: &Import) {
        let reason = || PackageReason { name: import.name.clone(), line: Some(import.line), how: import.how };
        let requirements = match self.registry {
            PackageRegistry::Pypi => self.module_requirements(import),
            PackageRegistry::Npm => self.specifier_requirements(import),
        };
        match requirements {
            None => draft.refuse(reason(), import.optional, self.unknown_reason(&import.name)),
            Some(Err(message)) => {
                draft.refuse(reason(), import.optional, UnresolvedReason::Invalid { message })
            }
            Some(Ok(all)) => all.into_iter().for_each(|one| self.add(draft, one, reason(), import.optional)),
        }
    }

    /// Returns the packages of a module; several if it is a namespace that packages share.
    fn module_requirements(&self, import: &Import) -> Option<Result<Vec<Requirement>, String>> {
        let parts = import.name.split('.').count();
        let members = import
            .members
            .iter()
            .map(|member| self.requirement_of_module(&format!("{}.{member}", import.name)));
        let members: Vec<_> = members.collect();
        let whole = self.requirement_of_module(&import.name);
        // A row for the member itself is more specific than one for the module.
        let deeper =
            |row: &Option<(String, usize)>| row.as_ref().is_some_and(|(_, explained)| *explained > parts);
        let rows: BTreeSet<String> = if members.iter().any(deeper) {
            members.into_iter().filter(deeper).flatten().map(|(package, _)| package).collect()
        } else {
            BTreeSet::from([whole?.0])
        };
        let parsed =
            rows.iter().map(|row| Requirement::parse(self.registry, row).map_err(|error| error.to_string()));
        Some(parsed.collect())
    }

    fn requirement_of_module(&self, module: &str) -> Option<(String, usize)> {
        let own = catalog::prefixes(module)
            .find_map(|(prefix, parts)| Some((self.rules.imports.get(prefix)?.clone(), parts)));
        own.or_else(|| catalog::package_of(module)).or_else(|| {
            let top = normalize_name(module.split('.').next().unwrap_or(module));
            self.is_known(&top).then_some((top, 1))
        })
    }

    fn specifier_requirements(&self, import: &Import) -> Option<Result<Vec<Requirement>, String>> {
        if let Some(row) = self.rules.imports.get(&import.name) {
            let parsed = Requirement::parse(self.registry, row).map_err(|error| error.to_string());
            return Some(parsed.map(|one| vec![one]));
        }
        // A version in the specifier declares the package explicitly.
        let stated =
            import.version.is_some() && typos::closest_known_name(self.registry, &import.name).is_none();
        (stated || self.is_known(&import.name)).then(|| {
            let mut requirement = Requirement::any_version(self.registry, &import.name);
            requirement.version = import.version.clone().unwrap_or_default();
            Ok(vec![requirement])
        })
    }

    fn unknown_reason(&self, name: &str) -> UnresolvedReason {
        let top = match self.registry {
            PackageRegistry::Pypi => name.split('.').next().unwrap_or(name),
            PackageRegistry::Npm => name,
        };
        typos::closest_known_name(self.registry, top)
            .map_or(UnresolvedReason::Unknown, |likely| UnresolvedReason::Misspelt { likely })
    }

    fn is_known(&self, package: &str) -> bool {
        catalog::is_known(self.registry, package) || self.contains_name(&self.rules.allow, package)
    }

    fn contains_name(&self, names: &BTreeSet<String>, package: &str) -> bool {
        names.iter().any(|name| self.is_same_name(name, package))
    }

    fn is_same_name(&self, name: &str, package: &str) -> bool {
        match self.registry {
            PackageRegistry::Pypi => normalize_name(name) == package,
            PackageRegistry::Npm => name == package,
        }
    }

    fn add(
        &self,
        draft: &mut ResolutionBuilder,
        mut requirement: Requirement,
        reason: PackageReason,
        optional: bool,
    ) {
        if let Some(why) = self.refusal_reason(&requirement) {
            return draft.refuse(reason, optional, why);
        }
        if let Some((_, version)) =
            self.rules.pins.iter().find(|(name, _)| self.is_same_name(name, &requirement.name))
        {
            requirement.version.clone_from(version);
        }
        draft.add(requirement, reason, optional);
    }

    /// Returns why the package may not be installed.
    fn refusal_reason(&self, requirement: &Requirement) -> Option<UnresolvedReason> {
        let name = &requirement.name;
        if self.contains_name(&self.rules.deny, name) {
            return Some(UnresolvedReason::Denied);
        }
        if !self.rules.allow.is_empty() && !self.contains_name(&self.rules.allow, name) {
            return Some(UnresolvedReason::NotAllowed);
        }
        if requirement.direct_url.is_some() && !self.direct {
            return Some(UnresolvedReason::Direct);
        }
        let pin = self.rules.pins.iter().find(|(pinned, _)| self.is_same_name(pinned, name));
        if let Some((_, version)) =
            pin.filter(|(_, pin)| !requirement.version.is_empty() && requirement.version != **pin)
        {
            return Some(UnresolvedReason::Pinned { version: version.clone() });
        }
        let vouched = self.is_known(name) || self.is_named_by_administrator(name);
        let likely = if vouched { None } else { typos::closest_known_name(self.registry, name) };
        likely.map(|likely| UnresolvedReason::Misspelt { likely })
    }

    /// Returns whether the administrator's import table or pins name the package.
    fn is_named_by_administrator(&self, package: &str) -> bool {
        let rows = self.rules.imports.values().filter_map(|row| Requirement::parse(self.registry, row).ok());
        rows.map(|row| row.name)
            .chain(self.rules.pins.keys().cloned())
            .any(|name| self.is_same_name(&name, package))
    }
}

/// Builder of a resolution.
#[derive(Default)]
struct ResolutionBuilder {
    packages: Vec<(Requirement, ResolvedPackage)>,
    unresolved: Vec<UnresolvedName>,
}

impl ResolutionBuilder {
    fn refuse(&mut self, reason: PackageReason, optional: bool, why: UnresolvedReason) {
        self.unresolved.push(UnresolvedName { reason, optional, why });
    }

    fn add(&mut self, requirement: Requirement, reason: PackageReason, optional: bool) {
        let Some((first, package)) = self.packages.iter_mut().find(|(one, _)| one.name == requirement.name)
        else {
            let package = ResolvedPackage {
                name: requirement.name.clone(),
                requirement: requirement.to_string(),
                hashes: requirement.hashes.clone(),
                optional,
                because: vec![reason],
            };
            return self.packages.push((requirement, package));
        };
        let says = |one: &Requirement| !one.version.is_empty() || one.direct_url.is_some();
        let differs = says(first)
            && says(&requirement)
            && (&first.version, &first.direct_url) != (&requirement.version, &requirement.direct_url);
        if differs && package.because.iter().any(|before| before.how == reason.how) {
            let with = package.requirement.clone();
            return self.refuse(reason, optional, UnresolvedReason::Conflict { with });
        }
        if !says(first) && says(&requirement) {
            (package.requirement, package.hashes) = (requirement.to_string(), requirement.hashes.clone());
            *first = requirement;
        }
        package.optional &= optional;
        package.because.push(reason);
    }

    /// Marks unknown modules as covered by declared packages that no import accounts for, since one of those
    /// may provide them.
    fn finish(mut self) -> PackageResolution {
        let stated = |how: ImportOrigin| matches!(how, ImportOrigin::Given | ImportOrigin::Script);
        let idle = self
            .packages
            .iter()
            .filter(|(_, package)| package.because.iter().all(|reason| stated(reason.how)));
        let by: Vec<String> = idle.map(|(_, package)| package.name.clone()).collect();
        for unresolved in
            self.unresolved.iter_mut().filter(|one| one.why == UnresolvedReason::Unknown && !by.is_empty())
        {
            unresolved.why = UnresolvedReason::Covered { by: by.clone() };
        }
        let packages = self.packages.into_iter().map(|(_, package)| package).collect();
        PackageResolution { packages, unresolved: self.unresolved }
    }
}
