//! Terminals: a pair of descriptors, one of which is the program's world.

use std::os::fd::{AsFd, OwnedFd};

use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::protocol::TerminalSize;

/// A new terminal: our end and the program's.
pub(super) fn open(size: TerminalSize) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&ours)?;
    // Not by its name, which the tenant could put something else under.
    let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags)?;
    resize(&ours, size)?;
    Ok((ours, theirs))
}

/// Sets its size; the program in front of it is told by the kernel.
pub(super) fn resize(terminal: impl AsFd, size: TerminalSize) -> rustix::io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(terminal, size)
}
