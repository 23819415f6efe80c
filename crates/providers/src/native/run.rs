//! One run: pipes out, the order to the launcher, output in as it comes, and the ending.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use belljar_engine::explain;
use belljar_engine::limits::{self, Limits};
use belljar_engine::outcome::{Artifact, Ending, Kernel, Limit, Outcome, Receipt, Usage, Warmth};
use belljar_engine::plan::{Network, Task};
use belljar_engine::provider::{BoxFuture, Flow, ProviderError, Sink, Stream};
use belljar_engine::{layer::Layer, report};
use belljar_jail::Step;
use belljar_jail::spec::{self, ArtifactRules, Interpreter, Jail, PayloadFile, Tongue};
use belljar_jail::wire::Notice;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

use super::connection::{Ordered, lost};
use super::{Place, Shared, engine_layer, root_for};
use crate::program::{self, Prepared, Spots, WarmTask};

/// What `main` may return, as JSON.
pub(super) const MAX_RESULT: usize = 16 << 20;
/// What is read at once.
const BUFFER: usize = 32 << 10;
/// How long the output of a run is left in its pipes.
const MOMENT: Duration = Duration::from_millis(1);
/// What can still be in a pipe when the program has ended.
const MAX_DRAIN: usize = 1 << 20;

/// What may leave as artifacts.
#[derive(Debug)]
pub(super) struct Artifacts(pub(super) ArtifactRules);

impl Default for Artifacts {
    fn default() -> Self {
        let extensions = [
            "png", "jpg", "jpeg", "gif", "webp", "svg", "pdf", "csv", "tsv", "json", "html", "md", "txt",
            "parquet", "xlsx",
        ];
        debug_assert!(
            extensions.iter().all(|extension| report::mime_type(&format!("a.{extension}")).is_some())
        );
        let extensions = extensions.map(str::to_owned).to_vec();
        Self(ArtifactRules { count: 10, file_bytes: 10 << 20, extensions })
    }
}

/// How often a run is begun at most.
const ATTEMPTS: usize = 3;

/// Runs a task in a jail of its own. When the launcher is lost another one is started; and what can be run again without
/// anybody noticing is run again.
pub(super) async fn run(
    shared: &Shared,
    place: &Place,
    task: &Task,
    sink: &mut dyn Sink,
    mut cancel: BoxFuture<'_, ()>,
) -> Result<Outcome, ProviderError> {
    let mut sink = Witness { sink, shown: false };
    for _ in 1..ATTEMPTS {
        match attempt(shared, place, task, &mut sink, &mut cancel).await {
            Err(ProviderError::Lost { message }) => {
                shared.link.renew().await?;
                if !place.is_sealed() || !sink.restart() {
                    return Err(ProviderError::Lost { message });
                }
            }
            done => return done,
        }
    }
    attempt(shared, place, task, &mut sink, &mut cancel).await
}

/// Knows whether anybody saw output.
struct Witness<'a> {
    sink: &'a mut dyn Sink,
    shown: bool,
}

impl Sink for Witness<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> Flow {
        self.shown = true;
        self.sink.output(stream, bytes)
    }

    fn restart(&mut self) -> bool {
        !self.shown || self.sink.restart()
    }
}

async fn attempt(
    shared: &Shared,
    place: &Place,
    task: &Task,
    sink: &mut dyn Sink,
    cancel: &mut BoxFuture<'_, ()>,
) -> Result<Outcome, ProviderError> {
    let (root, found) = root_for(&shared.roots, place, task)?;
    let unique = place.playground.is_some().then(unique_name);
    let prepared = program::prepare(task, &place.plan, found.as_ref(), &root.path, &Spots::fresh(unique));
    let _leftover = Leftover::of(place, &prepared)?;
    let pipes = Pipes::new(prepared.result).map_err(|error| setup("make pipes", &error))?;
    let payload = pack(&prepared).map_err(|error| setup("pack the files", &error))?;
    let jail = jail(shared, place, task, prepared, root.number);
    let fds = pipes.theirs(&payload);
    let ordered = shared.link.connection()?.start(&root, jail, &fds).await?;
    drop(fds);
    let ours = pipes.keep_ours(!task.stdin.is_empty()).map_err(|error| setup("make pipes", &error))?;
    let limits = place.plan.limits;
    Attending { ordered, sink, limits, why_killed: None, result: Vec::new(), artifacts: Vec::new() }
        .attend(ours, &task.stdin, cancel)
        .await
}

