//! Lists a page of a folder. Only one page is in memory, regardless of the folder's size.

use std::collections::BinaryHeap;
use std::ffi::CString;

use rustix::fs::{AtFlags, Dir};

use super::{TargetPath, link_target, metadata, open};
use crate::protocol::{DirectoryEntry, DirectoryPage, Failure, FailureKind, FileKind, GuestReply};

/// Maximum number of entries in a page.
const MAX_PAGE_ENTRIES: u32 = 256;
/// Approximate maximum size of a page in bytes; names and link targets can be long.
const MAX_PAGE_BYTES: usize = 128 << 10;
/// Number of names read before other tasks run.
const BATCH: usize = 512;

pub(in crate::guest) async fn list(
    target: &TargetPath,
    after: Option<Vec<u8>>,
    limit: u32,
) -> Result<GuestReply, Failure> {
    if limit == 0 || limit > MAX_PAGE_ENTRIES {
        return Err(target.failure(FailureKind::Invalid, "limit must be from 1 to 256"));
    }
    let folder = open::folder(target)?;
    let entries = Dir::read_from(&folder).map_err(|errno| target.os_failure(errno))?;
    let names = first_after(entries, &after.unwrap_or_default(), limit as usize).await;
    let full = names.len() == limit as usize;
    let (mut page, mut bytes) = (DirectoryPage { entries: Vec::new(), next: None }, 0);
    for (index, name) in names.iter().enumerate() {
        // Skips an entry that was removed meanwhile.
        if let Ok(stat) = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            let mut metadata = metadata(&stat);
            if metadata.kind == FileKind::Link {
                metadata.target = link_target(&folder, name);
            }
            let name = String::from_utf8_lossy(name.as_bytes()).into_owned();
            bytes += name.len() + metadata.target.as_ref().map_or(0, String::len) + 64;
            page.entries.push(DirectoryEntry { name, metadata });
        }
        let last = index + 1 == names.len();
        if bytes > MAX_PAGE_BYTES || (last && full) {
            page.next = Some(name.as_bytes().to_vec());
            break;
        }
    }
    Ok(GuestReply::Page(page))
}

/// Returns the first `limit` names after a name, sorted.
async fn first_after(mut entries: Dir, after: &[u8], limit: usize) -> Vec<CString> {
    let mut names = BinaryHeap::new();
    let mut looked_at = 0;
    while let Some(Ok(entry)) = entries.read() {
        let name = entry.file_name();
        let wanted = name != c"." && name != c".." && name.to_bytes() > after;
        if wanted && (names.len() < limit || names.peek().is_some_and(|largest: &CString| name < largest)) {
            names.push(name.to_owned());
            if names.len() > limit {
                names.pop();
            }
        }
        looked_at += 1;
        if looked_at % BATCH == 0 {
            tokio::task::yield_now().await;
        }
    }
    names.into_sorted_vec()
}
