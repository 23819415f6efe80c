//! What the launcher, a zygote and the zygote's children say to each other: packets of fixed layout, descriptors beside
//! them. All of them run the same build on the same machine.

use super::rights::ResourceLimit;

/// The descriptor at which a zygote, and later its child, has its line to the launcher.
pub(crate) const LINE: i32 = 3;
/// Most resource limits in a [`Birth`].
pub(crate) const MAX_LIMITS: usize = 12;
/// Most descriptors beside one packet.
pub(crate) const MAX_FDS: usize = 16;
/// The namespaces that a child enters come first among the descriptors of a [`Birth`], in this order; then the
/// line to PID 1, the child's own line, and the doors of its control groups.
pub(crate) const NAMESPACES: [&str; 6] = ["user", "pid", "mnt", "net", "ipc", "uts"];
pub(crate) const PLACE: usize = 6;
pub(crate) const OWN_LINE: usize = 7;
pub(crate) const DOORS: usize = 8;
/// What a program says in the second argument of `exit_group`, which the kernel ignores, to be heard before its memory is
/// torn down.
pub(crate) const LEAVING: u32 = 0x6265_6c6c;

/// Launcher to zygote: have a child.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Birth {
    /// Whom it is to become.
    pub(crate) uid: u32,
    /// Whether a request waits for it: then it does not prepare for one.
    pub(crate) awaited: u32,
    /// How many of the limits count.
    pub(crate) limits_len: u32,
    pub(crate) limits: [ResourceLimit; MAX_LIMITS],
    /// For tests: layers to leave out, and a step to fail.
    pub(crate) without: u32,
    pub(crate) fail: u32,
    /// So that there is no hole between this and the next in line.
    pub(crate) unused: u32,
}

/// Zygote to launcher: it had one, whose descriptor comes along, or not.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivered {
    /// The process that was in between, to be reaped; 0 where there was none.
    pub(crate) hop: i32,
    /// The child, by the launcher's numbers.
    pub(crate) child: i32,
    /// 0, or why there is no child.
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
    /// Confined, and waiting for what to run. The listener of its filter comes along.
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
        /// The steps of a child.
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
    9 Seccomp, 10 Order, 11 Files, 12 Workdir, 13 Stdio,
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
