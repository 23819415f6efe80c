//! Runs the filter in a small interpreter and compares it with the table, and once in the kernel.

use std::collections::HashSet;

use libc::sock_filter;

use super::policy::{self, SyscallRule};
use super::*;

mod files;
mod root;
mod sockets;

const ARCHES: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const TELL: u32 = libc::SECCOMP_RET_USER_NOTIF;
const ACTION: u32 = libc::SECCOMP_RET_ACTION_FULL;

fn errno(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno as u32
}

/// Interprets a program like the kernel does; panics where the kernel would have refused to load it.
fn interpret(program: &[sock_filter], audit_arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let word = |offset: u32| match offset {
        0 => number,
        4 => audit_arch,
        16.. => (arguments[(offset as usize - 16) / 8] >> ((offset % 8) * 8)) as u32,
        _ => panic!("load of {offset}"),
    };
    let (mut accumulator, mut at) = (0, 0);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let branch = |taken: bool| usize::from(if taken { jt } else { jf });
        match code {
            0x20 => accumulator = word(k),
            0x54 => accumulator &= k,
            0x06 => return k,
            0x05 => at += k as usize,
            0x15 => at += branch(accumulator == k),
            0x35 => at += branch(accumulator >= k),
            0x45 => at += branch(accumulator & k != 0),
            _ => panic!("instruction {code:#x}"),
        }
    }
}

/// Returns the verdict on a call by name, on each architecture that has it; they must agree.
fn verdict(name: &str, arguments: &[u64]) -> u32 {
    let mut registers = [0; 6];
    registers[..arguments.len()].copy_from_slice(arguments);
    let mut verdicts = ARCHES.iter().filter_map(|arch| {
        let (_, number) = arch.numbers().iter().find(|(known, _)| *known == name)?;
        Some(interpret(
            &SeccompFilter::compile(*arch, FilterFor::Init).0,
            arch.audit_arch(),
            *number,
            registers,
        ))
    });
    let first = verdicts.next().expect("a known name");
    assert!(verdicts.all(|other| other == first), "{name} differs between architectures");
    first
}

#[track_caller]
fn passes(name: &str, arguments: &[u64]) {
    assert_eq!(verdict(name, arguments), ALLOW, "{name} {arguments:x?}");
}

#[track_caller]
fn fails(name: &str, arguments: &[u64], with: i32) {
    assert_eq!(verdict(name, arguments), errno(with), "{name} {arguments:x?}");
}

#[test]
fn every_number_gets_the_verdict_of_the_table() {
    for arch in ARCHES {
        let filter = SeccompFilter::compile(arch, FilterFor::Init);
        let policy = policy::by_name();
        for number in (0..600).chain([0x3fff_ffff, 0x4000_0000, 0x4000_0001, 0x8000_0000, u32::MAX]) {
            let name = arch.numbers().iter().find(|(_, known)| *known == number).map(|(name, _)| *name);
            let rule = name.map(|name| policy.get(name).copied().unwrap_or(SyscallRule::Errno(libc::EPERM)));
            let verdict = interpret(&filter.0, arch.audit_arch(), number, [0; 6]);
            match rule {
                None => assert_eq!(verdict, errno(libc::ENOSYS), "{arch:?} {number}"),
                Some(SyscallRule::Allow) => assert_eq!(verdict, ALLOW, "{arch:?} {name:?}"),
                Some(SyscallRule::Errno(with)) => assert_eq!(verdict, errno(with), "{arch:?} {name:?}"),
                // Tested separately below; here only that it ends in some verdict.
                Some(SyscallRule::Check(_)) => assert!(verdict == ALLOW || verdict & 0xffff_0000 == errno(0)),
            }
        }
    }
}

