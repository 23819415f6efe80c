//! One task on a machine: its files are uploaded as one archive, its commands run, and its results are
//! downloaded as another.
//!
//! ```text
//! archive ─▶ prepare.sh ─▶ commands ─▶ collect.sh ─▶ archive
//! ```

use std::io::Read;
use std::time::{Duration, Instant};

use belljar_engine::artifact::{
    ArtifactBudget, ArtifactLimits, MAX_ARTIFACT_DEPTH, MAX_ARTIFACT_ENTRIES, MAX_ARTIFACT_PATH_BYTES,
    SkipReason, SkippedArtifacts,
};
use belljar_engine::language::{Language, Runtime};
use belljar_engine::outcome::{Artifact, Ending, Limit, ReturnValue};
use belljar_engine::plan::{Plan, Program, Task, WORKSPACE};
use belljar_engine::provider::{ProviderError, Sink, SinkControl, Stream};

use super::{LeasedMachine, RemoteCommand};
use crate::program::{self, ARTIFACTS_FOLDER, FoundRuntime, IMAGE_FOLDERS, PreparedProgram, RunPaths};

/// The folder of a run's own files on the machine, and the archive of all files.
pub(super) const RUN_FOLDER: &str = "/tmp/.belljar";
const ARCHIVE: &str = "/tmp/.belljar.tar";
const PREPARE_SCRIPT: &str = include_str!("prepare.sh");
const COLLECT_SCRIPT: &str = include_str!("collect.sh");
/// Timeout for our own scripts.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(25);
/// How much of their output is read.
const MAX_SCRIPT_OUTPUT_BYTES: usize = 16 << 10;
/// Size of a file's headers in an archive, at most, without its path.
const MAX_HEADER_BYTES: u64 = 2_048;
/// Size limit of the list of what was left out.
const MAX_SKIPPED_BYTES: u64 = 1 << 20;

/// Results of a task.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RemoteResults {
    pub(super) result: ReturnValue,
    pub(super) artifacts: Vec<Artifact>,
    pub(super) skipped: SkippedArtifacts,
}

/// Runs a task. Its timeout starts when its files are in place.
pub(super) async fn run(
    leased: &LeasedMachine,
    plan: &Plan,
    task: &Task,
    sink: &mut dyn Sink,
) -> Result<(Ending, RemoteResults), ProviderError> {
    let prepared = prepare(plan, task, language_of(task).and_then(|language| language.runtimes.first()));
    let service = &leased.shared.service;
    service.write_file(&leased.machine, ARCHIVE, pack(&prepared, &task.stdin)?).await?;
    let output = place_files(leased, task, &prepared).await?;
    let commands = match language_of(task) {
        None => prepared.commands,
        Some(language) => {
            self::prepare(plan, task, Some(choose_runtime(leased, language, &output)?)).commands
        }
    };
    let deadline = Instant::now() + plan.limits.timeout;
    let late = tokio::time::sleep_until((deadline + service.report_grace()).into());
    let mut on_output = |stream: Stream, bytes: &[u8]| sink.output(stream, bytes);
    let steps = async {
        let mut ending = Ending::Exited(0);
        for (at, words) in commands.iter().enumerate() {
            let stdin = at + 1 == commands.len() && !task.stdin.is_empty();
            let command = RemoteCommand {
                words: with_redirects(words, stdin, prepared.has_result_pipe),
                env: prepared.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
                workdir: task.workdir.clone(),
                privileged: false,
                timeout: deadline.saturating_duration_since(Instant::now()),
                keep_bytes: plan.limits.output_bytes,
            };
            ending = service.run(&leased.machine, command, &mut on_output).await?;
            if ending != Ending::Exited(0) {
                break;
            }
        }
        Ok::<_, ProviderError>(ending)
    };
    let ending = tokio::select! {
        biased;
        ended = steps => ended?,
        () = late => Ending::TimedOut,
    };
    let results = match ending {
        Ending::Exited(_) | Ending::Signalled(_) => {
            collect_results(leased, plan.artifacts, plan.result_bytes).await?
        }
        // Deleting the machine ends what still runs there.
        _ => RemoteResults::default(),
    };
    Ok((ending, results))
}

