//! Starts guests and sends them requests.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use belljar_guest::host::{OutputEvent, ProcessOutput};
use belljar_guest::protocol::{AttachOptions, CommandEnding, GuestSettings, StartCommand, Stream};
use belljar_guest::{Guest, GuestError};
use libtest_mimic::Trial;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

/// Longer than any test takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(100);
const NAMESPACES: &[&str] =
    &["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"];

/// Whether a guest can be PID 1 on this machine.
pub(crate) static HAS_NAMESPACES: LazyLock<bool> = LazyLock::new(|| {
    let tried = Command::new("unshare").args(NAMESPACES).arg("true").stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success())
});

/// A guest with its own folder.
pub(crate) struct GuestFixture {
    pub(crate) guest: Guest,
    pub(crate) folder: TempDir,
    pub(crate) child: Child,
}

impl Drop for GuestFixture {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Creates a test with a guest.
pub(crate) fn trial<F, W>(name: &'static str, test: W) -> Trial
where
    F: Future<Output = ()>,
    W: Fn(GuestFixture) -> F + Copy + Send + 'static,
{
    trial_with(name, GuestSettings::default(), test)
}

/// Creates a test with a guest that has other limits.
pub(crate) fn trial_with<F, W>(name: &'static str, settings: GuestSettings, test: W) -> Trial
where
    F: Future<Output = ()>,
    W: Fn(GuestFixture) -> F + Copy + Send + 'static,
{
    bare_trial(name, move || {
        let settings = settings.clone();
        async move { test(GuestFixture::start(settings).await).await }
    })
}

/// Creates a test without a guest.
pub(crate) fn bare_trial<F, T>(name: &'static str, test: T) -> Trial
where
    F: Future<Output = ()>,
    T: Fn() -> F + Send + 'static,
{
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime
            .block_on(async { tokio::time::timeout(TEST_TIMEOUT, test()).await })
            .map_err(|_| "timed out")?;
        Ok(())
    })
}

/// Starts a guest process; returns it with the host's end of the connection.
pub(crate) fn spawn() -> (Child, UnixStream) {
    let (ours, theirs) = StdUnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut command = if *HAS_NAMESPACES {
        let mut command = Command::new("unshare");
        command.args(NAMESPACES).arg("bash");
        command
    } else {
        Command::new("bash")
    };
    let script = r#"exec -a belljar-guest "$0" 3<&0 0</dev/null"#;
    command.args(["-c", script]).arg(std::env::current_exe().unwrap());
    let child = command.stdin(OwnedFd::from(theirs)).spawn().unwrap();
    (child, UnixStream::from_std(ours).unwrap())
}

impl GuestFixture {
    pub(crate) async fn start(settings: GuestSettings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let workdir = folder.path().to_str().unwrap().to_owned();
        let (child, line) = spawn();
        let guest = Guest::connect(line, GuestSettings { workdir, ..settings }).await.unwrap();
        Self { guest, folder, child }
    }

    /// Runs a shell command; returns its output and ending.
    pub(crate) async fn shell(&self, line: &str) -> CollectedOutput {
        run(&self.guest, shell(line)).await.unwrap()
    }

    /// Reads a whole file.
    pub(crate) async fn read(&self, path: &str) -> Result<Vec<u8>, GuestError> {
        let (_, mut reader) = self.guest.read_file(path, 0, None).await?;
        let mut bytes = Vec::new();
        match reader.read_to_end(&mut bytes).await {
            Ok(_) => Ok(bytes),
            Err(error) => Err(GuestError::from_io(&error).unwrap().clone()),
        }
    }

    pub(crate) async fn write(&self, path: &str, bytes: &[u8]) {
        self.guest.write_file(path, Default::default(), bytes).await.unwrap();
    }

    /// Returns a value in kilobytes from the status of the guest's process.
    pub(crate) async fn memory_kb(&self, name: &str) -> u64 {
        let status = if *HAS_NAMESPACES {
            String::from_utf8(self.shell("cat /proc/1/status").await.stdout).unwrap()
        } else {
            std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap()
        };
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

/// Creates a shell command with a usual environment.
pub(crate) fn shell(line: &str) -> StartCommand {
    let mut command = StartCommand::shell(line);
    command.env = vec![("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())];
    command
}

/// The result of a process.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct CollectedOutput {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) lost: u64,
    pub(crate) ending: Option<CommandEnding>,
}

impl CollectedOutput {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap().trim_end()
    }
}

pub(crate) async fn run(guest: &Guest, command: StartCommand) -> Result<CollectedOutput, GuestError> {
    let (_, output) = guest.start_attached(command, AttachOptions { from: 0, hold: true }).await?;
    collect(output).await
}

/// Collects everything that a viewer receives.
pub(crate) async fn collect(mut output: ProcessOutput) -> Result<CollectedOutput, GuestError> {
    let mut ran = CollectedOutput::default();
    while let Some(event) = output.next().await? {
        match event {
            OutputEvent::Bytes { stream: Stream::Stdout, bytes, .. } => ran.stdout.extend(bytes),
            OutputEvent::Bytes { stream: Stream::Stderr, bytes, .. } => ran.stderr.extend(bytes),
            OutputEvent::Lost { bytes, .. } => ran.lost += bytes,
            OutputEvent::Ended { ending, .. } => ran.ending = Some(ending),
        }
    }
    Ok(ran)
}

/// Waits until a condition holds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < Duration::from_secs(60), "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
