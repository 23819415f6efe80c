//! The layout of a frame. Invalid frames are refused before their body is read.

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Maximum length of a frame's body, in bytes.
pub const MAX_BODY_BYTES: usize = 256 << 10;
/// Initial credit of each side on a channel, in bytes.
pub const WINDOW_BYTES: u32 = 256 << 10;
/// Credit cost of a frame in addition to its body: roughly its size in a queue, so that many tiny frames
/// cannot exceed the window.
pub const FRAME_COST: u32 = 64;

const HEADER_BYTES: usize = 9;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// The first frame of each side.
    Hello = 0,
    /// Opens a channel; sent by the host.
    Request = 1,
    /// The answer before bytes or events; sent by the guest.
    Answer = 2,
    /// Bytes.
    Data = 3,
    /// A message followed by bytes; sent by the guest.
    Event = 4,
    /// End of the bytes in this direction.
    End = 5,
    /// Grants more credit.
    Credit = 6,
    /// The caller stopped waiting; sent by the host.
    Cancel = 7,
    /// The result, and the last frame of a channel; sent by the guest.
    Done = 8,
}

impl FrameKind {
    fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Hello,
            1 => Self::Request,
            2 => Self::Answer,
            3 => Self::Data,
            4 => Self::Event,
            5 => Self::End,
            6 => Self::Credit,
            7 => Self::Cancel,
            8 => Self::Done,
            _ => return None,
        })
    }

    /// Returns whether frames of this kind need credit.
    pub fn needs_credit(self) -> bool {
        matches!(self, Self::Data | Self::Event)
    }
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestFrame {
    /// The channel's number.
    pub channel: u32,
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The body.
    pub body: Vec<u8>,
}

impl GuestFrame {
    /// Creates a frame without a body.
    pub fn without_body(channel: u32, kind: FrameKind) -> Self {
        Self { channel, kind, body: Vec::new() }
    }

    /// Creates a frame that grants credit.
    pub fn credit(channel: u32, amount: u32) -> Self {
        Self { channel, kind: FrameKind::Credit, body: amount.to_le_bytes().to_vec() }
    }

    /// Returns the amount in a credit frame; `None` if it is malformed.
    pub fn credit_amount(&self) -> Option<u32> {
        self.body.as_slice().try_into().ok().map(u32::from_le_bytes)
    }

    /// Returns the credit that this frame costs.
    pub fn cost(&self) -> u32 {
        Self::cost_of(self.body.len())
    }

    /// Returns the credit that a body of this length costs.
    pub(crate) fn cost_of(len: usize) -> u32 {
        u32::try_from(len).unwrap_or(u32::MAX).saturating_add(FRAME_COST)
    }

    /// Returns the header. The creator of a frame ensures that its body is at most [`MAX_BODY_BYTES`] bytes
    /// long.
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        debug_assert!(self.body.len() <= MAX_BODY_BYTES);
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(self.body.len() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&self.channel.to_le_bytes());
        header[8] = self.kind as u8;
        header
    }
}

/// An error while reading a frame.
#[derive(Debug, Error)]
pub enum FrameError {
    /// The body is longer than [`MAX_BODY_BYTES`].
    #[error("frame of {0} bytes is too long")]
    TooLong(u32),
    /// The kind does not exist in this version.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// Reading failed, possibly in the middle of a frame.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Reads a frame; returns `None` if the stream ended between two frames.
///
/// # Errors
/// The frame is invalid, or reading failed.
pub async fn read_frame<R: AsyncRead + Unpin>(line: &mut R) -> Result<Option<GuestFrame>, FrameError> {
    let mut header = [0; HEADER_BYTES];
    let first = line.read(&mut header).await?;
    if first == 0 {
        return Ok(None);
    }
    line.read_exact(&mut header[first..]).await?;
    let [a, b, c, d, e, f, g, h, kind] = header;
    let len = u32::from_le_bytes([a, b, c, d]);
    if len as usize > MAX_BODY_BYTES {
        return Err(FrameError::TooLong(len));
    }
    let kind = FrameKind::from_u8(kind).ok_or(FrameError::UnknownKind(kind))?;
    // Allocated with the exact length: a small frame must not keep a large buffer alive.
    let mut body = Vec::with_capacity(len as usize);
    let read = (&mut *line).take(len.into()).read_to_end(&mut body).await?;
    if read < len as usize {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    Ok(Some(GuestFrame { channel: u32::from_le_bytes([e, f, g, h]), kind, body }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(frame: &GuestFrame) -> Vec<u8> {
        [frame.header().as_slice(), &frame.body].concat()
    }

    #[tokio::test]
    async fn frames_round_trip() {
        let frame = GuestFrame { channel: 7, kind: FrameKind::Data, body: vec![1, 2, 3] };
        let line = [bytes(&frame), bytes(&GuestFrame::credit(8, 65_536))].concat();
        let mut line = line.as_slice();
        assert_eq!(read_frame(&mut line).await.unwrap(), Some(frame));
        assert_eq!(read_frame(&mut line).await.unwrap().unwrap().credit_amount(), Some(65_536));
        assert_eq!(read_frame(&mut line).await.unwrap(), None);
    }

    #[tokio::test]
    async fn invalid_frames_are_refused() {
        let mut long = bytes(&GuestFrame::without_body(1, FrameKind::End));
        long[..4].copy_from_slice(&(MAX_BODY_BYTES as u32 + 1).to_le_bytes());
        assert!(matches!(read_frame(&mut long.as_slice()).await, Err(FrameError::TooLong(_))));
        let mut odd = bytes(&GuestFrame::without_body(1, FrameKind::End));
        odd[8] = 9;
        assert!(matches!(read_frame(&mut odd.as_slice()).await, Err(FrameError::UnknownKind(9))));
        let short = &bytes(&GuestFrame::credit(1, 1))[..11];
        assert!(matches!(read_frame(&mut &short[..]).await, Err(FrameError::Io(_))));
    }
}