fn language_of(task: &Task) -> Option<&'static Language> {
    match &task.program {
        Program::Code { language, .. } => Some(language),
        Program::Command(_) => None,
    }
}

fn prepare(plan: &Plan, task: &Task, runtime: Option<&'static Runtime>) -> PreparedProgram {
    let found = runtime.map(|runtime| FoundRuntime { runtime, program: runtime.program.to_owned() });
    let paths = RunPaths {
        code_in_inbox: false,
        inbox: RUN_FOLDER.to_owned(),
        compiled: format!("{RUN_FOLDER}/program"),
    };
    program::prepare(task, plan, found.as_ref(), &IMAGE_FOLDERS.join(":"), &paths)
}

/// Packs all files of a run into an archive of absolute paths.
fn pack(prepared: &PreparedProgram, stdin: &[u8]) -> Result<Vec<u8>, ProviderError> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |path: String, mode: u32, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        if path.ends_with('/') {
            header.set_entry_type(tar::EntryType::Directory);
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        header.set_mtime(now.map_or(0, |now| now.as_secs()));
        archive.append_data(&mut header, path.trim_start_matches('/'), content)
    };
    let mut packed = add(format!("{RUN_FOLDER}/stdin"), 0o600, stdin);
    for file in &prepared.files {
        let parent = if file.inbox { RUN_FOLDER } else { WORKSPACE };
        packed = packed.and_then(|()| add(format!("{parent}/{}", file.path), file.mode, &file.content));
    }
    if prepared.artifacts_folder {
        packed = packed.and_then(|()| add(format!("{WORKSPACE}/{ARTIFACTS_FOLDER}/"), 0o755, b""));
    }
    let packed = packed.and_then(|()| archive.into_inner());
    packed.map_err(|error| ProviderError::setup("pack the files", error))
}

/// Moves the files into place, and returns the script's report about programs.
async fn place_files(
    leased: &LeasedMachine,
    task: &Task,
    prepared: &PreparedProgram,
) -> Result<String, ProviderError> {
    let command = match &task.program {
        Program::Command(words) => words.first().map(String::as_str).unwrap_or_default(),
        Program::Code { .. } => "",
    };
    let path = prepared.env.get("PATH").map(String::as_str).unwrap_or_default();
    let mut arguments = vec![leased.shared.service.file_owner(), task.workdir.as_str(), command, path];
    let runtimes = language_of(task).map_or(&[][..], |language| language.runtimes);
    arguments.extend(runtimes.iter().map(|runtime| runtime.program));
    let (ending, output) = run_script(leased, PREPARE_SCRIPT, &arguments, true).await?;
    if ending != Ending::Exited(0) {
        let cause = format!("{} (the template needs sh, tar and find)", super::http::sanitize(&output));
        return Err(ProviderError::setup("move files into place", cause));
    }
    for line in output.lines() {
        match line.split_once(' ') {
            Some(("workdir", errno)) => {
                let message = format!("enter folder {}: {errno}", task.workdir);
                return Err(ProviderError::Invalid { field: "workdir", message });
            }
            Some(("command", errno)) => {
                let message = format!(
                    "execute {command}: {errno}; the template has no such program, or it cannot be executed"
                );
                return Err(ProviderError::Invalid { field: "command", message });
            }
            _ => {}
        }
    }
    Ok(output)
}

/// Returns the first runtime that is installed and new enough.
fn choose_runtime(
    leased: &LeasedMachine,
    language: &'static Language,
    output: &str,
) -> Result<&'static Runtime, ProviderError> {
    let version_of = |name: &str| {
        let programs = output.lines().filter_map(|line| line.strip_prefix("program ")?.split_once(' '));
        programs.into_iter().find(|(program, _)| *program == name).map(|(_, version)| version)
    };
    let fits = |runtime: &&Runtime| match (version_of(runtime.program), runtime.at_least) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(text), Some(wanted)) => program::parse_version(text).is_some_and(|found| found >= wanted),
    };
    language.runtimes.iter().find(fits).ok_or_else(|| ProviderError::LanguageMissing {
        language: language.name,
        image: leased.shared.service.description().template,
        install: "use a template that includes it".to_owned(),
    })
}

