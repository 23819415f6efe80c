//! Installs a compiled seccomp filter.

use crate::syscall::{SysResult, number, syscall};

const SECCOMP_SET_MODE_FILTER: usize = 1;

/// A filter in the layout that the kernel expects (`sock_fprog`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FilterProgram {
    /// Number of instructions.
    pub len: u16,
    /// Address of the first instruction.
    pub instructions: usize,
}

/// Installs a filter, and returns its notification listener if `flags` ask for one.
pub(crate) fn install_filter(filter: &FilterProgram, flags: usize) -> SysResult<usize> {
    let arguments = [SECCOMP_SET_MODE_FILTER, flags, core::ptr::from_ref(filter) as usize, 0, 0, 0];
    // SAFETY: the kernel copies the filter and its instructions during the call; both live as long as this
    // process.
    unsafe { syscall(number::SECCOMP, arguments) }
}