/// The code's file in a playground, which goes when the run is over.
struct Leftover(Option<(OwnedFd, String)>);

impl Leftover {
    fn of(place: &Place, prepared: &Prepared) -> Result<Self, ProviderError> {
        let (Some(folder), Some(name)) = (&place.playground, &prepared.temporary) else {
            return Ok(Self(None));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder.as_str(), flags, Mode::empty());
        let folder = folder.map_err(|errno| setup("open the workspace", &errno.into()))?;
        Ok(Self(Some((folder, name.clone()))))
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        if let Some((folder, name)) = &self.0 {
            // Where nothing ran it is not there. The name is ours and has no folder in it, so no link is followed.
            let _removed = rustix::fs::unlinkat(folder, name, AtFlags::empty());
        }
    }
}

pub(super) fn setup(step: &str, error: &std::io::Error) -> ProviderError {
    ProviderError::Setup { step: step.to_owned(), cause: error.to_string() }
}

/// Part of a file name that no other run has.
pub(super) fn unique_name() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("belljar-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn pack(prepared: &Prepared) -> std::io::Result<OwnedFd> {
    let files: Vec<(PayloadFile, &[u8])> = prepared
        .files
        .iter()
        .map(|file| {
            let place = if file.inbox { spec::Place::Inbox } else { spec::Place::Workspace };
            (PayloadFile { place, path: file.path.clone(), mode: file.mode }, file.content.as_slice())
        })
        .collect();
    belljar_jail::payload::pack(&text_of(prepared), &files)
}

/// What a warm interpreter is told: where the code is, and the environment, each ended by a NUL but the last.
fn text_of(prepared: &Prepared) -> Vec<u8> {
    let Some(warm) = &prepared.warm else { return Vec::new() };
    let variables = prepared.env.iter().map(|(name, value)| format!("{name}={value}"));
    std::iter::once(warm.source.clone()).chain(variables).collect::<Vec<_>>().join("\0").into_bytes()
}

fn interpreter(place: &Place, warm: WarmTask) -> Option<Interpreter> {
    let tongue = match warm.language.name {
        "python" => Tongue::Python,
        "javascript" => Tongue::Node,
        _ => return None,
    };
    Some(Interpreter {
        tongue,
        program: warm.program,
        env: warm.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        preimports: if tongue == Tongue::Python { place.plan.preimports.clone() } else { Vec::new() },
        tenant: place.plan.tenant.clone(),
    })
}

fn jail(shared: &Shared, place: &Place, task: &Task, prepared: Prepared, root: u64) -> Jail {
    Jail {
        root,
        living: false,
        commands: prepared.commands,
        env: prepared.env.iter().map(|(key, value)| format!("{key}={value}")).collect(),
        workdir: task.workdir.clone(),
        limits: limits(&place.plan.limits),
        network: network(place.plan.network),
        playground: place.playground.clone(),
        binds: place.binds.clone(),
        result_pipe: prepared.result,
        artifacts: Some(shared.artifacts.0.clone()),
        require_separate_uid: place.plan.require.contains(&Layer::SeparateUid),
        interpreter: prepared.warm.and_then(|warm| interpreter(place, warm)),
    }
}

pub(super) fn limits(limits: &Limits) -> spec::Limits {
    spec::Limits {
        timeout: Some(limits.timeout),
        memory_bytes: limits.memory_bytes,
        cpu_millis: limits.cpu_millis,
        processes: limits.processes,
        disk_bytes: limits.disk_bytes,
        open_files: limits::OPEN_FILES,
    }
}

pub(super) fn network(network: Network) -> spec::Network {
    match network {
        Network::None => spec::Network::Own,
        Network::Full => spec::Network::Host,
    }
}

/// Both ends of every pipe, until theirs have been sent.
struct Pipes {
    stdin: (OwnedFd, OwnedFd),
    stdout: (OwnedFd, OwnedFd),
    stderr: (OwnedFd, OwnedFd),
    result: Option<(OwnedFd, OwnedFd)>,
    artifacts: (OwnedFd, OwnedFd),
}

impl Pipes {
    fn new(result: bool) -> std::io::Result<Self> {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        Ok(Self {
            stdin: pipe()?,
            stdout: pipe()?,
            stderr: pipe()?,
            result: result.then(pipe).transpose()?,
            artifacts: pipe()?,
        })
    }

