//! A launcher that was killed and that the kernel has not torn down yet: `ptrace` stops it in that state. Needs
//! root, and prints when it is skipped.

use std::process::{Child, Command};
use std::ptr;

use super::tests::{eventually, hierarchy};
use super::*;

/// A process that stops when it is killed, with `SIGKILL` pending and all its descriptors open, until it is
/// released. Its tracer is the thread that started it.
struct TracedProcess(Child);

impl TracedProcess {
    fn start() -> Self {
        let process = Self(Command::new("sleep").arg("3600").spawn().unwrap());
        process.ptrace(libc::PTRACE_SEIZE, libc::PTRACE_O_TRACEEXIT as usize);
        process
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    fn ptrace(&self, request: libc::c_uint, data: usize) {
        let address = ptr::null_mut::<libc::c_void>();
        // SAFETY: these requests take an option mask or a signal number, and access no memory of this process.
        let done = unsafe { libc::ptrace(request, self.pid(), address, data) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Kills it, and waits until it has stopped on its way out.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        let mut status = 0;
        // SAFETY: `status` is a live i32 that the call may write to.
        assert_eq!(unsafe { libc::waitpid(self.pid(), &raw mut status, 0) }, self.pid());
        assert_eq!(status >> 8, libc::SIGTRAP | libc::PTRACE_EVENT_EXIT << 8, "status {status:#x}");
    }

    /// Lets it exit.
    fn release(mut self) {
        self.ptrace(libc::PTRACE_DETACH, 0);
        self.0.wait().unwrap();
    }
}

#[test]
fn next_start_finds_a_killed_launcher_and_removes_its_directory_once_it_is_dead() {
    let Some(hierarchy) = hierarchy() else { return };
    let parent = hierarchy.launcher_dirs[0].parent.try_clone().unwrap();
    let mut launcher = TracedProcess::start();
    let pid = launcher.0.id();
    let name = format!("belljar-{pid}-{}", process_start_time(pid).unwrap());
    mkdirat(&parent, &name, Mode::from(0o755)).unwrap();
    // The launcher holds this lock until it is dead.
    let lock = files::open_dir(parent.as_fd(), &name).unwrap();
    assert!(owner::try_lock(lock.as_fd()));
    let finds_it = |start: &Hierarchy| start.abandoned.iter().any(|(_, dir)| dir.name == name);

    assert!(!finds_it(&Hierarchy::discover().0), "it is alive");
    launcher.kill();
    let (mut next, _) = Hierarchy::discover();
    assert!(finds_it(&next) && next.next_sweep().is_some());
    assert!(files::exists(parent.as_fd(), &name));

    launcher.release();
    drop(lock);
    assert!(eventually(|| {
        next.sweep();
        !finds_it(&next)
    }));
    assert!(!files::exists(parent.as_fd(), &name));
}