#[test]
fn foreign_architecture_kills_the_process() {
    for arch in ARCHES {
        let filter = SeccompFilter::compile(arch, FilterFor::Init);
        for foreign in [0x4000_0003, 0x4000_0028, 0, arch.audit_arch() ^ 1] {
            assert_eq!(interpret(&filter.0, foreign, 0, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
        }
    }
}

#[test]
fn the_table_names_each_call_once_and_only_real_ones() {
    let known: HashSet<&str> = ARCHES.iter().flat_map(|arch| arch.numbers()).map(|(name, _)| *name).collect();
    let mut seen = HashSet::new();
    for name in policy::POLICY.iter().flat_map(|(_, names)| names.iter()) {
        assert!(known.contains(name), "no architecture has {name}");
        assert!(seen.insert(name), "{name} has two rules");
    }
    for arch in ARCHES {
        assert!(arch.numbers().is_sorted_by(|(_, one), (_, next)| one < next), "{arch:?}");
    }
}

#[test]
fn number_of_allowed_calls_and_instructions_is_bounded() {
    for (arch, ceiling) in [(Arch::X86_64, 198), (Arch::Aarch64, 169)] {
        let (count, length) =
            (allowed_calls(arch).count(), SeccompFilter::compile(arch, FilterFor::Init).len());
        println!("{arch:?}: {count} calls reach the kernel, {length} instructions");
        // 200 is the documented limit; these ceilings are the current numbers, and only go down.
        assert!(count <= ceiling, "{arch:?} lets {count} calls through");
        assert!(length < 4096);
    }
}

/// Calls that no edit of the table may ever let through; they are why the filter exists.
#[test]
fn dangerous_calls_never_reach_the_kernel() {
    const NEVER: &str = "ptrace process_vm_readv process_vm_writev kcmp keyctl add_key request_key bpf \
        perf_event_open unshare setns clone3 mount umount2 pivot_root chroot mount_setattr open_tree \
        open_tree_attr move_mount fsopen fsconfig fsmount fspick statmount listmount swapon swapoff reboot \
        kexec_load kexec_file_load init_module finit_module delete_module acct quotactl quotactl_fd syslog \
        settimeofday clock_settime adjtimex clock_adjtime iopl ioperm modify_ldt uselib ustat sysfs _sysctl \
        vhangup nfsservctl lookup_dcookie name_to_handle_at open_by_handle_at fanotify_init fanotify_mark \
        memfd_secret remap_file_pages seccomp userfaultfd vmsplice io_uring_setup io_uring_enter \
        io_uring_register openat2 pidfd_getfd process_madvise mbind set_mempolicy migrate_pages move_pages \
        sched_setattr ioprio_set sethostname setdomainname file_setattr setgroups";
    for name in NEVER.split_whitespace() {
        let verdict = verdict(name, &[]);
        assert!([errno(libc::EPERM), errno(libc::ENOSYS)].contains(&verdict), "{name}: {verdict:#x}");
    }
}

#[test]
fn clone_creates_threads_and_children_but_no_namespaces() {
    passes("clone", &[libc::SIGCHLD as u64]);
    passes("clone", &[0x003d_0f00]); // a glibc thread
    passes("clone", &[0x0120_0011]); // a glibc fork
    passes("clone", &[0x4111]); // vfork
    passes("clone", &[0xff]); // an exit signal, though one bit of it is CLONE_NEWTIME elsewhere
    for flag in [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000] {
        fails("clone", &[flag | 0x11], libc::EPERM);
        fails("clone", &[flag | 0xdead_0000_0000_0011], libc::EPERM);
    }
    fails("clone", &[libc::CLONE_PARENT as u64 | 0x11], libc::EPERM);
    fails("clone3", &[], libc::ENOSYS);
}

#[test]
fn ioctl_requests_are_compared_by_their_low_half() {
    let good = [
        libc::TCGETS,
        libc::TCSETS,
        libc::TCSETSW,
        libc::TCSETSF,
        libc::TCFLSH,
        libc::TCSBRK,
        libc::TCXONC,
        libc::TIOCGWINSZ,
        libc::TIOCSWINSZ,
        libc::TIOCGPGRP,
        libc::TIOCSPGRP,
        libc::TIOCSCTTY,
        libc::TIOCNOTTY,
        libc::TIOCOUTQ,
        libc::FIONREAD,
        libc::FIONBIO,
        libc::FIOCLEX,
        libc::FIONCLEX,
        libc::FIOASYNC,
        libc::TIOCGSID,
        libc::TIOCGPTN,
        libc::TIOCSPTLCK,
        libc::TIOCGPTPEER,
        libc::TCGETS2,
        libc::TCSETS2,
        libc::SIOCGIFCONF,
        libc::SIOCGIFFLAGS,
        libc::SIOCGIFADDR,
        libc::SIOCGIFINDEX,
        libc::SIOCGIFHWADDR,
        libc::FICLONE,
        libc::FICLONERANGE,
        libc::FS_IOC_GETFLAGS,
        0x8004_5200,
    ];
    for request in good {
        passes("ioctl", &[0, request]);
        passes("ioctl", &[0, request | 0xffff_ffff_0000_0000]);
    }
    let bad = [
        libc::TIOCSTI,
        libc::TIOCLINUX,
        libc::TIOCCONS,
        libc::TIOCSETD,
        libc::FS_IOC_SETFLAGS,
        0xc018_9436,
        libc::TIOCMGET,
        libc::SIOCSIFFLAGS,
        libc::SIOCSIFADDR,
        0,
        u64::from(u32::MAX),
    ];
    for request in bad {
        fails("ioctl", &[0, request], libc::EPERM);
        fails("ioctl", &[0, request | 1 << 32], libc::EPERM);
    }
    fails("ioctl", &[0, 0x1_0000_5412], libc::EPERM);
    fails("ioctl", &[0, 0x8946], libc::EOPNOTSUPP);
}

#[test]
fn prctl_personality_and_scheduler_allow_listed_values_only() {
    let options = [
        libc::PR_SET_PDEATHSIG,
        libc::PR_SET_NAME,
        libc::PR_SET_NO_NEW_PRIVS,
        libc::PR_GET_SECCOMP,
        libc::PR_CAPBSET_READ,
        libc::PR_SET_CHILD_SUBREAPER,
        libc::PR_CAP_AMBIENT,
        libc::PR_SET_VMA,
        libc::PR_SET_PTRACER,
        libc::PR_GET_TID_ADDRESS,
        libc::PR_SET_THP_DISABLE,
        libc::PR_SET_TIMERSLACK,
    ];
    for option in options {
        passes("prctl", &[option as u64]);
        passes("prctl", &[option as u64 | 7 << 32]);
    }
    let refused = [
        libc::PR_SET_SECCOMP,
        libc::PR_SET_MM,
        libc::PR_CAPBSET_DROP,
        libc::PR_SET_SECUREBITS,
        libc::PR_SET_TSC,
        libc::PR_SET_UNALIGN,
        libc::PR_MCE_KILL,
        libc::PR_TASK_PERF_EVENTS_DISABLE,
        0,
        -1,
    ];
    for option in refused {
        fails("prctl", &[option as u64], libc::EINVAL);
    }
    for persona in [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff, u64::MAX] {
        passes("personality", &[persona]);
    }
    for persona in [0x4_0000, 0x40_0000, 0x10_0000, 1, 9, 0xffff_fffe] {
        fails("personality", &[persona], libc::EPERM);
    }
    for class in [0, 3, 5, 0x4000_0000, 0x4000_0003] {
        passes("sched_setscheduler", &[0, class]);
    }
    for class in [1, 2, 4, 6, 7, 0x4000_0001, 0x1_0000_0002] {
        fails("sched_setscheduler", &[0, class], libc::EPERM);
    }
}

/// A distant target gets a relay jump: a search much longer than a jump still finds every value.
#[test]
fn jumps_in_long_programs_stay_within_reach() {
    let mut assembler = Assembler::default();
    let block = assembler.block(checks::Check::Clone);
    let mut actions = Vec::new();
    for number in 0..1500 {
        actions.push((
            number * 2,
            if number % 7 == 0 { block } else { JumpTarget::errno(number as i32 % 90 + 1) },
        ));
    }
    let program = assembler.finish(7, &actions);
    assert!(program.len() > 1000);
    for number in 0..1500 {
        let expected = if number % 7 == 0 { ALLOW } else { errno(number as i32 % 90 + 1) };
        for value in [number * 2, number * 2 + 1] {
            assert_eq!(interpret(&program, 7, value, [0; 6]), expected, "{value}");
        }
    }
}

/// Runs in the child. Returns the number of the first expectation that fails, or 0.
fn check_in_child(filter: &SeccompFilter) -> i32 {
    // SAFETY: every call takes plain numbers or null and changes at most this short-lived child, which has
    // one thread and never returns to the test harness.
    unsafe {
        let failed = |status: i64, with: i32| status == -1 && *libc::__errno_location() == with;
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || filter.install().is_err() {
            return 1;
        }
        let expectations = [
            libc::syscall(libc::SYS_getpid) > 0,
            failed(libc::unshare(libc::CLONE_NEWUSER).into(), libc::EPERM),
            failed(libc::syscall(libc::SYS_clone3, 0, 0), libc::ENOSYS),
            failed(libc::socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0).into(), libc::EAFNOSUPPORT),
            libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) >= 0,
            failed(libc::syscall(libc::SYS_ioctl, 0, 0x1_0000_5412_u64, 0), libc::EPERM),
            // TCP_NODELAY reaches the kernel, TCP_ULP does not.
            failed(libc::syscall(libc::SYS_setsockopt, -1, 6, 1, 0, 0), libc::EBADF),
            failed(libc::syscall(libc::SYS_setsockopt, -1, 6, 0x1_0000_001f_u64, 0, 0), libc::EPERM),
            failed(libc::syscall(libc::SYS_getsockopt, -1, 6, 35, 0, 0), libc::EPERM),
            failed(libc::chmod(c"/nonexistent".as_ptr(), 0o4755).into(), libc::EPERM),
            failed(libc::chmod(c"/nonexistent".as_ptr(), 0o755).into(), libc::ENOENT),
            failed(libc::syscall(0x3fff_0000), libc::ENOSYS),
        ];
        expectations.iter().position(|held| !held).map_or(0, |index| index as i32 + 2)
    }
}

