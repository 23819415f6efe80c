//! The second guard on files: what may be written, by path, whatever the mounts say; and no signal or abstract
//! socket across the jail's edge.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::io::Errno;

use crate::bare::message::Guard;
use crate::spec::{HOME, Jail, WORKSPACE};

/// The newest rules that are asked for; an older kernel enforces the part that it knows.
const WANTED: ABI = ABI::V6;

/// Whether this kernel has landlock switched on.
pub(crate) fn supported() -> bool {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))
        .and_then(Ruleset::create)
        .is_ok()
}

/// Applies the rules to this process and everything it starts.
pub(super) fn apply(jail: &Jail) -> Result<(), Errno> {
    let writable: Vec<&str> =
        jail.binds.iter().filter(|bind| bind.writable).map(|bind| bind.destination.as_str()).collect();
    restrict(&writable)
}

/// The same for a process that nobody jailed, in a root that somebody else has made: what can be written is what is
/// mounted so.
pub(crate) fn apply_here(mounts: &str) -> Result<(), Errno> {
    let writable = writable(mounts);
    restrict(&writable.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Places of `/proc/self/mountinfo` that can be written and hold files.
fn writable(mounts: &str) -> Vec<String> {
    let place = |line: &str| {
        let mut words = line.split(' ').skip(4);
        let (path, options) = (words.next()?, words.next()?);
        let system = ["/proc", "/sys", "/dev"].iter().any(|top| Path::new(path).starts_with(top));
        let is_writable = options.split(',').any(|option| option == "rw") && !system;
        is_writable.then(|| path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
    };
    mounts.lines().filter_map(place).collect()
}

fn restrict(writable: &[&str]) -> Result<(), Errno> {
    restrict_to(build(writable)?)
}

fn restrict_to(rules: RulesetCreated) -> Result<(), Errno> {
    match rules.restrict_self() {
        Ok(status) if status.ruleset != RulesetStatus::NotEnforced => Ok(()),
        Ok(_) => Err(Errno::NOSYS),
        Err(_) => Err(Errno::PERM),
    }
}

/// Applies the rules of a zygote to this process. Its children inherit them, and write below folders that do not exist yet,
/// so what may be written is left to the read-only mounts and to the rules that each child adds: these forbid
/// devices to be made or driven, signals to processes outside, and abstract sockets of theirs; and every change of mounts.
pub(super) fn apply_to_zygote() -> Result<(), Errno> {
    let (everything, read, write, devices) = rights(WANTED);
    restrict_to(build_rules(everything, &[("/", read | write), ("/dev", devices)])?)
}

/// What the rules come to on this kernel, for somebody else to make them.
pub(crate) fn guard() -> Guard {
    let known = known();
    let (everything, read, write, devices) = rights(known);
    Guard {
        handled: everything.bits(),
        scoped: Scope::from_all(known).bits(),
        read: read.bits(),
        write: write.bits(),
        devices: devices.bits(),
    }
}

/// The newest rules that this kernel enforces.
fn known() -> ABI {
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

/// What may be written beside what is writable in every jail.
fn build(writable: &[&str]) -> Result<RulesetCreated, Errno> {
    let (everything, read, write, devices) = rights(WANTED);
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

fn build_rules(everything: Rights, rules: &[(&str, Rights)]) -> Result<RulesetCreated, Errno> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(everything)
        .and_then(|ruleset| ruleset.scope(Scope::from_all(WANTED)))
        .and_then(Ruleset::create)
        .map_err(|_| Errno::NOSYS)?;
    for (path, access) in rules {
        let fd = PathFd::new(path).map_err(|_| Errno::NOENT)?;
        ruleset = ruleset.add_rule(PathBeneath::new(fd, *access)).map_err(|_| Errno::INVAL)?;
    }
    Ok(ruleset)
}

type Rights = BitFlags<AccessFs>;

/// What is watched over, and what may be done where: everywhere, where it is fresh, and with devices.
fn rights(abi: ABI) -> (Rights, Rights, Rights, Rights) {
    let everything = AccessFs::from_all(abi);
    // No device can be made anywhere.
    let write = AccessFs::from_write(abi) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    let devices = AccessFs::WriteFile | AccessFs::IoctlDev | AccessFs::Truncate;
    (everything, AccessFs::from_read(abi), write, devices & everything)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_to_be_written_is_found() {
        let mounts = "1 0 0:1 / / ro,relatime - overlay overlay rw\n\
            2 1 0:2 / /proc rw,nosuid - proc proc rw\n\
            3 1 0:3 / /dev rw,nosuid - tmpfs tmpfs rw\n\
            4 3 0:4 / /dev/shm rw,nosuid - tmpfs tmpfs rw\n\
            5 1 0:5 / /devices rw,nosuid - tmpfs tmpfs rw\n\
            6 1 0:6 / /a\\040b rw - ext4 /dev/x rw\n\
            7 1 0:7 / /etc/hosts ro,relatime - ext4 /dev/x rw\n";
        assert_eq!(writable(mounts), ["/devices", "/a b"]);
    }
}
