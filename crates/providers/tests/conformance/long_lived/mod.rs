//! Sandboxes: cases for every provider that supports them.

mod commands;
mod confinement;
mod denials;
mod files;
mod internet;
mod limits;
mod network;
pub(crate) mod shutdown;
mod tasks;

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::provider::{DiscardSink, Stream};
use belljar_engine::sandbox::{AdmittedSandbox, SandboxPackages, SandboxRequest};
use belljar_engine::sandbox_handle::{
    AttachOptions, CommandEnding, CommandViewer, OutputEvent, SandboxError, SandboxHandle, StartCommand,
};
use libtest_mimic::Trial;
use serde_json::Value;

use crate::fixture::{Fixture, Verdict, check};

pub(crate) type Case = fn(Fixture) -> Pin<Box<dyn Future<Output = Verdict>>>;

/// Lists async cases with their names.
macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        vec![$((stringify!($case), (|fixture| Box::pin($case(fixture))) as crate::long_lived::Case)),+]
    };
}
pub(crate) use cases;

type Group = (&'static str, Vec<(&'static str, Case)>);

pub(crate) fn trials(fixture: &Fixture) -> Vec<Trial> {
    let own = [("denials", denials::all()), ("confinement", confinement::all()), ("ends", shutdown::all())];
    let mut trials =
        vec![Trial::test("long_lived::as_an_ordinary_user", || as_unprivileged_user().map_err(Into::into))];
    trials.extend(
        shared().into_iter().chain(own).flat_map(|group| trials_of("long_lived", group, fixture, &[])),
    );
    trials
}

/// Cases that do not depend on the native provider.
fn shared() -> Vec<Group> {
    vec![
        ("commands", commands::all()),
        ("files", files::all()),
        ("tasks", tasks::all()),
        ("limits", limits::all()),
        ("internet", internet::all()),
        ("network", network::all()),
    ]
}

/// Returns the shared cases for another provider, ignoring those in which it differs.
pub(crate) fn shared_trials(kind: &str, fixture: &Fixture, differs: &[(&str, &str)]) -> Vec<Trial> {
    shared().into_iter().flat_map(|group| trials_of(kind, group, fixture, differs)).collect()
}

fn trials_of(kind: &str, (group, cases): Group, fixture: &Fixture, differs: &[(&str, &str)]) -> Vec<Trial> {
    let trial = |(name, case): (&str, Case)| {
        let fixture = fixture.clone();
        let run = move || fixture.block_on(case(fixture.clone())).map_err(Into::into);
        let why = differs.iter().find(|(other, _)| *other == name);
        let title = format!("{kind}::{group}::{name}");
        match why {
            Some((_, why)) => Trial::test(format!("{title} ({why})"), run).with_ignored_flag(true),
            None => Trial::test(title, run),
        }
    };
    cases.into_iter().map(trial).collect()
}

/// A user id that is unused on this machine.
const PERSON: u32 = 64_123;

