//! Clones a zygote's child into an existing jail.
//!
//! A process cannot change its own pid namespace, only that of its future children, and a zygote must not
//! leave its own namespaces. Therefore a short-lived intermediate process, which shares the zygote's memory
//! and descriptors, enters the jail's namespaces, whose user namespace is owned by the zygote's user, and
//! forks. The copy of the zygote's memory is the child. The launcher is the parent of all three processes.
//!
//! The zygote's filter allows exactly these two clone flag words.

use crate::flags::{
    CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS,
    CLONE_PARENT, CLONE_PIDFD,
};
use crate::message::{NAMESPACES_LEN, SetupStep, without};
use crate::syscall::{RawErrno, SysResult, number, safe_syscall, syscall};
use crate::vfork;

const CLONE_CHILD_CLEARTID: usize = 0x20_0000;
const CLONE_CHILD_SETTID: usize = 0x100_0000;

/// Flag word with which a zygote clones the intermediate process.
pub const INTERMEDIATE_FLAGS: usize = vfork::VFORK_FLAGS | CLONE_PARENT;
/// Flag word with which the intermediate process forks the child.
pub const CHILD_FLAGS: usize = CLONE_PARENT | CLONE_PIDFD | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
/// Kinds of the namespaces that a child enters, in the order of [`crate::message::NAMESPACES`].
pub(crate) const NAMESPACE_KINDS: [usize; NAMESPACES_LEN] =
    [CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUTS, CLONE_NEWCGROUP, CLONE_NEWPID];

/// Input and output of the intermediate process.
pub(crate) struct JailFork<'a> {
    pub(crate) namespaces: &'a [i32],
    /// For tests: layers to leave out.
    pub(crate) layers_left_out: u32,
    /// Address at which libc keeps its thread id.
    pub(crate) tid: usize,
    /// The intermediate process and the child, as pidfds in the zygote's descriptor table.
    pub(crate) intermediate: i32,
    pub(crate) child: i32,
    pub(crate) failed: Option<(SetupStep, RawErrno)>,
}

/// The process in which [`clone_into_jail`] returned.
pub(crate) enum ForkSide {
    Zygote,
    Child,
}

/// Forks a child into the jail.
pub(crate) fn clone_into_jail(jail_fork: &mut JailFork<'_>) -> SysResult<ForkSide> {
    let pidfd = &raw mut jail_fork.intermediate;
    // SAFETY: `run_intermediate` ends the intermediate process and writes only to `jail_fork`; the child has a copy.
    match unsafe { vfork::spawn_intermediate(run_intermediate, jail_fork, pidfd, INTERMEDIATE_FLAGS) } {
        0 => Ok(ForkSide::Child),
        refused if refused < 0 => Err(RawErrno(-refused as i32)),
        _ => Ok(ForkSide::Zygote),
    }
}

/// Body of the intermediate process. Only the child returns from it.
extern "C" fn run_intermediate(jail_fork: &mut JailFork<'_>) -> isize {
    match enter_and_fork(jail_fork) {
        Ok(ForkSide::Child) => return 0,
        Ok(ForkSide::Zygote) => {}
        Err(failed) => jail_fork.failed = Some(failed),
    }
    vfork::exit_intermediate()
}

fn enter_and_fork(jail_fork: &mut JailFork<'_>) -> Result<ForkSide, (SetupStep, RawErrno)> {
    let is_left_out = |kind: usize| {
        cfg!(feature = "faults")
            && kind == CLONE_NEWCGROUP
            && jail_fork.layers_left_out & without::CGROUP_NAMESPACE != 0
    };
    for (namespace, kind) in
        jail_fork.namespaces.iter().zip(NAMESPACE_KINDS).filter(|(_, kind)| !is_left_out(*kind))
    {
        safe_syscall(number::SETNS, &[*namespace as usize, kind])
            .map_err(|why| (SetupStep::Namespaces, why))?;
    }
    fork(jail_fork).map_err(|why| (SetupStep::Fork, why))
}

/// Forks the child.
fn fork(jail_fork: &mut JailFork<'_>) -> SysResult<ForkSide> {
    let mut pidfd = -1_i32;
    let mut unused = 0_i32;
    // If libc keeps no thread id, the kernel writes to an unused variable.
    let tid = if jail_fork.tid != 0 { jail_fork.tid } else { &raw mut unused as usize };
    let pidfd_at = &raw mut pidfd as usize;
    // `clone` rather than `clone3`, whose flags a filter cannot see. Arguments: stack, pidfd; then, depending
    // on the architecture, tid and tls.
    let arguments = if cfg!(target_arch = "x86_64") {
        [CHILD_FLAGS, 0, pidfd_at, tid, 0, 0]
    } else {
        [CHILD_FLAGS, 0, pidfd_at, 0, tid, 0]
    };
    // SAFETY: the kernel writes one descriptor to `pidfd` and, in the child, its thread id to `tid`. Without
    // CLONE_VM the child has a copy of all memory, including this stack.
    let child = unsafe { syscall(number::CLONE, arguments) }?;
    if child == 0 {
        return Ok(ForkSide::Child);
    }
    // SAFETY: `pidfd` is a live local; the read is volatile because the kernel, not the compiler, wrote it.
    jail_fork.child = unsafe { (&raw const pidfd).read_volatile() };
    Ok(ForkSide::Zygote)
}
