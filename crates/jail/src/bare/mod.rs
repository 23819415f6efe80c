//! Code that uses no library, only raw system calls.
//!
//! Some jail setup runs in two kinds of processes: those forked by the launcher, and those forked by a warm
//! interpreter (a zygote). A zygote contains none of this crate's code except a small shared object, which
//! `build.rs` compiles from this folder without the standard library. The code that both need lives here.
//!
//! | file | purpose |
//! |---|---|
//! | `call` | raw system calls |
//! | `rights` | drops ids, capabilities and privileges |
//! | `payload` | unpacks files into the workspace |
//! | `mounts` | mounts that every jail has over its root tree |
//! | `message` | messages between the launcher, a zygote and its children |
//! | `seccomp` | installs a filter |
//! | `vfork` | runs an intermediate process that shares this process's memory |
//! | `jail`, `pid1` | builds a warm jail; used only by the launcher's jail builders |
//! | `hop` | clones a zygote's child into a jail |
//! | `socket`, `born`, `zygote` | the code inside a warm interpreter; used only in the shared objects |
//! | `python`, `node` | the shared objects themselves, and the scripts that load them |

#[allow(dead_code, reason = "the shared objects use the rest")]
pub(crate) mod call;
#[allow(dead_code, reason = "the seccomp filter uses its flag words; the shared objects use the rest")]
pub(crate) mod hop;
pub(crate) mod jail;
#[allow(dead_code, reason = "the shared objects use the rest")]
pub(crate) mod message;
pub(crate) mod mounts;
#[allow(dead_code, reason = "the shared objects use the rest")]
pub(crate) mod payload;
pub(crate) mod pid1;
pub(crate) mod rights;
pub(crate) mod seccomp;
#[cfg(test)]
#[allow(dead_code, reason = "the shared objects use the rest")]
pub(crate) mod socket;
pub(crate) mod vfork;

use rustix::io::Errno;

/// Converts a raw errno to the type that the rest of this crate uses.
pub(crate) fn errno(refused: call::RawErrno) -> Errno {
    crate::sys::errno_from_peer(refused.0)
}
