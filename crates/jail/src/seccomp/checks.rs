//! Argument checks: decision trees over the registers of a call.
//!
//! A filter sees registers, never memory, and the kernel reads all of these arguments as 32-bit values: it
//! ignores the upper half of a register, so the checks ignore it too. Comparing all 64 bits would let
//! `0x1_0000_5412` pass as something other than TIOCSTI.

use belljar_zygote::clone_into_jail::{CHILD_FLAGS, INTERMEDIATE_FLAGS};
use belljar_zygote::message::EXIT_MAGIC;

use super::options;

/// A check of a call's arguments. Arguments are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// `clone` that creates no namespace and no child of another process.
    Clone,
    /// `socket` of a harmless family.
    Socket,
    /// `socket` of a harmless family, where the audit family of netlink is one that this kernel does not have.
    RootSocket,
    /// `socketpair` of UNIX sockets.
    SocketPair,
    /// `setsockopt` of a listed option.
    SetOption,
    /// `getsockopt` of a listed option.
    GetOption,
    /// `ioctl` with a listed request.
    Ioctl,
    /// `prctl` with a listed option.
    Prctl,
    /// `personality` that keeps the address-space protections.
    Personality,
    /// `sched_setscheduler` to a time-sharing class.
    Scheduler,
    /// A mode without set-uid and set-gid.
    Mode {
        /// Index of the mode argument.
        argument: u8,
    },
    /// A mode without set-uid and set-gid, in a call that reads its mode only when it creates a file.
    Open {
        /// Index of the flags argument.
        flags: u8,
        /// Index of the mode argument.
        mode: u8,
    },
    /// `renameat2` that creates no whiteout, which is a device.
    Rename,
    /// `clone` permitted to a program, or with one of the two flag words with which a zygote forks a child
    /// into a jail.
    ZygoteClone,
    /// `prctl` permitted to a program, or one that drops from the bounding set.
    ZygotePrctl,
    /// `seccomp` that adds a filter.
    ZygoteSeccomp,
    /// `setns` into one of the kinds of namespaces that jails have.
    ZygoteSetns,
    /// `exit_group` by which a program announces its exit.
    AnnouncedExit,
    /// A mode without set-uid and set-gid, and a node that is not a device.
    Node {
        /// Index of the mode argument.
        mode: u8,
    },
}

/// A node of a decision tree.
#[derive(Clone, Debug)]
pub(super) enum DecisionTree {
    /// The call is performed.
    Allow,
    /// The call fails with this errno.
    Deny(i32),
    /// The notification listener is notified of the call, which blocks until it is answered.
    Notify,
    /// Load the low 32 bits of an argument, masked.
    Load(u8, u32, Box<DecisionTree>),
    /// Is one of these bits set in the loaded value?
    AnyBit(u32, Box<DecisionTree>, Box<DecisionTree>),
    /// Is the loaded value one of these?
    OneOf(&'static [u32], Box<DecisionTree>, Box<DecisionTree>),
}

impl DecisionTree {
    /// Returns whether one of its outcomes is EPERM.
    pub(super) fn notifies(&self) -> bool {
        match self {
            DecisionTree::Allow | DecisionTree::Notify => false,
            DecisionTree::Deny(errno) => *errno == libc::EPERM,
            DecisionTree::Load(_, _, then) => then.notifies(),
            DecisionTree::AnyBit(_, then, otherwise) | DecisionTree::OneOf(_, then, otherwise) => {
                then.notifies() || otherwise.notifies()
            }
        }
    }
}

const ALL: u32 = u32::MAX;
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
/// O_CREAT, and the bit of O_TMPFILE without O_DIRECTORY, whose number differs between architectures.
const CREATE_FLAGS: u32 = 0o100 | 0o20_000_000;

/// All namespace flags of `clone`; CLONE_NEWTIME is not one, because there it is part of the exit signal.
/// CLONE_PARENT would give the launcher, outside the sandbox, a child that it never created.
const FORBIDDEN_CLONE_FLAGS: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_PARENT) as u32;

/// The flag words of a zygote's two clones, ascending.
const FORK_FLAGS: &[u32] = &[INTERMEDIATE_FLAGS as u32, CHILD_FLAGS as u32];
/// The kinds of namespaces that a zygote's child enters, ascending.
const JAIL_NAMESPACES: &[u32] = &[
    libc::CLONE_NEWNS as u32,
    libc::CLONE_NEWCGROUP as u32,
    libc::CLONE_NEWUTS as u32,
    libc::CLONE_NEWIPC as u32,
    libc::CLONE_NEWUSER as u32,
    libc::CLONE_NEWPID as u32,
    libc::CLONE_NEWNET as u32,
];
const PR_CAPBSET_DROP: u32 = 24;
const SET_MODE_FILTER: u32 = 1;

