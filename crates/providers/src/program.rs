//! Turns a task into what is executed: commands, environment and files. Shared by all providers that start
//! programs in a sandbox.

use std::collections::BTreeMap;

use belljar_engine::json_text::{Arguments, JsonText};
use belljar_engine::language::{CallingConvention, Language, Runtime, StartupModule};
use belljar_engine::limits::Limits;
use belljar_engine::outcome::ReturnValue;
use belljar_engine::packages::{self, PackageLayer};
use belljar_engine::plan::{CodeSource, InputFile, Plan, Program, Task, WORKSPACE};
use belljar_engine::quantity::show_bytes;
use tokio::task::JoinError;

use crate::egress::{extend_environment, remove_node_preload};

/// Standard folders of programs in images.
pub(crate) const IMAGE_FOLDERS: &[&str] = &["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/go/bin"];
/// The folder of artifacts in the workspace.
pub(crate) const ARTIFACTS_FOLDER: &str = "artifacts";
/// Size of a tenant's data that is processed without changing the thread, which takes a tenth of a millisecond or less.
const MAX_INLINE_BYTES: usize = 64 << 10;

/// Returns the folders of an image's programs: those of its search path, then the standard ones.
pub(crate) fn image_folders(path: Option<&str>) -> Vec<&str> {
    let own = path.unwrap_or_default().split(':').filter(|folder| folder.starts_with('/'));
    own.chain(IMAGE_FOLDERS.iter().copied()).collect()
}

/// Parses the first `major.minor` in a text. A bare number is a major version.
pub(crate) fn parse_version(text: &str) -> Option<(u32, u32)> {
    let start = text.find(|c: char| c.is_ascii_digit())?;
    let digits: String = text[start..].chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let mut parts = digits.split('.');
    Some((parts.next()?.parse().ok()?, parts.next().and_then(|minor| minor.parse().ok()).unwrap_or(0)))
}

/// Returns a number that no other run of this process has.
pub(crate) fn unique_number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Where a run's own files go.
#[derive(Debug)]
pub(crate) struct RunPaths {
    /// Whether the file of the code goes to the inbox, because the workspace has files of the user's.
    pub(crate) code_in_inbox: bool,
    /// The folder of the runner and its arguments.
    pub(crate) inbox: String,
    /// The output of a compiler.
    pub(crate) compiled: String,
}

impl RunPaths {
    /// Returns the paths in a sandbox created for one run.
    pub(crate) fn for_new_sandbox(has_host_workspace: bool) -> Self {
        Self {
            code_in_inbox: has_host_workspace,
            inbox: "/run/belljar".to_owned(),
            compiled: "/home/sandbox/program".to_owned(),
        }
    }
}

/// A runtime that was found.
#[derive(Debug, Clone)]
pub(crate) struct FoundRuntime {
    /// How to run the language.
    pub(crate) runtime: &'static Runtime,
    /// The program's path inside the sandbox.
    pub(crate) program: String,
}

/// A file written before the program starts.
#[derive(Debug, Clone)]
pub(crate) struct ProgramFile {
    /// Whether it goes to the inbox instead of the workspace.
    pub(crate) inbox: bool,
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) content: Vec<u8>,
}

/// A task's commands, environment and files.
#[derive(Debug, Clone)]
pub(crate) struct PreparedProgram {
    pub(crate) commands: Vec<Vec<String>>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) files: Vec<ProgramFile>,
    /// Whether `./artifacts` is created before the program starts.
    pub(crate) artifacts_folder: bool,
    /// Whether the program gets a result pipe.
    pub(crate) has_result_pipe: bool,
    /// The request for a warm interpreter, if one can run the task.
    pub(crate) warm: Option<WarmTask>,
}

/// A task for a warm interpreter.
#[derive(Debug, Clone)]
pub(crate) struct WarmTask {
    pub(crate) language: &'static Language,
    pub(crate) program: String,
    /// The environment that the interpreter starts with, equal for all runs of a profile.
    pub(crate) env: BTreeMap<String, String>,
    /// The path of the code.
    pub(crate) source: String,
    /// The environment of the program.
    pub(crate) program_env: BTreeMap<String, String>,
}

/// Variables that limit the number of threads, for a program of unknown kind.
const THREAD_VARIABLES: &[&str] = &["OMP_NUM_THREADS", "GOMAXPROCS", "RAYON_NUM_THREADS"];