    fn theirs<'a>(&'a self, payload: &'a OwnedFd) -> Vec<std::os::fd::BorrowedFd<'a>> {
        let mut fds =
            vec![payload.as_fd(), self.stdin.0.as_fd(), self.stdout.1.as_fd(), self.stderr.1.as_fd()];
        fds.extend(self.result.as_ref().map(|pipe| pipe.1.as_fd()));
        fds.push(self.artifacts.1.as_fd());
        fds
    }

    /// Our ends; no input is an input that is at its end.
    fn keep_ours(self, has_input: bool) -> std::io::Result<Ours<OwnedFd, OwnedFd>> {
        let ours = Ours {
            stdin: has_input.then_some(self.stdin.1),
            stdout: Some(self.stdout.0),
            stderr: Some(self.stderr.0),
            result: self.result.map(|(read, _)| read),
            artifacts: Some(self.artifacts.0),
        };
        let Ours { stdin, stdout, stderr, result, artifacts } = &ours;
        let readers = [stdout, stderr, result, artifacts].into_iter().flatten();
        readers.chain(stdin).try_for_each(|end| rustix::io::ioctl_fionbio(end, true))?;
        Ok(ours)
    }
}

/// Our ends; each is closed at its end.
struct Ours<W, R> {
    stdin: Option<W>,
    stdout: Option<R>,
    stderr: Option<R>,
    result: Option<R>,
    artifacts: Option<R>,
}

impl Ours<OwnedFd, OwnedFd> {
    /// Has the event loop watch them.
    fn watch(self) -> std::io::Result<Ours<pipe::Sender, pipe::Receiver>> {
        let receiver = |end: Option<OwnedFd>| end.map(pipe::Receiver::from_owned_fd_unchecked).transpose();
        Ok(Ours {
            stdin: self.stdin.map(pipe::Sender::from_owned_fd_unchecked).transpose()?,
            stdout: receiver(self.stdout)?,
            stderr: receiver(self.stderr)?,
            result: receiver(self.result)?,
            artifacts: receiver(self.artifacts)?,
        })
    }
}

/// A run that is going on.
struct Attending<'a> {
    ordered: Ordered,
    sink: &'a mut dyn Sink,
    limits: Limits,
    why_killed: Option<Ending>,
    result: Vec<u8>,
    artifacts: Vec<u8>,
}

/// Reads from a pipe that may have been closed, into a buffer; 0 is the end.
async fn read(pipe: &mut Option<pipe::Receiver>, buffer: &mut Vec<u8>) -> usize {
    let Some(pipe) = pipe else { return std::future::pending().await };
    // Memory is taken only where there is something to read.
    if pipe.readable().await.is_err() {
        return 0;
    }
    buffer.clear();
    buffer.reserve(BUFFER);
    pipe.read_buf(buffer).await.unwrap_or(0)
}

/// Writes what is left of the input; the future ends only when something could be written.
async fn feed(pipe: &mut Option<pipe::Sender>, input: &[u8]) -> usize {
    match pipe {
        Some(pipe) if !input.is_empty() => pipe.write(input).await.unwrap_or(0),
        _ => std::future::pending().await,
    }
}

