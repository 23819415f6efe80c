//! Installs a compiled seccomp filter.

use super::call::{Answer, call, number};

const SECCOMP_SET_MODE_FILTER: usize = 1;

/// A filter in the layout that the kernel expects (`sock_fprog`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) len: u16,
    pub(crate) instructions: usize,
}

/// Installs a filter, and returns its notification listener if `flags` ask for one.
pub(crate) fn install(filter: &Program, flags: usize) -> Answer<usize> {
    let arguments = [SECCOMP_SET_MODE_FILTER, flags, core::ptr::from_ref(filter) as usize, 0, 0, 0];
    // SAFETY: the kernel copies the filter and its instructions during the call; both live as long as this
    // process.
    unsafe { call(number::SECCOMP, arguments) }
}
