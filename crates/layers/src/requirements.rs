//! Collects the packages that a run needs and its image lacks: from imports, named packages and manifests.

use std::collections::BTreeSet;

use belljar_analysis::imports::{
    self, DetectedImports, Import, LockFile, PackageRegistry, PackageResolution, PythonVersion, Requirement,
    Resolver, SourceCode, UnresolvedName, UnresolvedReason,
};
use belljar_engine::finding::Finding;
use belljar_engine::language::Language;
use belljar_engine::packages::{OpenSandboxModules, PackageNeeds, PackagesError};

use crate::interpreter::ImageInterpreter;

/// The packages to install from one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PackageRequirements {
    /// Requirement strings as installers accept them, with the hashes that their files must have.
    pub(crate) requirements: Vec<(String, Vec<String>)>,
    /// Imports that belong to no known package. They may still be available.
    pub(crate) findings: Vec<Finding>,
    /// Modules that the code imports and will find, including those of the image.
    pub(crate) modules: Vec<String>,
    /// The request's own lock file with exact versions.
    pub(crate) lock: Option<LockFile>,
}

/// Returns whether code, names and files cannot request any package. This is true of most short code.
pub(crate) fn needs_nothing(needs: &PackageNeeds<'_>) -> bool {
    if needs_go_library(needs) {
        return false;
    }
    // An open sandbox has its profile's packages already.
    let needs_profile = !needs.profile_packages.is_empty() && needs.open_sandbox.is_none();
    if !needs.packages.is_empty() || needs_profile {
        return false;
    }
    if !needs.detect {
        return true;
    }
    let says = |code: &str| ["import", "require", "from"].iter().any(|word| code.contains(word));
    let reads =
        needs.language.is_some_and(|language| imports::ImportLanguage::from_name(language.name).is_some());
    !(reads && needs.code.is_some_and(says)) && manifests(needs).next().is_none()
}

/// Returns whether Go's standard library is needed to build the code.
pub(crate) fn needs_go_library(needs: &PackageNeeds<'_>) -> bool {
    needs.language.is_some_and(Language::has_prebuilt_library) && !needs.is_built
}

fn manifests<'a>(needs: &PackageNeeds<'a>) -> impl Iterator<Item = (&'a str, &'a [u8])> {
    let files = needs.files.iter().map(|file| (file.path.as_str(), file.content.as_slice()));
    files.filter(|(path, _)| Requirement::parse_manifest(path, "").is_some())
}

/// The packages that a request and its profile name.
#[derive(Debug, Default)]
pub(crate) struct NamedPackages {
    pub(crate) python: PackageList,
    /// Python packages named by the profile.
    pub(crate) profile: Vec<Requirement>,
    pub(crate) npm: PackageList,
}

/// The packages named for one registry.
#[derive(Debug, Default)]
pub(crate) struct PackageList {
    pub(crate) requirements: Vec<Requirement>,
    pub(crate) lock: Option<LockFile>,
}

impl NamedPackages {
    fn list_mut(&mut self, registry: PackageRegistry) -> &mut PackageList {
        match registry {
            PackageRegistry::Pypi => &mut self.python,
            PackageRegistry::Npm => &mut self.npm,
        }
    }
}

impl PackageList {
    /// Adds a lock file. Its roots are requirements unless the request names those packages itself; its
    /// versions always apply.
    fn add_lock(&mut self, lock: LockFile) -> Result<(), PackagesError> {
        if let Some(other) = &self.lock {
            let why = format!("the request has both {} and {}; remove one", other.file, lock.file);
            return Err(PackagesError::Unresolvable(why));
        }
        for root in &lock.roots {
            if !self.requirements.iter().any(|one| one.name == root.name) {
                // The hashes are part of the pins, which apply to every resolution.
                self.requirements.push(Requirement { hashes: Vec::new(), ..root.clone() });
            }
        }
        self.lock = Some(lock);
        Ok(())
    }
}

