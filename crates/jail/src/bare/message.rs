//! What the launcher, a zygote and the zygote's children say to each other: packets of fixed layout, descriptors beside
//! them. All of them run the same build on the same machine.

use super::rights::ResourceLimit;

/// The descriptor at which a zygote, and later its child, has its line to the launcher.
pub(crate) const LINE: i32 = 3;
/// Most resource limits in a [`Birth`].
pub(crate) const MAX_LIMITS: usize = 12;
/// Most descriptors beside one packet.
pub(crate) const MAX_FDS: usize = 16;
/// The descriptors of a [`Birth`], in this order: the namespaces of the jail, the child's own line, the rules of the second
/// guard on files where there are any, and the doors of its control groups.
pub(crate) const NAMESPACES: usize = 0;
/// How many namespaces a child enters: user, network, mount, ipc, uts, cgroup and pid, in this order. The user namespace
/// comes first, because it gives the right to enter the others.
pub(crate) const NAMESPACES_LEN: usize = 7;
pub(crate) const OWN_LINE: usize = NAMESPACES + NAMESPACES_LEN;
/// Where the rest begins: the landlock rules if [`Birth::has_rules`], then doors.
pub(crate) const REST: usize = OWN_LINE + 1;
/// Most instructions in the filter of a child, and in that of a PID 1.
pub(crate) const MAX_INSTRUCTIONS: usize = 1_024;
/// Most paths that stay visible below folders that are new in every jail, and most bytes of them.
pub(crate) const MAX_KEPT: usize = 8;
pub(crate) const MAX_KEPT_BYTES: usize = 4_096;
/// What a program says in the second argument of `exit_group`, which the kernel ignores, to be heard before its memory is
/// torn down.
pub(crate) const LEAVING: u32 = 0x6265_6c6c;

/// What landlock is to watch over, and what it lets pass.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Guard {
    pub(crate) handled: u64,
    pub(crate) scoped: u64,
    pub(crate) read: u64,
    pub(crate) write: u64,
    pub(crate) devices: u64,
}

/// Most habits that a zygote is told of.
pub(crate) const MAX_HABITS: usize = 1_360;

/// Launcher to zygote, now and then: memory that its children come to use, to be got ready in those that wait. Any number
/// of them makes a packet, which is told from a [`Birth`] by that no descriptor comes along.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Habit {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Whether it is written to, or only looked at.
    pub(crate) write: u64,
}

/// Launcher to zygote: fork a child into a jail that stands already.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Birth {
    /// The user that the child becomes.
    pub(crate) uid: u32,
    /// Whether a request waits for it: then it does not prepare for one.
    pub(crate) awaited: u32,
    /// Whether landlock rules come along.
    pub(crate) has_rules: u32,
    /// How many of the limits count.
    pub(crate) limits_len: u32,
    pub(crate) limits: [ResourceLimit; MAX_LIMITS],
    /// For tests: layers to leave out, and a step to fail.
    pub(crate) without: u32,
    pub(crate) fail: u32,
}

/// The habits in a packet.
pub(crate) fn read_habits(packet: &[u8]) -> impl Iterator<Item = Habit> {
    let (mut rest, next) = (packet, from_bytes::<Habit>);
    core::iter::from_fn(move || {
        let (habit, after) = next(rest)?;
        rest = after;
        Some(habit)
    })
    .take(MAX_HABITS)
}

/// The birth in a packet beside which so many descriptors came, where it is whole.
pub(crate) fn read_birth(packet: &[u8], fds_len: usize) -> Option<Birth> {
    let (birth, _) = from_bytes::<Birth>(packet)?;
    let is_whole = birth.has_rules <= 1
        && birth.limits_len as usize <= MAX_LIMITS
        && fds_len >= REST + birth.has_rules as usize;
    is_whole.then_some(birth)
}

/// Zygote to launcher: it has forked a child, or not. Descriptors come along of the process in between and of the child, as
/// many of them as there are. No process ids: the launcher would have to believe them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Delivered {
    /// 0, or the step that failed and why.
    pub(crate) step: u32,
    pub(crate) errno: i32,
}

/// A child, or a zygote that starts, to the launcher. The path of a file, or the name of a module, follows.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word {
    pub(crate) kind: u32,
    pub(crate) step: u32,
    pub(crate) errno: i32,
}

/// Kinds of a [`Word`].
pub(crate) mod kind {
    /// A child is confined, and waits for what to run: the listener of its filter comes along.
    pub(crate) const READY: u32 = 1;
    /// A step failed.
    pub(crate) const FAILED: u32 = 2;
    /// The zygote imported a module, and waits for a yes.
    pub(crate) const IMPORTED: u32 = 3;
    /// The zygote could not import a module.
    pub(crate) const REFUSED: u32 = 4;
    /// The zygote is ready to have children.
    pub(crate) const FERTILE: u32 = 5;
}

macro_rules! steps {
    ($($number:literal $name:ident),+ $(,)?) => {
        /// The steps of a child and of its PID 1.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub(crate) enum BirthStep { $($name = $number),+ }

        impl BirthStep {
            /// The step of that number.
            pub(crate) fn of(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

steps! {
    1 Namespaces, 2 JoinCgroup, 3 CgroupNamespace, 4 Rlimits, 5 Ids, 6 Capabilities, 7 NoNewPrivs, 8 Landlock,
    9 Seccomp, 10 Order, 11 Files, 12 Workdir, 13 Stdio, 14 Hostname, 15 Disk, 16 Proc, 17 Masks, 18 Terminals,
    19 Init, 20 Fork,
}

/// Bits of [`Birth::without`].
pub(crate) mod without {
    pub(crate) const RLIMITS: u32 = 1;
    pub(crate) const CAPABILITIES: u32 = 2;
    pub(crate) const NO_NEW_PRIVS: u32 = 4;
    pub(crate) const LANDLOCK: u32 = 8;
    pub(crate) const SECCOMP: u32 = 16;
    pub(crate) const CGROUP_NAMESPACE: u32 = 32;
}

/// The bytes of a packet.
pub(crate) fn bytes_of<T: Copy>(message: &T) -> &[u8] {
    // SAFETY: all messages here are plain numbers; a hole between them is only ever copied.
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(message).cast(), size_of::<T>()) }
}

/// A packet from bytes, and what follows it.
pub(crate) fn from_bytes<T: Copy>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (head, rest) = bytes.split_at_checked(size_of::<T>())?;
    // SAFETY: every message is made of plain numbers, for which any bits will do, and there are enough of them.
    Some((unsafe { head.as_ptr().cast::<T>().read_unaligned() }, rest))
}
