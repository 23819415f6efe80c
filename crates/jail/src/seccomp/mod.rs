//! The system-call filter of tenant code: default deny, one table, one program.
//!
//! `policy` says what is allowed and why, `checks` what the arguments of a call must look like, the
//! `numbers_*` files what a call is called, and `bpf` turns the three into a program that the kernel loads
//! and searches quickly: load time is paid once per sandbox, so the program is a balanced tree of ranges.
//!
//! What the kernel answers in place of a call:
//! - a foreign architecture (32-bit entry points) ends the process: no honest program mixes them;
//! - a number nobody has given out yet, and x32, is ENOSYS, as on an older kernel;
//! - a known number without a rule is EPERM, and where the launcher listens it is told of that first: it answers in the
//!   kernel's place, so that the result can name the call. Where nobody listens, such a filter's answer is ENOSYS;
//! - a rule may name another errno, where programs have a better way on with it.

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
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use bpf::{Assembler, Target};
use checks::Check;
use policy::Rule;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the system-call filter knows x86-64 and aarch64 only");

/// An architecture the filter can be compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// 64-bit x86, without x32.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
}

impl Arch {
    /// The value of `seccomp_data.arch` for native calls: ELF machine, 64-bit flag, little-endian flag.
    fn audit(self) -> u32 {
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

const THIS_MACHINE: Arch = if cfg!(target_arch = "x86_64") { Arch::X86_64 } else { Arch::Aarch64 };

/// Who a filter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wearer {
    /// PID 1 of a jail.
    Program,
    /// A program of a tenant's, and a guest with whatever it starts: the same, and the launcher is told of what is refused.
    Heard,
    /// PID 1 of a jail whose program is a zygote's child: it is there, and no more.
    Host,
    /// A process of ours that collects what such a program left.
    Collector,
    /// A warm interpreter: what a program may, and what it takes to have a child in a jail. A refusal of its own would
    /// silence the child's, so it tells as well; nobody listens.
    Zygote,
    /// Such a child, on top of the zygote's own filter: what is taken back. Together they are a program's filter; and
    /// the child is heard when it is about to end, and when it is refused something.
    Child,
}

impl Wearer {
    /// Whether what is refused with EPERM is told of.
    fn tells(self) -> bool {
        matches!(self, Wearer::Heard | Wearer::Zygote | Wearer::Child)
    }
}

/// The compiled filter. Built once in the launcher, installed in every child.
#[derive(Clone)]
pub struct Filter(Vec<libc::sock_filter>);

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filter({} instructions)", self.0.len())
    }
}

impl Filter {
    /// The filter for the architecture this program runs on.
    #[must_use]
    pub fn for_this_machine(wearer: Wearer) -> Filter {
        Filter::compile(THIS_MACHINE, wearer)
    }

    /// The filter for `arch`, whatever this machine is.
    #[must_use]
    pub fn compile(arch: Arch, wearer: Wearer) -> Filter {
        let mut assembler = Assembler::new(wearer.tells());
        let mut actions: Vec<(u32, Target)> = Vec::new();
        // A child's filter leaves to the zygote's what it has nothing to say about.
        let unknown = if wearer == Wearer::Child { Target::ALLOW } else { Target::errno(libc::ENOSYS) };
        let mut next = 0;
        for (number, rule) in rules(arch, wearer) {
            if number > next {
                actions.push((next, unknown));
            }
            actions.push((number, target(&mut assembler, rule)));
            next = number + 1;
        }
        // Open-ended: everything above the newest number, and so x32 (bit 30) and negative numbers too.
        actions.push((next, unknown));
        Filter(assembler.finish(arch.audit(), &actions))
    }

    /// Installs the filter in the calling thread, for good. Allocates nothing, so it may run after a fork.
    ///
    /// # Errors
    /// EACCES where `no_new_privs` is not set yet; otherwise what `seccomp(2)` says.
    pub fn install(&self) -> io::Result<()> {
        self.install_with(0).map(drop)
    }

    /// The same; gives the descriptor at which it tells. Closed at `execve`.
    ///
    /// # Errors
    /// EBUSY where somebody listens to this process already; otherwise as [`Filter::install`].
    pub(crate) fn install_to_be_heard(&self) -> io::Result<OwnedFd> {
        let listener = self.install_with(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
        // SAFETY: the kernel just made this descriptor, and nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(listener as i32) })
    }

    fn install_with(&self, flags: libc::c_ulong) -> io::Result<libc::c_long> {
        let Ok(len) = u16::try_from(self.0.len()) else {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        };
        let program = libc::sock_fprog { len, filter: self.0.as_ptr().cast_mut() };
        // SAFETY: `program` points at `len` initialised instructions that `self` keeps alive through the
        // call; the kernel copies them and writes nothing, so the cast away from `const` never mutates.
        let status = unsafe {
            let program = std::ptr::from_ref(&program);
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, program)
        };
        if status >= 0 { Ok(status) } else { Err(io::Error::last_os_error()) }
    }

    /// The instructions, as the kernel takes them.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: instructions are plain numbers without holes between them.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), size_of_val(self.0.as_slice())) }
    }

    /// How many instructions the kernel has to load.
    #[expect(clippy::len_without_is_empty, reason = "a filter is never empty: it ends in a verdict")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Name and number of every call that can reach the kernel at all, argument-checked ones included.
pub fn allowed(arch: Arch) -> impl Iterator<Item = (&'static str, u32)> {
    let policy = policy::by_name();
    arch.numbers().iter().copied().filter(move |(name, _)| policy.get(name).is_some_and(Rule::reaches_kernel))
}

/// What a call of this machine is called.
pub(crate) fn name_of(number: i32) -> Option<&'static str> {
    let numbers = THIS_MACHINE.numbers();
    let number = u32::try_from(number).ok()?;
    numbers.iter().find(|(_, known)| *known == number).map(|(name, _)| *name)
}

/// What happens to every known number, in ascending order.
fn rules(arch: Arch, wearer: Wearer) -> impl Iterator<Item = (u32, Rule)> {
    let policy = policy::by_name();
    arch.numbers().iter().map(move |(name, number)| {
        let program = policy.get(name).copied().unwrap_or(Rule::Errno(libc::EPERM));
        let for_births = policy::FOR_BIRTHS.iter().find(|(call, _)| call == name).map(|(_, rule)| *rule);
        let rule = match wearer {
            Wearer::Program | Wearer::Heard => program,
            Wearer::Host if policy::FOR_HOSTS.contains(name) => program,
            Wearer::Collector if policy::FOR_COLLECTORS.contains(name) => program,
            Wearer::Host | Wearer::Collector => Rule::Errno(libc::EPERM),
            Wearer::Zygote => for_births.unwrap_or(program),
            Wearer::Child if *name == "exit_group" => Rule::Check(Check::Leave),
            // What the zygote's filter refuses without a word needs no second one.
            Wearer::Child if for_births.is_some() || program.tells() => program,
            Wearer::Child => Rule::Allow,
        };
        (*number, rule)
    })
}

fn target(assembler: &mut Assembler, rule: Rule) -> Target {
    match rule {
        Rule::Allow => Target::ALLOW,
        Rule::Errno(errno) => assembler.refusal(errno),
        Rule::Check(check) => assembler.block(check),
    }
}
