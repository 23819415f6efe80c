//! Reads a file in chunks, as fast as the host accepts them.

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{TargetPath, metadata, open};
use crate::flow_control::CHUNK_BYTES;
use crate::guest::channel::ChannelSender;
use crate::protocol::{Failure, GuestReply};

pub(in crate::guest) async fn read(
    target: &TargetPath,
    offset: u64,
    len: Option<u64>,
    sender: &ChannelSender,
) -> Result<GuestReply, Failure> {
    let (file, stat) = open::regular(target, OFlags::RDONLY, None)?;
    sender.answer(&GuestReply::Metadata(metadata(&stat)));
    let mut at = offset;
    let end = len.map_or(u64::MAX, |len| offset.saturating_add(len));
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        let mut buffer = Vec::with_capacity(wanted);
        match rustix::io::pread(&file, rustix::buffer::spare_capacity(&mut buffer), at) {
            Ok(0) => break,
            Ok(read) => at += read as u64,
            Err(Errno::INTR) => continue,
            // The offset is beyond any possible file size, so it is beyond the end.
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(target.os_failure(errno)),
        }
        // The allocator may have provided, and `pread` filled, more capacity than requested.
        buffer.truncate(wanted);
        sender.data(buffer).await?;
    }
    Ok(GuestReply::Ok)
}