/// Prepares a task. `path` is the search path inside.
pub(crate) fn prepare(
    task: &Task,
    plan: &Plan,
    found: Option<&FoundRuntime>,
    path: &str,
    paths: &RunPaths,
) -> PreparedProgram {
    let mut env = base_environment(path);
    let mut files: Vec<ProgramFile> = task.files.iter().map(workspace_file).collect();
    let mut prepared = PreparedProgram {
        commands: Vec::new(),
        env: BTreeMap::new(),
        files: Vec::new(),
        artifacts_folder: creates_artifacts_folder(task, plan),
        has_result_pipe: false,
        warm: None,
    };
    match (&task.program, found) {
        (Program::Code { language, source, arguments }, Some(found)) => {
            thread_variables(&mut env, language.thread_variables, &plan.limits);
            env.extend(found.runtime.env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
            let source = add_source(source, language, arguments.is_some(), paths, &mut files);
            prepared.commands = commands(found, &source, &paths.compiled, &plan.limits);
            env.extend(plan.env.clone());
            remove_node_preload(&mut env, language);
            let in_inbox = source.starts_with(&paths.inbox);
            prepared.warm = warm_task(task, plan, language, found, &env, &source).filter(|_| !in_inbox);
            let call = RunnerCall { language, source: &source, found, inbox: &paths.inbox };
            match arguments {
                Some(arguments) => add_arguments(&call, arguments, &mut env, &mut files, &mut prepared),
                None if in_inbox => call.run_from_workspace(&mut files, &mut prepared),
                None => {}
            }
        }
        (Program::Command(command), _) => {
            thread_variables(&mut env, THREAD_VARIABLES, &plan.limits);
            env.extend(plan.env.clone());
            prepared.commands = vec![command.clone()];
        }
        (Program::Code { .. }, None) => {}
    }
    add_go_library(&mut env, &plan.package_layers);
    extend_environment(&mut env, task.env.clone());
    if let Some(warm) = &mut prepared.warm {
        // A warm interpreter executes the startup module itself.
        warm.program_env.clone_from(&env);
        add_packages(&mut warm.program_env, &plan.package_layers);
    }
    if let Some(module) = found.and_then(|found| found.runtime.startup) {
        add_startup_module(module, &paths.inbox, &mut env, &mut files);
    }
    // Before the startup module, so that hooks of packages do not run inside it.
    add_packages(&mut env, &plan.package_layers);
    prepared.env = env;
    prepared.files = files;
    prepared
}

/// Returns whether `./artifacts` is created: not in a host workspace, and not in place of a file or mount.
fn creates_artifacts_folder(task: &Task, plan: &Plan) -> bool {
    let destination = format!("{WORKSPACE}/{ARTIFACTS_FOLDER}");
    plan.host_workspace.is_none()
        && plan.mounts.iter().all(|mount| mount.destination != destination)
        && task.files.iter().all(|file| file.path != ARTIFACTS_FOLDER)
}

fn workspace_file(file: &InputFile) -> ProgramFile {
    ProgramFile { inbox: false, path: file.path.clone(), mode: file.mode, content: file.content.clone() }
}

/// Lets a runtime find its startup module before those of the request. The module removes its folder from the variable.
fn add_startup_module(
    module: StartupModule,
    inbox: &str,
    env: &mut BTreeMap<String, String>,
    files: &mut Vec<ProgramFile>,
) {
    files.push(inbox_file(module.file, module.source.into()));
    let given = env.remove(module.variable).map(|folders| format!(":{folders}")).unwrap_or_default();
    env.insert(module.variable.to_owned(), format!("{inbox}{given}"));
}

/// Lets Python find the bootstrap that adds package layers to `sys.path`. The layers themselves are never on
/// `PYTHONPATH`, where they would precede the standard library. Node.js finds its packages by path.
pub(crate) fn add_packages(env: &mut BTreeMap<String, String>, layers: &[PackageLayer]) {
    if layers.iter().any(|layer| layer.destination == packages::PYTHON_SITE_FOLDER) {
        let given = env.remove("PYTHONPATH").filter(|path| !path.is_empty());
        let path = std::iter::once(packages::PYTHON_SITE_FOLDER.to_owned())
            .chain(given)
            .collect::<Vec<_>>()
            .join(":");
        env.insert("PYTHONPATH".to_owned(), path);
    }
}

/// The variable with the build cache of Go.
pub(crate) const GO_CACHE_VARIABLE: &str = "GOCACHE";

/// Lets Go find its compiled standard library. Go only reads a build cache that it cannot write.
fn add_go_library(env: &mut BTreeMap<String, String>, layers: &[PackageLayer]) {
    if layers.iter().any(|layer| layer.destination == packages::GO_LIBRARY) {
        env.insert(GO_CACHE_VARIABLE.to_owned(), packages::GO_LIBRARY.to_owned());
    }
}

/// Variables that load code into a starting interpreter. A warm interpreter starts outside full confinement,
/// so none is started with one of these.
const CODE_LOADING_VARIABLES: &[&str] = &[
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    "PYTHONPLATLIBDIR",
    "PYTHONUSERBASE",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "NODE_PATH",
    "NODE_OPTIONS",
];

/// Returns a task for a warm interpreter, unless a variable must be set before the interpreter starts, or the
/// image is not the operator's.
fn warm_task(
    task: &Task,
    plan: &Plan,
    language: &'static Language,
    found: &FoundRuntime,
    env: &BTreeMap<String, String>,
    source: &str,
) -> Option<WarmTask> {
    if !plan.image.is_trusted() || CODE_LOADING_VARIABLES.iter().any(|name| env.contains_key(*name)) {
        return None;
    }
    let read_early = language.warm_env_prefixes?;
    let is_early = |name: &String| read_early.iter().any(|start| name.starts_with(start));
    let changed = |(name, value): &(&String, &String)| env.get(*name) != Some(*value);
    let given = task.env.iter().filter(changed).map(|(name, _)| name);
    if given.into_iter().any(is_early) {
        return None;
    }
    let (program, source) = (found.program.clone(), source.to_owned());
    Some(WarmTask { language, program, env: env.clone(), source, program_env: BTreeMap::new() })
}

pub(crate) fn base_environment(path: &str) -> BTreeMap<String, String> {
    let fixed = [
        ("PATH", path),
        ("HOME", "/home/sandbox"),
        ("USER", "sandbox"),
        ("LOGNAME", "sandbox"),
        ("LANG", "C.UTF-8"),
        ("TMPDIR", "/tmp"),
    ];
    fixed.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn thread_variables(env: &mut BTreeMap<String, String>, names: &[&str], limits: &Limits) {
    let threads = limits.whole_cpus().to_string();
    env.extend(names.iter().map(|name| ((*name).to_owned(), threads.clone())));
}

/// Adds the file of the code and returns its path.
fn add_source(
    source: &CodeSource,
    language: &Language,
    called: bool,
    paths: &RunPaths,
    files: &mut Vec<ProgramFile>,
) -> String {
    let (name, code) = match source {
        CodeSource::Existing(path) => return format!("{WORKSPACE}/{path}"),
        CodeSource::Text { name, code } => (name, code),
    };
    let mut content = code.clone();
    if let (true, CallingConvention::Main { epilogue, .. }) = (called, language.calling_convention) {
        content.push_str(epilogue);
    }
    let (inbox, path) = (paths.code_in_inbox, name.clone());
    files.push(ProgramFile { inbox, path, mode: 0o644, content: content.into_bytes() });
    format!("{}/{name}", if inbox { &paths.inbox } else { WORKSPACE })
}

fn commands(found: &FoundRuntime, source: &str, compiled: &str, limits: &Limits) -> Vec<Vec<String>> {
    let values = StepValues { program: &found.program, source, compiled, main_class: "", limits };
    found.runtime.steps.iter().map(|step| values.fill(step)).collect()
}

/// Values of the placeholders in a step of a language.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepValues<'a> {
    pub(crate) program: &'a str,
    pub(crate) source: &'a str,
    /// The output of a compiler.
    pub(crate) compiled: &'a str,
    pub(crate) main_class: &'a str,
    pub(crate) limits: &'a Limits,
}

impl StepValues<'_> {
    /// Returns the command of a step.
    pub(crate) fn fill(&self, step: &[&str]) -> Vec<String> {
        let folder = self.compiled.rsplit_once('/').map_or("", |(folder, _)| folder);
        let fill = |word: &&str| {
            word.replace("{program}", self.program)
                .replace("{source}", self.source)
                .replace("{out}", self.compiled)
                .replace("{out_folder}", folder)
                .replace("{main_class}", self.main_class)
                .replace("{memory}", &self.limits.memory_bytes.to_string())
                .replace("{cpus}", &self.limits.whole_cpus().to_string())
        };
        step.iter().map(fill).collect()
    }
}

