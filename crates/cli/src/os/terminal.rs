//! The user's terminal.

#[cfg(not(unix))]
pub(crate) use elsewhere::*;
#[cfg(unix)]
pub(crate) use posix::*;

/// An event of the terminal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TerminalEvent {
    /// Its size changed.
    Resized,
    /// This process is asked to exit, with this status.
    Ended(u8),
}

#[cfg(unix)]
mod posix {
    use std::io::stdin;

    use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
    use tokio::signal::unix::{Signal, SignalKind, signal};

    use super::TerminalEvent;
    use crate::error::CliError;

    /// A terminal in raw mode; restored on drop, also during a panic.
    pub(crate) struct RawTerminal {
        before: Termios,
    }

    impl RawTerminal {
        pub(crate) fn enter() -> Result<Self, CliError> {
            let failed = |errno| CliError::host(format!("set up the terminal: {errno}"));
            let before = tcgetattr(stdin()).map_err(failed)?;
            let mut raw = before.clone();
            raw.make_raw();
            tcsetattr(stdin(), OptionalActions::Now, &raw).map_err(failed)?;
            Ok(Self { before })
        }
    }

    /// Turns off the terminal's echo until the returned value is dropped.
    pub(crate) fn hide_typing() -> Option<RawTerminal> {
        let before = tcgetattr(stdin()).ok()?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(stdin(), OptionalActions::Now, &hidden).ok()?;
        Some(RawTerminal { before })
    }

    impl Drop for RawTerminal {
        fn drop(&mut self) {
            // If the terminal is gone, there is nothing to restore.
            let _best_effort = tcsetattr(stdin(), OptionalActions::Now, &self.before);
        }
    }

    /// Returns rows and columns of the terminal on standard input, if it is one.
    pub(crate) fn window_size() -> Option<(u16, u16)> {
        if !isatty(stdin()) {
            return None;
        }
        let size = tcgetwinsize(stdin()).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
        Some(size.map_or((24, 80), |size| (size.ws_row, size.ws_col)))
    }

    /// Changes of the terminal's size, and every signal that would end the process without restoring the
    /// terminal.
    #[derive(Debug)]
    pub(crate) struct TerminalEvents {
        resized: Signal,
        hangup: Signal,
        interrupt: Signal,
        quit: Signal,
        terminate: Signal,
    }

    impl TerminalEvents {
        pub(crate) fn listen() -> Result<Self, CliError> {
            let catch =
                |kind| signal(kind).map_err(|error| CliError::host(format!("listen for signals: {error}")));
            Ok(Self {
                resized: catch(SignalKind::window_change())?,
                hangup: catch(SignalKind::hangup())?,
                interrupt: catch(SignalKind::interrupt())?,
                quit: catch(SignalKind::quit())?,
                terminate: catch(SignalKind::terminate())?,
            })
        }

        /// Waits for the next event.
        pub(crate) async fn next(&mut self) -> TerminalEvent {
            tokio::select! {
                _ = self.resized.recv() => TerminalEvent::Resized,
                _ = self.hangup.recv() => TerminalEvent::Ended(129),
                _ = self.interrupt.recv() => TerminalEvent::Ended(130),
                _ = self.quit.recv() => TerminalEvent::Ended(131),
                _ = self.terminate.recv() => TerminalEvent::Ended(143),
            }
        }
    }
}

#[cfg(not(unix))]
mod elsewhere {
    use super::TerminalEvent;
    use crate::error::CliError;

    #[derive(Debug)]
    pub(crate) struct RawTerminal;

    impl RawTerminal {
        pub(crate) fn enter() -> Result<Self, Failure> {
            Err(Failure::host("terminals of this system are not supported"))
        }
    }

    pub(crate) fn hide_typing() -> Option<RawTerminal> {
        None
    }

    pub(crate) fn window_size() -> Option<(u16, u16)> {
        None
    }

    #[derive(Debug)]
    pub(crate) struct TerminalEvents;

    impl TerminalEvents {
        pub(crate) fn listen() -> Result<Self, Failure> {
            Ok(Self)
        }

        pub(crate) async fn next(&mut self) -> TerminalEvent {
            std::future::pending().await
        }
    }
}
