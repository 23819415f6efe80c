//! Messages between the launcher, a zygote and the zygote's children: packets of fixed layout, with
//! descriptors attached. All sides run the same build on the same machine.

use crate::privileges::ResourceLimit;

/// Descriptor number of the socket to the launcher, in a zygote and later in its child.
pub const LAUNCHER_FD: i32 = 3;
/// Maximum number of resource limits in a [`ForkRequest`].
pub const MAX_LIMITS: usize = 12;
/// Maximum number of descriptors attached to one packet.
pub const MAX_FDS: usize = 16;
/// Index of the first namespace among the descriptors of a [`ForkRequest`]. They are, in this order: the namespaces
/// of the jail, the child's own socket, the Landlock ruleset if there is one, and the cgroup join fds.
pub const NAMESPACES: usize = 0;
/// Number of namespaces that a child enters: user, network, mount, ipc, uts, cgroup and pid, in this order.
/// The user namespace comes first because it grants the right to enter the others.
pub const NAMESPACES_LEN: usize = 7;
/// Index of the child's own socket.
pub const OWN_SOCKET: usize = NAMESPACES + NAMESPACES_LEN;
/// Index of the optional descriptors: the Landlock ruleset if [`ForkRequest::has_rules`], then the cgroup join fds.
pub const OPTIONAL_FDS: usize = OWN_SOCKET + 1;
/// Maximum number of instructions in the filter of a child or of a PID 1.
pub const MAX_INSTRUCTIONS: usize = 1_024;
/// Maximum number of paths that stay visible below directories that are fresh in every jail.
pub const MAX_VISIBLE_PATHS: usize = 8;
/// Maximum number of bytes of these paths.
pub const MAX_VISIBLE_PATH_BYTES: usize = 4_096;
/// Value of the second argument of `exit_group` that announces an exit. The kernel ignores the argument; the
/// filter reports it to the launcher before the process's memory is torn down.
pub const EXIT_MAGIC: u32 = 0x6265_6c6c;

/// Landlock access rights: which accesses are handled, and which of them are allowed.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct LandlockAccess {
    /// The file accesses that the ruleset handles.
    pub handled: u64,
    /// The scopes that it restricts.
    pub scoped: u64,
    /// The accesses allowed everywhere.
    pub read: u64,
    /// The accesses allowed in writable directories.
    pub write: u64,
    /// The accesses allowed in `/dev`.
    pub devices: u64,
}

/// Maximum number of page ranges that a zygote stores.
pub const MAX_PAGE_RANGES: usize = 1_360;

/// Message from launcher to zygote, sent from time to time: a range of pages that its children usually touch,
/// to be prefaulted in waiting children. One packet holds any number of ranges. Unlike a [`ForkRequest`], it has no
/// descriptors attached.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageRange {
    /// Address of the first page.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// 1 if the pages are written to, 0 if they are only read.
    pub write: u64,
}

/// Message from launcher to zygote: fork a child into an existing jail.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ForkRequest {
    /// User id that the child switches to.
    pub uid: u32,
    /// 1 if a run is already waiting for this child, which then skips its preparation.
    pub awaited: u32,
    /// 1 if a Landlock ruleset is attached.
    pub has_rules: u32,
    /// Number of valid entries in `limits`.
    pub limits_len: u32,
    /// The resource limits, of which the first `limits_len` are valid.
    pub limits: [ResourceLimit; MAX_LIMITS],
    /// For tests: the layers to leave out.
    pub layers_left_out: u32,
    /// For tests: the number of the step that fails.
    pub failing_step: u32,
}

/// Returns the page ranges in a packet.
pub fn read_page_ranges(packet: &[u8]) -> impl Iterator<Item = PageRange> {
    let (mut rest, next) = (packet, from_bytes::<PageRange>);
    core::iter::from_fn(move || {
        let (range, after) = next(rest)?;
        rest = after;
        Some(range)
    })
    .take(MAX_PAGE_RANGES)
}

/// Parses a fork request with `fds_len` attached descriptors; `None` if it is incomplete.
pub fn read_fork_request(packet: &[u8], fds_len: usize) -> Option<ForkRequest> {
    let (request, _) = from_bytes::<ForkRequest>(packet)?;
    let is_whole = request.has_rules <= 1
        && request.limits_len as usize <= MAX_LIMITS
        && fds_len >= OPTIONAL_FDS + request.has_rules as usize;
    is_whole.then_some(request)
}

/// Message from zygote to launcher: the result of a fork request. As many descriptors are attached as exist:
/// the intermediate process and the child. There are no process ids, because the launcher would have to trust
/// them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ForkReply {
    /// The step that failed; 0 if none did.
    pub step: u32,
    /// Its errno; 0 if no step failed.
    pub errno: i32,
}

/// Message from a child or a starting zygote to the launcher, followed by a file path or a module name.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct StatusMessage {
    /// Kind of the report; see [`kind`].
    pub kind: u32,
    /// The step that failed, if one did.
    pub step: u32,
    /// Its errno.
    pub errno: i32,
}

/// Values of [`StatusMessage::kind`].
pub mod kind {
    /// A child is confined and waits for its task. Its notification listener is attached.
    pub const READY: u32 = 1;
    /// A setup step failed.
    pub const FAILED: u32 = 2;
    /// The zygote imported a module and waits for permission to continue.
    pub const IMPORTED: u32 = 3;
    /// The zygote failed to import a module.
    pub const IMPORT_FAILED: u32 = 4;
    /// The zygote is ready to fork children.
    pub const ZYGOTE_READY: u32 = 5;
}

macro_rules! steps {
    ($($number:literal $name:ident),+ $(,)?) => {
        /// Setup steps of a zygote's child and of the jail's PID 1.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        #[expect(missing_docs, reason = "the names say it")]
        pub enum SetupStep { $($name = $number),+ }

        impl SetupStep {
            /// Returns the step with this number.
            pub fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

steps! {
    1 Namespaces, 2 JoinCgroup, 3 CgroupNamespace, 4 Rlimits, 5 Ids, 6 Capabilities, 7 NoNewPrivs, 8 Landlock,
    9 Seccomp, 10 Task, 11 Files, 12 Workdir, 13 Stdio, 14 Hostname, 15 Disk, 16 Proc, 17 Masks, 18 Terminals,
    19 Init, 20 Fork,
}

/// Bits of [`ForkRequest::layers_left_out`]: what a test leaves out.
pub mod without {
    /// Resource limits.
    pub const RLIMITS: u32 = 1;
    /// Dropping capabilities.
    pub const CAPABILITIES: u32 = 2;
    /// `no_new_privs`.
    pub const NO_NEW_PRIVS: u32 = 4;
    /// Landlock.
    pub const LANDLOCK: u32 = 8;
    /// The seccomp filter.
    pub const SECCOMP: u32 = 16;
    /// The cgroup namespace.
    pub const CGROUP_NAMESPACE: u32 = 32;
}

/// Returns a message as the bytes of a packet.
pub fn bytes_of<T: Copy>(message: &T) -> &[u8] {
    // SAFETY: every message consists of plain integers; padding bytes are only copied.
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(message).cast(), size_of::<T>()) }
}

/// Reads a message from the start of `bytes`, and returns it with the bytes that follow.
pub fn from_bytes<T: Copy>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (head, rest) = bytes.split_at_checked(size_of::<T>())?;
    // SAFETY: every message consists of plain integers, for which any bits are valid, and `head` has the
    // right length.
    Some((unsafe { head.as_ptr().cast::<T>().read_unaligned() }, rest))
}
