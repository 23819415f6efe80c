//! Packs and unpacks archives in a worker process, which is this binary. A hostile archive can at worst kill
//! the worker, and this one thread never compresses.

use std::process::Stdio;

use rustix::process::{Pid, Signal, WaitStatus};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::channel::{Receiver, Sender};
use super::descriptor::Descriptor;
use super::files::Target;
use super::process::Stilled;
use super::{Spawned, World};
use crate::archive::{self, Job, Reach, Report};
use crate::line::CHUNK;
use crate::protocol::{ArchiveFormat, ArchiveLimits, Failure, FailureKind, Reply, decode};

/// Maximum size of a worker's report, in bytes.
const MAX_REPORT: usize = 32 << 10;

pub(super) async fn unpack(
    world: &World,
    target: &Target,
    format: ArchiveFormat,
    limits: ArchiveLimits,
    receiver: &mut Receiver,
) -> Result<Reply, Failure> {
    let failed = |error: std::io::Error| Failure::of_io(&error, target.said());
    std::fs::create_dir_all(target.path()).map_err(failed)?;
    let job = Job::Unpack { path: target.path().into(), said: target.said(), format, limits };
    let mut worker = Worker::start(world, &job).map_err(failed)?;
    let mut input = worker.input.take();
    while let Some(pipe) = &input {
        let bytes = tokio::select! {
            bytes = receiver.next() => bytes,
            // The worker has ended early; its report has the reason.
            () = worker.ended() => None,
        };
        match bytes {
            Some(bytes) if pipe.write_all(&bytes).await.is_ok() => {}
            _ => input = None,
        }
    }
    worker.report(target).await.map(Reply::Unpacked)
}

pub(super) async fn pack(
    world: &World,
    target: &Target,
    format: ArchiveFormat,
    sender: &Sender,
) -> Result<Reply, Failure> {
    let failed = |error: std::io::Error| Failure::of_io(&error, target.said());
    // Checked here, so that the error is a reply and not the end of a truncated archive.
    if !std::fs::metadata(target.path()).map_err(failed)?.is_dir() {
        return Err(target.failure(FailureKind::NotADirectory, "not a folder"));
    }
    send(world, target, format, Reach::All, sender).await
}

/// Packs the work folder without mounts in it, while all processes are stopped.
pub(super) async fn snapshot(world: &World, target: &Target, sender: &Sender) -> Result<Reply, Failure> {
    let _still = Stilled::all()?;
    send(world, target, ArchiveFormat::Tar, Reach::OneDisk, sender).await
}

async fn send(
    world: &World,
    target: &Target,
    format: ArchiveFormat,
    reach: Reach,
    sender: &Sender,
) -> Result<Reply, Failure> {
    let failed = |error: std::io::Error| Failure::of_io(&error, target.said());
    let job = Job::Pack { path: target.path().into(), said: target.said(), format, reach };
    let mut worker = Worker::start(world, &job).map_err(failed)?;
    sender.answer(&Reply::Ok);
    let mut buffer = vec![0; CHUNK];
    loop {
        let len = worker.output.read(&mut buffer).await.map_err(failed)?;
        if len == 0 {
            break;
        }
        sender.data(buffer[..len].to_vec()).await?;
    }
    worker.report(target).await.map(|_| Reply::Ok)
}

/// A worker process, killed on drop.
struct Worker {
    pid: Pid,
    status: oneshot::Receiver<WaitStatus>,
    ended: Option<WaitStatus>,
    input: Option<Descriptor>,
    output: Descriptor,
    reports: Descriptor,
}

impl Worker {
    fn start(world: &World, job: &Job) -> std::io::Result<Self> {
        let mut command = world.worker();
        command.arg(job.to_argument()).env_clear();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        belljar_jail::session::own_session(&mut command, false);
        let Spawned { mut child, pid, status } = world.spawn(&mut command)?;
        let missing = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let input = Descriptor::new(child.stdin.take().ok_or_else(missing)?.into())?;
        let output = Descriptor::new(child.stdout.take().ok_or_else(missing)?.into())?;
        let reports = Descriptor::new(child.stderr.take().ok_or_else(missing)?.into())?;
        Ok(Self { pid, status, ended: None, input: Some(input), output, reports })
    }

    /// Waits for the worker to end. Can be called repeatedly.
    async fn ended(&mut self) {
        if self.ended.is_none() {
            self.ended = (&mut self.status).await.ok();
        }
    }

    /// Returns the report that the worker writes at its end.
    async fn report(&mut self, target: &Target) -> Result<crate::protocol::Unpacked, Failure> {
        self.input = None;
        let mut text = Vec::new();
        let mut buffer = vec![0; 4 << 10];
        while text.len() <= MAX_REPORT {
            match self.reports.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(len) => text.extend_from_slice(&buffer[..len]),
            }
        }
        self.ended().await;
        let signal = self.ended.and_then(WaitStatus::terminating_signal);
        match decode::<Report>(&text) {
            Some(report) => report,
            None if signal == Some(Signal::XFSZ.as_raw()) => {
                Err(target.failure(FailureKind::TooLarge, "a file in it exceeds the maximum file size"))
            }
            None => Err(target.failure(FailureKind::BadArchive, archive::NEEDS_MEMORY)),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The PID is only certain to be the worker's if it is not reaped yet.
        if self.ended.is_none() && matches!(self.status.try_recv(), Err(TryRecvError::Empty)) {
            let _gone = rustix::process::kill_process_group(self.pid, Signal::KILL);
        }
    }
}
