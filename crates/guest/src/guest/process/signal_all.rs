//! Sends signals to every process of the sandbox except the guest, regardless of its parent and group.

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::protocol::{Failure, FailureKind, GuestReply};

/// Kills all processes.
pub(in crate::guest) fn end_all() -> Result<GuestReply, Failure> {
    signal_all(Signal::KILL).map(|()| GuestReply::Ok)
}

/// All processes, stopped until this is dropped.
#[derive(Debug)]
pub(in crate::guest) struct StoppedProcesses(());

impl StoppedProcesses {
    pub(in crate::guest) fn stop_all() -> Result<Self, Failure> {
        signal_all(Signal::STOP).map(Self)
    }
}

impl Drop for StoppedProcesses {
    fn drop(&mut self) {
        // A process that could be stopped can also be continued.
        let _continued = signal_all(Signal::CONT);
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
        Err(errno) => Err(Failure::from_io(&errno.into(), "processes")),
    }
}
