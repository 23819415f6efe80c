//! The I/O of a run: its pipes, its output as it arrives, and its outcome.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use belljar_engine::artifact::{ArtifactLimits, SkippedArtifacts};
use belljar_engine::explain;
use belljar_engine::limits::Limits;
use belljar_engine::outcome::{Ending, Kernel, Limit, Outcome, Receipt};
use belljar_engine::provider::{BoxFuture, ProviderError, Sink, SinkControl, Stream};
use belljar_guest::OutputPipe;
use belljar_jail::Step;
use belljar_jail::spec;
use belljar_jail::wire::LauncherEvent;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

use super::NAME;
use super::artifact_stream::{max_stream_bytes, parse_artifacts};
use super::connection::{SubmittedRun, launcher_lost, step_failure};
use super::partial_line::PartialLine;
use crate::program::{process_tenant_data, return_value};

/// Bytes read at once.
const READ_BUFFER_BYTES: usize = 32 << 10;
/// How long to wait for the end of a run before reading its pipes.
const SHORT_RUN: Duration = Duration::from_millis(1);
/// How much can remain in a pipe after the program has ended.
const MAX_DRAIN_BYTES: usize = 1 << 20;

/// Both ends of every pipe, until the child's ends have been sent.
pub(super) struct RunPipes {
    stdin: (OwnedFd, OwnedFd),
    stdout: (OwnedFd, OwnedFd),
    stderr: (OwnedFd, OwnedFd),
    result: Option<(OwnedFd, OwnedFd)>,
    artifacts: (OwnedFd, OwnedFd),
}

impl RunPipes {
    pub(super) fn new(result: bool) -> std::io::Result<Self> {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        Ok(Self {
            stdin: pipe()?,
            stdout: pipe()?,
            stderr: pipe()?,
            result: result.then(pipe).transpose()?,
            artifacts: pipe()?,
        })
    }

    pub(super) fn child_fds<'a>(&'a self, payload: &'a OwnedFd) -> Vec<std::os::fd::BorrowedFd<'a>> {
        let mut fds =
            vec![payload.as_fd(), self.stdin.0.as_fd(), self.stdout.1.as_fd(), self.stderr.1.as_fd()];
        fds.extend(self.result.as_ref().map(|pipe| pipe.1.as_fd()));
        fds.push(self.artifacts.1.as_fd());
        fds
    }

    /// Returns the host's ends. Without input, stdin is closed at once.
    pub(super) fn into_host_ends(
        self,
        has_input: bool,
    ) -> std::io::Result<HostPipeEnds<OwnedFd, OwnedFd, OwnedFd>> {
        let ours = HostPipeEnds {
            stdin: has_input.then_some(self.stdin.1),
            stdout: Some(self.stdout.0),
            stderr: Some(self.stderr.0),
            result: self.result.map(|(read, _)| read),
            artifacts: Some(self.artifacts.0),
        };
        let HostPipeEnds { stdin, stdout, stderr, result, artifacts } = &ours;
        let readers = [stdout, stderr, result, artifacts].into_iter().flatten();
        readers.chain(stdin).try_for_each(|end| rustix::io::ioctl_fionbio(end, true))?;
        Ok(ours)
    }
}

/// The host's ends of the pipes. Each is dropped at end of file.
pub(super) struct HostPipeEnds<W, O, R> {
    stdin: Option<W>,
    stdout: Option<O>,
    stderr: Option<O>,
    result: Option<R>,
    artifacts: Option<R>,
}

impl HostPipeEnds<OwnedFd, OwnedFd, OwnedFd> {
    /// Prepares the pipes for waiting.
    fn register(self) -> std::io::Result<HostPipeEnds<pipe::Sender, OutputPipe, pipe::Receiver>> {
        let output = |end: Option<OwnedFd>| end.map(OutputPipe::new).transpose();
        let receiver = |end: Option<OwnedFd>| end.map(pipe::Receiver::from_owned_fd_unchecked).transpose();
        Ok(HostPipeEnds {
            stdin: self.stdin.map(pipe::Sender::from_owned_fd_unchecked).transpose()?,
            stdout: output(self.stdout)?,
            stderr: output(self.stderr)?,
            result: receiver(self.result)?,
            artifacts: receiver(self.artifacts)?,
        })
    }
}

