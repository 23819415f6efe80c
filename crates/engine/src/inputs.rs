//! One program with many inputs: admitted once, then completed with each input.
//!
//! ```text
//! Request without inputs ─ Engine::admit_program ─▶ AdmittedProgram ─ with_input ─▶ AdmittedRequest, for each input
//! ```
//!
//! The code is decoded and checked by the policies once. What an input adds is checked for each: its files, which may
//! contain code, and standard input of a command, which may be a shell that reads code.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use belljar_analysis::policy::Policy;

use crate::admit::{
    AdmittedRequest, admit_arguments, admit_files, admit_stdin, check_files_fit, refuse_name_clash,
};
use crate::json_text::Arguments;
use crate::limits::Limits;
use crate::pipeline::TenantRules;
use crate::plan::{InputFile, Program, Task};
use crate::policy::{PolicyCheck, Verdict};
use crate::profile::{MAX_ENV_BYTES, check_env, env_bytes, env_too_large, variable_bytes};
use crate::request::{HostPaths, Input, Request};
use crate::{Engine, Error};

/// Size of an input that is decoded without delaying others.
const QUICK_INPUT_BYTES: usize = 64 << 10;

/// A program that passed admission, to be completed with inputs.
#[derive(Debug, Clone)]
pub struct AdmittedProgram {
    /// The request without any input.
    base: AdmittedRequest,
    /// Verdict on the program without its files.
    program_verdict: Verdict,
    policies: Vec<Arc<Policy>>,
    /// Sizes of the files that all inputs share, by path, and together.
    file_sizes: HashMap<String, u64>,
    file_bytes: u64,
    /// Size of the variables that all inputs share.
    env_bytes: usize,
}

/// What an input adds, decoded and checked.
#[derive(Debug)]
struct CheckedInput {
    arguments: Option<Arguments>,
    stdin: Option<Vec<u8>>,
    files: Vec<InputFile>,
    env: BTreeMap<String, String>,
}

impl Engine {
    /// Checks a program that will run with many inputs, without running it.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn admit_program(
        &self,
        request: Request,
        paths: HostPaths,
        rules: TenantRules<'_>,
    ) -> Result<AdmittedProgram, Error> {
        if paths.host_workspace.is_some() {
            let message = "cannot share a folder of this machine as their workspace";
            return Err(Error::invalid("inputs", message));
        }
        // Every input is checked against the same policies as the program.
        let policies = self.policies_of(&request, rules.policy)?;
        let base = self.admit_for_tenant(request, paths, rules)?;
        let files = base.task.files.iter();
        let file_sizes: HashMap<_, _> =
            files.map(|file| (file.path.clone(), file.content.len() as u64)).collect();
        let mut program = AdmittedProgram {
            program_verdict: base.verdict.clone(),
            policies,
            file_bytes: file_sizes.values().sum(),
            file_sizes,
            env_bytes: env_bytes(&base.task.env),
            base,
        };
        if !program.base.task.files.is_empty() {
            program.program_verdict = program.check_program(&program.base.task);
        }
        Ok(program)
    }
}

impl AdmittedProgram {
    /// Sets the tenant.
    #[must_use]
    pub fn with_tenant(self, tenant: &str) -> Self {
        Self { base: self.base.with_tenant(tenant), ..self }
    }

    /// Returns the effective limits of each execution.
    pub fn limits(&self) -> &Limits {
        self.base.limits()
    }

    /// Returns the verdict of the policies on the program and the files that all inputs share.
    pub fn verdict(&self) -> &Verdict {
        self.base.verdict()
    }

    /// Returns whether [`AdmittedProgram::with_input`] takes little time: it decodes little, and analyzes nothing.
    pub fn is_quick(&self, input: &Input) -> bool {
        let is_code = matches!(self.base.task.program, Program::Code { .. });
        input.files.is_empty() && input.size() <= QUICK_INPUT_BYTES && (is_code || !has_stdin(input))
    }

