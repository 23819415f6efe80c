//! One frame: how it is laid out, and what is refused before a byte of it is kept.

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The largest body of a frame.
pub const MAX_BODY: usize = 256 << 10;
/// What either side may send on a channel before it was given more credit.
pub const WINDOW: u32 = 256 << 10;
/// What a frame costs beside its bytes: about what keeping it in a queue takes, so that many tiny frames are not
/// a way around the window.
pub const FRAME_COST: u32 = 64;

const HEADER: usize = 9;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The first frame of each side.
    Hello = 0,
    /// Opens a channel; from the host.
    Request = 1,
    /// What is known before bytes or events follow; from the guest.
    Answer = 2,
    /// Bytes.
    Data = 3,
    /// A message, and bytes behind it; from the guest.
    Event = 4,
    /// No more bytes from this side.
    End = 5,
    /// So much more may be sent.
    Credit = 6,
    /// Nobody waits any longer; from the host.
    Cancel = 7,
    /// How it went; the last frame of a channel; from the guest.
    Done = 8,
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
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

    /// Whether frames of this kind need credit.
    pub fn costs(self) -> bool {
        matches!(self, Self::Data | Self::Event)
    }
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The channel.
    pub channel: u32,
    /// What it is.
    pub kind: Kind,
    /// What is in it.
    pub body: Vec<u8>,
}

impl Frame {
    /// A frame without a body.
    pub fn bare(channel: u32, kind: Kind) -> Self {
        Self { channel, kind, body: Vec::new() }
    }

    /// So much more may be sent.
    pub fn credit(channel: u32, amount: u32) -> Self {
        Self { channel, kind: Kind::Credit, body: amount.to_le_bytes().to_vec() }
    }

    /// The amount in a credit frame; `None` where it is malformed.
    pub fn amount(&self) -> Option<u32> {
        self.body.as_slice().try_into().ok().map(u32::from_le_bytes)
    }

    /// What this frame costs in credit.
    pub fn cost(&self) -> u32 {
        Self::cost_of(self.body.len())
    }

    /// What a body of this length costs in credit.
    pub(crate) fn cost_of(len: usize) -> u32 {
        u32::try_from(len).unwrap_or(u32::MAX).saturating_add(FRAME_COST)
    }

    /// What goes before the body. Bodies are no longer than [`MAX_BODY`]; whoever makes one sees to that.
    pub fn header(&self) -> [u8; HEADER] {
        debug_assert!(self.body.len() <= MAX_BODY);
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&(self.body.len() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&self.channel.to_le_bytes());
        header[8] = self.kind as u8;
        header
    }
}

/// Why there is no frame.
#[derive(Debug, Error)]
pub enum FrameError {
    /// Longer than any may be.
    #[error("a frame of {0} bytes")]
    TooLong(u32),
    /// A kind that this version does not have.
    #[error("a frame of the unknown kind {0}")]
    UnknownKind(u8),
    /// The line broke, perhaps in the middle of a frame.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Reads a frame; `None` where the line ended between two of them.
///
/// # Errors
/// What is no frame, and what the line says.
pub async fn read_frame<R: AsyncRead + Unpin>(line: &mut R) -> Result<Option<Frame>, FrameError> {
    let mut header = [0; HEADER];
    let first = line.read(&mut header).await?;
    if first == 0 {
        return Ok(None);
    }
    line.read_exact(&mut header[first..]).await?;
    let [a, b, c, d, e, f, g, h, kind] = header;
    let len = u32::from_le_bytes([a, b, c, d]);
    if len as usize > MAX_BODY {
        return Err(FrameError::TooLong(len));
    }
    let kind = Kind::of(kind).ok_or(FrameError::UnknownKind(kind))?;
    // An allocation of its own, exactly as long: a small frame must not keep a large buffer alive.
    let mut body = Vec::with_capacity(len as usize);
    let read = (&mut *line).take(len.into()).read_to_end(&mut body).await?;
    if read < len as usize {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    Ok(Some(Frame { channel: u32::from_le_bytes([e, f, g, h]), kind, body }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(frame: &Frame) -> Vec<u8> {
        [frame.header().as_slice(), &frame.body].concat()
    }

    #[tokio::test]
    async fn a_frame_survives_the_line() {
        let frame = Frame { channel: 7, kind: Kind::Data, body: vec![1, 2, 3] };
        let line = [bytes(&frame), bytes(&Frame::credit(8, 65_536))].concat();
        let mut line = line.as_slice();
        assert_eq!(read_frame(&mut line).await.unwrap(), Some(frame));
        assert_eq!(read_frame(&mut line).await.unwrap().unwrap().amount(), Some(65_536));
        assert_eq!(read_frame(&mut line).await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_is_no_frame_is_refused() {
        let mut long = bytes(&Frame::bare(1, Kind::End));
        long[..4].copy_from_slice(&(MAX_BODY as u32 + 1).to_le_bytes());
        assert!(matches!(read_frame(&mut long.as_slice()).await, Err(FrameError::TooLong(_))));
        let mut odd = bytes(&Frame::bare(1, Kind::End));
        odd[8] = 9;
        assert!(matches!(read_frame(&mut odd.as_slice()).await, Err(FrameError::UnknownKind(9))));
        let short = &bytes(&Frame::credit(1, 1))[..11];
        assert!(matches!(read_frame(&mut &short[..]).await, Err(FrameError::Io(_))));
    }
}
