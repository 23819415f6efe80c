//! Reads a file in chunks, as fast as the host accepts them.

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Target, metadata, open};
use crate::guest::channel::Sender;
use crate::line::CHUNK;
use crate::protocol::{Failure, Reply};

pub(in crate::guest) async fn read(
    target: &Target,
    offset: u64,
    len: Option<u64>,
    sender: &Sender,
) -> Result<Reply, Failure> {
    let (file, stat) = open::regular(target, OFlags::RDONLY, None)?;
    sender.answer(&Reply::Metadata(metadata(&stat)));
    let mut at = offset;
    let end = len.map_or(u64::MAX, |len| offset.saturating_add(len));
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
        let mut buffer = Vec::with_capacity(wanted);
        match rustix::io::pread(&file, rustix::buffer::spare_capacity(&mut buffer), at) {
            Ok(0) => break,
            Ok(read) => at += read as u64,
            Err(Errno::INTR) => continue,
            // The offset is beyond any possible file size, so it is beyond the end.
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(target.failed(errno)),
        }
        // The allocator may have provided, and `pread` filled, more capacity than requested.
        buffer.truncate(wanted);
        sender.data(buffer).await?;
    }
    Ok(Reply::Ok)
}
