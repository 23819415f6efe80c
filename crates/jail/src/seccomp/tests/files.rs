//! Tests of files, nodes and their modes.

use super::*;

#[test]
fn no_call_creates_a_set_id_file() {
    for (name, position) in [("chmod", 1), ("fchmod", 1), ("creat", 1), ("fchmodat", 2)] {
        for (mode, passing) in
            [(0o755, true), (0o1777, true), (0o4755, false), (0o2755, false), (0o6000, false)]
        {
            let mut arguments = [u64::MAX; 6];
            arguments[position] = mode;
            if passing { passes(name, &arguments) } else { fails(name, &arguments, libc::EPERM) }
        }
    }
}

#[test]
fn open_checks_the_mode_only_when_creating() {
    for (name, flags) in [("open", 1), ("openat", 2)] {
        let call = |how: u64, mode: u64| {
            let mut arguments = [u64::MAX; 6];
            (arguments[flags], arguments[flags + 1]) = (how, mode);
            arguments
        };
        passes(name, &call(libc::O_RDONLY as u64, 0o6755));
        passes(name, &call((libc::O_RDWR | libc::O_CLOEXEC | libc::O_TRUNC) as u64, u64::MAX));
        passes(name, &call((libc::O_WRONLY | libc::O_CREAT) as u64, 0o666));
        passes(name, &call((libc::O_RDWR | libc::O_TMPFILE) as u64, 0o600));
        fails(name, &call((libc::O_WRONLY | libc::O_CREAT) as u64, 0o4755), libc::EPERM);
        fails(name, &call((libc::O_WRONLY | libc::O_CREAT) as u64, 0o2755), libc::EPERM);
        fails(name, &call((libc::O_RDWR | libc::O_TMPFILE) as u64, 0o4700), libc::EPERM);
    }
    fails("openat2", &[], libc::ENOSYS);
}

#[test]
fn mknod_creates_only_files_pipes_and_sockets() {
    for (name, position) in [("mknod", 1), ("mknodat", 2)] {
        let call = |mode: u32| {
            let mut arguments = [u64::MAX; 6];
            arguments[position] = u64::from(mode);
            arguments
        };
        for kind in [0, libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK] {
            passes(name, &call(kind | 0o644));
            passes(name, &call(kind | 0o1777));
            fails(name, &call(kind | 0o4755), libc::EPERM);
            fails(name, &call(kind | 0o2755), libc::EPERM);
        }
        for kind in [libc::S_IFCHR, libc::S_IFBLK, libc::S_IFDIR, libc::S_IFLNK] {
            fails(name, &call(kind | 0o644), libc::EPERM);
        }
    }
}

#[test]
fn rename_creates_no_whiteout_device() {
    for flags in [0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE] {
        passes("renameat2", &[0, 0, 0, 0, flags.into()]);
    }
    fails("renameat2", &[0, 0, 0, 0, libc::RENAME_WHITEOUT.into()], libc::EINVAL);
}