    /// Returns the request for one execution.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn with_input(&self, input: &Input) -> Result<AdmittedRequest, Error> {
        let own = self.check_input(input)?;
        let is_command = matches!(self.base.task.program, Program::Command(_));
        let (has_files, is_read_as_code) = (!own.files.is_empty(), own.stdin.is_some() && is_command);
        let task = self.task(own);
        let verdict = match (has_files, is_read_as_code) {
            (false, false) => self.base.verdict.clone(),
            (_, true) => self.add_files(&task.files, self.check_program(&task)),
            (true, false) => self.add_files(&task.files, self.program_verdict.clone()),
        };
        Ok(complete(&self.base, task, &verdict))
    }

    /// Checks what an input adds, in time and memory of its own size: there may be many inputs, and much that they
    /// share.
    fn check_input(&self, input: &Input) -> Result<CheckedInput, Error> {
        match (&self.base.task.program, &input.arguments) {
            (_, None) => {}
            (Program::Code { language, .. }, Some(arguments)) => admit_arguments(language, arguments)?,
            (Program::Command(_), Some(_)) => {
                return Err(Error::invalid("arguments", "cannot be combined with command"));
            }
        }
        let files = admit_files(&input.files, self.limits().disk_bytes)?;
        refuse_name_clash(&self.base.task.program, &files)?;
        self.check_all_files_fit(&files)?;
        let stdin = admit_stdin(input.stdin.clone(), input.stdin_base64.as_deref())?;
        check_env(&input.env)?;
        self.check_env_fits(&input.env)?;
        Ok(CheckedInput { arguments: input.arguments.clone(), stdin, files, env: input.env.clone() })
    }

    /// Checks that an input's files and the shared ones are not too many, and fit on the disk.
    fn check_all_files_fit(&self, own: &[InputFile]) -> Result<(), Error> {
        if own.is_empty() {
            return Ok(());
        }
        let replaced: Vec<u64> =
            own.iter().filter_map(|file| self.file_sizes.get(&file.path)).copied().collect();
        let shared = self.file_bytes - replaced.iter().sum::<u64>();
        let count = self.file_sizes.len() - replaced.len() + own.len();
        let bytes = shared + own.iter().map(|file| file.content.len() as u64).sum::<u64>();
        check_files_fit(count, bytes, self.limits().disk_bytes)
    }

    /// Checks that an input's variables and the shared ones are not too large.
    fn check_env_fits(&self, own: &BTreeMap<String, String>) -> Result<(), Error> {
        let shared = &self.base.task.env;
        let replaced =
            own.keys().filter_map(|name| shared.get_key_value(name)).map(variable_bytes).sum::<usize>();
        let size = self.env_bytes - replaced + env_bytes(own);
        if size > MAX_ENV_BYTES { Err(env_too_large()) } else { Ok(()) }
    }

    /// Returns the task with an input.
    fn task(&self, own: CheckedInput) -> Task {
        let base = &self.base.task;
        let mut program = base.program.clone();
        if let (Program::Code { arguments, .. }, Some(own)) = (&mut program, own.arguments) {
            *arguments = Some(own);
        }
        let replaced: HashSet<&str> = own.files.iter().map(|file| file.path.as_str()).collect();
        let shared = base.files.iter().filter(|file| !replaced.contains(file.path.as_str()));
        let files = shared.cloned().chain(own.files.iter().cloned()).collect();
        let mut env = base.env.clone();
        env.extend(own.env);
        let stdin = own.stdin.unwrap_or_else(|| base.stdin.clone());
        Task { program, stdin, env, files, workdir: base.workdir.clone() }
    }

    fn policy_check(&self) -> Option<PolicyCheck<'_>> {
        let allows_everything = self.policies.iter().all(|policy| policy.allows_everything());
        (!allows_everything).then_some(PolicyCheck { policies: &self.policies, plan: &self.base.plan })
    }

    fn check_program(&self, task: &Task) -> Verdict {
        self.policy_check().map_or_else(Verdict::default, |check| check.check_program(task, None))
    }

    fn add_files(&self, files: &[InputFile], verdict: Verdict) -> Verdict {
        match self.policy_check() {
            Some(check) => check.add_files(files, verdict),
            None => verdict,
        }
    }
}

/// Returns whether an input has its own standard input.
fn has_stdin(input: &Input) -> bool {
    input.stdin.is_some() || input.stdin_base64.is_some()
}

/// Returns a request with another task, and its fallback with the same one.
fn complete(base: &AdmittedRequest, task: Task, verdict: &Verdict) -> AdmittedRequest {
    let fallback = base.fallback.as_deref();
    AdmittedRequest {
        fallback: fallback.map(|fallback| Box::new(complete(fallback, task.clone(), verdict))),
        provider: base.provider.clone(),
        plan: base.plan.clone(),
        task,
        packages: base.packages.clone(),
        overflow: base.overflow,
        metadata: base.metadata.clone(),
        verdict: verdict.clone(),
    }
}

#[cfg(test)]
#[path = "inputs_tests.rs"]
mod tests;
