//! The second guard on files: what may be written, by path, whatever the mounts say; and no signal or abstract
//! socket across the jail's edge.

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::io::Errno;

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
    let everything = AccessFs::from_all(WANTED);
    // No device can be made anywhere.
    let write =
        AccessFs::from_write(WANTED) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    let read = AccessFs::from_read(WANTED);
    let devices = AccessFs::WriteFile | AccessFs::IoctlDev | AccessFs::Truncate;
    let mut rules: Vec<(&str, BitFlags<AccessFs>)> = vec![
        ("/", read),
        ("/dev", devices),
        ("/dev/shm", write),
        ("/tmp", write),
        (HOME, write),
        (WORKSPACE, write),
    ];
    let binds = jail.binds.iter().filter(|bind| bind.writable);
    rules.extend(binds.map(|bind| (bind.destination.as_str(), write)));
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
    match ruleset.restrict_self() {
        Ok(status) if status.ruleset != RulesetStatus::NotEnforced => Ok(()),
        Ok(_) => Err(Errno::NOSYS),
        Err(_) => Err(Errno::PERM),
    }
}
