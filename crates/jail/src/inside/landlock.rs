//! Landlock, the second layer of file protection: what may be written, by path, regardless of mounts; and no
//! signals or abstract sockets across the jail's boundary.

use std::path::Path;

use belljar_zygote::message::LandlockAccess;
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::io::Errno;

use crate::spec::{HOME, Jail, WORKSPACE};

/// The newest Landlock version requested; an older kernel enforces the part that it knows.
const REQUESTED_ABI: ABI = ABI::V6;

/// Returns whether Landlock is enabled in this kernel.
pub(crate) fn is_supported() -> bool {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))
        .and_then(Ruleset::create)
        .is_ok()
}

/// Applies a jail's rules to this process and its future children.
pub(super) fn apply(jail: &Jail) -> Result<(), Errno> {
    let mut writable: Vec<&str> =
        jail.binds.iter().filter(|bind| bind.writable).map(|bind| bind.destination.as_str()).collect();
    if jail.writable_root {
        // `/proc`, `/sys` and `/dev` are mounted read-only there.
        writable.push("/");
    }
    restrict(&writable)
}

/// Applies rules to a process without a jail, in a root built by a container runtime: writable are the mounts
/// that are mounted writable.
pub(crate) fn apply_for_mounts(mounts: &str) -> Result<(), Errno> {
    let writable = writable_mounts(mounts);
    restrict(&writable.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns the writable mount points in `/proc/self/mountinfo`, except system file systems.
fn writable_mounts(mounts: &str) -> Vec<String> {
    let mount_point = |line: &str| {
        let mut fields = line.split(' ').skip(4);
        let (path, options) = (fields.next()?, fields.next()?);
        let system = ["/proc", "/sys", "/dev"].iter().any(|top| Path::new(path).starts_with(top));
        let is_writable = options.split(',').any(|option| option == "rw") && !system;
        is_writable.then(|| path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
    };
    mounts.lines().filter_map(mount_point).collect()
}

fn restrict(writable: &[&str]) -> Result<(), Errno> {
    restrict_to(build_jail_rules(writable)?)
}

fn restrict_to(rules: RulesetCreated) -> Result<(), Errno> {
    match rules.restrict_self() {
        Ok(status) if status.ruleset != RulesetStatus::NotEnforced => Ok(()),
        Ok(_) => Err(Errno::NOSYS),
        Err(_) => Err(Errno::PERM),
    }
}

/// Applies a zygote's rules to this process. Its children inherit them, and write below directories that do
/// not exist yet, so write access is left to the read-only mounts and to the rules that each child adds.
/// These rules forbid creating and controlling devices, signals to processes outside, their abstract sockets,
/// and every change of mounts.
pub(super) fn apply_to_zygote() -> Result<(), Errno> {
    let (everything, read, write, devices) = access_rights(REQUESTED_ABI);
    restrict_to(build_rules(everything, &[("/", read | write), ("/dev", devices)])?)
}

/// Returns the access rights that this kernel supports, for processes that create the ruleset themselves.
pub(crate) fn supported_access() -> LandlockAccess {
    let known = supported_abi();
    let (everything, read, write, devices) = access_rights(known);
    LandlockAccess {
        handled: everything.bits(),
        scoped: Scope::from_all(known).bits(),
        read: read.bits(),
        write: write.bits(),
        devices: devices.bits(),
    }
}

/// Returns the newest Landlock version that this kernel supports.
fn supported_abi() -> ABI {
    let mut known = ABI::Unsupported;
    for abi in [ABI::V1, ABI::V2, ABI::V3, ABI::V4, ABI::V5, ABI::V6] {
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(abi))
            .and_then(|ruleset| {
                if Scope::from_all(abi).is_empty() {
                    Ok(ruleset)
                } else {
                    ruleset.scope(Scope::from_all(abi))
                }
            })
            .and_then(Ruleset::create);
        if ruleset.is_ok() {
            known = abi;
        }
    }
    known
}

/// Builds the rules of a jail with additional writable paths.
fn build_jail_rules(writable: &[&str]) -> Result<RulesetCreated, Errno> {
    let (everything, read, write, devices) = access_rights(REQUESTED_ABI);
    let mut rules: Vec<(&str, BitFlags<AccessFs>)> = vec![
        ("/", read),
        ("/dev", devices),
        ("/dev/shm", write),
        ("/tmp", write),
        (HOME, write),
        (WORKSPACE, write),
    ];
    rules.extend(writable.iter().map(|path| (*path, write)));
    build_rules(everything, &rules)
}

fn build_rules(everything: AccessRights, rules: &[(&str, AccessRights)]) -> Result<RulesetCreated, Errno> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(everything)
        .and_then(|ruleset| ruleset.scope(Scope::from_all(REQUESTED_ABI)))
        .and_then(Ruleset::create)
        .map_err(|_| Errno::NOSYS)?;
    for (path, access) in rules {
        let fd = PathFd::new(path).map_err(|_| Errno::NOENT)?;
        ruleset = ruleset.add_rule(PathBeneath::new(fd, *access)).map_err(|_| Errno::INVAL)?;
    }
    Ok(ruleset)
}

type AccessRights = BitFlags<AccessFs>;

/// Returns the handled access rights, and those for reading anywhere, writing in fresh directories, and
/// devices.
fn access_rights(abi: ABI) -> (AccessRights, AccessRights, AccessRights, AccessRights) {
    let everything = AccessFs::from_all(abi);
    // Device nodes cannot be created anywhere.
    let write = AccessFs::from_write(abi) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    let devices = AccessFs::WriteFile | AccessFs::IoctlDev | AccessFs::Truncate;
    (everything, AccessFs::from_read(abi), write, devices & everything)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writable_mounts_are_found() {
        let mounts = "1 0 0:1 / / ro,relatime - overlay overlay rw\n\
            2 1 0:2 / /proc rw,nosuid - proc proc rw\n\
            3 1 0:3 / /dev rw,nosuid - tmpfs tmpfs rw\n\
            4 3 0:4 / /dev/shm rw,nosuid - tmpfs tmpfs rw\n\
            5 1 0:5 / /devices rw,nosuid - tmpfs tmpfs rw\n\
            6 1 0:6 / /a\\040b rw - ext4 /dev/x rw\n\
            7 1 0:7 / /etc/hosts ro,relatime - ext4 /dev/x rw\n";
        assert_eq!(writable_mounts(mounts), ["/devices", "/a b"]);
    }
}
