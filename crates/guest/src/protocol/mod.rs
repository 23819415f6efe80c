//! The wire protocol: frames, and the messages in them.
//!
//! ```text
//! frame = length u32 · channel u32 · kind u8 · body        little-endian; the length counts the body
//! ```
//!
//! The host opens channels, one for each request. A channel ends with the guest's `Done`; nothing follows on
//! it.
//!
//! ```text
//! host                                  guest
//!  Hello(version, settings) ─────────▶          channel 0, once
//!                           ◀───────── Hello(version)
//!  Request ──────────────────────────▶          opens a channel
//!                           ◀───────── Answer    at most once, before bytes or events
//!  Data … End ⇄ Data, Event … End               bytes in both directions, each limited by credit
//!  Credit ⇄ Credit                              returns credit for consumed frames
//!  Cancel ───────────────────────────▶          the caller stopped waiting
//!                           ◀───────── Done      always, exactly once
//! ```
//!
//! Each side may send as much on a channel as the other one has granted credit for ([`WINDOW_BYTES`] at
//! first). A frame costs its length plus [`FRAME_COST`], so a peer that never reads costs a bounded amount of
//! memory and never blocks other channels.

mod frame;
mod message;

pub use belljar_engine::provider::Stream;
pub use belljar_engine::sandbox_handle::{
    ArchiveFormat, ArchiveLimits, AttachOptions, ChangeKind, CommandEnding, CommandLine, DirectoryEntry,
    DirectoryPage, Failure, FailureKind, FileChange, FileKind, FileMetadata, ProcessId, ProcessInfo,
    StartCommand, StdinMode, TerminalSize, UnpackSummary, WriteMode, WriteOptions,
};
pub use frame::{FRAME_COST, FrameError, FrameKind, GuestFrame, MAX_BODY_BYTES, WINDOW_BYTES, read_frame};
pub use message::{
    DiskSpace, GuestEvent, GuestReply, GuestRequest, GuestSettings, Hello, MAGIC, VERSION, decode,
    decode_prefix, encode,
};