#[test]
fn kernel_loads_and_enforces_the_filter() {
    let filter = SeccompFilter::for_this_machine(FilterFor::Init);
    // SAFETY: the child makes only system calls (no allocation, no lock of the harness) and ends with
    // `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = check_in_child(&filter);
        // SAFETY: ends the forked child without running the harness's exit handlers.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` lives across the call, and `child` was forked above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "ended by signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "the number of the failed expectation");
}

/// A zygote's child has two filters. Together they allow exactly what a program's filter allows. The filter
/// of a program without a zygote is equal as well, and denials with EPERM in any of them notify the launcher.
#[test]
fn zygote_and_child_filter_together_equal_the_program_filter() {
    let arguments = [[0; 6], [u64::MAX; 6], [0x1000_0000; 6], [0x8000; 6], [0x2000_0000; 6], [1; 6], [38; 6]];
    for arch in ARCHES {
        let [program, notifying, zygote, child, host] =
            [FilterFor::Init, FilterFor::Program, FilterFor::Zygote, FilterFor::Child, FilterFor::WarmInit]
                .map(|w| SeccompFilter::compile(arch, w).0);
        let numbers = arch.numbers().iter().map(|(_, number)| *number).chain([1_000, 0x4000_0001]);
        for (number, arguments) in numbers.flat_map(|number| arguments.map(|arguments| (number, arguments))) {
            let by = |filter: &[sock_filter]| interpret(filter, arch.audit_arch(), number, arguments);
            let (alone, outer, inner) = (by(&program), by(&zygote), by(&child));
            // The kernel applies the stricter verdict, which is the smaller one; of two equal ones it applies
            // that of the filter installed last, so denials notify the child's listener.
            let together = if inner & ACTION <= outer & ACTION { inner } else { outer };
            let notified = if alone == errno(libc::EPERM) { TELL } else { alone };
            assert_eq!(together, notified, "{arch:?} {number} {arguments:x?}");
            assert!(together != TELL || inner == TELL, "{arch:?} {number}: the zygote has no listener");
            assert_eq!(by(&notifying), notified, "{arch:?} {number} {arguments:x?}");
            assert!(
                by(&host) != ALLOW || alone == ALLOW,
                "{arch:?} {number}: PID 1 has more rights than a program"
            );
        }
    }
}

