//! Collects the packages that a run needs and its image lacks: from imports, named packages and manifests.

use std::collections::BTreeSet;

use belljar_analysis::imports::{
    self, Answer, Found, Import, Lock, PythonVersion, Registry, Requirement, Resolver, Source, Unresolved,
    Why,
};
use belljar_engine::finding::Finding;
use belljar_engine::packages::{Needs, PackagesError};

use crate::interpreter::Interpreter;

/// The packages to install from one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Question {
    /// Requirement strings as installers accept them, with the hashes that their files must have.
    pub(crate) requirements: Vec<(String, Vec<String>)>,
    /// Imports that belong to no known package. They may still be available.
    pub(crate) findings: Vec<Finding>,
    /// Modules that the code imports and will find, including those of the image.
    pub(crate) modules: Vec<String>,
    /// The request's own lock file with exact versions.
    pub(crate) lock: Option<Lock>,
}

/// Returns whether code, names and files cannot request any package. This is true of most short code.
pub(crate) fn is_plain(needs: &Needs<'_>) -> bool {
    if !needs.packages.is_empty() || !needs.standing.is_empty() {
        return false;
    }
    if !needs.detect {
        return true;
    }
    let says = |code: &str| ["import", "require", "from"].iter().any(|word| code.contains(word));
    let reads = needs.language.is_some_and(|language| imports::Language::named(language.name).is_some());
    !(reads && needs.code.is_some_and(says)) && manifests(needs).next().is_none()
}

fn manifests<'a>(needs: &Needs<'a>) -> impl Iterator<Item = (&'a str, &'a [u8])> {
    let files = needs.files.iter().map(|file| (file.path.as_str(), file.content.as_slice()));
    files.filter(|(path, _)| Requirement::of_manifest(path, "").is_some())
}

/// The packages that a request and its profile name.
#[derive(Debug, Default)]
pub(crate) struct Named {
    pub(crate) python: Listed,
    /// Python packages named by the profile.
    pub(crate) profile: Vec<Requirement>,
    pub(crate) npm: Listed,
}

/// The packages named for one registry.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) requirements: Vec<Requirement>,
    pub(crate) lock: Option<Lock>,
}

impl Named {
    fn of(&mut self, registry: Registry) -> &mut Listed {
        match registry {
            Registry::Pypi => &mut self.python,
            Registry::Npm => &mut self.npm,
        }
    }
}

