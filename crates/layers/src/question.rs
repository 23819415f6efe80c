//! What a run needs that its image does not have: imports of its code, names that were given, manifests that came along.

use std::collections::BTreeSet;

use belljar_analysis::imports::{
    self, Answer, Found, Import, Lock, PythonVersion, Registry, Requirement, Resolver, Source, Unresolved,
    Why,
};
use belljar_engine::finding::Finding;
use belljar_engine::packages::{Needs, PackagesError};

use crate::interpreter::Interpreter;

/// What is to be installed of one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Question {
    /// As an installer takes them, with hashes that their files must have.
    pub(crate) requirements: Vec<(String, Vec<String>)>,
    /// What was not understood, and may be there anyway.
    pub(crate) findings: Vec<Finding>,
    /// Modules that the code imports and will find, the image's own included.
    pub(crate) modules: Vec<String>,
    /// Exact versions that somebody settled on.
    pub(crate) lock: Option<Lock>,
}

/// Whether code, names and files together can ask for anything at all. Most short code does not.
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

/// What somebody names.
#[derive(Debug, Default)]
pub(crate) struct Named {
    pub(crate) python: Listed,
    /// Python packages that the profile names.
    pub(crate) profile: Vec<Requirement>,
    pub(crate) npm: Listed,
}

/// What somebody names of one registry.
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
    /// A lock asks for what it was made for, unless somebody says what is wanted, and decides about versions in any case.
    fn take(&mut self, lock: Lock) -> Result<(), PackagesError> {
        if let Some(other) = &self.lock {
            let why = format!("{} and {} both came along; leave one out", other.file, lock.file);
            return Err(PackagesError::Unresolvable(why));
        }
        for root in &lock.roots {
            if !self.requirements.iter().any(|one| one.name == root.name) {
                // Its hashes are among the pins, which hold for whatever is resolved.
                self.requirements.push(Requirement { hashes: Vec::new(), ..root.clone() });
            }
        }
        self.lock = Some(lock);
        Ok(())
    }
}

/// Reads names: `npm:` and `pypi:` say whose they are, and otherwise the language does.
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
    // A profile serves every language, and each takes what it can use; a shell and a sandbox that stays take all.
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
    // After all the others, which say what is wanted of it.
    locks.into_iter().try_for_each(|lock| named.of(lock.registry).take(lock))?;
    Ok(named)
}

/// Whose packages the language imports.
pub(crate) fn registry(needs: &Needs<'_>) -> Option<Registry> {
    needs
        .language
        .and_then(|language| imports::Language::named(language.name))
        .map(imports::Language::registry)
}

/// Finds imports of the code, where they count.
pub(crate) fn found(needs: &Needs<'_>) -> Result<Found, Box<Finding>> {
    let language = needs.language.and_then(|language| imports::Language::named(language.name));
    let (Some(language), Some(code), true) = (language, needs.code, needs.detect) else {
        return Ok(Found::default());
    };
    let first_part = |path: &str| path.split('/').next().unwrap_or(path).to_owned();
    let local: BTreeSet<String> = needs.files.iter().map(|file| first_part(&file.path)).collect();
    let source = Source { code, language, python: PythonVersion::default(), local: &local };
    imports::detect(source)
        .map_err(|error| Box::new(finding(error.to_string(), None, "name them as dependencies.packages")))
}

/// Puts everything together, without what the interpreter has.
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

/// What the code says how to do without is left out.
fn requirements(answer: &Answer) -> Vec<(String, Vec<String>)> {
    let needed = answer.packages.iter().filter(|package| !package.optional);
    let mut all: Vec<_> =
        needed.map(|package| (package.requirement.clone(), package.hashes.clone())).collect();
    all.sort();
    all.dedup();
    all
}

/// Whether something that is not installed stops the run; else what to say about it.
fn judge(one: &Unresolved, needs: &Needs<'_>) -> Result<Option<Finding>, PackagesError> {
    let (name, line) = (one.reason.name.escape_debug().to_string(), one.reason.line);
    let refuse = |why: String| Err(PackagesError::Unresolvable(format!("'{name}' {why}")));
    if one.optional {
        return Ok(None);
    }
    match &one.why {
        Why::Covered { .. } => Ok(None),
        Why::Unknown => Ok(Some(unknown(&name, line))),
        // Somebody's own module may have any name.
        Why::Misspelt { .. } if needs.playground && line.is_some() => Ok(Some(unknown(&name, line))),
        Why::Misspelt { likely } => refuse(format!(
            "is no known package, and nearly '{likely}': write that if it is meant; else an administrator can add the name \
             to imports in [dependencies]"
        )),
        Why::Denied => refuse("is denied by the administrator; do without it".to_owned()),
        Why::NotAllowed => refuse("is not among the packages that the administrator allows".to_owned()),
        Why::Pinned { version } => {
            refuse(format!("is pinned to '{}' by the administrator; leave out the version", version.escape_debug()))
        }
        Why::Conflict { with } => {
            refuse(format!("contradicts '{}', which was stated before; state one version", with.escape_debug()))
        }
        Why::Direct => refuse(
            "comes from an address, a path or a repository; name a package, or have the administrator set direct = true \
             in [dependencies]"
                .to_owned(),
        ),
        Why::Invalid { message } => Err(PackagesError::Unresolvable(message.clone())),
    }
}

fn unknown(name: &str, line: Option<u32>) -> Finding {
    let suggestion = "where it fails for that, name its package: --dep NAME, or dependencies.packages";
    finding(format!("'{name}' is imported and is no known package; it was not installed"), line, suggestion)
}

/// Something that may or may not matter.
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
