//! Whose a process of a living jail is: the child of the guest's that it descends from. Only what the kernel says of
//! processes is read, and nothing of theirs.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

/// So many generations are looked at. Whoever hides behind more is nobody's.
const GENERATIONS: usize = 16;
/// What is looked for stands at the beginning.
const READ: usize = 2_048;

/// The session, by its number inside, of the guest's child that a process descends from; 0 where that cannot be told. What a
/// command left behind when it ended is a child of the guest's as well, and still in that command's session.
pub(super) fn of(proc: &OwnedFd, guest: i32, process: i32) -> u32 {
    let mut next = process;
    for _ in 0..GENERATIONS {
        match look(proc, next) {
            Some(Kin { parent, session }) if parent == guest => return session,
            Some(Kin { parent, .. }) if parent > 1 && next != guest => next = parent,
            _ => return 0,
        }
    }
    0
}

struct Kin {
    parent: i32,
    session: u32,
}

fn look(proc: &OwnedFd, process: i32) -> Option<Kin> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(proc, format!("{process}/status"), flags, Mode::empty()).ok()?;
    let mut buffer = [0; READ];
    let read = rustix::io::read(&file, &mut buffer[..]).ok()?;
    kin(std::str::from_utf8(&buffer[..read]).ok()?)
}

/// A process may call itself anything, but on a line of its own.
fn kin(status: &str) -> Option<Kin> {
    let field = |name| status.lines().find_map(|line: &str| line.strip_prefix(name));
    let parent = field("PPid:")?.trim().parse().ok()?;
    // The last one is the number in the innermost namespace, which is the jail's: no other can be made in there.
    let session = field("NSsid:")?.split_ascii_whitespace().last()?.parse().ok()?;
    Some(Kin { parent, session })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_what_the_kernel_says_of_it() {
        let status = "Name:\tPPid:\\n1\nPPid:\t42\nNSpid:\t4711\t9\nNSsid:\t4700\t7\n";
        let found = kin(status).unwrap();
        assert_eq!((found.parent, found.session), (42, 7));
        assert!(kin("Name:\tsh\nPPid:\t42\n").is_none());
        let proc = rustix::fs::open("/proc", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (me, parent) = (std::process::id() as i32, std::os::unix::process::parent_id() as i32);
        // 0 where who made the session is in no namespace of ours, which rustix does not expect.
        // SAFETY: takes a number and gives one.
        let session = unsafe { libc::getsid(0) };
        assert_eq!(of(&proc, parent, me), session as u32, "a child of its parent's");
        assert_eq!(of(&proc, me, me), 0, "and none of its own");
    }
}
