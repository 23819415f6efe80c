//! Signals to every process of the sandbox but the guest, whoever started it and whatever group it is in.

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::protocol::{Failure, FailureKind, Reply};

/// Ends all of them.
pub(in crate::guest) fn end_all() -> Result<Reply, Failure> {
    signal_all(Signal::KILL).map(|()| Reply::Ok)
}

/// As long as this lives, nobody runs who ran when it began.
#[derive(Debug)]
pub(in crate::guest) struct Stilled(());

impl Stilled {
    pub(in crate::guest) fn all() -> Result<Self, Failure> {
        signal_all(Signal::STOP).map(Self)
    }
}

impl Drop for Stilled {
    fn drop(&mut self) {
        // Whoever could be stopped can be told to go on.
        let _going = signal_all(Signal::CONT);
    }
}

/// For PID 1, `kill(-1)` is everybody else in its namespace. For anybody else it would be the whole machine.
fn signal_all(signal: Signal) -> Result<(), Failure> {
    if rustix::process::getpid() != Pid::INIT {
        return Err(Failure::new(
            FailureKind::Invalid,
            "processes",
            "the guest is not the first process here",
        ));
    }
    // A group is named by a negative number, and the group of 1 is that of all.
    match rustix::process::kill_process_group(Pid::INIT, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(Failure::of_io(&errno.into(), "processes")),
    }
}