/// Code that a script of Belljar's runs, if the language has one.
struct RunnerCall<'a> {
    language: &'a Language,
    source: &'a str,
    found: &'a FoundRuntime,
    inbox: &'a str,
}

impl RunnerCall<'_> {
    /// Lets code in the inbox find modules beside it in the workspace.
    fn run_from_workspace(&self, files: &mut Vec<ProgramFile>, prepared: &mut PreparedProgram) {
        let Some(script) = self.found.runtime.workspace_script else {
            return self.add_runner(&[], files, prepared);
        };
        files.push(inbox_file(script.file, script.source.into()));
        let path = format!("{}/{}", self.inbox, script.file);
        let name = self.source.rsplit_once('/').map_or(self.source, |(_, name)| name);
        let fill = |word: &&str| {
            word.replace("{program}", &self.found.program)
                .replace("{script}", &path)
                .replace("{source}", self.source)
                .replace("{name}", name)
        };
        prepared.commands = vec![script.command.iter().map(fill).collect()];
    }

    /// Adds the runner, which takes the place of the code, and gets the code and more as its arguments. It also lets
    /// code in the inbox find modules in the workspace.
    fn add_runner(&self, more: &[String], files: &mut Vec<ProgramFile>, prepared: &mut PreparedProgram) {
        let CallingConvention::Main { runner, file, .. } = self.language.calling_convention else { return };
        files.push(inbox_file(file, runner.into()));
        let runner = format!("{}/{file}", self.inbox);
        let fill = |word: &&str| word.replace("{program}", &self.found.program).replace("{source}", &runner);
        let step = self.found.runtime.steps.last().copied().unwrap_or_default().iter().map(fill);
        prepared.commands = vec![step.chain([self.source.to_owned()]).chain(more.iter().cloned()).collect()];
    }
}

