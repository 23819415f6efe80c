//! Pseudoterminals.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::protocol::TerminalSize;

/// Opens a terminal; returns our end and the program's.
pub(super) fn open(size: TerminalSize) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&ours)?;
    // Not by name, if the kernel supports that; gVisor, for example, does not.
    let theirs = match rustix::pty::ioctl_tiocgptpeer(&ours, flags) {
        Err(Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => by_name(&ours)?,
        theirs => theirs?,
    };
    resize(&ours, size)?;
    Ok((ours, theirs))
}

fn by_name(ours: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let name = rustix::pty::ptsname(ours, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(name, flags, Mode::empty())
}

/// Sets the size of a terminal; the kernel notifies its foreground process.
pub(super) fn resize(terminal: impl AsFd, size: TerminalSize) -> rustix::io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(terminal, size)
}