/// Wraps a command to read its input from a file and to write its return value to another.
fn with_redirects(words: &[String], stdin: bool, result: bool) -> Vec<String> {
    let input = if stdin { format!("{RUN_FOLDER}/stdin") } else { "/dev/null".to_owned() };
    let result = if result { format!(" 3>{RUN_FOLDER}/result") } else { String::new() };
    let shell =
        ["/bin/sh".to_owned(), "-c".to_owned(), format!("exec \"$@\" <{input}{result}"), "sh".to_owned()];
    shell.into_iter().chain(words.iter().cloned()).collect()
}

/// Runs one of our scripts, and returns how it ended and its output.
async fn run_script(
    leased: &LeasedMachine,
    text: &str,
    arguments: &[&str],
    privileged: bool,
) -> Result<(Ending, String), ProviderError> {
    let words = [&["/bin/sh", "-c", text, "belljar"], arguments].concat();
    let command = RemoteCommand {
        words: words.into_iter().map(str::to_owned).collect(),
        env: vec![(
            "PATH".to_owned(),
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        )],
        workdir: "/".to_owned(),
        privileged,
        timeout: SCRIPT_TIMEOUT,
        keep_bytes: MAX_SCRIPT_OUTPUT_BYTES as u64,
    };
    let mut output = Vec::new();
    let mut on_output = |_, bytes: &[u8]| {
        output.extend_from_slice(bytes);
        output.truncate(MAX_SCRIPT_OUTPUT_BYTES);
        SinkControl::Continue
    };
    let ended = tokio::time::timeout(
        SCRIPT_TIMEOUT,
        leased.shared.service.run(&leased.machine, command, &mut on_output),
    )
    .await;
    let lost = || ProviderError::lost("the remote sandbox no longer responds");
    let ending = ended.map_err(|_| lost())??;
    Ok((ending, String::from_utf8_lossy(&output).into_owned()))
}

/// Collects the results. Returns none if packing failed, which only the program can have caused.
async fn collect_results(
    leased: &LeasedMachine,
    limits: ArtifactLimits,
    result_bytes: u64,
) -> Result<RemoteResults, ProviderError> {
    let ArtifactLimits { files, file_bytes, total_bytes } = limits;
    let numbers = [
        result_bytes,
        files.into(),
        file_bytes,
        total_bytes,
        MAX_ARTIFACT_ENTRIES as u64,
        MAX_ARTIFACT_DEPTH as u64,
    ];
    let reasons = [
        SkipReason::FileTooLarge,
        SkipReason::TotalTooLarge,
        SkipReason::TooManyFiles,
        SkipReason::Link,
        SkipReason::SpecialFile,
        SkipReason::Name,
        SkipReason::TooDeep,
        SkipReason::TooManyEntries,
        SkipReason::Unreadable,
    ];
    let codes = reasons.map(|reason| u64::from(reason.code()));
    let arguments: Vec<String> = numbers.iter().chain(&codes).map(u64::to_string).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (ending, _) = run_script(leased, COLLECT_SCRIPT, &arguments, false).await?;
    if ending != Ending::Exited(0) {
        return Ok(RemoteResults::default());
    }
    let headers = (u64::from(files) + 3) * (MAX_HEADER_BYTES + MAX_ARTIFACT_PATH_BYTES as u64);
    let bound = result_bytes + total_bytes + MAX_SKIPPED_BYTES + headers;
    let path = format!("{RUN_FOLDER}/left.tar");
    let archive = leased.shared.service.read_file(&leased.machine, &path, bound).await?;
    program::process_tenant_data(archive.len(), move || unpack(&archive, limits, result_bytes))
        .await
        .map_err(|error| ProviderError::setup("read the results", error))
}

