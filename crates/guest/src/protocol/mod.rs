//! What goes over the line: frames, and the messages in them.
//!
//! ```text
//! frame = length u32 · channel u32 · kind u8 · body        little-endian; the length counts the body
//! ```
//!
//! The host opens channels, one for each request; a channel ends when the guest has said `Done`, and nothing of it
//! comes after that.
//!
//! ```text
//! host                                  guest
//!  Hello(version, settings) ─────────▶          channel 0, once
//!                           ◀───────── Hello(version)
//!  Request ──────────────────────────▶          opens a channel
//!                           ◀───────── Answer    at most once, where bytes or events follow
//!  Data … End ⇄ Data, Event … End               bytes both ways, each way within its credit
//!  Credit ⇄ Credit                              so much of it has been used up
//!  Cancel ───────────────────────────▶          nobody waits for it any longer
//!                           ◀───────── Done      always, exactly once
//! ```
//!
//! A side may send as much on a channel as the other has given it credit for ([`WINDOW`] at first). A frame costs its
//! length and [`FRAME_COST`]: so a reader that never reads costs a known amount of memory, and never holds up others.

mod frame;
mod message;

pub use belljar_engine::living::{
    ArchiveFormat, ArchiveLimits, Attach, Change, ChangeKind, CommandLine, Ending, Entry, Failure,
    FailureKind, FileKind, Metadata, Page, ProcessId, ProcessInfo, StartCommand, Stdin, TerminalSize,
    Unpacked, WriteMode, WriteOptions,
};
pub use belljar_engine::provider::Stream;
pub use frame::{FRAME_COST, Frame, FrameError, Kind, MAX_BODY, WINDOW, read_frame};
pub use message::{Event, Hello, MAGIC, Reply, Request, Settings, Space, VERSION, decode, encode, split};
