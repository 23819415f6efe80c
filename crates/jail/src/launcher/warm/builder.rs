//! The builder of a zygote's jails, as the launcher sees it: a process that builds jails and inspects
//! children, and answers requests in order.
//!
//! The builder is PID 1 of the pid namespace of the zygote and of every run that came of it, so it must
//! outlive all of them: the zygote, its children, runs and namespace sets each hold an `Rc` of it (see
//! `zygote_resources`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_zygote::message::{LandlockAccess, MAX_VISIBLE_PATH_BYTES, MAX_VISIBLE_PATHS};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::inside::{self, BuilderEvent, BuilderRequest, BuilderSetup};
use crate::launcher::setup::LauncherContext;
use crate::root_trees::BuiltRoot;
use crate::seccomp::SeccompFilter;
use crate::spec::RootEntry;
use crate::step::{Step, StepFailed, step};
use crate::sys::{self, CloneResult};
use crate::wire;

/// A running builder process.
pub(crate) struct JailBuilder {
    socket: OwnedFd,
    pid: i32,
    pidfd: OwnedFd,
    /// The pid namespace whose PID 1 it is.
    namespace: OwnedFd,
}

impl JailBuilder {
    /// Starts a builder for jails whose user namespaces belong to `owner`.
    pub(super) fn start(
        context: &LauncherContext,
        filter: &SeccompFilter,
        root: &BuiltRoot,
        owner: u32,
    ) -> Result<Self, StepFailed> {
        let visible_paths = encode_visible_paths(root)?;
        let landlock =
            if context.has_landlock { inside::landlock_guard() } else { LandlockAccess::default() };
        let (socket, theirs) = step(Step::Namespaces, "", sys::packet_socketpair)?;
        let builder = BuilderSetup {
            launcher_socket: theirs,
            proc: &context.proc,
            root_path: &root.path,
            owner,
            landlock,
            filter,
            visible_paths: &visible_paths,
        };
        let (pid, pidfd) = match step(Step::Namespaces, "", || sys::clone(libc::CLONE_NEWPID, None))? {
            CloneResult::Child => inside::run_builder(&builder),
            CloneResult::Parent { pid, pidfd } => (pid, pidfd.ok_or(Errno::NOSYS)),
        };
        let pidfd = pidfd.map_err(|errno| StepFailed::new(Step::Namespaces, "", errno))?;
        let open = || {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            rustix::fs::openat(&context.proc, format!("{pid}/ns/pid"), flags, Mode::empty())
        };
        let namespace = step(Step::Namespaces, "pid", open)?;
        Ok(Self { socket, pid, pidfd, namespace })
    }

    /// Creates a builder whose process has already exited.
    #[cfg(test)]
    pub(super) fn stand_in(socket: OwnedFd, ended: OwnedFd, namespace: OwnedFd) -> Self {
        Self { socket, pid: 0, pidfd: ended, namespace }
    }

    /// Kills the builder, its zygote, and everything that came of that zygote.
    pub(super) fn kill(&self) {
        // This fails only if the process has already exited.
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Returns whether it has exited, and so every other process in its pid namespace.
    pub(crate) fn has_exited(&self) -> bool {
        sys::is_readable(self.pidfd.as_fd())
    }

    /// Reaps the builder if it has exited, and returns whether it has. It exits only after every other
    /// process in its pid namespace has been reaped.
    pub(super) fn reap(&self) -> bool {
        let gone = self.has_exited();
        if gone {
            let _reaped = sys::wait_pidfd(self.pidfd.as_fd());
        }
        gone
    }

    /// Returns its pid on the host.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    pub(super) fn namespace(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }

    pub(super) fn watched(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a request.
    pub(super) fn send(&self, request: &BuilderRequest, fds: &[BorrowedFd<'_>]) -> Result<(), StepFailed> {
        step(Step::Task, "", || wire::send(self.socket.as_fd(), request, fds))
    }

    /// Receives an answer without blocking. Fails with `ESRCH` if the builder has exited.
    pub(super) fn receive(&self) -> Result<Option<(BuilderEvent, Vec<OwnedFd>)>, Errno> {
        match wire::try_receive::<BuilderEvent>(self.socket.as_fd()) {
            Ok(Some(answer)) => Ok(Some(answer)),
            Ok(None) => Err(Errno::SRCH),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// Encodes the paths that stay visible below folders that every jail replaces: `d` or `f`, the path, NUL.
fn encode_visible_paths(root: &BuiltRoot) -> Result<Vec<u8>, StepFailed> {
    let mut encoded = Vec::new();
    let mut count = 0;
    let visible_paths = root.tree.iter().filter_map(|entry| match entry {
        RootEntry::Bind { path, .. } if inside::is_below_fresh_dir(path) => Some(path),
        _ => None,
    });
    for path in visible_paths {
        let is_folder = std::fs::metadata(format!("{}{path}", root.path)).is_ok_and(|found| found.is_dir());
        encoded.push(if is_folder { b'd' } else { b'f' });
        encoded.extend(path.trim_start_matches('/').bytes());
        encoded.push(0);
        count += 1;
    }
    if count > MAX_VISIBLE_PATHS || encoded.len() > MAX_VISIBLE_PATH_BYTES {
        let what = "more folders below /tmp, home or workspace than a warm interpreter supports";
        return Err(StepFailed::new(Step::Binds, what, Errno::TOOBIG));
    }
    Ok(encoded)
}