/// The outcome of a jail, and what was left out of its artifacts.
pub(super) struct JailOutcome {
    pub(super) outcome: Outcome,
    pub(super) skipped: SkippedArtifacts,
    artifact_limits: ArtifactLimits,
}

impl JailOutcome {
    /// Returns the outcome with findings about what was left out.
    pub(super) fn with_artifact_findings(self) -> Outcome {
        let Self { mut outcome, skipped, artifact_limits } = self;
        outcome.findings.extend(explain::artifact_findings(&skipped, &artifact_limits));
        outcome
    }
}

/// A run in progress.
pub(super) struct RunIo<'a> {
    pending: SubmittedRun,
    sink: &'a mut dyn Sink,
    limits: Limits,
    artifact_limits: ArtifactLimits,
    /// Size limit of the result, in bytes.
    result_bytes: usize,
    why_killed: Option<Ending>,
    stdout: PartialLine,
    stderr: PartialLine,
    result: Vec<u8>,
    artifacts: Vec<u8>,
}

/// Reads from a pipe into a buffer. Returns 0 at the end; never completes for a closed pipe.
async fn read(pipe: &mut Option<pipe::Receiver>, buffer: &mut Vec<u8>) -> usize {
    let Some(pipe) = pipe else { return std::future::pending().await };
    // Memory is allocated only when there is data to read.
    if pipe.readable().await.is_err() {
        return 0;
    }
    buffer.clear();
    buffer.reserve(READ_BUFFER_BYTES);
    pipe.read_buf(buffer).await.unwrap_or(0)
}

/// Reads output. Returns 0 at the end; never completes for a closed pipe.
async fn read_output(pipe: &mut Option<OutputPipe>, buffer: &mut Vec<u8>) -> usize {
    let Some(pipe) = pipe else { return std::future::pending().await };
    loop {
        if pipe.readable().await.is_err() {
            return 0;
        }
        buffer.resize(READ_BUFFER_BYTES, 0);
        match pipe.read_now(buffer) {
            Ok(read) => return read,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return 0,
        }
    }
}

/// Writes pending input. Completes only after something was written.
async fn feed(pipe: &mut Option<pipe::Sender>, input: &[u8]) -> usize {
    match pipe {
        Some(pipe) if !input.is_empty() => pipe.write(input).await.unwrap_or(0),
        _ => std::future::pending().await,
    }
}

impl<'a> RunIo<'a> {
    /// Creates it with the limits of the run, those on its artifacts, and that on its result.
    pub(super) fn new(
        pending: SubmittedRun,
        (limits, artifact_limits, result_bytes): (Limits, ArtifactLimits, u64),
        sink: &'a mut dyn Sink,
    ) -> Self {
        let (stdout, stderr) = (PartialLine::default(), PartialLine::default());
        let (result, artifacts) = (Vec::new(), Vec::new());
        let result_bytes = usize::try_from(result_bytes).unwrap_or(usize::MAX - 1);
        Self {
            pending,
            sink,
            limits,
            artifact_limits,
            result_bytes,
            why_killed: None,
            stdout,
            stderr,
            result,
            artifacts,
        }
    }

