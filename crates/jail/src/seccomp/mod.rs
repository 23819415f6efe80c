//! The seccomp filter of tenant code: default deny, from one table, compiled to one BPF program.
//!
//! `policy` says which calls are allowed and why, `checks` which arguments they may have, and the `numbers_*`
//! files map names to numbers. `bpf` compiles these into a program that the kernel loads and searches
//! quickly: loading is paid once per sandbox, so the program is a balanced tree of ranges.
//!
//! Answers of the filter:
//! - a foreign architecture (32-bit entry points) kills the process: no honest program mixes them;
//! - an unassigned number, and x32, is ENOSYS, as on an older kernel;
//! - a known number without a rule is EPERM. If the launcher has a listener, it is notified first and answers
//!   in the kernel's place, so that the result can name the call. Without a listener, such a filter's answer
//!   is ENOSYS;
//! - a rule may name another errno, where programs handle that better: calls that runtimes try and do without
//!   are not reported.

mod bpf;
mod checks;
pub mod listing;
mod numbers_aarch64;
mod numbers_x86_64;
mod options;
mod policy;
#[cfg(test)]
mod tests;

use std::fmt;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::Errno;

use bpf::{Assembler, JumpTarget};
use checks::Check;
use policy::SyscallRule;

use crate::sys;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the system-call filter knows x86-64 and aarch64 only");

/// An architecture for which the filter can be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// 64-bit x86, without x32.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
}

impl Arch {
    /// Returns the value of `seccomp_data.arch` for native calls: ELF machine, 64-bit flag, little-endian
    /// flag.
    fn audit_arch(self) -> u32 {
        match self {
            Arch::X86_64 => 0xc000_003e,
            Arch::Aarch64 => 0xc000_00b7,
        }
    }

    fn numbers(self) -> &'static [(&'static str, u32)] {
        match self {
            Arch::X86_64 => numbers_x86_64::NUMBERS,
            Arch::Aarch64 => numbers_aarch64::NUMBERS,
        }
    }
}

const NATIVE_ARCH: Arch = if cfg!(target_arch = "x86_64") { Arch::X86_64 } else { Arch::Aarch64 };

/// The kind of process that a filter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterFor {
    /// PID 1 of a jail.
    Init,
    /// A tenant's program, or a guest and its processes: the filter of PID 1, with denials reported to the
    /// launcher.
    Program,
    /// PID 1 of a jail with a writable root.
    RootInit,
    /// A guest and its processes in a jail with a writable root: the filter of its PID 1, with denials reported to
    /// the launcher.
    RootProgram,
    /// PID 1 of a warm jail, which only waits.
    WarmInit,
    /// The process that collects a warm program's artifacts.
    Collector,
    /// A warm interpreter: the rights of a program, and those needed to fork a child into a jail. Its denials
    /// are notifications without a listener; with EPERM of its own it would suppress the child's
    /// notification.
    Zygote,
    /// A warm interpreter's child, installed on top of the zygote's filter: removes the additional rights.
    /// Together they equal a program's filter. The launcher is notified when the child is denied a call and
    /// when it announces its exit.
    Child,
}

impl FilterFor {
    /// Returns whether denials with EPERM are notifications.
    fn notifies(self) -> bool {
        matches!(self, FilterFor::Program | FilterFor::RootProgram | FilterFor::Zygote | FilterFor::Child)
    }
}

/// A compiled filter. Built once in the launcher, installed in every child.
#[derive(Clone)]
pub struct SeccompFilter(Vec<libc::sock_filter>);

impl fmt::Debug for SeccompFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filter({} instructions)", self.0.len())
    }
}

impl SeccompFilter {
    /// Compiles the filter for this machine's architecture.
    #[must_use]
    pub fn for_this_machine(purpose: FilterFor) -> SeccompFilter {
        SeccompFilter::compile(NATIVE_ARCH, purpose)
    }

    /// Compiles the filter for any architecture.
    #[must_use]
    pub fn compile(arch: Arch, purpose: FilterFor) -> SeccompFilter {
        let mut assembler = Assembler::new(purpose.notifies());
        let mut actions: Vec<(u32, JumpTarget)> = Vec::new();
        // A child's filter leaves unknown numbers to the zygote's.
        let unknown =
            if purpose == FilterFor::Child { JumpTarget::ALLOW } else { JumpTarget::errno(libc::ENOSYS) };
        let mut next = 0;
        for (number, rule) in rules(arch, purpose) {
            if number > next {
                actions.push((next, unknown));
            }
            actions.push((number, target(&mut assembler, rule)));
            next = number + 1;
        }
        // Open-ended: covers everything above the newest number, including x32 (bit 30) and negative numbers.
        actions.push((next, unknown));
        SeccompFilter(assembler.finish(arch.audit_arch(), &actions))
    }