/// An announced exit is a notification; any other exit passes the filter.
#[test]
fn only_announced_exits_are_notified() {
    for arch in ARCHES {
        let child = SeccompFilter::compile(arch, FilterFor::Child).0;
        let (_, number) = arch.numbers().iter().find(|(name, _)| *name == "exit_group").unwrap();
        let leaving = u64::from(belljar_zygote::message::EXIT_MAGIC);
        for (second, verdict) in [(0, ALLOW), (1, ALLOW), (leaving, libc::SECCOMP_RET_USER_NOTIF)] {
            let arguments = [7, second, 0, 0, 0, 0];
            assert_eq!(interpret(&child, arch.audit_arch(), *number, arguments), verdict);
        }
    }
}

/// Returns the verdict of a container runtime with the listing: the first matching entry, or EPERM.
fn listing_verdict(entries: &[listing::ListingEntry], name: &str, arguments: [u64; 6]) -> u32 {
    let holds = |condition: &listing::Condition| {
        arguments[usize::from(condition.argument)] & u64::from(condition.mask) == u64::from(condition.value)
    };
    let fits = |entry: &&listing::ListingEntry| entry.name == name && entry.conditions.iter().all(holds);
    entries.iter().find(fits).map_or(errno(libc::EPERM), |entry| entry.errno.map_or(ALLOW, errno))
}

