//! Tests with real cgroups on this host. They need root, and print when they are skipped.
//!
//! Children are created by `fork` in a program with threads, so between `fork` and `_exit` they only make
//! system calls.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

const MIB: u64 = 1 << 20;

/// Returns a hierarchy with all controllers, or prints why there is none.
pub(super) fn hierarchy() -> Option<Hierarchy> {
    let (hierarchy, missing) = Hierarchy::discover();
    if missing.is_empty() {
        assert_eq!(hierarchy.controllers(), Controller::ALL);
        return Some(hierarchy);
    }
    for MissingController { controller, reason, remedy } in missing {
        eprintln!("skipped: no {controller} controller here: {reason} (remedy: {remedy})");
    }
    None
}

fn run_in_group(group: &Group, work: fn() -> i32) -> i32 {
    // The few tests that fork join through v1's `tasks`; a v2 group is joined through its `cgroup.procs`.
    let mut join_fds: Vec<i32> = group.v1_join_fds().iter().map(AsRawFd::as_raw_fd).collect();
    let join_file =
        group.v2_dir_fd().map(|dir| files::open(dir, v2::MEMBERS, rustix::fs::OFlags::WRONLY).unwrap());
    join_fds.extend(join_file.iter().map(AsRawFd::as_raw_fd));
    // SAFETY: the child makes only system calls (write, mmap, fork, _exit) and never returns from here.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        for join_file in join_fds.iter() {
            // SAFETY: one byte is read from a literal that has one.
            if unsafe { libc::write(*join_file, b"0".as_ptr().cast(), 1) } != 1 {
                // SAFETY: ends this process without touching its parent's state.
                unsafe { libc::_exit(99) };
            }
        }
        // SAFETY: as above.
        unsafe { libc::_exit(work()) };
    }
    let mut status = 0;
    // SAFETY: `status` is a live i32 that the call may write to.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

/// Touches 200 MB, a page at a time.
fn touch_200_mb() -> i32 {
    const SIZE: usize = 200 << 20;
    let (read_write, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh anonymous mapping at an address chosen by the kernel aliases nothing.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, read_write, private, -1, 0) };
    if start == libc::MAP_FAILED {
        return 98;
    }
    for offset in (0..SIZE).step_by(4096) {
        // SAFETY: `offset` is below the size of the mapping, which is writable.
        unsafe { start.cast::<u8>().add(offset).write_volatile(1) };
    }
    0
}

/// Forks without reaping: a zombie still counts. Returns 1 if a fork is refused.
fn fork_without_reaping() -> i32 {
    for _ in 0..32 {
        // SAFETY: the child ends at once.
        match unsafe { libc::fork() } {
            0 => end(),
            -1 => return 1,
            _ => {}
        }
    }
    0
}

fn end() -> ! {
    // SAFETY: ends this process without touching its parent's state.
    unsafe { libc::_exit(0) }
}

fn idle() -> i32 {
    0
}

pub(super) fn eventually(mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        if done() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

fn remove_eventually(group: Group) -> bool {
    let mut waiting = Some(group);
    eventually(|| {
        waiting = waiting.take().and_then(|group| group.remove().err());
        waiting.is_none()
    })
}

const LIMITS: GroupLimits = GroupLimits { memory_bytes: 32 * MIB, cpu_millis: 1000, pids: 8 };

#[test]
fn process_over_the_memory_limit_is_killed_counted_and_reported() {
    let Some(hierarchy) = hierarchy() else { return };
    let group = hierarchy.create(1).unwrap();
    group.set_limits(&LIMITS).unwrap();
    assert_eq!((group.oom_kills(), group.is_empty()), (0, true));
    let status = run_in_group(&group, touch_200_mb);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "status {status:#x}");
    if let Some(event) = group.oom_event() {
        let announced = || {
            let mut polled = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
            poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap()
        };
        assert_eq!(announced(), 1);
        assert_eq!((group.drain_oom_event(), announced()), (Some(1), 0));
    }
    assert!(group.oom_kills() > 0 && !group.was_killed_for_total_memory());
    let usage = group.usage();
    assert!(usage.cpu.is_some_and(|cpu| cpu > Duration::ZERO), "{usage:?}");
    assert!(usage.peak_memory_bytes.is_none_or(|peak| peak > 16 * MIB && peak <= 32 * MIB), "{usage:?}");
    assert!(remove_eventually(group));
}

