//! Parses `/proc/self/mountinfo` and `/proc/self/cgroup` to find the cgroups of this process.
//!
//! Both files are relative to the reader's cgroup namespace, so a path in one can be compared with a mount's
//! root in the other. Everything here is a pure function over text, so that it can be tested for other hosts.

/// The cgroup version of a mount or a membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CgroupVersion {
    V1,
    V2,
}

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CgroupMount {
    pub(super) version: CgroupVersion,
    /// The group that the mount point shows: `/` unless the mount is a bind mount of a part, or of another
    /// namespace.
    pub(super) root: String,
    pub(super) point: String,
    pub(super) read_only: bool,
    /// The file system's options; on v1 they include the controllers.
    options: Vec<String>,
}

/// A line of `/proc/self/cgroup`: the group of this process in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) version: CgroupVersion,
    /// v1 only; the v2 line names none.
    pub(super) controllers: Vec<String>,
    pub(super) path: String,
}

impl Membership {
    pub(super) fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|name| name == controller)
    }
}

pub(super) fn mounts(mountinfo: &str) -> Vec<CgroupMount> {
    mountinfo.lines().filter_map(mount).collect()
}

/// Parses `36 35 98:0 /root /point rw,noatime shared:1 - cgroup source rw,memory`.
fn mount(line: &str) -> Option<CgroupMount> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mount: Vec<&str> = mount.split(' ').collect();
    let mut filesystem = filesystem.split(' ');
    let version = match filesystem.next()? {
        "cgroup" => CgroupVersion::V1,
        "cgroup2" => CgroupVersion::V2,
        _ => return None,
    };
    let options: Vec<String> = filesystem.nth(1)?.split(',').map(str::to_owned).collect();
    let read_only =
        mount.get(5)?.split(',').any(|option| option == "ro") || options.iter().any(|option| option == "ro");
    Some(CgroupMount {
        version,
        root: unescape(mount.get(3)?),
        point: unescape(mount.get(4)?),
        read_only,
        options,
    })
}

/// Decodes octal escapes: the kernel writes space, tab, newline and backslash as a backslash and three octal
/// digits.
fn unescape(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(char::from(byte));
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

pub(super) fn memberships(text: &str) -> Vec<Membership> {
    text.lines().filter_map(membership).collect()
}

/// Parses `4:memory:/a/b` or, on v2, `0::/a/b`; a path may itself contain colons.
fn membership(line: &str) -> Option<Membership> {
    let mut fields = line.splitn(3, ':');
    let id = fields.next()?;
    let controllers = fields.next()?.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let version = if id == "0" { CgroupVersion::V2 } else { CgroupVersion::V1 };
    Some(Membership { version, controllers, path: fields.next()?.to_owned() })
}

/// Returns the mounts that show this membership's hierarchy, the best one last.
fn mounts_of<'a>(mounts: &'a [CgroupMount], membership: &Membership) -> Vec<&'a CgroupMount> {
    let shows = |mount: &&CgroupMount| {
        mount.version == membership.version
            && membership.controllers.iter().all(|name| mount.options.contains(name))
    };
    let mut found: Vec<&CgroupMount> = mounts.iter().filter(shows).collect();
    // A later mount covers an earlier one at the same point; the stable sort preserves that order.
    found.sort_by_key(|mount| !mount.read_only);
    found
}

/// Returns the mount to use for a hierarchy, whatever part of it is visible there.
pub(super) fn mount_of<'a>(mounts: &'a [CgroupMount], membership: &Membership) -> Option<&'a CgroupMount> {
    mounts_of(mounts, membership).pop()
}

/// Returns the directory of the membership's own group, if some mount shows it.
pub(super) fn own_folder(mounts: &[CgroupMount], membership: &Membership) -> Option<String> {
    mounts_of(mounts, membership).iter().rev().find_map(|mount| locate(mount, &membership.path))
}

/// Returns the directory at which `mount` shows the group `path`.
fn locate(mount: &CgroupMount, path: &str) -> Option<String> {
    let below = path.strip_prefix(mount.root.trim_end_matches('/'))?;
    // `/../x` is a group outside this namespace, whose name cannot be resolved through this mount.
    let inside = (below.is_empty() || below.starts_with('/')) && below.split('/').all(|name| name != "..");
    inside.then(|| format!("{}{}", mount.point, below.trim_end_matches('/')))
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
