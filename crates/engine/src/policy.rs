//! What policies say of a program before it runs. Reading code touches memory only, so this is a call and no port.
//!
//! A request chooses a policy, or its profile does, or it is `balanced`. What a profile, a tenant or the sandbox around it
//! names is a floor: all of them are applied, and the strictest word counts. So nobody below can loosen anything.

use std::sync::Arc;

use belljar_analysis::policy::{self as reader, Context, Language, Policies, Policy, USUAL};

use crate::Error;
use crate::admit::Admitted;
use crate::finding::{Finding, MAX_FINDINGS};
use crate::living::CommandLine;
use crate::plan::{InputFile, Network, Plan, Program, Source, Task};

/// All files of a request that are read, in bytes; code beyond that counts as unread.
const MAX_FILES_READ: usize = 1 << 20;

/// What came of reading a program.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    /// In the order of the code.
    pub findings: Vec<Finding>,
    /// Why it may not run, in one line; nothing where it may.
    pub refusal: Option<String>,
}

/// What a request chose, above what its profile and its tenant do not let it go.
///
/// # Errors
/// There is no policy of one of these names.
pub(crate) fn choose(
    policies: &Policies,
    chosen: Option<&str>,
    profile: Option<&str>,
    floor: Option<&str>,
) -> Result<Vec<Arc<Policy>>, Error> {
    let chosen = chosen.or(profile).unwrap_or(USUAL);
    add(policies, Vec::new(), [Some(chosen), profile, floor])
}

/// The same with further ones, each once.
///
/// # Errors
/// There is no policy of one of these names.
pub(crate) fn add<const N: usize>(
    policies: &Policies,
    mut all: Vec<Arc<Policy>>,
    names: [Option<&str>; N],
) -> Result<Vec<Arc<Policy>>, Error> {
    for name in names.into_iter().flatten() {
        if !all.iter().any(|known| known.name == name) {
            let found = policies.named(name);
            all.push(found.map_err(|error| Error::invalid("policy", error.to_string()))?);
        }
    }
    Ok(all)
}

/// A program that is to be read.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    pub(crate) policies: &'a [Arc<Policy>],
    pub(crate) plan: &'a Plan,
}

impl Reading<'_> {
    /// A piece of code or a program, with what comes along.
    fn task(&self, task: &Task, code: Option<&str>) -> Verdict {
        let context = context(self.plan);
        let mut found = match &task.program {
            Program::Command(words) => self.words(words, &task.stdin, &context),
            Program::Code { language, source, .. } => {
                let text = match source {
                    Source::Text { code, .. } => Some(code.as_str()),
                    Source::Existing(_) => code,
                };
                match (Language::named(language.name), text) {
                    (Some(language), Some(text)) => self.text(text, language, &context),
                    _ => Verdict::default(),
                }
            }
        };
        self.files(&task.files, &context, &mut found);
        found
    }

    /// A command for a living sandbox.
    pub(crate) fn command(&self, line: &CommandLine, stdin: &[u8]) -> Verdict {
        let context = context(self.plan);
        match line {
            CommandLine::Program(words) => self.words(words, stdin, &context),
            CommandLine::Shell(line) => self.text(line, Language::Shell, &context),
        }
    }

    fn text(&self, code: &str, language: Language, context: &Context) -> Verdict {
        reader::check(code, language, self.policies, context).into()
    }

    fn words(&self, words: &[String], stdin: &[u8], context: &Context) -> Verdict {
        let input = std::str::from_utf8(stdin).ok().filter(|input| !input.is_empty());
        reader::check_command(words, input, self.policies, context).into()
    }

    /// Code may be in any file that comes along.
    fn files(&self, files: &[InputFile], context: &Context, found: &mut Verdict) {
        let mut left = MAX_FILES_READ;
        for file in files {
            let name = file.path.rsplit('/').next().unwrap_or_default();
            let known = crate::language::Language::of_file(name);
            let Some(language) = known.and_then(|known| Language::named(known.name)) else { continue };
            left = left.saturating_sub(file.content.len());
            let mut verdict: Verdict = match left {
                0 => reader::unread(language, self.policies, context).into(),
                _ => self.text(&String::from_utf8_lossy(&file.content), language, context),
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

impl Admitted {
    /// The same, read as these policies want it read. `code` is what a playground has.
    pub(crate) fn read(mut self, policies: &[Arc<Policy>], code: Option<&str>) -> Self {
        if policies.iter().any(|policy| !policy.reads_nothing()) {
            self.verdict = Reading { policies, plan: &self.plan }.task(&self.task, code);
        }
        self
    }
}

/// What the run will be able to do.
fn context(plan: &Plan) -> Context {
    let open = plan.network != Network::None;
    let network = if open { reader::Network::Open } else { reader::Network::None };
    let mut context = Context { network, ..Context::default() };
    for mount in &plan.mounts {
        let list = if mount.writable { &mut context.writable } else { &mut context.read_only };
        list.push(mount.destination.clone());
    }
    context
}

impl From<reader::Verdict> for Verdict {
    fn from(verdict: reader::Verdict) -> Self {
        let refusal = verdict.refusal();
        Self { refusal, findings: verdict.findings.into_iter().map(Finding::from).collect() }
    }
}

impl From<reader::Finding> for Finding {
    fn from(finding: reader::Finding) -> Self {
        Self {
            rule: finding.rule.to_owned(),
            category: finding.category.word().to_owned(),
            severity: finding.severity.word().to_owned(),
            message: finding.message,
            line: finding.line,
            column: finding.column,
            suggestion: finding.suggestion,
            decided_by: finding.decided_by,
        }
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
