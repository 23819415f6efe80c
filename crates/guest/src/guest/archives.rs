//! Packs and unpacks archives in a worker process, which is this binary. A hostile archive can at worst kill
//! the worker, and this one thread never compresses.

use std::process::Stdio;

use rustix::process::{Pid, Signal, WaitStatus};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::channel::{ChannelReceiver, ChannelSender};
use super::descriptor::Descriptor;
use super::files::TargetPath;
use super::process::StoppedProcesses;
use super::{GuestContext, SpawnedChild};
use crate::archive::{self, ArchiveJob, ArchiveReport, PackScope};
use crate::flow_control::CHUNK_BYTES;
use crate::protocol::{ArchiveFormat, ArchiveLimits, Failure, FailureKind, GuestReply, decode};

/// Maximum size of a worker's report, in bytes.
const MAX_REPORT_BYTES: usize = 32 << 10;

pub(super) async fn unpack(
    world: &GuestContext,
    target: &TargetPath,
    format: ArchiveFormat,
    limits: ArchiveLimits,
    receiver: &mut ChannelReceiver,
) -> Result<GuestReply, Failure> {
    let failed = |error: std::io::Error| Failure::from_io(&error, target.given());
    std::fs::create_dir_all(target.path()).map_err(failed)?;
    let job = ArchiveJob::Unpack { path: target.path().into(), given: target.given(), format, limits };
    let mut worker = ArchiveWorker::start(world, &job).map_err(failed)?;
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
    worker.report(target).await.map(GuestReply::Unpacked)
}

pub(super) async fn pack(
    world: &GuestContext,
    target: &TargetPath,
    format: ArchiveFormat,
    sender: &ChannelSender,
) -> Result<GuestReply, Failure> {
    let failed = |error: std::io::Error| Failure::from_io(&error, target.given());
    // Checked here, so that the error is a reply and not the end of a truncated archive.
    if !std::fs::metadata(target.path()).map_err(failed)?.is_dir() {
        return Err(target.failure(FailureKind::NotADirectory, "not a folder"));
    }
    send(world, target, format, PackScope::All, sender).await
}

/// Packs the work folder without mounts in it, while all processes are stopped.
pub(super) async fn snapshot(
    world: &GuestContext,
    target: &TargetPath,
    sender: &ChannelSender,
) -> Result<GuestReply, Failure> {
    let _still = StoppedProcesses::stop_all()?;
    send(world, target, ArchiveFormat::Tar, PackScope::OneFileSystem, sender).await
}

async fn send(
    world: &GuestContext,
    target: &TargetPath,
    format: ArchiveFormat,
    reach: PackScope,
    sender: &ChannelSender,
) -> Result<GuestReply, Failure> {
    let failed = |error: std::io::Error| Failure::from_io(&error, target.given());
    let job = ArchiveJob::Pack { path: target.path().into(), given: target.given(), format, reach };
    let mut worker = ArchiveWorker::start(world, &job).map_err(failed)?;
    sender.answer(&GuestReply::Ok);
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let len = worker.output.read(&mut buffer).await.map_err(failed)?;
        if len == 0 {
            break;
        }
        sender.data(buffer[..len].to_vec()).await?;
    }
    worker.report(target).await.map(|_| GuestReply::Ok)
}

/// A worker process, killed on drop.
struct ArchiveWorker {
    pid: Pid,
    status: oneshot::Receiver<WaitStatus>,
    ended: Option<WaitStatus>,
    input: Option<Descriptor>,
    output: Descriptor,
    reports: Descriptor,
}

impl ArchiveWorker {
    fn start(world: &GuestContext, job: &ArchiveJob) -> std::io::Result<Self> {
        let mut command = world.worker();
        command.arg(job.to_argument()).env_clear();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        belljar_jail::guest_support::start_in_own_session(&mut command, false);
        let SpawnedChild { mut child, pid, status } = world.spawn(&mut command)?;
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
    async fn report(&mut self, target: &TargetPath) -> Result<crate::protocol::UnpackSummary, Failure> {
        self.input = None;
        let mut text = Vec::new();
        let mut buffer = vec![0; 4 << 10];
        while text.len() <= MAX_REPORT_BYTES {
            match self.reports.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(len) => text.extend_from_slice(&buffer[..len]),
            }
        }
        self.ended().await;
        let signal = self.ended.and_then(WaitStatus::terminating_signal);
        match decode::<ArchiveReport>(&text) {
            Some(report) => report,
            None if signal == Some(Signal::XFSZ.as_raw()) => {
                Err(target.failure(FailureKind::TooLarge, "a file in it exceeds the maximum file size"))
            }
            None => Err(target.failure(FailureKind::BadArchive, archive::NEEDS_MEMORY)),
        }
    }
}

impl Drop for ArchiveWorker {
    fn drop(&mut self) {
        // The PID is only certain to be the worker's if it is not reaped yet.
        if self.ended.is_none() && matches!(self.status.try_recv(), Err(TryRecvError::Empty)) {
            let _gone = rustix::process::kill_process_group(self.pid, Signal::KILL);
        }
    }
}