/// Reads an archive created on a tenant's machine: untrusted, and never unpacked to disk.
fn unpack(archive: &[u8], limits: ArtifactLimits, result_bytes: u64) -> RemoteResults {
    let mut results = RemoteResults::default();
    let mut budget = ArtifactBudget::new(limits);
    let mut archive = tar::Archive::new(archive);
    let entries = archive.entries().into_iter().flatten();
    for mut entry in entries.map_while(Result::ok).take(limits.files as usize + 3) {
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let size = entry.size();
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let mut read_start = |count: u64| {
            let mut content = Vec::new();
            entry.by_ref().take(count).read_to_end(&mut content).is_ok().then_some(content)
        };
        if path == "tmp/.belljar/result" {
            let content = read_start(result_bytes + 1);
            results.result =
                content.map_or(ReturnValue::Absent, |bytes| program::return_value(&bytes, result_bytes));
        } else if path == "tmp/.belljar/skipped" {
            let list = read_start(MAX_SKIPPED_BYTES).unwrap_or_default();
            add_skipped(&list, &mut budget.skipped);
        } else if let Some(name) = path.strip_prefix("workspace/artifacts/")
            && budget.admit(name, size)
        {
            let name = name.to_owned();
            let content = read_start(size).filter(|content| content.len() as u64 == size);
            results.artifacts.extend(content.map(|content| Artifact { name, content }));
        }
    }
    results.skipped = budget.skipped;
    results
}

/// Reads the list of what was left out.
fn add_skipped(list: &[u8], skipped: &mut SkippedArtifacts) {
    for line in list.split(|byte| *byte == b'\n').take(MAX_ARTIFACT_ENTRIES) {
        let code = |code: &[u8]| SkipReason::from_code(std::str::from_utf8(code).ok()?.parse().ok()?);
        let split = line.iter().position(|byte| *byte == b' ').map(|at| line.split_at(at));
        if let Some((reason, path)) = split.and_then(|(first, rest)| Some((code(first)?, rest))) {
            skipped.add(path.strip_prefix(b" ").unwrap_or(path), reason);
        }
    }
}

/// The ending of a command whose output limit was hit.
pub(super) fn output_limit_ending() -> Ending {
    Ending::LimitHit(Limit::Output, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_from_there_is_not_believed() {
        let mut archive = tar::Builder::new(Vec::new());
        let mut add = |path: &str, kind: tar::EntryType, content: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(content.len() as u64);
            let name = &mut header.as_old_mut().name;
            name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_cksum();
            archive.append(&header, content).unwrap();
        };
        let file = tar::EntryType::Regular;
        add("tmp/.belljar/result", file, b"{\"a\":1}");
        add("workspace/artifacts/a.txt", file, b"x");
        add("workspace/artifacts/../../etc/b.txt", file, b"x");
        add("workspace/artifacts/b/.c", file, b"x");
        add("workspace/artifacts/large", file, b"12345");
        add("workspace/artifacts/e.txt", tar::EntryType::Symlink, b"");
        add("/etc/f.txt", file, b"x");
        add("tmp/.belljar/skipped", file, b"3 a/link\n99 ?\nx\n");
        let limits = ArtifactLimits { files: 9, file_bytes: 4, total_bytes: 9 };
        let archive = archive.into_inner().unwrap();
        let results = unpack(&archive, limits, 7);
        assert_eq!(results.result, program::return_value(b"{\"a\":1}", 7));
        assert!(matches!(unpack(&archive, limits, 6).result, ReturnValue::Invalid(_)));
        let names: Vec<_> = results.artifacts.iter().map(|artifact| artifact.name.as_str()).collect();
        assert_eq!(names, ["a.txt", "b/.c"]);
        let skipped: Vec<_> = results.skipped.named.iter().map(|skipped| skipped.path.as_str()).collect();
        assert_eq!(skipped, ["../../etc/b.txt", "large", "a/link"]);
        assert_eq!(unpack(b"no archive", limits, 7), RemoteResults::default());
    }
}