    /// Installs the filter permanently in the calling thread. Allocates nothing, so it may run after a fork.
    ///
    /// # Errors
    /// EACCES if `no_new_privs` is not set yet; otherwise see `seccomp(2)`.
    pub fn install(&self) -> Result<(), Errno> {
        self.install_with_flags(0).map(drop)
    }

    /// Installs the filter and returns its notification listener, which is closed on `execve`.
    ///
    /// # Errors
    /// EBUSY if this process already has a filter with a listener; otherwise see [`SeccompFilter::install`].
    pub(crate) fn install_with_listener(&self) -> Result<OwnedFd, Errno> {
        let listener = self.install_with_flags(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
        // SAFETY: the kernel just created this descriptor, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(listener as i32) })
    }

    fn install_with_flags(&self, flags: libc::c_ulong) -> Result<libc::c_long, Errno> {
        let len = u16::try_from(self.0.len()).map_err(|_| Errno::TOOBIG)?;
        let program = libc::sock_fprog { len, filter: self.0.as_ptr().cast_mut() };
        // SAFETY: `program` points to `len` initialized instructions that `self` keeps alive during the call;
        // the kernel copies them and writes nothing, so the cast away from `const` never mutates.
        sys::check(unsafe {
            let program = std::ptr::from_ref(&program);
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, program)
        })
    }

    /// Returns the instructions in the kernel's layout.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: instructions are plain integers without padding.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), size_of_val(self.0.as_slice())) }
    }

    /// Returns the number of instructions.
    #[expect(clippy::len_without_is_empty, reason = "a filter is never empty: it ends in a verdict")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Returns name and number of every call that can reach the kernel, including those with argument checks.
pub fn allowed_calls(arch: Arch) -> impl Iterator<Item = (&'static str, u32)> {
    let policy = policy::by_name();
    arch.numbers()
        .iter()
        .copied()
        .filter(move |(name, _)| policy.get(name).is_some_and(SyscallRule::reaches_kernel))
}

/// Returns the name of a system call on this machine.
pub(crate) fn syscall_name(number: i32) -> Option<&'static str> {
    let numbers = NATIVE_ARCH.numbers();
    let number = u32::try_from(number).ok()?;
    numbers.iter().find(|(_, known)| *known == number).map(|(name, _)| *name)
}

/// Returns the rule of every known number, in ascending order.
fn rules(arch: Arch, purpose: FilterFor) -> impl Iterator<Item = (u32, SyscallRule)> {
    let policy = policy::by_name();
    arch.numbers().iter().map(move |(name, number)| {
        let program = policy.get(name).copied().unwrap_or(SyscallRule::Errno(libc::EPERM));
        let for_births = policy::ZYGOTE_RULES.iter().find(|(call, _)| call == name).map(|(_, rule)| *rule);
        let rule = match purpose {
            FilterFor::Init | FilterFor::Program => program,
            FilterFor::RootInit | FilterFor::RootProgram => {
                policy::ROOT_RULES.iter().find(|(call, _)| call == name).map_or(program, |(_, rule)| *rule)
            }
            FilterFor::WarmInit if policy::WARM_INIT_CALLS.contains(name) => program,
            FilterFor::Collector if policy::COLLECTOR_CALLS.contains(name) => program,
            FilterFor::WarmInit | FilterFor::Collector => SyscallRule::Errno(libc::EPERM),
            FilterFor::Zygote => for_births.unwrap_or(program),
            FilterFor::Child if *name == "exit_group" => SyscallRule::Check(Check::AnnouncedExit),
            // A denial in the zygote's filter that is not a notification needs no second one.
            FilterFor::Child if for_births.is_some() || program.notifies() => program,
            FilterFor::Child => SyscallRule::Allow,
        };
        (*number, rule)
    })
}

fn target(assembler: &mut Assembler, rule: SyscallRule) -> JumpTarget {
    match rule {
        SyscallRule::Allow => JumpTarget::ALLOW,
        SyscallRule::Errno(errno) => assembler.denial(errno),
        SyscallRule::Check(check) => assembler.block(check),
    }
}