    /// Runs until the end and returns the outcome.
    pub(super) async fn run_to_end(
        mut self,
        ours: HostPipeEnds<OwnedFd, OwnedFd, OwnedFd>,
        input: &[u8],
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<JailOutcome, ProviderError> {
        let notice = match self.wait_briefly(input, cancel).await? {
            Some(notice) => {
                self.drain_pipes(&ours);
                notice
            }
            None => {
                let mut ours = ours.register().map_err(|error| ProviderError::setup("watch pipes", error))?;
                let notice = self.pump(&mut ours, input, cancel).await?;
                self.drain_pipes(&ours);
                notice
            }
        };
        self.outcome(notice).await
    }

    /// Waits briefly for the end. Most runs end within a millisecond and their output fits the pipes;
    /// registering the pipes and waking for each write would take longer than all the rest. With input, the
    /// program may be waiting for it.
    async fn wait_briefly(
        &mut self,
        input: &[u8],
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<Option<LauncherEvent>, ProviderError> {
        if !input.is_empty() {
            return Ok(None);
        }
        tokio::select! {
            biased;
            notice = &mut self.pending.notice => notice.map(Some).map_err(|_| launcher_lost()),
            () = &mut *cancel => {
                self.kill(Ending::Cancelled);
                Ok(None)
            }
            () = tokio::time::sleep(SHORT_RUN) => Ok(None),
        }
    }

    async fn pump(
        &mut self,
        ours: &mut HostPipeEnds<pipe::Sender, OutputPipe, pipe::Receiver>,
        mut input: &[u8],
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<LauncherEvent, ProviderError> {
        let max_artifact_bytes = max_stream_bytes(&self.artifact_limits);
        let mut buffers: [Vec<u8>; 4] = std::array::from_fn(|_| Vec::new());
        let [out, err, result, artifacts] = &mut buffers;
        loop {
            tokio::select! {
                biased;
                notice = &mut self.pending.notice => return notice.map_err(|_| launcher_lost()),
                () = &mut *cancel, if self.why_killed.is_none() => self.kill(Ending::Cancelled),
                read = read_output(&mut ours.stdout, out) => {
                    if read == 0 { ours.stdout = None }
                    let lines = self.stdout.push(&out[..read]);
                    self.write_output(Stream::Stdout, &lines);
                }
                read = read_output(&mut ours.stderr, err) => {
                    if read == 0 { ours.stderr = None }
                    let lines = self.stderr.push(&err[..read]);
                    self.write_output(Stream::Stderr, &lines);
                }
                read = read(&mut ours.result, result) => {
                    if read == 0 { ours.result = None } else { append_bounded(&mut self.result, result, self.result_bytes) }
                }
                read = read(&mut ours.artifacts, artifacts) => {
                    if read == 0 { ours.artifacts = None } else { append_bounded(&mut self.artifacts, artifacts, max_artifact_bytes) }
                }
                () = self.stdout.wait_until_due() => {
                    let held = self.stdout.take();
                    self.write_output(Stream::Stdout, &held);
                }
                () = self.stderr.wait_until_due() => {
                    let held = self.stderr.take();
                    self.write_output(Stream::Stderr, &held);
                }
                written = feed(&mut ours.stdin, input) => {
                    input = &input[written..];
                    if written == 0 || input.is_empty() { ours.stdin = None }
                }
            }
        }
    }

    fn kill(&mut self, why: Ending) {
        self.why_killed = Some(why);
        self.pending.kill();
    }

    fn write_output(&mut self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.sink.output(stream, bytes) == SinkControl::Kill && self.why_killed.is_none() {
            self.kill(Ending::LimitHit(Limit::Output, None));
        }
    }

    /// Reads what remains in the pipes after the program has ended. A surviving process that holds a pipe
    /// open is not awaited.
    fn drain_pipes<W, O: AsFd, R: AsFd>(&mut self, ours: &HostPipeEnds<W, O, R>) {
        let HostPipeEnds { stdout, stderr, result, artifacts, .. } = ours;
        let (mut out, mut err) = (self.stdout.take(), self.stderr.take());
        drain_pipe(stdout.as_ref(), &mut out, MAX_DRAIN_BYTES);
        drain_pipe(stderr.as_ref(), &mut err, MAX_DRAIN_BYTES);
        drain_pipe(result.as_ref(), &mut self.result, self.result_bytes + 1);
        drain_pipe(artifacts.as_ref(), &mut self.artifacts, max_stream_bytes(&self.artifact_limits));
        for (stream, bytes) in [(Stream::Stdout, out), (Stream::Stderr, err)] {
            if !bytes.is_empty() {
                // The program has ended, so there is nothing left to kill.
                let _flow = self.sink.output(stream, &bytes);
            }
        }
    }

    async fn outcome(mut self, notice: LauncherEvent) -> Result<JailOutcome, ProviderError> {
        self.pending.mark_finished();
        let (ending, usage, duration, layers, warmth, denials) = match notice {
            LauncherEvent::Ended { ending, usage, duration, layers, warmth, denials, .. } => {
                (ending, usage, duration, layers, warmth, denials)
            }
            LauncherEvent::Failed { failure, .. } => return Err(step_error(&failure)),
            LauncherEvent::Ready { .. }
            | LauncherEvent::SetupFailed(_)
            | LauncherEvent::Pools { .. }
            | LauncherEvent::JailAnswered { .. }
            | LauncherEvent::Mismatch(_) => {
                return Err(launcher_lost());
            }
        };
        if ending == spec::JailEnding::MachineMemory {
            return Err(ProviderError::SandboxMemoryExhausted);
        }
        let mut isolation = layers;
        isolation.sort();
        let ending = convert_ending(ending, self.why_killed);
        let size = self.result.len() + self.artifacts.len();
        let (result, artifacts, artifact_limits) = (self.result, self.artifacts, self.artifact_limits);
        let result_bytes = self.result_bytes as u64;
        let parse =
            move || (return_value(&result, result_bytes), parse_artifacts(&artifacts, artifact_limits));
        let (result, collected) = process_tenant_data(size, parse)
            .await
            .map_err(|error| ProviderError::setup("read the results", error))?;
        let outcome = Outcome {
            ending,
            duration,
            usage,
            result,
            artifacts: collected.artifacts,
            findings: explain::denial_findings(&denials, ending, &self.limits),
            receipt: Receipt { isolation, warm: warmth, ..Receipt::new(NAME, Kernel::Host) },
        };
        Ok(JailOutcome { outcome, skipped: collected.skipped, artifact_limits })
    }
}

fn append_bounded(buffer: &mut Vec<u8>, bytes: &[u8], bound: usize) {
    // One byte above the bound shows that there was more.
    let room = (bound + 1).saturating_sub(buffer.len());
    buffer.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

fn drain_pipe(pipe: Option<&impl AsFd>, into: &mut Vec<u8>, bound: usize) {
    let Some(pipe) = pipe else { return };
    let mut buffer = [0; 8 << 10];
    let mut drained = 0;
    while drained < bound {
        // Reads the pipe directly: the event loop may not know yet that it is readable.
        match rustix::io::read(pipe.as_fd(), &mut buffer) {
            Err(Errno::INTR) => {}
            Ok(0) | Err(_) => return,
            Ok(read) => {
                drained += read;
                append_bounded(into, &buffer[..read], bound);
            }
        }
    }
}

fn convert_ending(ending: spec::JailEnding, why_killed: Option<Ending>) -> Ending {
    match ending {
        spec::JailEnding::Exited(status) => Ending::Exited(status),
        spec::JailEnding::Signalled(signal) => Ending::Signalled(signal),
        spec::JailEnding::TimedOut => Ending::TimedOut,
        spec::JailEnding::Memory | spec::JailEnding::MachineMemory => Ending::LimitHit(Limit::Memory, None),
        spec::JailEnding::Processes(status) => Ending::LimitHit(Limit::Processes, Some(status)),
        spec::JailEnding::Disk(status) => Ending::LimitHit(Limit::Disk, status),
        spec::JailEnding::Killed => why_killed.unwrap_or(Ending::Cancelled),
    }
}

/// Converts a failed step. A missing program or folder is an error in the request, and retrying would not
/// help.
fn step_error(failure: &belljar_jail::StepFailed) -> ProviderError {
    let (field, hint) = match failure.step {
        Step::Exec => ("command", "; the image has no such program, or it cannot be executed"),
        Step::Workdir => ("workdir", ""),
        _ => return step_failure(failure),
    };
    let mistakes =
        [Errno::NOENT, Errno::NOTDIR, Errno::ACCESS, Errno::NOEXEC, Errno::LOOP, Errno::NAMETOOLONG];
    if mistakes.iter().all(|errno| errno.raw_os_error() != failure.errno) {
        return step_failure(failure);
    }
    ProviderError::Invalid { field, message: format!("{}: {}{hint}", failure.subject(), failure.cause()) }
}