/// Parses named packages. The prefixes `npm:` and `pypi:` select the registry; the default is that of the
/// language.
pub(crate) fn parse_named(
    needs: &PackageNeeds<'_>,
    with_standing: bool,
) -> Result<NamedPackages, PackagesError> {
    let refuse = |error: imports::Error| PackagesError::Unresolvable(error.to_string());
    let own = registry(needs);
    let mut named = NamedPackages::default();
    let parse = |text: &str, usual: PackageRegistry| {
        let (registry, text) = match text.split_once(':') {
            Some(("npm", rest)) => (PackageRegistry::Npm, rest),
            Some(("pypi", rest)) => (PackageRegistry::Pypi, rest),
            _ => (usual, text),
        };
        Requirement::parse(registry, text).map_err(refuse)
    };
    for text in needs.packages {
        let requirement = parse(text, own.unwrap_or(PackageRegistry::Pypi))?;
        named.list_mut(requirement.registry).requirements.push(requirement);
    }
    // A profile serves every language: a run takes the packages of its own registry. A shell or a long-lived
    // sandbox takes all of them.
    for text in needs.profile_packages.iter().filter(|_| with_standing) {
        let requirement = parse(text, PackageRegistry::Pypi)?;
        match requirement.registry {
            registry if own.is_some_and(|own| own != registry) => {}
            PackageRegistry::Pypi => named.profile.push(requirement),
            PackageRegistry::Npm => named.npm.requirements.push(requirement),
        }
    }
    let mut locks = Vec::new();
    for (path, content) in manifests(needs).filter(|_| needs.detect) {
        let text = String::from_utf8_lossy(content);
        if let Some(lock) = LockFile::parse_file(path, &text) {
            locks.push(lock.map_err(refuse)?);
            continue;
        }
        let listed = Requirement::parse_manifest(path, &text).into_iter().collect::<Result<Vec<_>, _>>();
        for requirement in listed.map_err(refuse)?.concat() {
            named.list_mut(requirement.registry).requirements.push(requirement);
        }
    }
    // Locks come last, because they depend on the requirements.
    locks.into_iter().try_for_each(|lock| named.list_mut(lock.registry).add_lock(lock))?;
    Ok(named)
}

/// Returns the registry that serves the language's imports.
pub(crate) fn registry(needs: &PackageNeeds<'_>) -> Option<PackageRegistry> {
    needs
        .language
        .and_then(|language| imports::ImportLanguage::from_name(language.name))
        .map(imports::ImportLanguage::registry)
}

/// Detects the imports of the code, if detection is enabled.
pub(crate) fn detect_imports(needs: &PackageNeeds<'_>) -> Result<DetectedImports, Box<Finding>> {
    let language = needs.language.and_then(|language| imports::ImportLanguage::from_name(language.name));
    let (Some(language), Some(code), true) = (language, needs.code, needs.detect) else {
        return Ok(DetectedImports::default());
    };
    let first_part = |path: &str| path.split('/').next().unwrap_or(path).to_owned();
    let present = needs.open_sandbox.map(present_modules).unwrap_or_default();
    let files = needs.files.iter().map(|file| first_part(&file.path));
    let local: BTreeSet<String> = files.chain(present.iter().cloned()).collect();
    let source = SourceCode { code, language, python: PythonVersion::default(), local: &local };
    let found = imports::detect(source).map(|mut found| {
        found.imports.retain(|import| !present.contains(&import.name));
        found
    });
    found.map_err(|error| Box::new(finding(error.to_string(), None, "list them in dependencies.packages")))
}

/// Returns the modules that an open sandbox has: its own, and those with the names of packages in its layers.
fn present_modules(sandbox: OpenSandboxModules<'_>) -> Vec<String> {
    let module = |package: &String| match package.split_once("==") {
        Some((name, _)) => name.replace('-', "_"),
        None => package.rsplit_once('@').map_or(package.as_str(), |(name, _)| name).to_owned(),
    };
    sandbox.modules.iter().cloned().chain(sandbox.packages.iter().map(module)).collect()
}

