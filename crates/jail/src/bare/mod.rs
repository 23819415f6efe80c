//! Code that needs no library: raw system calls and nothing else.
//!
//! Some of what happens on the way into a jail happens in two kinds of processes: in those that the launcher forks from
//! itself, and in those that a warm interpreter forks. The latter has none of our code in it but a small shared
//! object, which `build.rs` compiles from the files of this folder without the standard library. What both do is
//! written once, here.
//!
//! | file | what it does |
//! |---|---|
//! | `call` | system calls |
//! | `rights` | gives up ids, capabilities, new privileges |
//! | `payload` | puts files into the workspace |
//! | `mounts` | what every jail mounts over its root tree |
//! | `message` | what the launcher, a zygote and its children say to each other |
//! | `seccomp` | installs a filter |
//! | `vfork` | a process in between, which shares this one's memory |
//! | `jail`, `pid1` | builds a warm jail: only in the launcher's builders |
//! | `hop` | from a zygote into a jail |
//! | `socket`, `born`, `zygote` | the inside of a warm interpreter: only in the shared objects |
//! | `python`, `node` | the shared objects themselves, and the scripts that load them |

#[allow(dead_code, reason = "the shared objects use the rest")]
pub(crate) mod call;
#[allow(dead_code, reason = "the filter compares its flag words; the shared objects use the rest")]
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

/// The kernel's answer, in the words of the rest of this crate.
pub(crate) fn errno(refused: call::Refused) -> Errno {
    crate::sys::told_errno(refused.0)
}
