//! Setup steps and their errors: the step, its object, and the errno. A failed step is reported over a
//! close-on-exec pipe, so a report means that nothing of the tenant's ran.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use thiserror::Error;

macro_rules! steps {
    ($($variant:ident $name:literal),+ $(,)?) => {
        /// A setup step, in execution order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[allow(missing_docs, reason = "the name beside each one is its documentation")]
        pub enum Step { $($variant),+ }

        impl Step {
            /// All steps.
            pub const ALL: &[Step] = &[$(Step::$variant),+];

            /// Returns the step's name in error messages.
            pub fn name(self) -> &'static str {
                match self { $(Step::$variant => $name),+ }
            }
        }
    };
}

steps! {
    LauncherNamespaces "enter the launcher's own namespaces",
    LauncherRoot "set up the launcher's own root",
    Root "build the root",
    Guest "seal the guest",
    HostFolder "open host folder",
    Owners "map the owners of host folder",
    UserId "allocate a user id",
    Cgroup "set up the control group",
    Network "make a network namespace",
    NetworkDevice "make a TUN device",
    Namespaces "create namespaces",
    IdMap "map user ids",
    JoinCgroup "join the control group",
    CgroupNamespace "create a cgroup namespace",
    Hostname "set the host name",
    Disk "mount the disk",
    Inbox "write the arguments",
    Proc "mount /proc",
    Masks "mask",
    Terminals "mount /dev/pts",
    Binds "mount",
    Pivot "change the root",
    Fork "start the program's process",
    Task "receive what to run",
    Stdio "connect standard input and output",
    Rlimits "set resource limits",
    Ids "become the sandbox user",
    Files "write file",
    Capabilities "drop capabilities",
    NoNewPrivs "set no_new_privs",
    Landlock "apply landlock",
    Seccomp "apply seccomp",
    Workdir "enter folder",
    Exec "execute",
    Init "run PID 1",
}

/// A failed setup step. None of the tenant's code ran.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{}: {}", self.subject(), self.cause())]
pub struct StepFailed {
    /// The step.
    pub step: Step,
    /// The object of the step, if that adds information.
    pub detail: String,
    /// The errno.
    pub errno: i32,
}

impl StepFailed {
    /// Creates the failure of `step` on `detail`.
    pub fn new(step: Step, detail: impl Into<String>, errno: Errno) -> Self {
        Self { step, detail: detail.into(), errno: errno.raw_os_error() }
    }

    /// Returns the step and its object: `mount /data`.
    pub fn subject(&self) -> String {
        if self.detail.is_empty() {
            return self.step.name().to_owned();
        }
        format!("{} {}", self.step.name(), self.detail)
    }

    /// Returns the errno as text: `ENOSPC (No space left on device)`.
    pub fn cause(&self) -> String {
        let text = std::io::Error::from_raw_os_error(self.errno).to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        match errno_name(self.errno) {
            Some(name) => format!("{name} ({text})"),
            None => text.to_owned(),
        }
    }
}

/// Returns the name of an errno that setup calls can return.
fn errno_name(errno: i32) -> Option<&'static str> {
    Some(match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EIO => "EIO",
        libc::E2BIG => "E2BIG",
        libc::ENOEXEC => "ENOEXEC",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EXDEV => "EXDEV",
        libc::ENODEV => "ENODEV",
        libc::ENOTDIR => "ENOTDIR",
        libc::EISDIR => "EISDIR",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::ENFILE => "ENFILE",
        libc::EFBIG => "EFBIG",
        libc::ENOSPC => "ENOSPC",
        libc::EROFS => "EROFS",
        libc::ENAMETOOLONG => "ENAMETOOLONG",
        libc::ENOSYS => "ENOSYS",
        libc::ELOOP => "ELOOP",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EPIPE => "EPIPE",
        libc::EUSERS => "EUSERS",
        _ => return None,
    })
}

/// Performs a step, and names it in the error if it fails.
pub(crate) fn step<T>(
    step: Step,
    detail: &str,
    perform: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, StepFailed> {
    crate::fault::inject(step).and_then(|()| perform()).map_err(|errno| StepFailed::new(step, detail, errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_step_object_and_cause() {
        let failed = StepFailed::new(Step::Binds, "/data", Errno::NOSPC);
        assert_eq!(failed.to_string(), "mount /data: ENOSPC (No space left on device)");
        let failed = StepFailed::new(Step::Disk, "", Errno::NOMEM);
        assert_eq!(failed.to_string(), "mount the disk: ENOMEM (Cannot allocate memory)");
    }
}
