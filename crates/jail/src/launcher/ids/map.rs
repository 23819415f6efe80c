//! Id maps: the user namespace of an unprivileged launcher, subordinate ids by `newuidmap`, and user
//! namespaces that exist only as the id map of a mount.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use serde::{Deserialize, Serialize};

use crate::sys::{self, CloneResult};

/// A range of consecutive ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdRange {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// Ids in a user namespace, or on a mount, and the ids that they are outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IdExtent {
    pub(crate) inside: u32,
    pub(crate) outside: u32,
    pub(crate) count: u32,
}

impl IdExtent {
    /// Returns the extent of a single id.
    pub(crate) fn one(inside: u32, outside: u32) -> Self {
        Self { inside, outside, count: 1 }
    }
}

const HELPERS: [&str; 2] = ["/usr/bin/newuidmap", "/usr/bin/newgidmap"];

/// Returns the subordinate uids and gids of a user, or why there are none.
pub(crate) fn subordinate_ranges(uid: u32) -> Result<(IdRange, IdRange), String> {
    if let Some(helper) = HELPERS.iter().find(|path| !std::path::Path::new(path).exists()) {
        return Err(format!("{helper} is not installed"));
    }
    let user = user_name(&std::fs::read_to_string("/etc/passwd").unwrap_or_default(), uid);
    let range = |file: &str| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        parse_range(&text, uid, user.as_deref()).ok_or_else(|| format!("{file} assigns no ids to this user"))
    };
    Ok((range("/etc/subuid")?, range("/etc/subgid")?))
}

fn user_name(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

fn parse_range(text: &str, uid: u32, user: Option<&str>) -> Option<IdRange> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let owner = fields.next()?;
        let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let mine = Some(owner) == user || owner.parse() == Ok(uid);
        // A jail needs at least two ids: one for the program and one for its PID 1.
        (mine && count >= 2).then_some(IdRange { first, count })
    })
}

/// The ids that are mapped in the user namespace of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NamespaceIds {
    /// All ids: this is the host's initial user namespace.
    All,
    /// Root and this range.
    Range(IdRange),
    /// Root only, which is an unprivileged user outside.
    RootAlone,
    /// Root only, which may be the host's root.
    HostRootAlone,
}

/// Parses `/proc/self/uid_map` or `gid_map`. Of a partial range, only the upper half is used, because images
/// use the lower one.
pub(crate) fn parse_id_map(map: &str) -> NamespaceIds {
    let extents = map.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().map(|field| field.parse::<u32>());
        match (fields.next(), fields.next(), fields.next()) {
            (Some(Ok(first)), Some(Ok(outside)), Some(Ok(count))) => {
                Some((IdRange { first, count }, outside))
            }
            _ => None,
        }
    });
    match extents.max_by_key(|(extent, _)| extent.count) {
        Some((IdRange { first: 0, count: u32::MAX }, _)) => NamespaceIds::All,
        Some((IdRange { first, count }, _)) if count >= 4 => {
            NamespaceIds::Range(IdRange { first: first + count / 2, count: count - count / 2 })
        }
        Some((_, outside)) if outside != 0 => NamespaceIds::RootAlone,
        _ => NamespaceIds::HostRootAlone,
    }
}

/// Enters a new user namespace that maps only the caller's own ids.
pub(crate) fn unshare_with_own_ids(uid: u32, gid: u32) -> Result<(), Errno> {
    sys::unshare(libc::CLONE_NEWUSER)?;
    map_own_ids(uid, gid)
}

fn map_own_ids(uid: u32, gid: u32) -> Result<(), Errno> {
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/uid_map", &format!("{uid} {uid} 1"))?;
    write("/proc/self/gid_map", &format!("{gid} {gid} 1"))
}