/// Merges imports, requirements and the lock file, and removes what the interpreter already has.
pub(crate) fn missing_requirements(
    needs: &PackageNeeds<'_>,
    resolver: &Resolver<'_>,
    mut found: DetectedImports,
    listed: PackageList,
    interpreter: &ImageInterpreter,
) -> Result<PackageRequirements, PackagesError> {
    let PackageList { requirements: mut given, lock } = listed;
    let top = |import: &Import| import.name.split('.').next().unwrap_or(&import.name).to_owned();
    let wanted = found.imports.clone();
    found.imports.retain(|import| !interpreter.modules.contains(&top(import)));
    given.retain(|one| one.to_string() != one.name || !interpreter.packages.contains(&one.name));
    let answer = resolver.resolve(&found, &given);
    let missing = |import: &Import| answer.unresolved.iter().any(|one| one.reason.name == import.name);
    let there = wanted.iter().filter(|import| !import.optional && !missing(import));
    let mut package_requirements = PackageRequirements {
        modules: there.map(|import| import.name.clone()).collect(),
        lock,
        ..PackageRequirements::default()
    };
    for unresolved in &answer.unresolved {
        package_requirements.findings.extend(judge_unresolved(unresolved, needs)?);
    }
    package_requirements.requirements = requirements(&answer);
    Ok(package_requirements)
}

/// Removes the requirements that the layers of an open sandbox meet. If others remain, adds the packages of
/// those layers in their versions, because the new layer takes their place.
pub(crate) fn merge_with_open_sandbox(
    missing: &mut PackageRequirements,
    registry: PackageRegistry,
    needs: &PackageNeeds<'_>,
) {
    let Some(sandbox) = needs.open_sandbox else { return };
    let present: Vec<_> =
        sandbox.packages.iter().filter_map(|text| exact_requirement(registry, text)).collect();
    missing.requirements.retain(|(text, _)| !present.iter().any(|exact| is_met_by(registry, text, exact)));
    if !missing.requirements.is_empty() {
        missing.requirements.extend(present.iter().map(|exact| (exact.to_string(), Vec::new())));
        missing.requirements.sort();
        missing.requirements.dedup();
    }
}

/// Parses a package with its version as results list it: `numpy==2.1.0`, `lodash@4.17.21`.
fn exact_requirement(registry: PackageRegistry, text: &str) -> Option<Requirement> {
    let is_python = text.contains("==");
    (is_python == (registry == PackageRegistry::Pypi)).then(|| Requirement::parse(registry, text).ok())?
}

fn is_met_by(registry: PackageRegistry, text: &str, exact: &Requirement) -> bool {
    Requirement::parse(registry, text).is_ok_and(|wanted| {
        let is_version_met = wanted.version.is_empty() || wanted.version == exact.version;
        wanted.name == exact.name && is_version_met && wanted.extras.is_empty() && wanted.direct_url.is_none()
    })
}

/// Returns the needed packages, without those that the code treats as optional.
fn requirements(answer: &PackageResolution) -> Vec<(String, Vec<String>)> {
    let needed = answer.packages.iter().filter(|package| !package.optional);
    let mut all: Vec<_> =
        needed.map(|package| (package.requirement.clone(), package.hashes.clone())).collect();
    all.sort();
    all.dedup();
    all
}

