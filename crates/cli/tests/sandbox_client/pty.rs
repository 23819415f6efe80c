//! A pseudoterminal with a program in it.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Pty {
    master: OwnedFd,
    /// Kept open, so that the last output can be read.
    _slave: OwnedFd,
    pub(crate) child: Child,
    seen: String,
}

impl Pty {
    /// Starts a command with this terminal as its controlling terminal.
    pub(crate) fn start(command: &Command, rows: u16, columns: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let flags = rustix::fs::OFlags::NOCTTY.bits() as i32;
        let slave: OwnedFd =
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(name).unwrap().into();
        let mut leader = Command::new("setsid");
        leader.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => leader.env(name, value),
                None => leader.env_remove(name),
            };
        }
        let end = || slave.try_clone().unwrap();
        leader.stdin(end()).stdout(end()).stderr(end());
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        Self { child: leader.spawn().unwrap(), master, _slave: slave, seen: String::new() }
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        tcsetwinsize(&self.master, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
            .unwrap();
    }

    pub(crate) fn type_in(&self, keys: &str) {
        let mut keys = keys.as_bytes();
        while !keys.is_empty() {
            keys = &keys[rustix::io::write(&self.master, keys).unwrap()..];
        }
    }

    /// Reads until this text appears; returns the output since the last call.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let until = Instant::now() + PATIENCE;
        while !self.seen.contains(text) {
            assert!(Instant::now() < until, "waited for {text:?}, and saw {:?}", self.seen);
            self.look(Duration::from_millis(200));
        }
        std::mem::take(&mut self.seen)
    }

    /// Returns whether this text appears within the given time.
    pub(crate) fn sees(&mut self, text: &str, within: Duration) -> bool {
        let until = Instant::now() + within;
        while !self.seen.contains(text) && Instant::now() < until {
            self.look(Duration::from_millis(50));
        }
        self.seen.contains(text)
    }

    /// Reads available output; returns whether there was any.
    fn look(&mut self, within: Duration) -> bool {
        let mut fds = [PollFd::new(&self.master, PollFlags::IN)];
        let within = rustix::event::Timespec::try_from(within).unwrap();
        let came = poll(&mut fds, Some(&within)).unwrap() > 0;
        if came {
            let mut buffer = [0; 4096];
            let len = rustix::io::read(&self.master, &mut buffer).unwrap();
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..len]));
        }
        came
    }

    /// Waits until the command exits; returns its status and the remaining output.
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status.code();
            }
            assert!(Instant::now() < until, "the command does not exit; {:?}", self.seen);
            self.look(Duration::from_millis(50));
        };
        // The last output may arrive in pieces.
        while self.look(Duration::from_millis(300)) {}
        (status, std::mem::take(&mut self.seen))
    }

    /// Returns whether the terminal is in its original mode, with line editing and echo.
    pub(crate) fn is_as_before(&self) -> bool {
        let modes = tcgetattr(&self.master).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // A process that has already exited is fine.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}
