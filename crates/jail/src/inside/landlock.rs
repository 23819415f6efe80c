//! The second guard on files: what may be written, by path, whatever the mounts say; and no signal or abstract
//! socket across the jail's edge.

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
    match build(&writable)?.restrict_self() {
        Ok(status) if status.ruleset != RulesetStatus::NotEnforced => Ok(()),
        Ok(_) => Err(Errno::NOSYS),
        Err(_) => Err(Errno::PERM),
    }
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
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(everything)
        .and_then(|ruleset| ruleset.scope(Scope::from_all(WANTED)))
        .and_then(Ruleset::create)
        .map_err(|_| Errno::NOSYS)?;
    for (path, access) in rules {
        let fd = PathFd::new(path).map_err(|_| Errno::NOENT)?;
        ruleset = ruleset.add_rule(PathBeneath::new(fd, access)).map_err(|_| Errno::INVAL)?;
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