fn inbox_file(path: &str, content: Vec<u8>) -> ProgramFile {
    ProgramFile { inbox: true, path: path.to_owned(), mode: 0o444, content }
}

fn arguments_json(arguments: &Arguments) -> Vec<u8> {
    // Strings and checked JSON can always be serialized.
    serde_json::to_vec(arguments).unwrap_or_default()
}

/// Does work in proportion to `bytes`, a size that a tenant chose. Much of it runs on another thread: here it would
/// delay all other requests of this thread.
///
/// # Errors
/// The work panicked.
pub(crate) async fn process_tenant_data<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    if bytes <= MAX_INLINE_BYTES { Ok(work()) } else { tokio::task::spawn_blocking(work).await }
}

/// Returns what the program wrote to its result pipe, of which at least one byte more than `limit` was read.
pub(crate) fn return_value(bytes: &[u8], limit: u64) -> ReturnValue {
    if bytes.is_empty() {
        return ReturnValue::Absent;
    }
    if bytes.len() as u64 > limit {
        let limit = show_bytes(limit);
        return ReturnValue::Invalid(format!(
            "result is larger than {limit}; return less, write it to a file in ./artifacts, or raise the setting \
             results.max_bytes"
        ));
    }
    JsonText::parse("result", bytes).map_or_else(ReturnValue::Invalid, ReturnValue::Present)
}

fn add_arguments(
    call: &RunnerCall<'_>,
    arguments: &Arguments,
    env: &mut BTreeMap<String, String>,
    files: &mut Vec<ProgramFile>,
    prepared: &mut PreparedProgram,
) {
    match call.language.calling_convention {
        CallingConvention::Main { .. } => {
            files.push(inbox_file("arguments.json", arguments_json(arguments)));
            call.add_runner(&[format!("{}/arguments.json", call.inbox)], files, prepared);
            prepared.has_result_pipe = true;
        }
        CallingConvention::Environment => env.extend(
            arguments
                .iter()
                .map(|(key, value)| (key.clone(), value.to_text().unwrap_or_else(|| value.to_string()))),
        ),
        CallingConvention::Unsupported => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn much_data_of_a_tenant_is_processed_on_another_thread() {
        let thread = || std::thread::current().id();
        assert_eq!(process_tenant_data(MAX_INLINE_BYTES, thread).await.unwrap(), thread());
        assert_ne!(process_tenant_data(MAX_INLINE_BYTES + 1, thread).await.unwrap(), thread());
    }
}
