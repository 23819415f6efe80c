//! Checks a program against policies before it runs. Analysis touches memory only, so it is a function call,
//! not a port.
//!
//! The policy is the request's, else its profile's, else `balanced`. In addition the policies of the profile,
//! the tenant and the enclosing sandbox always apply; the strictest decision wins, so that a request can
//! tighten them but never loosen them.

use std::sync::Arc;

use belljar_analysis::policy::{
    self as reader, DEFAULT_POLICY, Policies, Policy, PolicyLanguage, RunContext,
};

use crate::Error;
use crate::finding::{Finding, MAX_FINDINGS};
use crate::plan::{CodeSource, InputFile, Network, Plan, Program, Task};
use crate::sandbox_handle::CommandLine;

/// Maximum size of all files of a request that are analyzed, in bytes; code beyond that counts as unread.
const MAX_ANALYZED_BYTES: usize = 1 << 20;

/// The verdict of the policies on a program.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    /// Findings, in the order of the code.
    pub findings: Vec<Finding>,
    /// Why the program may not run, in one line; `None` if it may.
    pub refusal: Option<String>,
}

/// Returns the policies of a request: its own choice, its profile's and its tenant's.
///
/// # Errors
/// Fails if one of these names is not that of a policy.
pub(crate) fn select_policies(
    policies: &Policies,
    chosen: Option<&str>,
    profile: Option<&str>,
    floor: Option<&str>,
) -> Result<Vec<Arc<Policy>>, Error> {
    let chosen = chosen.or(profile).unwrap_or(DEFAULT_POLICY);
    add_policies(policies, Vec::new(), [Some(chosen), profile, floor])
}

/// Adds policies by name, each once.
///
/// # Errors
/// Fails if one of these names is not that of a policy.
pub(crate) fn add_policies<const N: usize>(
    policies: &Policies,
    mut all: Vec<Arc<Policy>>,
    names: [Option<&str>; N],
) -> Result<Vec<Arc<Policy>>, Error> {
    for name in names.into_iter().flatten() {
        if !all.iter().any(|known| known.name == name) {
            let found = policies.get(name);
            all.push(found.map_err(|error| Error::invalid("policy", error.to_string()))?);
        }
    }
    Ok(all)
}

/// Analyzes programs against policies.
#[derive(Debug)]
pub(crate) struct PolicyCheck<'a> {
    pub(crate) policies: &'a [Arc<Policy>],
    pub(crate) plan: &'a Plan,
}

impl PolicyCheck<'_> {
    /// Checks a task: its code or command, and its files.
    pub(crate) fn check_task(&self, task: &Task, code: Option<&str>) -> Verdict {
        self.add_files(&task.files, self.check_program(task, code))
    }

    /// Checks the code or command of a task, with the standard input that a command may read as code.
    pub(crate) fn check_program(&self, task: &Task, code: Option<&str>) -> Verdict {
        let context = run_context(self.plan);
        match &task.program {
            Program::Command(words) => self.check_argv(words, &task.stdin, &context),
            Program::Code { language, source, .. } => {
                let text = match source {
                    CodeSource::Text { code, .. } => Some(code.as_str()),
                    CodeSource::Existing(_) => code,
                };
                match (PolicyLanguage::from_name(language.name), text) {
                    (Some(language), Some(text)) => self.check_text(text, language, &context),
                    _ => Verdict::default(),
                }
            }
        }
    }

    /// Adds the verdict on the input files, any of which may contain code.
    pub(crate) fn add_files(&self, files: &[InputFile], mut found: Verdict) -> Verdict {
        self.check_files(files, &run_context(self.plan), &mut found);
        found
    }

    /// Checks a command for a long-lived sandbox.
    pub(crate) fn check_command(&self, line: &CommandLine, stdin: &[u8]) -> Verdict {
        let context = run_context(self.plan);
        match line {
            CommandLine::Program(words) => self.check_argv(words, stdin, &context),
            CommandLine::Shell(line) => self.check_text(line, PolicyLanguage::Shell, &context),
        }
    }

    fn check_text(&self, code: &str, language: PolicyLanguage, context: &RunContext) -> Verdict {
        reader::check(code, language, self.policies, context).into()
    }

    fn check_argv(&self, words: &[String], stdin: &[u8], context: &RunContext) -> Verdict {
        let input = std::str::from_utf8(stdin).ok().filter(|input| !input.is_empty());
        reader::check_command(words, input, self.policies, context).into()
    }

    fn check_files(&self, files: &[InputFile], context: &RunContext, found: &mut Verdict) {
        let mut left = MAX_ANALYZED_BYTES;
        for file in files {
            let name = file.path.rsplit('/').next().unwrap_or_default();
            let known = crate::language::Language::from_file_name(name);
            let Some(language) = known.and_then(|known| PolicyLanguage::from_name(known.name)) else {
                continue;
            };
            left = left.saturating_sub(file.content.len());
            let mut verdict: Verdict = match left {
                0 => reader::unread_verdict(language, self.policies, context).into(),
                _ => self.check_text(&String::from_utf8_lossy(&file.content), language, context),
            };
            for finding in &mut verdict.findings {
                finding.message = format!("{}: {}", file.path, finding.message);
            }
            let refusal = verdict.refusal.map(|refusal| format!("{refusal} of {}", file.path));
            found.findings.append(&mut verdict.findings);
            found.findings.truncate(MAX_FINDINGS);
            found.refusal = found.refusal.take().or(refusal);
        }
    }
}

/// Returns what the execution will be able to do, for policies that depend on it.
fn run_context(plan: &Plan) -> RunContext {
    let open = plan.network != Network::None;
    let network = if open { reader::NetworkAccess::Open } else { reader::NetworkAccess::None };
    let mut context = RunContext { network, ..RunContext::default() };
    for mount in &plan.mounts {
        let list = if mount.writable { &mut context.writable } else { &mut context.read_only };
        list.push(mount.destination.clone());
    }
    context
}

impl From<reader::PolicyVerdict> for Verdict {
    fn from(verdict: reader::PolicyVerdict) -> Self {
        let refusal = verdict.refusal();
        Self { refusal, findings: verdict.findings.into_iter().map(finding).collect() }
    }
}

fn finding(finding: reader::PolicyFinding) -> Finding {
    Finding {
        rule: finding.rule.to_owned(),
        category: finding.category.as_str().to_owned(),
        severity: finding.severity.as_str().to_owned(),
        message: finding.message,
        line: finding.line,
        column: finding.column,
        suggestion: finding.suggestion,
        decided_by: finding.decided_by,
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