/// Decides about a package that is not installed: refuses the run, reports a finding, or ignores it.
fn judge_unresolved(
    one: &UnresolvedName,
    needs: &PackageNeeds<'_>,
) -> Result<Option<Finding>, PackagesError> {
    let (name, line) = (one.reason.name.escape_debug().to_string(), one.reason.line);
    let refuse = |why: String| Err(PackagesError::Unresolvable(format!("'{name}' {why}")));
    if one.optional {
        return Ok(None);
    }
    match &one.why {
        UnresolvedReason::Covered { .. } => Ok(None),
        UnresolvedReason::Unknown => Ok(Some(unknown(&name, line))),
        // A module of the sandbox's own can have any name.
        UnresolvedReason::Misspelt { .. } if needs.has_host_workspace && line.is_some() => {
            Ok(Some(unknown(&name, line)))
        }
        UnresolvedReason::Misspelt { likely } => refuse(format!(
            "is not a known package; did you mean '{likely}'? Otherwise an administrator can add the name \
             to imports in [dependencies]"
        )),
        UnresolvedReason::Denied => refuse("is denied by the administrator; remove it".to_owned()),
        UnresolvedReason::NotAllowed => {
            refuse("is not on the administrator's list of allowed packages".to_owned())
        }
        UnresolvedReason::Pinned { version } => refuse(format!(
            "is pinned to '{}' by the administrator; leave out the version",
            version.escape_debug()
        )),
        UnresolvedReason::Conflict { with } => {
            refuse(format!("conflicts with the earlier '{}'; state one version", with.escape_debug()))
        }
        UnresolvedReason::Direct => refuse(
            "comes from a URL, a path or a repository; name a package, or ask the administrator to set \
             direct = true in [dependencies]"
                .to_owned(),
        ),
        UnresolvedReason::Invalid { message } => Err(PackagesError::Unresolvable(message.clone())),
    }
}

fn unknown(name: &str, line: Option<u32>) -> Finding {
    let suggestion = "if the import fails, name its package: --dep NAME, or dependencies.packages";
    finding(format!("'{name}' is imported but is no known package; it was not installed"), line, suggestion)
}

/// Creates a warning about a dependency.
pub(crate) fn finding(message: String, line: Option<u32>, suggestion: &str) -> Finding {
    Finding {
        rule: "dependency-unknown".to_owned(),
        category: "dependencies".to_owned(),
        severity: "warning".to_owned(),
        message,
        line,
        column: None,
        suggestion: suggestion.to_owned(),
        decided_by: "dependencies.detect".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_engine::plan::Image;

    fn merged(registry: PackageRegistry, wanted: &[&str], present: &[&str]) -> Vec<String> {
        let present: Vec<String> = present.iter().map(|text| (*text).to_owned()).collect();
        let open_sandbox = Some(OpenSandboxModules { packages: &present, modules: &[] });
        let needs = PackageNeeds { open_sandbox, ..PackageNeeds::new("t", &Image::Host) };
        let requirements = wanted.iter().map(|text| ((*text).to_owned(), Vec::new())).collect();
        let mut missing = PackageRequirements { requirements, ..PackageRequirements::default() };
        merge_with_open_sandbox(&mut missing, registry, &needs);
        missing.requirements.into_iter().map(|(text, _)| text).collect()
    }

    #[test]
    fn a_layer_of_an_open_sandbox_is_extended_in_its_versions() {
        let present = ["numpy==2.1.0", "six==1.17.0", "lodash@4.17.21"];
        let python = |wanted: &[&str]| merged(PackageRegistry::Pypi, wanted, &present);
        assert_eq!(python(&["numpy", "six==1.17.0"]), Vec::<String>::new(), "the sandbox has both");
        assert_eq!(python(&["numpy", "idna"]), ["idna", "numpy==2.1.0", "six==1.17.0"]);
        // A different version is a conflict, which the installer explains.
        assert_eq!(python(&["six==1.16.0"]), ["numpy==2.1.0", "six==1.16.0", "six==1.17.0"]);
        assert_eq!(merged(PackageRegistry::Npm, &["lodash"], &present), Vec::<String>::new());
        assert_eq!(merged(PackageRegistry::Npm, &["is-odd"], &present), ["is-odd", "lodash@4.17.21"]);
        assert_eq!(merged(PackageRegistry::Pypi, &["idna"], &[]), ["idna"]);
    }
}