impl Listed {
    /// Adds a lock file. Its roots are requirements unless the request names those packages itself; its
    /// versions always apply.
    fn take(&mut self, lock: Lock) -> Result<(), PackagesError> {
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
pub(crate) fn named(needs: &Needs<'_>, with_standing: bool) -> Result<Named, PackagesError> {
    let refuse = |error: imports::Error| PackagesError::Unresolvable(error.to_string());
    let own = registry(needs);
    let mut named = Named::default();
    let parse = |text: &str, usual: Registry| {
        let (registry, text) = match text.split_once(':') {
            Some(("npm", rest)) => (Registry::Npm, rest),
            Some(("pypi", rest)) => (Registry::Pypi, rest),
            _ => (usual, text),
        };
        Requirement::parse(registry, text).map_err(refuse)
    };
    for text in needs.packages {
        let requirement = parse(text, own.unwrap_or(Registry::Pypi))?;
        named.of(requirement.registry).requirements.push(requirement);
    }
    // A profile serves every language: a run takes the packages of its own registry. A shell or a long-lived
    // sandbox takes all of them.
    for text in needs.standing.iter().filter(|_| with_standing) {
        let requirement = parse(text, Registry::Pypi)?;
        match requirement.registry {
            registry if own.is_some_and(|own| own != registry) => {}
            Registry::Pypi => named.profile.push(requirement),
            Registry::Npm => named.npm.requirements.push(requirement),
        }
    }
    let mut locks = Vec::new();
    for (path, content) in manifests(needs).filter(|_| needs.detect) {
        let text = String::from_utf8_lossy(content);
        if let Some(lock) = Lock::of_file(path, &text) {
            locks.push(lock.map_err(refuse)?);
            continue;
        }
        let listed = Requirement::of_manifest(path, &text).into_iter().collect::<Result<Vec<_>, _>>();
        for requirement in listed.map_err(refuse)?.concat() {
            named.of(requirement.registry).requirements.push(requirement);
        }
    }
    // Locks come last, because they depend on the requirements.
    locks.into_iter().try_for_each(|lock| named.of(lock.registry).take(lock))?;
    Ok(named)
}

/// Returns the registry that serves the language's imports.
pub(crate) fn registry(needs: &Needs<'_>) -> Option<Registry> {
    needs
        .language
        .and_then(|language| imports::Language::named(language.name))
        .map(imports::Language::registry)
}

/// Detects the imports of the code, if detection is enabled.
pub(crate) fn found(needs: &Needs<'_>) -> Result<Found, Box<Finding>> {
    let language = needs.language.and_then(|language| imports::Language::named(language.name));
    let (Some(language), Some(code), true) = (language, needs.code, needs.detect) else {
        return Ok(Found::default());
    };
    let first_part = |path: &str| path.split('/').next().unwrap_or(path).to_owned();
    let local: BTreeSet<String> = needs.files.iter().map(|file| first_part(&file.path)).collect();
    let source = Source { code, language, python: PythonVersion::default(), local: &local };
    imports::detect(source)
        .map_err(|error| Box::new(finding(error.to_string(), None, "list them in dependencies.packages")))
}

/// Merges imports, requirements and the lock file, and removes what the interpreter already has.
pub(crate) fn question(
    needs: &Needs<'_>,
    resolver: &Resolver<'_>,
    mut found: Found,
    listed: Listed,
    interpreter: &Interpreter,
) -> Result<Question, PackagesError> {
    let Listed { requirements: mut given, lock } = listed;
    let top = |import: &Import| import.name.split('.').next().unwrap_or(&import.name).to_owned();
    let wanted = found.imports.clone();
    found.imports.retain(|import| !interpreter.modules.contains(&top(import)));
    given.retain(|one| one.to_string() != one.name || !interpreter.packages.contains(&one.name));
    let answer = resolver.resolve(&found, &given);
    let missing = |import: &Import| answer.unresolved.iter().any(|one| one.reason.name == import.name);
    let there = wanted.iter().filter(|import| !import.optional && !missing(import));
    let mut question =
        Question { modules: there.map(|import| import.name.clone()).collect(), lock, ..Question::default() };
    for unresolved in &answer.unresolved {
        question.findings.extend(judge(unresolved, needs)?);
    }
    question.requirements = requirements(&answer);
    Ok(question)
}

/// Returns the needed packages, without those that the code treats as optional.
fn requirements(answer: &Answer) -> Vec<(String, Vec<String>)> {
    let needed = answer.packages.iter().filter(|package| !package.optional);
    let mut all: Vec<_> =
        needed.map(|package| (package.requirement.clone(), package.hashes.clone())).collect();
    all.sort();
    all.dedup();
    all
}

/// Decides about a package that is not installed: refuses the run, reports a finding, or ignores it.
fn judge(one: &Unresolved, needs: &Needs<'_>) -> Result<Option<Finding>, PackagesError> {
    let (name, line) = (one.reason.name.escape_debug().to_string(), one.reason.line);
    let refuse = |why: String| Err(PackagesError::Unresolvable(format!("'{name}' {why}")));
    if one.optional {
        return Ok(None);
    }
    match &one.why {
        Why::Covered { .. } => Ok(None),
        Why::Unknown => Ok(Some(unknown(&name, line))),
        // A module of the sandbox's own can have any name.
        Why::Misspelt { .. } if needs.playground && line.is_some() => Ok(Some(unknown(&name, line))),
        Why::Misspelt { likely } => refuse(format!(
            "is not a known package; did you mean '{likely}'? Otherwise an administrator can add the name \
             to imports in [dependencies]"
        )),
        Why::Denied => refuse("is denied by the administrator; remove it".to_owned()),
        Why::NotAllowed => refuse("is not on the administrator's list of allowed packages".to_owned()),
        Why::Pinned { version } => refuse(format!(
            "is pinned to '{}' by the administrator; leave out the version",
            version.escape_debug()
        )),
        Why::Conflict { with } => {
            refuse(format!("conflicts with the earlier '{}'; state one version", with.escape_debug()))
        }
        Why::Direct => refuse(
            "comes from a URL, a path or a repository; name a package, or ask the administrator to set \
             direct = true in [dependencies]"
                .to_owned(),
        ),
        Why::Invalid { message } => Err(PackagesError::Unresolvable(message.clone())),
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