/// Enters a new user namespace that maps the caller's own and its subordinate ids, each to itself.
///
/// The setuid helpers that may write such a map must run outside the namespace, so a child process runs them.
/// If they fail, only the caller's own ids are mapped. Returns whether the subordinate ids are mapped.
pub(crate) fn unshare_with_ranges(uids: (u32, IdRange), gids: (u32, IdRange)) -> Result<bool, Errno> {
    let pid = rustix::process::getpid().as_raw_nonzero().to_string();
    let (ready, ready_writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let child = match sys::clone(0, None)? {
        CloneResult::Child => {
            drop(ready_writer);
            let mut byte = [0];
            let read = rustix::io::read(&ready, &mut byte);
            let maps = [(HELPERS[0], uids), (HELPERS[1], gids)];
            let done = read == Ok(1) && maps.iter().all(|(helper, ids)| run_helper(helper, &pid, *ids));
            sys::exit_now(i32::from(!done));
        }
        CloneResult::Parent { pid, .. } => pid,
    };
    drop(ready);
    let unshared = sys::unshare(libc::CLONE_NEWUSER);
    if unshared.is_ok() {
        rustix::io::write(&ready_writer, b"1")?;
    }
    drop(ready_writer);
    let mapped = sys::wait_child(child)?.status == 0;
    unshared?;
    if !mapped {
        map_own_ids(uids.0, gids.0)?;
    }
    Ok(mapped)
}

fn run_helper(helper: &str, pid: &str, (own, range): (u32, IdRange)) -> bool {
    let (own, first, count) = (own.to_string(), range.first.to_string(), range.count.to_string());
    let arguments = [pid, &own, &own, "1", &first, &first, &count];
    Command::new(helper).args(arguments).env_clear().status().is_ok_and(|status| status.success())
}

/// Returns the folder of the lock file through which a user's launchers coordinate id leases.
pub(crate) fn lease_lock_folder(uid: u32) -> String {
    let folder = format!("/run/user/{uid}");
    if std::path::Path::new(&folder).is_dir() {
        format!("{folder}/belljar")
    } else {
        format!("/tmp/belljar-{uid}")
    }
}

/// Creates a user namespace that is never entered, as the id map of a mount: ids on disk appear as those
/// outside.
pub(crate) fn create_mount_map(
    proc: &OwnedFd,
    uids: &[IdExtent],
    gids: &[IdExtent],
) -> Result<OwnedFd, Errno> {
    let (hold, release) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let pid = match sys::clone(libc::CLONE_NEWUSER, None)? {
        CloneResult::Child => {
            drop(release);
            let _released = rustix::io::read(&hold, &mut [0; 1]);
            sys::exit_now(0);
        }
        CloneResult::Parent { pid, .. } => pid,
    };
    let namespace = write_maps(proc, pid, uids, gids).and_then(|()| {
        rustix::fs::openat(proc, format!("{pid}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    });
    drop(release);
    sys::wait_child(pid)?;
    namespace
}

/// Writes the id maps of a new user namespace.
pub(crate) fn write_maps(
    proc: &OwnedFd,
    pid: i32,
    uids: &[IdExtent],
    gids: &[IdExtent],
) -> Result<(), Errno> {
    for (name, extents) in [("uid_map", uids), ("gid_map", gids)] {
        let line = |IdExtent { inside, outside, count }: &IdExtent| format!("{inside} {outside} {count}\n");
        let lines: String = extents.iter().map(line).collect();
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(proc, format!("{pid}/{name}"), flags, Mode::empty())?;
        rustix::io::write(file.as_fd(), lines.as_bytes())?;
    }
    Ok(())
}

fn write(path: &str, text: &str) -> Result<(), Errno> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text.as_bytes()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_maps_are_parsed() {
        assert_eq!(parse_id_map("         0          0 4294967295\n"), NamespaceIds::All);
        assert_eq!(
            parse_id_map("0 1000 1\n1 100000 65536\n"),
            NamespaceIds::Range(IdRange { first: 32_769, count: 32_768 })
        );
        assert_eq!(parse_id_map("0 1000 1\n"), NamespaceIds::RootAlone);
        assert_eq!(parse_id_map("0 0 1\n"), NamespaceIds::HostRootAlone);
        assert_eq!(parse_id_map("garbage"), NamespaceIds::HostRootAlone);
    }

    #[test]
    fn subordinate_ids_are_found_by_name_or_uid() {
        let text = "root:1:9\nann:100000:65536\n1001:200000:1\n1002:300000:10\n";
        assert_eq!(parse_range(text, 1000, Some("ann")), Some(IdRange { first: 100_000, count: 65_536 }));
        assert_eq!(parse_range(text, 1001, None), None, "one id is not enough");
        assert_eq!(parse_range(text, 1002, None), Some(IdRange { first: 300_000, count: 10 }));
        assert_eq!(parse_range("garbage\n::\nann:x:y", 1000, Some("ann")), None);
        assert_eq!(user_name("root:x:0:0::/root:\nann:x:1000:1000::/:", 1000).as_deref(), Some("ann"));
    }
}