impl Attending<'_> {
    async fn attend(
        mut self,
        ours: Ours<OwnedFd, OwnedFd>,
        input: &[u8],
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<Outcome, ProviderError> {
        let notice = match self.over_soon(input, cancel).await? {
            Some(notice) => {
                self.drain(&ours);
                notice
            }
            None => {
                let mut ours = ours.watch().map_err(|error| setup("watch pipes", &error))?;
                let notice = self.listen(&mut ours, input, cancel).await?;
                self.drain(&ours);
                notice
            }
        };
        self.outcome(notice)
    }

    /// Most runs are over in a moment, and what they wrote fits their pipes: to watch those, and be woken for each word,
    /// would take longer than all the rest. A run with input has somebody waiting for it.
    async fn over_soon(
        &mut self,
        input: &[u8],
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<Option<Notice>, ProviderError> {
        if !input.is_empty() {
            return Ok(None);
        }
        tokio::select! {
            biased;
            notice = &mut self.ordered.notice => notice.map(Some).map_err(|_| lost()),
            () = &mut *cancel => {
                self.end(Ending::Cancelled);
                Ok(None)
            }
            () = tokio::time::sleep(MOMENT) => Ok(None),
        }
    }

    async fn listen(
        &mut self,
        ours: &mut Ours<pipe::Sender, pipe::Receiver>,
        mut input: &[u8],
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<Notice, ProviderError> {
        let mut buffers: [Vec<u8>; 4] = std::array::from_fn(|_| Vec::new());
        let [out, err, result, artifacts] = &mut buffers;
        loop {
            tokio::select! {
                biased;
                notice = &mut self.ordered.notice => return notice.map_err(|_| lost()),
                () = &mut *cancel, if self.why_killed.is_none() => self.end(Ending::Cancelled),
                read = read(&mut ours.stdout, out) => {
                    if read == 0 { ours.stdout = None } else { self.show(Stream::Stdout, out) }
                }
                read = read(&mut ours.stderr, err) => {
                    if read == 0 { ours.stderr = None } else { self.show(Stream::Stderr, err) }
                }
                read = read(&mut ours.result, result) => {
                    if read == 0 { ours.result = None } else { keep(&mut self.result, result, MAX_RESULT) }
                }
                read = read(&mut ours.artifacts, artifacts) => {
                    if read == 0 { ours.artifacts = None } else { keep(&mut self.artifacts, artifacts, MAX_ARTIFACTS) }
                }
                written = feed(&mut ours.stdin, input) => {
                    input = &input[written..];
                    if written == 0 || input.is_empty() { ours.stdin = None }
                }
            }
        }
    }

    fn end(&mut self, why: Ending) {
        self.why_killed = Some(why);
        self.ordered.kill();
    }

    fn show(&mut self, stream: Stream, bytes: &[u8]) {
        if self.sink.output(stream, bytes) == Flow::Kill && self.why_killed.is_none() {
            self.end(Ending::LimitHit(Limit::Output, None));
        }
    }

    /// The program has ended; what it wrote is in the pipes. A survivor that still holds one is not waited for.
    fn drain<W, R: AsFd>(&mut self, ours: &Ours<W, R>) {
        let Ours { stdout, stderr, result, artifacts, .. } = ours;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        drain(stdout.as_ref(), &mut out, MAX_DRAIN);
        drain(stderr.as_ref(), &mut err, MAX_DRAIN);
        drain(result.as_ref(), &mut self.result, MAX_RESULT + 1);
        drain(artifacts.as_ref(), &mut self.artifacts, MAX_ARTIFACTS);
        for (stream, bytes) in [(Stream::Stdout, out), (Stream::Stderr, err)] {
            if !bytes.is_empty() {
                // It has ended already; there is nothing left to kill.
                let _flow = self.sink.output(stream, &bytes);
            }
        }
    }

    fn outcome(mut self, notice: Notice) -> Result<Outcome, ProviderError> {
        self.ordered.over();
        let (ending, usage, duration, layers, warmth, kept) = match notice {
            Notice::Ended { ending, usage, duration, layers, warmth, kept, .. } => {
                (ending, usage, duration, layers, warmth, kept)
            }
            Notice::Failed { failure, .. } => return Err(refusal_of(&failure)),
            Notice::Ready { .. } | Notice::Broken(_) | Notice::Pools { .. } | Notice::Answered { .. } => {
                return Err(lost());
            }
        };
        let mut isolation: Vec<Layer> = layers.into_iter().map(engine_layer).collect();
        isolation.sort();
        let ending = ending_of(ending, self.why_killed);
        Ok(Outcome {
            ending,
            duration,
            usage: Usage {
                cpu: usage.cpu,
                peak_memory_bytes: usage.peak_memory_bytes,
                peak_processes: usage.peak_processes,
            },
            result: if self.result.len() > MAX_RESULT {
                None
            } else {
                serde_json::from_slice(&self.result).ok()
            },
            artifacts: parse_artifacts(&self.artifacts),
            findings: explain::findings(&kept_of(kept), ending, &self.limits),
            receipt: Receipt {
                provider: "native",
                kernel: Kernel::Host,
                isolation,
                warm: match warmth {
                    spec::Warmth::Pool => Warmth::Pool,
                    spec::Warmth::Fork => Warmth::Fork,
                    spec::Warmth::Cold => Warmth::Cold,
                },
            },
        })
    }
}

/// Ten of ten megabytes, and their headers.
const MAX_ARTIFACTS: usize = (10 << 20) * 10 + (64 << 10);

fn keep(kept: &mut Vec<u8>, bytes: &[u8], bound: usize) {
    // One byte beyond the bound shows that there was more.
    let room = (bound + 1).saturating_sub(kept.len());
    kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

fn drain(pipe: Option<&impl AsFd>, into: &mut Vec<u8>, bound: usize) {
    let Some(pipe) = pipe else { return };
    let mut buffer = [0; 8 << 10];
    let mut drained = 0;
    while drained < bound {
        // The pipe itself is asked: the event loop may not know yet that there is something to read.
        match rustix::io::read(pipe.as_fd(), &mut buffer) {
            Err(Errno::INTR) => {}
            Ok(0) | Err(_) => return,
            Ok(read) => {
                drained += read;
                keep(into, &buffer[..read], bound);
            }
        }
    }
}

fn kept_of(kept: spec::Kept) -> explain::Kept {
    let spec::Kept { calls, more_calls, forks_refused, disk_full } = kept;
    let call = |spec::RefusedCall { name, arguments, count }| explain::RefusedCall { name, arguments, count };
    explain::Kept { calls: calls.into_iter().map(call).collect(), more_calls, forks_refused, disk_full }
}

fn ending_of(ending: spec::Ending, why_killed: Option<Ending>) -> Ending {
    match ending {
        spec::Ending::Exited(status) => Ending::Exited(status),
        spec::Ending::Signalled(signal) => Ending::Signalled(signal),
        spec::Ending::TimedOut => Ending::TimedOut,
        spec::Ending::Memory => Ending::LimitHit(Limit::Memory, None),
        spec::Ending::Processes(status) => Ending::LimitHit(Limit::Processes, Some(status)),
        spec::Ending::Disk(status) => Ending::LimitHit(Limit::Disk, status),
        spec::Ending::Killed => why_killed.unwrap_or(Ending::Cancelled),
    }
}

/// A program or folder that is not there is the request's mistake, and trying again would not help.
fn refusal_of(failure: &belljar_jail::StepFailed) -> ProviderError {
    let (field, hint) = match failure.step {
        Step::Exec => ("command", "; the image has no such program, or it cannot be executed"),
        Step::Workdir => ("workdir", ""),
        _ => return failure_of(failure),
    };
    let mistakes =
        [Errno::NOENT, Errno::NOTDIR, Errno::ACCESS, Errno::NOEXEC, Errno::LOOP, Errno::NAMETOOLONG];
    if mistakes.iter().all(|errno| errno.raw_os_error() != failure.errno) {
        return failure_of(failure);
    }
    ProviderError::Invalid { field, message: format!("{}: {}{hint}", failure.what(), failure.cause()) }
}

pub(super) fn failure_of(failure: &belljar_jail::StepFailed) -> ProviderError {
    let hint = match failure.step {
        Step::Owners => "; its file system cannot do that, use a folder on another one",
        _ if failure.errno == Errno::PERM.raw_os_error() => "; 'belljar doctor' says what may help",
        _ => "",
    };
    ProviderError::Setup { step: failure.what(), cause: format!("{}{hint}", failure.cause()) }
}

/// Reads what the collector inside sent. It is data from the tenant: what does not fit is dropped.
fn parse_artifacts(mut bytes: &[u8]) -> Vec<Artifact> {
    let mut artifacts = Vec::new();
    while let Some((artifact, rest)) = parse_artifact(bytes) {
        artifacts.push(artifact);
        bytes = rest;
    }
    artifacts
}

fn parse_artifact(bytes: &[u8]) -> Option<(Artifact, &[u8])> {
    let (name_len, rest) = bytes.split_first_chunk::<4>()?;
    let (len, rest) = rest.split_first_chunk::<8>()?;
    let (name, rest) = rest.split_at_checked(u32::from_le_bytes(*name_len) as usize)?;
    let (content, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
    let name = std::str::from_utf8(name).ok()?.to_owned();
    Some((Artifact { name, content: content.to_vec() }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifacts_that_are_cut_short_are_dropped() {
        let mut bytes = Vec::new();
        for (name, content) in [("a.csv", "1,2"), ("b.txt", "x")] {
            bytes.extend((name.len() as u32).to_le_bytes());
            bytes.extend((content.len() as u64).to_le_bytes());
            bytes.extend(name.bytes().chain(content.bytes()));
        }
        let all = parse_artifacts(&bytes);
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].name.as_str(), all[1].content.as_slice()), ("a.csv", b"x".as_slice()));
        for cut in 0..bytes.len() {
            assert!(parse_artifacts(&bytes[..cut]).len() < 2);
        }
    }
}