#[test]
fn kills_for_total_memory_are_distinguished_from_own_limit() {
    let Some(hierarchy) = hierarchy() else { return };
    hierarchy.set_total_memory_limit(32 * MIB);
    hierarchy.set_total_memory_limit(64 * MIB);
    assert_eq!(hierarchy.total_memory_limit(), Some(32 * MIB), "the lower limit stays");
    // Also if the group is nearly at its own limit.
    for own in [1024 * MIB, 33 * MIB] {
        let group = hierarchy.create(1).unwrap();
        group.set_limits(&GroupLimits { memory_bytes: own, ..LIMITS }).unwrap();
        assert!(!group.was_killed_for_total_memory());
        let status = run_in_group(&group, touch_200_mb);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "status {status:#x}");
        assert!(group.oom_kills() > 0 && group.was_killed_for_total_memory(), "{:?}", group.memory_events());
        assert!(remove_eventually(group));
    }
    let group = hierarchy.create(1).unwrap();
    group.set_limits(&GroupLimits { memory_bytes: 16 * MIB, ..LIMITS }).unwrap();
    run_in_group(&group, touch_200_mb);
    assert!(group.oom_kills() > 0 && !group.was_killed_for_total_memory(), "{:?}", group.memory_events());
    assert!(remove_eventually(group));
}

#[test]
fn forks_beyond_the_limit_are_refused_and_counted() {
    let Some(hierarchy) = hierarchy() else { return };
    let group = hierarchy.create(1).unwrap();
    group.set_limits(&LIMITS).unwrap();
    let status = run_in_group(&group, fork_without_reaping);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1, "status {status:#x}");
    assert!(group.forks_refused() > 0);
    assert!(group.usage().peak_processes.is_none_or(|peak| peak == 8));
    assert!(remove_eventually(group));
}

#[test]
fn groups_have_separate_counters_and_are_removed_at_the_end() {
    let Some(hierarchy) = hierarchy() else { return };
    let launcher_dirs = Arc::clone(&hierarchy.launcher_dirs);
    // By descriptor: a concurrent test may reuse the name of a removed directory.
    let held_dirs: Vec<_> = launcher_dirs.iter().map(|dir| dir.fd.try_clone().unwrap()).collect();
    let exists = |dir: &std::os::fd::OwnedFd| files::exists(dir.as_fd(), v2::MEMBERS);
    drop(launcher_dirs);
    let (used, fresh) = (hierarchy.create(1).unwrap(), hierarchy.create(1).unwrap());
    assert_eq!(run_in_group(&used, idle), 0);
    assert_eq!(fresh.usage().peak_processes.unwrap_or(0), 0);
    assert_eq!(fresh.oom_kills() + fresh.forks_refused(), 0);
    assert!(remove_eventually(used));
    drop(hierarchy);
    assert!(held_dirs.iter().all(exists), "kept while a group exists");
    drop(fresh);
    assert!(!held_dirs.iter().any(exists), "removed with the last group");
}

#[test]
fn removing_a_group_in_use_returns_it() {
    let Some(hierarchy) = hierarchy() else { return };
    let group = hierarchy.create(1).unwrap();
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    for dir in group.launcher_dirs.iter() {
        let join_file = format!("{}/{}", group.number, v2::MEMBERS);
        files::write(dir.fd.as_fd(), &join_file, &sleeper.id().to_string()).unwrap();
    }
    assert!(!group.is_empty());
    let group = group.remove().unwrap_err();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(remove_eventually(group));
}

/// Starts a process in a directory of this name in every hierarchy.
fn sleeper_in(launcher_dirs: &[LauncherDir], folder: impl Fn(&LauncherDir) -> String) -> std::process::Child {
    let sleeper = std::process::Command::new("sleep").arg("3600").spawn().unwrap();
    for dir in launcher_dirs {
        let join_file = format!("{}/{}", folder(dir), v2::MEMBERS);
        files::write(dir.parent.as_fd(), &join_file, &sleeper.id().to_string()).unwrap();
    }
    sleeper
}

fn was_killed(mut sleeper: std::process::Child) -> bool {
    use std::os::unix::process::ExitStatusExt;
    let ended = eventually(|| sleeper.try_wait().unwrap().is_some());
    if !ended {
        sleeper.kill().unwrap();
    }
    sleeper.wait().unwrap().signal() == Some(libc::SIGKILL) && ended
}

#[test]
fn processes_left_in_a_group_are_killed() {
    let Some(hierarchy) = hierarchy() else { return };
    let group = hierarchy.create(1).unwrap();
    let sleeper = sleeper_in(&group.launcher_dirs, |dir| format!("{}/{}", dir.name, group.number));
    let mut left = group.kill_and_remove().err();
    assert!(was_killed(sleeper));
    assert!(eventually(|| {
        left = left.take().and_then(|group| group.kill_and_remove().err());
        left.is_none()
    }));
}

/// Creates a directory that looks abandoned, and locks it. Until then a concurrent test may sweep it.
fn held(dir: &LauncherDir, name: &str) -> std::os::fd::OwnedFd {
    let mut held = None;
    assert!(eventually(|| {
        let _ = mkdirat(&dir.parent, name, Mode::from(0o755));
        held = files::open_dir(dir.parent.as_fd(), name).ok().filter(|held| owner::try_lock(held.as_fd()));
        held.is_some() && files::exists(dir.parent.as_fd(), name)
    }));
    held.unwrap()
}

