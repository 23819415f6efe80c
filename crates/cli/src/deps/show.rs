//! Prints the packages that code needs, as text or JSON.

use belljar_analysis::imports::{
    ImportOrigin, PackageReason, PackageRegistry, ResolvedPackage, UnresolvedName, UnresolvedReason,
};
use serde_json::json;

use super::Detected;
use crate::say;
use crate::table::table_with;

/// Prints one line of JSON.
pub(super) fn json(detected: &Detected) {
    let Detected { registry, broken, answer } = detected;
    let object = json!({
        "registry": registry,
        "broken": broken,
        "packages": answer.packages,
        "unresolved": answer.unresolved,
    });
    say::answer(&object.to_string());
}

/// Prints a table of packages, then the imports that are not installed and what to do about them.
pub(super) fn text(detected: &Detected) {
    let answer = &detected.answer;
    if detected.broken {
        say::warning("the code has syntax errors, so some imports may be missing");
    }
    match answer.packages.is_empty() {
        true => say::answer("No packages needed."),
        false => say::answer(&table(&answer.packages)),
    }
    for (title, fatal) in [("Unknown or refused", true), ("Not installed", false)] {
        let those: Vec<_> = answer.unresolved.iter().filter(|one| one.is_fatal() == fatal).collect();
        if !those.is_empty() {
            say::answer(&format!("\n{title}:"));
        }
        for one in those {
            let (because, advice) = explain(one, detected.registry);
            say::answer(&format!("  {}: {because}\n    {advice}", reason(&one.reason)));
        }
    }
}

fn table(packages: &[ResolvedPackage]) -> String {
    let mut table = table_with(["PACKAGE", "NEEDED", "BECAUSE"]);
    for package in packages {
        let because: Vec<_> = package.because.iter().map(reason).collect();
        let needed = if package.optional { "optional" } else { "yes" };
        table.add_row([say::printable(&package.requirement), needed.to_owned(), because.join(", ")]);
    }
    table.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Formats why a package is needed. Names in code may contain anything, so they are escaped.
fn reason(reason: &PackageReason) -> String {
    let name = say::printable(&reason.name);
    let verb = match reason.how {
        ImportOrigin::Import | ImportOrigin::Dynamic => "import",
        ImportOrigin::Require => "require",
        ImportOrigin::Reexport => "export from",
        ImportOrigin::Script => "script block",
        ImportOrigin::Comment => "comment",
        ImportOrigin::Given => return format!("{name} (given)"),
    };
    match reason.line {
        Some(line) => format!("{verb} {name} (line {line})"),
        None => format!("{verb} {name}"),
    }
}

/// Explains why an import is not installed, and what to do about it.
fn explain(one: &UnresolvedName, registry: PackageRegistry) -> (String, String) {
    let rows = match registry {
        PackageRegistry::Pypi => "[dependencies.python]",
        PackageRegistry::Npm => "[dependencies.npm]",
    };
    match &one.why {
        UnresolvedReason::Unknown => (
            "no known package".to_owned(),
            format!("add its package with --dep, or map it under imports in {rows} of belljar.toml"),
        ),
        UnresolvedReason::Covered { by } => (
            format!("no known package, but {} may provide it", by.join(", ")),
            "if it does, nothing needs to be done".to_owned(),
        ),
        UnresolvedReason::Misspelt { likely } => (
            format!("no known package; similar to '{likely}'"),
            format!("correct it to {likely}, or map it under imports in {rows} of belljar.toml"),
        ),
        UnresolvedReason::Denied => (
            format!("denied in {rows} of belljar.toml"),
            "use another package, or ask the administrator to allow it".to_owned(),
        ),
        UnresolvedReason::NotAllowed => (
            format!("not in the allow list in {rows} of belljar.toml"),
            "use another package, or ask the administrator to allow it".to_owned(),
        ),
        UnresolvedReason::Pinned { version } => (
            format!("pinned to {} in {rows} of belljar.toml", say::printable(version)),
            "remove the version".to_owned(),
        ),
        UnresolvedReason::Conflict { with } => {
            (format!("conflicts with {}", say::printable(with)), "require one version only".to_owned())
        }
        UnresolvedReason::Direct => (
            "a URL, a path or a repository instead of a package".to_owned(),
            "use a package name, or set direct = true in [dependencies] of belljar.toml".to_owned(),
        ),
        UnresolvedReason::Invalid { message } => {
            (say::printable(message), "correct the requirement".to_owned())
        }
    }
}