#[test]
fn listing_for_container_runtimes_matches_the_filter() {
    // Contains every value that some check compares, and neighbors of these.
    let interesting =
        [0, 1, 2, 3, 6, 8, 16, 17, 22, 38, 0o100, 0o644, 0o4755, 0o2755, 0o20_000_000, 0o100_644, 0o020_644]
            .into_iter()
            .chain([
                0x5401,
                0x5412,
                0x541b,
                0x8946,
                0x11,
                41,
                31,
                103,
                270,
                0x1000_0011,
                0x003d_0f00,
                0x4000_0000,
                0xffff_ffff,
            ])
            .chain([0x8, 0x2_0000, 0x4_0000, 0x5356_4d41, 0x1_0000_5412, 0xdead_0000_0000_0002]);
    let interesting: Vec<u64> = interesting.collect();
    for arch in ARCHES {
        let (filter, entries) = (SeccompFilter::compile(arch, FilterFor::Init), listing::listing_for(arch));
        for (name, number) in arch.numbers() {
            for (at, value) in interesting.iter().enumerate() {
                for other in &interesting[..=at] {
                    for arguments in [
                        [*value, *other, 0, 0, *other, 0],
                        [*other, 1, *value, *other, *value, 0],
                        [2, *value, *other, 0, 0, 0],
                    ] {
                        let ours = interpret(&filter.0, arch.audit_arch(), *number, arguments);
                        let theirs = listing_verdict(&entries, name, arguments);
                        let same = ours == theirs || (ours != ALLOW && theirs == errno(libc::EPERM));
                        assert!(same, "{name} {arguments:x?}: {ours:#x}, listed {theirs:#x}");
                    }
                }
            }
        }
        for entry in &entries {
            let mut arguments: Vec<_> = entry.conditions.iter().map(|condition| condition.argument).collect();
            arguments.dedup();
            assert_eq!(
                arguments.len(),
                entry.conditions.len(),
                "two conditions on one argument would be alternatives: {entry:?}"
            );
        }
    }
}