/// Repeats all cases as an unprivileged user, if this process runs as root.
fn as_unprivileged_user() -> Verdict {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let home = tempfile::tempdir().map_err(text)?;
    let (folder, program) = (home.path(), home.path().join("conformance"));
    // Copied by another process: a case that forks at the same time must not hold the copy open for writing.
    let own = std::env::current_exe().map_err(text)?;
    let copied = std::process::Command::new("cp").arg(own).arg(&program).status();
    check!(copied.as_ref().is_ok_and(std::process::ExitStatus::success), copied);
    for path in [folder, &program] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).map_err(text)?;
    }
    std::os::unix::fs::chown(folder, Some(PERSON), Some(PERSON)).map_err(text)?;
    let mut command = std::process::Command::new(program);
    command
        .env_clear()
        .env("HOME", folder)
        .env("PATH", "/usr/bin:/bin")
        .env("TMPDIR", "/tmp")
        .current_dir(folder);
    command.args(["long_lived::", "--test-threads", "2"]).uid(PERSON).gid(PERSON);
    let output = command.output().map_err(text)?;
    let _removed = std::fs::remove_dir_all(format!("/tmp/belljar-{PERSON}"));
    check!(output.status.success(), String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// An open sandbox.
#[derive(Clone)]
pub(crate) struct OpenSandbox {
    pub(crate) handle: Arc<dyn SandboxHandle>,
    pub(crate) admitted: AdmittedSandbox,
    pub(crate) packages: Arc<SandboxPackages>,
}

/// The result of a command.
#[derive(Debug, Default)]
pub(crate) struct CommandResult {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) lost: u64,
    pub(crate) ending: Option<CommandEnding>,
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Fixture {
    pub(crate) async fn open(&self, request: Value) -> Result<OpenSandbox, String> {
        let request: SandboxRequest = serde_json::from_value(request).map_err(text)?;
        let admitted = self.engine().admit_sandbox(request, None).map_err(text)?;
        self.open_admitted(admitted).await
    }

    pub(crate) async fn open_admitted(&self, mut admitted: AdmittedSandbox) -> Result<OpenSandbox, String> {
        let (handle, _) = self.engine().open_sandbox(&mut admitted, &mut DiscardSink).await.map_err(text)?;
        Ok(OpenSandbox { handle: handle.into(), admitted, packages: Arc::default() })
    }
}

impl OpenSandbox {
    /// Runs a line of shell to its end.
    pub(crate) async fn shell(&self, line: &str) -> Result<CommandResult, String> {
        match self.run(StartCommand::shell(line)).await {
            Err(SandboxError::Gone(_)) => Err(format!("{line}: it is gone: {}", self.handle.ended().await)),
            ran => ran.map_err(text),
        }
    }

    /// Runs a shell line that must succeed, and returns its output without the final newline.
    pub(crate) async fn shell_output(&self, line: &str) -> Result<String, String> {
        let ran = self.shell(line).await?;
        match ran.ending {
            Some(CommandEnding::Exited(0)) => Ok(ran.stdout.trim_end().to_owned()),
            _ => Err(format!("{line}: {ran:?}")),
        }
    }

    pub(crate) async fn run(&self, command: StartCommand) -> Result<CommandResult, SandboxError> {
        let attach = AttachOptions { from: 0, hold: true };
        let (_, output) = self.handle.commands().start_attached(command, attach).await?;
        collect(output).await
    }

    pub(crate) async fn write_file(&self, path: &str, bytes: &[u8]) -> Result<u64, String> {
        let files = self.handle.files();
        files.write(path, Default::default(), Box::pin(bytes)).await.map_err(text)
    }

    pub(crate) async fn read_file(&self, path: &str, from: u64, len: Option<u64>) -> Result<Vec<u8>, String> {
        use tokio::io::AsyncReadExt;
        let (_, mut source) = self.handle.files().read(path, from, len).await.map_err(text)?;
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes).await.map_err(text)?;
        Ok(bytes)
    }

    pub(crate) async fn close(self) -> Verdict {
        self.handle.close().await;
        Ok(())
    }
}

/// Reads all output of a command.
pub(crate) async fn collect(mut output: Box<dyn CommandViewer>) -> Result<CommandResult, SandboxError> {
    let mut ran = CommandResult::default();
    while let Some(event) = output.next().await? {
        match event {
            OutputEvent::Bytes { stream: Stream::Stdout, bytes, .. } => {
                ran.stdout.push_str(&String::from_utf8_lossy(&bytes));
            }
            OutputEvent::Bytes { stream: Stream::Stderr, bytes, .. } => {
                ran.stderr.push_str(&String::from_utf8_lossy(&bytes));
            }
            OutputEvent::Lost { bytes, .. } => ran.lost += bytes,
            OutputEvent::Ended { ending, .. } => ran.ending = Some(ending),
        }
    }
    Ok(ran)
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> Result<bool, String>) -> Verdict {
    let start = Instant::now();
    while !holds().await? {
        if start.elapsed() > Duration::from_secs(60) {
            return Err(format!("never: {what}"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Searches all processes of the host. With providers that run elsewhere there are none to find.
pub(crate) fn host_processes(mark: &str) -> Vec<u32> {
    let me = std::process::id();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_mark = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(mark))
    };
    numbers.filter(|pid| *pid != me).filter(has_mark).collect()
}

/// Returns a word that is unique on this machine.
pub(crate) fn unique_mark() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("belljar-sandbox-{}-{}-", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
