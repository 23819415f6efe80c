//! The answer, for people and for programs.

use belljar_analysis::imports::{How, Package, Reason, Registry, Unresolved, Why};
use comfy_table::{Table, presets};
use serde_json::json;

use super::Detected;
use crate::say;

/// One object, on one line.
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

/// A table of packages, then what is not installed and what to do about it.
pub(super) fn text(detected: &Detected) {
    let answer = &detected.answer;
    if detected.broken {
        say::warning("the code has errors, so some of its imports may have been missed");
    }
    match answer.packages.is_empty() {
        true => say::answer("No package would be installed."),
        false => say::answer(&table(&answer.packages)),
    }
    for (title, fatal) in [("Unknown or refused", true), ("Left out", false)] {
        let those: Vec<_> = answer.unresolved.iter().filter(|one| one.is_fatal() == fatal).collect();
        if !those.is_empty() {
            say::answer(&format!("\n{title}:"));
        }
        for one in those {
            let (because, advice) = explained(one, detected.registry);
            say::answer(&format!("  {}: {because}\n    {advice}", reason(&one.reason)));
        }
    }
}

fn table(packages: &[Package]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["PACKAGE", "NEEDED", "BECAUSE"]);
    for package in packages {
        let because: Vec<_> = package.because.iter().map(reason).collect();
        let needed = if package.optional { "optional" } else { "yes" };
        table.add_row([
            package.requirement.escape_debug().to_string(),
            needed.to_owned(),
            because.join(", "),
        ]);
    }
    table.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>().join("\n")
}

/// What is in code may be anything, so nothing of it may draw on the terminal.
fn reason(reason: &Reason) -> String {
    let name = reason.name.escape_debug();
    let verb = match reason.how {
        How::Import | How::Dynamic => "import",
        How::Require => "require",
        How::Reexport => "export from",
        How::Script => "script block",
        How::Comment => "comment",
        How::Given => return format!("{name} (given)"),
    };
    match reason.line {
        Some(line) => format!("{verb} {name} (line {line})"),
        None => format!("{verb} {name}"),
    }
}

/// Why something is not installed, and what to do about it.
fn explained(one: &Unresolved, registry: Registry) -> (String, String) {
    let rows = match registry {
        Registry::Pypi => "[dependencies.python]",
        Registry::Npm => "[dependencies.npm]",
    };
    match &one.why {
        Why::Unknown => (
            "no known package".to_owned(),
            format!("name its package with --dep, or add it to imports in {rows} of belljar.toml"),
        ),
        Why::Covered { by } => (
            format!("no known package, but {} may bring it", by.join(", ")),
            "nothing to do if it does".to_owned(),
        ),
        Why::Misspelt { likely } => (
            format!("no known package, and nearly '{likely}'"),
            format!(
                "write {likely} if that is meant; else add the name to imports in {rows} of belljar.toml"
            ),
        ),
        Why::Denied => (
            format!("denied in {rows} of belljar.toml"),
            "do without it, or ask the administrator".to_owned(),
        ),
        Why::NotAllowed => (
            format!("not among allow in {rows} of belljar.toml"),
            "do without it, or ask the administrator".to_owned(),
        ),
        Why::Pinned { version } => (
            format!("pinned to {} in {rows} of belljar.toml", version.escape_debug()),
            "leave out the version".to_owned(),
        ),
        Why::Conflict { with } => {
            (format!("stated before as {}", with.escape_debug()), "state one version".to_owned())
        }
        Why::Direct => (
            "comes from an address, a path or a repository".to_owned(),
            "name a package, or set direct = true in [dependencies] of belljar.toml".to_owned(),
        ),
        Why::Invalid { message } => (message.escape_debug().to_string(), "correct it".to_owned()),
    }
}
