//! Prints the results as text or JSON.

use std::io::{self, Write};

use comfy_table::Table;

use super::{DoctorReport, InstallerCheck, LanguageCheck, LayerCheck};
use crate::table::{table_text, table_with};

/// Writes one line of JSON.
pub(super) fn json(findings: &DoctorReport, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, findings)?;
    writeln!(out)
}

/// Writes tables, then hints.
pub(super) fn text(findings: &DoctorReport, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "belljar {}{}", env!("CARGO_PKG_VERSION"), describe_machine(findings))?;
    writeln!(out)?;
    match &findings.error {
        None => layers(&findings.layers, out)?,
        Some(error) => writeln!(out, "\x1b[1;31mNo sandbox started:\x1b[0m {error}")?,
    }
    if !findings.hints.is_empty() {
        writeln!(out, "\nPossible fixes:")?;
    }
    for hint in &findings.hints {
        writeln!(out, "  - {hint}")?;
    }
    if !findings.languages.is_empty() {
        writeln!(out, "\n{}", table_text(&languages(&findings.languages)))?;
    }
    if !findings.installers.is_empty() {
        writeln!(out, "\n{}", table_text(&installers(&findings.installers)))?;
    }
    if !findings.providers.is_empty() {
        writeln!(out)?;
    }
    for found in &findings.providers {
        let state = found.error.as_deref().unwrap_or("ready");
        writeln!(out, "Provider {}: {state}", found.name)?;
        for missing in &found.missing {
            writeln!(out, "  missing {missing}")?;
        }
    }
    let none = if findings.gpus.available { "" } else { "none: " };
    writeln!(out, "\nGPUs: {none}{}", findings.gpus.what)?;
    Ok(())
}

fn installers(installers: &[InstallerCheck]) -> Table {
    let mut table = table_with(["packages of", "installer", ""]);
    for found in installers {
        let advice = found.faster.map(|faster| format!("better: {faster}")).unwrap_or_default();
        table.add_row([found.language, &found.program, &advice]);
    }
    table
}

fn describe_machine(findings: &DoctorReport) -> String {
    let kernel = findings.kernel.as_ref().map(|release| format!(", Linux {release}")).unwrap_or_default();
    let user = match findings.euid {
        Some(0) => ", as root".to_owned(),
        Some(uid) => format!(", as user {uid}"),
        None => String::new(),
    };
    format!("{kernel}{user}")
}

fn layers(layers: &[LayerCheck], out: &mut impl Write) -> io::Result<()> {
    let enforced = layers.iter().filter(|layer| layer.enforced).count();
    let total = layers.len();
    writeln!(
        out,
        "\x1b[1;32mA sandbox started\x1b[0m with {enforced} of {total} isolation layers in force.\n"
    )?;
    let mut table = table_with(["layer", "state", "what it does"]);
    for layer in layers {
        table.add_row([layer.name, state(layer), layer.what]);
    }
    writeln!(out, "{}", table_text(&table))?;
    let gaps = group_missing(layers);
    if !gaps.is_empty() {
        writeln!(out, "\nMissing:")?;
    }
    for (names, reason, remedy) in gaps {
        writeln!(out, "  {}: {reason}\n    fix: {remedy}", names.join(", "))?;
    }
    Ok(())
}

fn state(layer: &LayerCheck) -> &'static str {
    match (layer.enforced, &layer.reason) {
        (true, _) => "enforced",
        (false, Some(_)) => "missing",
        // Possible here but deliberately not used: root, for example, is better off without a user namespace.
        (false, None) => "not used",
    }
}

/// Groups missing layers that have the same reason.
fn group_missing(layers: &[LayerCheck]) -> Vec<(Vec<&'static str>, &str, &str)> {
    let mut gaps: Vec<(Vec<_>, &str, &str)> = Vec::new();
    for layer in layers.iter().filter(|layer| !layer.enforced) {
        let (Some(reason), Some(remedy)) = (layer.reason.as_deref(), layer.remedy.as_deref()) else {
            continue;
        };
        match gaps.iter_mut().find(|gap| (gap.1, gap.2) == (reason, remedy)) {
            Some(gap) => gap.0.push(layer.name),
            None => gaps.push((vec![layer.name], reason, remedy)),
        }
    }
    gaps
}

fn languages(languages: &[LanguageCheck]) -> Table {
    let mut table = table_with(["language", "state", "program, or how to install it"]);
    for language in languages {
        let (state, detail) = match &language.program {
            Some(program) => ("found", program.display().to_string()),
            None => ("missing", language.install.to_owned()),
        };
        table.add_row([language.name, state, &detail]);
    }
    table
}
