//! Messages between the launcher, a zygote and the zygote's children: packets of fixed layout, with
//! descriptors attached. All sides run the same build on the same machine.

use super::rights::ResourceLimit;

/// Descriptor number of the socket to the launcher, in a zygote and later in its child.
pub(crate) const LAUNCHER_FD: i32 = 3;
/// Maximum number of resource limits in a [`ForkRequest`].
pub(crate) const MAX_LIMITS: usize = 12;
/// Maximum number of descriptors attached to one packet.
pub(crate) const MAX_FDS: usize = 16;
/// Index of the first namespace among the descriptors of a [`ForkRequest`]. They are, in this order: the
/// namespaces of the jail, the child's own socket, the Landlock ruleset if there is one, and the cgroup join
/// fds.
pub(crate) const NAMESPACES: usize = 0;
/// Number of namespaces that a child enters: user, network, mount, ipc, uts, cgroup and pid, in this order.
/// The user namespace comes first because it grants the right to enter the others.
pub(crate) const NAMESPACES_LEN: usize = 7;
pub(crate) const OWN_SOCKET: usize = NAMESPACES + NAMESPACES_LEN;
/// Index of the optional descriptors: the Landlock ruleset if [`ForkRequest::has_rules`], then the cgroup
/// join fds.
pub(crate) const OPTIONAL_FDS: usize = OWN_SOCKET + 1;
/// Maximum number of instructions in the filter of a child or of a PID 1.
pub(crate) const MAX_INSTRUCTIONS: usize = 1_024;
/// Maximum number of paths that stay visible below directories that are fresh in every jail, and of their
/// bytes.
pub(crate) const MAX_VISIBLE_PATHS: usize = 8;
pub(crate) const MAX_VISIBLE_PATH_BYTES: usize = 4_096;
/// Value of the second argument of `exit_group` that announces an exit. The kernel ignores the argument; the
/// filter reports it to the launcher before the process's memory is torn down.
pub(crate) const EXIT_MAGIC: u32 = 0x6265_6c6c;

/// Landlock access rights: which accesses are handled, and which of them are allowed.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LandlockAccess {
    pub(crate) handled: u64,
    pub(crate) scoped: u64,
    pub(crate) read: u64,
    pub(crate) write: u64,
    pub(crate) devices: u64,
}

/// Maximum number of page ranges that a zygote stores.
pub(crate) const MAX_PAGE_RANGES: usize = 1_360;

/// Message from launcher to zygote, sent from time to time: a range of pages that its children usually touch,
/// to be prefaulted in waiting children. One packet holds any number of ranges. Unlike a [`ForkRequest`], it
/// has no descriptors attached.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PageRange {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// 1 if the pages are written to, 0 if they are only read.
    pub(crate) write: u64,
}

/// Message from launcher to zygote: fork a child into an existing jail.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForkRequest {
    /// User id that the child switches to.
    pub(crate) uid: u32,
    /// 1 if a run is already waiting for this child, which then skips its preparation.
    pub(crate) awaited: u32,
    /// 1 if a Landlock ruleset is attached.
    pub(crate) has_rules: u32,
    /// Number of valid entries in `limits`.
    pub(crate) limits_len: u32,
    pub(crate) limits: [ResourceLimit; MAX_LIMITS],
    /// For tests: layers to leave out, and the step that fails.
    pub(crate) layers_left_out: u32,
    pub(crate) failing_step: u32,
}

/// Returns the page ranges in a packet.
pub(crate) fn read_page_ranges(packet: &[u8]) -> impl Iterator<Item = PageRange> {
    let (mut rest, next) = (packet, from_bytes::<PageRange>);
    core::iter::from_fn(move || {
        let (habit, after) = next(rest)?;
        rest = after;
        Some(habit)
    })
    .take(MAX_PAGE_RANGES)
}

/// Parses a fork request with `fds_len` attached descriptors; `None` if it is incomplete.
pub(crate) fn read_fork_request(packet: &[u8], fds_len: usize) -> Option<ForkRequest> {
    let (birth, _) = from_bytes::<ForkRequest>(packet)?;
    let is_whole = birth.has_rules <= 1
        && birth.limits_len as usize <= MAX_LIMITS
        && fds_len >= OPTIONAL_FDS + birth.has_rules as usize;
    is_whole.then_some(birth)
}

/// Message from zygote to launcher: the result of a fork request. As many descriptors are attached as exist:
/// the intermediate process and the child. There are no process ids, because the launcher would have to trust
/// them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ForkReply {
    /// 0, or the step that failed, with its errno.
    pub(crate) step: u32,
    pub(crate) errno: i32,
}

/// Message from a child or a starting zygote to the launcher, followed by a file path or a module name.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct StatusMessage {
    pub(crate) kind: u32,
    pub(crate) step: u32,
    pub(crate) errno: i32,
}

/// Values of [`StatusMessage::kind`].
pub(crate) mod kind {
    /// A child is confined and waits for its task. Its notification listener is attached.
    pub(crate) const READY: u32 = 1;
    /// A setup step failed.
    pub(crate) const FAILED: u32 = 2;
    /// The zygote imported a module and waits for permission to continue.
    pub(crate) const IMPORTED: u32 = 3;
    /// The zygote failed to import a module.
    pub(crate) const IMPORT_FAILED: u32 = 4;
    /// The zygote is ready to fork children.
    pub(crate) const ZYGOTE_READY: u32 = 5;
}

macro_rules! steps {
    ($($number:literal $name:ident),+ $(,)?) => {
        /// Setup steps of a zygote's child and of the jail's PID 1.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub(crate) enum SetupStep { $($name = $number),+ }

        impl SetupStep {
            /// Returns the step with this number.
            pub(crate) fn from_number(number: u32) -> Option<Self> {
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

/// Bits of [`ForkRequest::layers_left_out`].
pub(crate) mod without {
    pub(crate) const RLIMITS: u32 = 1;
    pub(crate) const CAPABILITIES: u32 = 2;
    pub(crate) const NO_NEW_PRIVS: u32 = 4;
    pub(crate) const LANDLOCK: u32 = 8;
    pub(crate) const SECCOMP: u32 = 16;
    pub(crate) const CGROUP_NAMESPACE: u32 = 32;
}

/// Returns a message as the bytes of a packet.
pub(crate) fn bytes_of<T: Copy>(message: &T) -> &[u8] {
    // SAFETY: every message consists of plain integers; padding bytes are only copied.
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(message).cast(), size_of::<T>()) }
}

/// Reads a message from the start of `bytes`, and returns it with the bytes that follow.
pub(crate) fn from_bytes<T: Copy>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (head, rest) = bytes.split_at_checked(size_of::<T>())?;
    // SAFETY: every message consists of plain integers, for which any bits are valid, and `head` has the
    // right length.
    Some((unsafe { head.as_ptr().cast::<T>().read_unaligned() }, rest))
}
