//! A warm child that runs a program.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use belljar_model::outcome::Usage;
use rustix::fs::{Mode, OFlags};

use super::child_connection::ChildConnection;
use crate::inside::may_hold_artifacts;
use crate::launcher::setup::LauncherContext;
use crate::spec::CollectionRules;
use crate::step::StepFailed;
use crate::sys;

/// A child that runs a program.
pub(crate) struct RunningChild {
    pub(super) pid: i32,
    pub(crate) pidfd: OwnedFd,
    /// Its wait status, once it was reaped.
    pub(super) wait_status: Option<i32>,
    pub(super) connection: ChildConnection,
    /// The liveness pipe: PID 1 exits when it is closed.
    pub(super) _liveness_pipe: OwnedFd,
    /// The jail's disk, held until the child is killed.
    pub(crate) disk: Option<OwnedFd>,
    /// The pipe into which artifacts are written.
    pub(crate) artifacts_pipe: Option<OwnedFd>,
    pub(crate) artifact_rules: Option<CollectionRules>,
    pub(crate) cpu_before: Duration,
}

impl RunningChild {
    /// Reaps it and returns its wait status. It has exited, or every process in its jail has.
    pub(crate) fn reap(&mut self) -> i32 {
        *self
            .wait_status
            .get_or_insert_with(|| sys::kill_and_reap(self.pidfd.as_fd()).unwrap_or(libc::SIGKILL))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns what it has used so far according to `/proc`. It must not have been reaped yet.
    pub(crate) fn usage(&self, context: &LauncherContext) -> Usage {
        usage_from_proc(context, self.pid)
    }

    pub(crate) fn is_reaped(&self) -> bool {
        self.wait_status.is_some()
    }

    /// Returns the step that failed after the request was sent, if one did.
    pub(crate) fn failure(&self) -> Option<StepFailed> {
        self.connection.receive().ok().flatten().map(|message| message.failure)
    }

    /// Returns whether no block or no inode is free.
    pub(crate) fn disk_is_full(&self) -> bool {
        let disk = self.disk.as_ref().and_then(|disk| rustix::fs::fstatfs(disk).ok());
        disk.is_some_and(|disk| disk.f_bfree == 0 || disk.f_ffree == 0)
    }

    /// Returns whether the program may have left artifacts. Looks up one name and follows no symbolic links.
    pub(crate) fn has_artifacts(&self) -> bool {
        let collected = (&self.disk, &self.artifact_rules, &self.artifacts_pipe);
        let (Some(disk), Some(rules), Some(_)) = collected else { return false };
        may_hold_artifacts(rules, disk.as_fd())
    }

    /// Closes the disk while another process still holds it. Freeing what a program wrote takes time
    /// proportional to its size, and the last process to close the disk does that work.
    pub(crate) fn close_disk(&mut self) {
        self.disk = None;
    }
}

/// Reads from `/proc` what a process and the children that it reaped have used, for when no cgroup counts it.
pub(super) fn usage_from_proc(context: &LauncherContext, pid: i32) -> Usage {
    let read = |file: &str| -> Option<String> {
        let path = format!("{pid}/{file}");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&context.proc, path, flags, Mode::empty()).ok()?;
        let mut text = [0; 2 << 10];
        let len = rustix::io::read(&file, &mut text).ok()?;
        String::from_utf8(text[..len].to_vec()).ok()
    };
    let first = |text: String| text.split_whitespace().next()?.parse().ok();
    let own = read("schedstat").and_then(first).map_or(Duration::ZERO, Duration::from_nanos);
    // CPU time of reaped children, in hundredths of a second: the 14th and 15th field after the process name,
    // which may contain anything.
    let ticks = read("stat").and_then(|text| {
        let (_, fields) = text.rsplit_once(')')?;
        let of_children = fields.split_whitespace().skip(13).take(2);
        Some(of_children.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>())
    });
    let peak = read("status").and_then(|text| {
        let kilobytes = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        kilobytes.split_whitespace().next()?.parse::<u64>().ok()
    });
    Usage {
        cpu: own + Duration::from_millis(10 * ticks.unwrap_or(0)),
        peak_memory_bytes: peak.unwrap_or(0) << 10,
        peak_processes: None,
    }
}