#[test]
fn processes_left_by_a_dead_launcher_are_killed_and_its_directory_is_removed() {
    let Some(hierarchy) = hierarchy() else { return };
    // Below a directory in which no other launcher of this machine searches.
    let apart = format!("belljarette-{}", std::process::id());
    let launcher_dirs = &hierarchy.launcher_dirs;
    for folder in
        [apart.clone(), format!("{apart}/belljar-4194997-1"), format!("{apart}/belljar-4194997-1/0")]
    {
        launcher_dirs.iter().for_each(|dir| mkdirat(&dir.parent, &folder, Mode::from(0o755)).unwrap());
    }
    let sleeper = sleeper_in(launcher_dirs, |_| format!("{apart}/belljar-4194997-1/0"));
    let is_swept = |dir: &LauncherDir| {
        let Ok(base) = files::open_dir(dir.parent.as_fd(), &apart) else { return true };
        owner::remove_abandoned(base.as_fd(), &owner::AbandonedDir::new("belljar-4194997-1", false))
            && owner::abandoned(base.as_fd()).is_empty()
            && files::remove_folder(dir.parent.as_fd(), &apart)
    };
    // The killed process takes time to die.
    let _swept = is_swept(&launcher_dirs[0]);
    assert!(was_killed(sleeper));
    assert!(launcher_dirs.iter().all(|dir| eventually(|| is_swept(dir))));
}

#[test]
fn directory_of_a_dying_launcher_is_removed_once_its_lock_is_free() {
    let Some(hierarchy) = hierarchy() else { return };
    let dir = &hierarchy.launcher_dirs[0];
    // Below a directory in which no other launcher of this machine searches.
    let apart = format!("belljarette-dying-{}", std::process::id());
    mkdirat(&dir.parent, &apart, Mode::from(0o755)).unwrap();
    let base = files::open_dir(dir.parent.as_fd(), &apart).unwrap();
    let name = "belljar-4194998-1";
    mkdirat(&base, name, Mode::from(0o755)).unwrap();
    let lock = files::open_dir(base.as_fd(), name).unwrap();
    assert!(owner::try_lock(lock.as_fd()));

    let elsewhere = owner::AbandonedDir::new(name, false);
    assert!(owner::remove_abandoned(base.as_fd(), &elsewhere), "a live launcher's directory is not retried");
    let dying = owner::AbandonedDir::new(name, true);
    assert!(!owner::remove_abandoned(base.as_fd(), &dying));
    assert!(files::exists(base.as_fd(), name));
    drop(lock);
    assert!(owner::remove_abandoned(base.as_fd(), &dying));
    assert!(!files::exists(base.as_fd(), name));
    assert!(files::remove_folder(dir.parent.as_fd(), &apart));
}

#[test]
fn lower_cpu_quota_of_an_ancestor_applies_without_error() {
    let Some(hierarchy) = hierarchy() else { return };
    let dir = hierarchy.launcher_dirs.iter().find(|dir| dir.has(Controller::Cpu)).unwrap();
    let (file, text) = match dir.version {
        CgroupVersion::V1 => ("cpu.cfs_quota_us", "50000"),
        CgroupVersion::V2 => ("cpu.max", "50000 100000"),
    };
    files::write(dir.fd.as_fd(), file, text).unwrap();
    let group = hierarchy.create(1).unwrap();
    group.set_limits(&LIMITS).unwrap();
    let too_little = group.set_limits(&GroupLimits { cpu_millis: 1, ..LIMITS }).unwrap_err();
    assert!(too_little.to_string().contains("cpu."), "{too_little}");
}

#[test]
fn only_directories_of_dead_launchers_are_swept() {
    let Some(hierarchy) = hierarchy() else { return };
    let base = hierarchy.launcher_dirs[0].parent.try_clone().unwrap();
    let own_pid = std::process::id();
    // An impossible pid, this pid with another start time, and names that only look similar.
    let dead =
        ["belljar-4194999-1".to_owned(), format!("belljar-{own_pid}-1"), "belljar-4194999-3.1".to_owned()];
    let other = format!("belljarette-4194999-{own_pid}");
    for name in dead.iter().chain([&other]) {
        let _ = mkdirat(&base, name, Mode::from(0o755));
        let _ = mkdirat(&base, format!("{name}/0"), Mode::from(0o755));
    }
    // Locked, with an owner whose pid is not visible: only the lock protects it.
    let held_name = format!("belljar-4194998-{own_pid}");
    let held = held(&hierarchy.launcher_dirs[0], &held_name);
    let (again, _) = Hierarchy::discover();
    // Directories that a concurrent test has begun to sweep are left to it.
    assert!(eventually(|| dead.iter().all(|name| !files::exists(base.as_fd(), name))));
    assert!(
        [&other, &held_name, &hierarchy.launcher_dirs[0].name]
            .iter()
            .all(|name| files::exists(base.as_fd(), name))
    );
    drop((again, held));
    assert!(files::remove_folder(base.as_fd(), &format!("{other}/0")));
    assert!([&other, &held_name].iter().all(|name| files::remove_folder(base.as_fd(), name)));
}
