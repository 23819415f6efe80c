//! Tests that every mismatch is detected.

use rustix::pipe::{PipeFlags, pipe_with};

use super::*;
use crate::sys::CloneResult;
use crate::wire;

fn expected() -> ExpectedChild {
    ExpectedChild {
        number: 1,
        uid: 100,
        gid: 200,
        has_no_groups: true,
        rlimits: Vec::new(),
        cgroup_suffixes: Vec::new(),
        has_no_new_privs: true,
        has_no_capabilities: true,
        filters_len: 2,
    }
}

const STATUS: &str = "Name:\tpython3\nUid:\t100\t100\t100\t100\nGid:\t200\t200\t200\t200\nGroups:\t \n\
    Threads:\t1\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
    CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t2\n";

#[test]
fn a_confined_child_passes() {
    assert_eq!(check_status(STATUS, &expected()), Ok(()));
}

#[test]
fn every_status_mismatch_is_detected() {
    for (what, instead) in [
        ("Uid:\t100\t100\t100\t100", "Uid:\t100\t100\t0\t100"),
        ("Gid:\t200\t200\t200\t200", "Gid:\t200\t200\t200\t0"),
        ("Groups:\t ", "Groups:\t27 "),
        ("Threads:\t1", "Threads:\t2"),
        ("CapInh:\t0000000000000000", "CapInh:\t0000000000000001"),
        ("CapPrm:\t0000000000000000", "CapPrm:\t0000000000200000"),
        ("CapEff:\t0000000000000000", "CapEff:\t000001ffffffffff"),
        ("CapBnd:\t0000000000000000", "CapBnd:\t000001ffffffffff"),
        ("CapAmb:\t0000000000000000", "CapAmb:\t0000000000000001"),
        ("NoNewPrivs:\t1", "NoNewPrivs:\t0"),
        ("Seccomp:\t2", "Seccomp:\t0"),
        ("Seccomp_filters:\t2", "Seccomp_filters:\t1"),
        ("Uid:\t100\t100\t100\t100\n", ""),
    ] {
        assert!(check_status(&STATUS.replace(what, instead), &expected()).is_err(), "{instead}");
    }
}

#[test]
fn limit_above_the_expected_one_is_detected() {
    let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
        Max file size             1048576              1048576              bytes     \n\
        Max open files            unlimited            unlimited            files     \n";
    let fsize = u64::from(libc::RLIMIT_FSIZE);
    assert_eq!(check_limits(limits, &[(fsize, 1 << 20)]), Ok(()));
    assert!(check_limits(limits, &[(fsize, 1 << 19)]).is_err());
    assert!(check_limits(limits, &[(u64::from(libc::RLIMIT_NOFILE), 1024)]).is_err());
    assert!(
        check_limits(limits, &[(u64::from(libc::RLIMIT_NPROC), 64)]).is_err(),
        "a resource that is not listed counts as unlimited"
    );
}

#[test]
fn child_outside_its_cgroup_is_detected() {
    let cgroup = "4:pids:/belljar-7-9/51\n3:memory:/belljar-7-9/51\n0::/\n";
    let path = || "/belljar-7-9/51".to_owned();
    assert_eq!(check_cgroups(cgroup, &[path(), path()]), Ok(()));
    assert!(check_cgroups(cgroup, &[path(), path(), path()]).is_err());
    assert!(check_cgroups(cgroup, &["/belljar-7-9/5".to_owned()]).is_err());
}

/// Starts two processes in a new pid namespace; both run until the first is killed.
fn two_in_new_namespace(keep: &OwnedFd) -> Option<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = sys::packet_socketpair().ok()?;
    let wait = || -> ! {
        let _end = rustix::io::read(keep, &mut [0; 1]);
        sys::exit_now(0)
    };
    let maker = match sys::clone(0, None).ok()? {
        CloneResult::Child => {
            let start = || match sys::clone(0, None) {
                Ok(CloneResult::Child) => wait(),
                Ok(CloneResult::Parent { pidfd, .. }) => pidfd,
                Err(_) => None,
            };
            if let (Ok(()), Some(first), Some(second)) = (sys::unshare(libc::CLONE_NEWPID), start(), start())
            {
                let _sent = wire::send_bytes(theirs.as_fd(), b"1", &[first.as_fd(), second.as_fd()]);
            }
            sys::exit_now(0)
        }
        CloneResult::Parent { pid, .. } => pid,
    };
    drop(theirs);
    let received = wire::receive_bytes(ours.as_fd(), &mut [0]);
    sys::wait_child(maker).ok()?;
    let mut fds = received.ok()?.1.into_iter();
    fds.next().zip(fds.next())
}

#[test]
fn only_process_2_of_the_jail_is_accepted_as_child() {
    let (keep, _close) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let open = |path: &str| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let Some((first, second)) = two_in_new_namespace(&keep) else {
        println!("skipped: this user cannot make a pid namespace");
        return;
    };
    let proc = open("/proc");
    let namespace = open(&format!("/proc/{}/ns/pid", sys::pid_in_procfs(&proc, &first).unwrap()));
    assert_eq!(check_child(&proc, &second, &namespace), Ok(()));
    assert!(check_child(&proc, &first, &namespace).is_err(), "PID 1 is not the child");
    assert!(check_child(&proc, &second, &open("/proc/self/ns/pid")).is_err(), "another namespace");
    // The other process ends with PID 1.
    rustix::process::pidfd_send_signal(&first, rustix::process::Signal::KILL).unwrap();
}
