//! Flags and signals of the kernel's interface that several modules use.

pub(crate) const CLONE_VM: usize = 0x100;
pub(crate) const CLONE_FILES: usize = 0x400;
pub(crate) const CLONE_PIDFD: usize = 0x1000;
pub(crate) const CLONE_PARENT: usize = 0x8000;
pub(crate) const CLONE_NEWNS: usize = 0x2_0000;
pub(crate) const CLONE_NEWCGROUP: usize = 0x200_0000;
pub(crate) const CLONE_NEWUTS: usize = 0x400_0000;
pub(crate) const CLONE_NEWIPC: usize = 0x800_0000;
pub(crate) const CLONE_NEWUSER: usize = 0x1000_0000;
pub(crate) const CLONE_NEWPID: usize = 0x2000_0000;
pub(crate) const CLONE_NEWNET: usize = 0x4000_0000;

pub(crate) const O_CLOEXEC: usize = 0o2_000_000;
pub(crate) const O_PATH: usize = 0o10_000_000;
pub(crate) const O_DIRECTORY: usize = if cfg!(target_arch = "aarch64") { 0o40_000 } else { 0o200_000 };
pub(crate) const O_NOFOLLOW: usize = if cfg!(target_arch = "aarch64") { 0o100_000 } else { 0o400_000 };

pub(crate) const PR_SET_PDEATHSIG: usize = 1;
pub(crate) const SIGKILL: usize = 9;
pub(crate) const SIGCHLD: usize = 17;
