//! From a zygote into a jail that stands already.
//!
//! A process cannot change its own pid namespace, only that of its future children, and a zygote must not leave its own
//! namespaces. So there is a process in between, which shares the zygote's memory and descriptors and lives for a moment:
//! it enters the jail's namespaces, whose user namespace the zygote's user owns, and forks. The copy of the zygote's
//! memory is the child. The launcher is the parent of all three.
//!
//! Both clones have exact flag words, which the zygote's filter compares.

use super::call::{Answer, Refused, call, number, plain};
use super::message::{BirthStep, NAMESPACES_LEN, without};
use super::vfork::{self, CLONE_PARENT, CLONE_PIDFD};

const CLONE_NEWNS: usize = 0x2_0000;
const CLONE_CHILD_CLEARTID: usize = 0x20_0000;
const CLONE_CHILD_SETTID: usize = 0x100_0000;
const CLONE_NEWCGROUP: usize = 0x200_0000;
const CLONE_NEWUTS: usize = 0x400_0000;
const CLONE_NEWIPC: usize = 0x800_0000;
const CLONE_NEWUSER: usize = 0x1000_0000;
const CLONE_NEWPID: usize = 0x2000_0000;
const CLONE_NEWNET: usize = 0x4000_0000;

/// The flag word with which a zygote clones the process in between.
pub(crate) const BETWEEN: usize = vfork::BETWEEN | CLONE_PARENT;
/// The flag word with which the process in between forks the child.
pub(crate) const CHILD: usize = CLONE_PARENT | CLONE_PIDFD | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
/// The kinds of the namespaces that a child enters, in the order of [`super::message::NAMESPACES`].
pub(crate) const KINDS: [usize; NAMESPACES_LEN] =
    [CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUTS, CLONE_NEWCGROUP, CLONE_NEWPID];

/// What the process in between works with, and what it leaves behind.
pub(crate) struct Hop<'a> {
    pub(crate) namespaces: &'a [i32],
    /// For tests: layers to leave out.
    pub(crate) without: u32,
    /// Where the library keeps the number of its thread.
    pub(crate) tid: usize,
    /// The processes, as descriptors of the zygote's: this one and the child.
    pub(crate) between: i32,
    pub(crate) child: i32,
    pub(crate) failed: Option<(BirthStep, Refused)>,
}

/// Who comes back from a hop.
pub(crate) enum Side {
    Zygote,
    Child,
}

/// Forks a child into the jail.
pub(crate) fn hop(hop: &mut Hop<'_>) -> Answer<Side> {
    let pidfd = &raw mut hop.between;
    // SAFETY: `inside` ends the process in between, which writes nothing but `hop`; the child has a copy.
    match unsafe { vfork::run_between(inside, hop, pidfd, BETWEEN) } {
        0 => Ok(Side::Child),
        refused if refused < 0 => Err(Refused(-refused as i32)),
        _ => Ok(Side::Zygote),
    }
}

/// The life of the process in between; only the child comes back from here.
extern "C" fn inside(hop: &mut Hop<'_>) -> isize {
    match cross(hop) {
        Ok(Side::Child) => return 0,
        Ok(Side::Zygote) => {}
        Err(failed) => hop.failed = Some(failed),
    }
    vfork::end_between()
}

fn cross(hop: &mut Hop<'_>) -> Result<Side, (BirthStep, Refused)> {
    let is_left_out = |kind: usize| {
        cfg!(feature = "faults") && kind == CLONE_NEWCGROUP && hop.without & without::CGROUP_NAMESPACE != 0
    };
    for (namespace, kind) in hop.namespaces.iter().zip(KINDS).filter(|(_, kind)| !is_left_out(*kind)) {
        plain(number::SETNS, &[*namespace as usize, kind]).map_err(|why| (BirthStep::Namespaces, why))?;
    }
    fork(hop).map_err(|why| (BirthStep::Fork, why))
}

/// Forks the child.
fn fork(hop: &mut Hop<'_>) -> Answer<Side> {
    let mut pidfd = -1_i32;
    let mut unused = 0_i32;
    // Where the library keeps no such number, the kernel writes to where nobody looks.
    let tid = if hop.tid != 0 { hop.tid } else { &raw mut unused as usize };
    let pidfd_at = &raw mut pidfd as usize;
    // `clone` and not `clone3`, whose flags a filter cannot see. Stack, pidfd; then, by processor, tid and tls.
    let arguments = if cfg!(target_arch = "x86_64") {
        [CHILD, 0, pidfd_at, tid, 0, 0]
    } else {
        [CHILD, 0, pidfd_at, 0, tid, 0]
    };
    // SAFETY: the kernel writes one descriptor to `pidfd`, and in the child its number to where the library keeps it;
    // without CLONE_VM the child has a copy of everything, this stack included.
    let child = unsafe { call(number::CLONE, arguments) }?;
    if child == 0 {
        return Ok(Side::Child);
    }
    // SAFETY: the kernel changed it behind the compiler's back.
    hop.child = unsafe { (&raw const pidfd).read_volatile() };
    Ok(Side::Zygote)
}
