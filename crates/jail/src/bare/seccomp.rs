//! Installing a filter that somebody else compiled.

use super::call::{Answer, call, number};

const SECCOMP_SET_MODE_FILTER: usize = 1;

/// A filter as the kernel takes it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) len: u16,
    pub(crate) instructions: usize,
}

/// Installs a filter.
pub(crate) fn install(filter: &Program, flags: usize) -> Answer<usize> {
    let arguments = [SECCOMP_SET_MODE_FILTER, flags, core::ptr::from_ref(filter) as usize, 0, 0, 0];
    // SAFETY: the program and its instructions live as long as this process; the kernel copies them.
    unsafe { call(number::SECCOMP, arguments) }
}
