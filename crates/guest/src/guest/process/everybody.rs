//! Sends signals to every process of the sandbox except the guest, regardless of its parent and group.

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::protocol::{Failure, FailureKind, Reply};

/// Kills all processes.
pub(in crate::guest) fn end_all() -> Result<Reply, Failure> {
    signal_all(Signal::KILL).map(|()| Reply::Ok)
}

/// All processes, stopped until this is dropped.
#[derive(Debug)]
pub(in crate::guest) struct Stilled(());

impl Stilled {
    pub(in crate::guest) fn all() -> Result<Self, Failure> {
        signal_all(Signal::STOP).map(Self)
    }
}

impl Drop for Stilled {
    fn drop(&mut self) {
        // A process that could be stopped can also be continued.
        let _going = signal_all(Signal::CONT);
    }
}

/// For PID 1, `kill(-1)` signals all other processes of its namespace. For any other process, it would signal
/// the whole machine.
fn signal_all(signal: Signal) -> Result<(), Failure> {
    if rustix::process::getpid() != Pid::INIT {
        return Err(Failure::new(
            FailureKind::Invalid,
            "processes",
            "the guest is not PID 1 of its namespace",
        ));
    }
    // A group is passed as a negative number, so group 1 becomes `kill(-1)`.
    match rustix::process::kill_process_group(Pid::INIT, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(Failure::of_io(&errno.into(), "processes")),
    }
}