const AF_UNIX: u32 = libc::AF_UNIX as u32;
const AF_NETLINK: u32 = libc::AF_NETLINK as u32;
const INTERNET: &[u32] = &[libc::AF_INET as u32, libc::AF_INET6 as u32];
/// The socket type is in the low bits; above it are SOCK_CLOEXEC and SOCK_NONBLOCK.
const SOCKET_TYPE: u32 = 0xf;
const STREAM_OR_DATAGRAM: &[u32] = &[libc::SOCK_STREAM as u32, libc::SOCK_DGRAM as u32];
/// The default, TCP, UDP, UDP-Lite (CPython's own tests need it). Others, such as SCTP and L2TP, would load
/// kernel modules on demand, and MPTCP is complex code that its users do without if it is missing.
const TRANSPORTS: &[u32] =
    &[0, libc::IPPROTO_TCP as u32, libc::IPPROTO_UDP as u32, libc::IPPROTO_UDPLITE as u32];

/// PER_LINUX, PER_LINUX32, both with UNAME26, and the query. None disables randomization or adds execution.
const PERSONALITIES: &[u32] = &[0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

const SCHED_RESET_ON_FORK: u32 = 0x4000_0000;
const SHARING_CLASSES: &[u32] =
    &[libc::SCHED_OTHER as u32, libc::SCHED_BATCH as u32, libc::SCHED_IDLE as u32];

/// Regular, pipe, socket; no file type means regular. Device nodes with number 0:0 need no capability.
const PLAIN_NODES: &[u32] = &[0, libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK];

const SIOCETHTOOL: u32 = 0x8946;

/// Requests that a tenant may make of a descriptor, ascending; the numbers are the same on both
/// architectures.
#[rustfmt::skip]
const IOCTL_REQUESTS: &[u32] = &[
    // Terminals: TCGETS TCSETS TCSETSW TCSETSF, and the same for termio
    0x5401, 0x5402, 0x5403, 0x5404, 0x5405, 0x5406, 0x5407, 0x5408,
    // TCSBRK TCXONC TCFLSH TIOCEXCL TIOCNXCL TIOCSCTTY TIOCGPGRP TIOCSPGRP TIOCOUTQ (not 0x5412: TIOCSTI)
    0x5409, 0x540a, 0x540b, 0x540c, 0x540d, 0x540e, 0x540f, 0x5410, 0x5411,
    // TIOCGWINSZ TIOCSWINSZ; FIONREAD (not 0x541c, 0x541d: TIOCLINUX, TIOCCONS)
    0x5413, 0x5414, 0x541b,
    // TIOCPKT FIONBIO TIOCNOTTY (not 0x5423: TIOCSETD) TIOCGETD TCSBRKP; TIOCGSID; TIOCGPTPEER
    0x5420, 0x5421, 0x5422, 0x5424, 0x5425, 0x5429, 0x5441,
    // FIONCLEX FIOCLEX FIOASYNC; FIOQSIZE
    0x5450, 0x5451, 0x5452, 0x5460,
    // Sockets: SIOCATMARK SIOCGSTAMP
    0x8905, 0x8906,
    // Interfaces, reading only: SIOCGIFNAME CONF FLAGS ADDR BRDADDR NETMASK MTU HWADDR INDEX TXQLEN
    0x8910, 0x8912, 0x8913, 0x8915, 0x8919, 0x891b, 0x8921, 0x8927, 0x8933, 0x8942,
    // FICLONE FICLONERANGE
    0x4004_9409, 0x4020_940d,
    // TIOCSPTLCK; TCSETS2 TCSETSW2 TCSETSF2
    0x4004_5431, 0x402c_542b, 0x402c_542c, 0x402c_542d,
    // RNDGETENTCNT; TIOCGPTN TIOCGPTLCK TIOCGEXCL; TCGETS2
    0x8004_5200, 0x8004_5430, 0x8004_5439, 0x8004_5440, 0x802c_542a,
    // FS_IOC_GETFLAGS FS_IOC_FIEMAP
    0x8008_6601, 0xc020_660b,
];

/// Options of `prctl` that affect only the caller and cannot weaken its confinement.
#[rustfmt::skip]
const PRCTL_OPTIONS: &[u32] = &[
    // PDEATHSIG set, get; DUMPABLE get, set; KEEPCAPS get, set; GET_TIMING; NAME set, get
    1, 2, 3, 4, 7, 8, 13, 15, 16,
    // GET_SECCOMP; CAPBSET_READ; GET_SECUREBITS; TIMERSLACK set, get
    21, 23, 27, 29, 30,
    // CHILD_SUBREAPER set, get; NO_NEW_PRIVS set, get; GET_TID_ADDRESS; THP_DISABLE set, get; CAP_AMBIENT
    36, 37, 38, 39, 40, 41, 42, 47,
    // Arm: SVE_SET_VL SVE_GET_VL (the JVM sizes its vectors by them) PAC_RESET_KEYS TAGGED_ADDR_CTRL set, get
    50, 51, 54, 55, 56,
    // SET_VMA names mappings; SET_PTRACER is moot, since ptrace is refused, but crash handlers call it
    0x5356_4d41, 0x5961_6d61,
];

impl Check {
    /// Returns the decision tree of this check.
    pub(super) fn tree(self) -> DecisionTree {
        let eperm = || DecisionTree::Deny(libc::EPERM);
        match self {
            Check::Clone => load(0, ALL, any_bit(FORBIDDEN_CLONE_FLAGS, eperm(), DecisionTree::Allow)),
            Check::Socket => socket(eperm()),
            Check::RootSocket => {
                let unsupported = DecisionTree::Deny(libc::EPROTONOSUPPORT);
                socket(one_of(&[libc::NETLINK_AUDIT as u32], unsupported, eperm()))
            }
            Check::SocketPair => {
                load(0, ALL, one_of(&[AF_UNIX], DecisionTree::Allow, DecisionTree::Deny(libc::EAFNOSUPPORT)))
            }
            Check::SetOption => options::setsockopt_tree(),
            Check::GetOption => options::getsockopt_tree(),
            // psutil accepts "not supported" as an answer about link speed, but not EPERM.
            Check::Ioctl => {
                let link_speed = one_of(&[SIOCETHTOOL], DecisionTree::Deny(libc::EOPNOTSUPP), eperm());
                load(1, ALL, one_of(IOCTL_REQUESTS, DecisionTree::Allow, link_speed))
            }
            // The answer of a kernel without that option.
            Check::Prctl => {
                load(0, ALL, one_of(PRCTL_OPTIONS, DecisionTree::Allow, DecisionTree::Deny(libc::EINVAL)))
            }
            Check::Personality => load(0, ALL, one_of(PERSONALITIES, DecisionTree::Allow, eperm())),
            Check::Scheduler => {
                load(1, !SCHED_RESET_ON_FORK, one_of(SHARING_CLASSES, DecisionTree::Allow, eperm()))
            }
            Check::Mode { argument } => load(argument, ALL, any_bit(SET_ID, eperm(), DecisionTree::Allow)),
            // Without O_CREAT the mode register is undefined.
            Check::Open { flags, mode } => {
                let creates = load(mode, ALL, any_bit(SET_ID, eperm(), DecisionTree::Allow));
                load(flags, ALL, any_bit(CREATE_FLAGS, creates, DecisionTree::Allow))
            }
            // The answer of a file system without whiteouts.
            Check::Rename => load(
                4,
                ALL,
                any_bit(libc::RENAME_WHITEOUT, DecisionTree::Deny(libc::EINVAL), DecisionTree::Allow),
            ),
            Check::ZygoteClone => {
                let programs = any_bit(FORBIDDEN_CLONE_FLAGS, eperm(), DecisionTree::Allow);
                load(0, ALL, one_of(FORK_FLAGS, DecisionTree::Allow, programs))
            }
            Check::ZygotePrctl => {
                let programs = one_of(PRCTL_OPTIONS, DecisionTree::Allow, DecisionTree::Deny(libc::EINVAL));
                load(0, ALL, one_of(&[PR_CAPBSET_DROP], DecisionTree::Allow, programs))
            }
            Check::ZygoteSeccomp => load(0, ALL, one_of(&[SET_MODE_FILTER], DecisionTree::Allow, eperm())),
            Check::ZygoteSetns => load(1, ALL, one_of(JAIL_NAMESPACES, DecisionTree::Allow, eperm())),
            Check::AnnouncedExit => {
                load(1, ALL, one_of(&[EXIT_MAGIC], DecisionTree::Notify, DecisionTree::Allow))
            }
            Check::Node { mode } => {
                // The set-id bits are part of the mask, so a value with one of them is in no list.
                load(mode, libc::S_IFMT | SET_ID, one_of(PLAIN_NODES, DecisionTree::Allow, eperm()))
            }
        }
    }
}

/// UNIX sockets, TCP and UDP, and the routing family of netlink, which libcs use to list interfaces.
/// `other_netlink` decides about its other families, whose number is loaded.
fn socket(other_netlink: DecisionTree) -> DecisionTree {
    let eperm = || DecisionTree::Deny(libc::EPERM);
    let routing = load(2, ALL, one_of(&[0], DecisionTree::Allow, other_netlink));
    let transport = load(2, ALL, one_of(TRANSPORTS, DecisionTree::Allow, eperm()));
    let internet = load(1, SOCKET_TYPE, one_of(STREAM_OR_DATAGRAM, transport, eperm()));
    let other = one_of(&[AF_NETLINK], routing, DecisionTree::Deny(libc::EAFNOSUPPORT));
    load(0, ALL, one_of(&[AF_UNIX], DecisionTree::Allow, one_of(INTERNET, internet, other)))
}

pub(super) fn load(argument: u8, mask: u32, then: DecisionTree) -> DecisionTree {
    DecisionTree::Load(argument, mask, Box::new(then))
}

fn any_bit(bits: u32, then: DecisionTree, otherwise: DecisionTree) -> DecisionTree {
    DecisionTree::AnyBit(bits, Box::new(then), Box::new(otherwise))
}

pub(super) fn one_of(values: &'static [u32], then: DecisionTree, otherwise: DecisionTree) -> DecisionTree {
    DecisionTree::OneOf(values, Box::new(then), Box::new(otherwise))
}
