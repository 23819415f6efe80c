//! The payload of a jail: files and a text for its program, in one sealed memory file. The memory file holds
//! an index, the text, then the content of the files. Only processes inside the jail read it, so large files
//! never pass through the launcher.
//!
//! ```text
//! u32 number of files, u32 text length in bytes
//! for each file: u32 target, u32 mode, u64 content length, u32 path length, path
//! text
//! for each file: content
//! ```
//!
//! A path that ends in `/` is a directory, without content.

use crate::flags::{O_CLOEXEC, O_DIRECTORY, O_NOFOLLOW, O_PATH};
use crate::syscall::{EBADMSG, EEXIST, RawErrno, SysResult, close, number, safe_syscall, syscall, write_all};

const PATH_MAX: usize = 4_097;
const O_NOFOLLOW_DIRECTORY_PATH: usize = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
const O_NEW_FILE: usize = 0o1 | 0o100 | 0o1000 | O_CLOEXEC | O_NOFOLLOW;

/// Target of a file in the workspace, which is written as the sandbox user.
pub const WORKSPACE_TARGET: u32 = 0;
/// Target of a file in the inbox, which is read-only for the program.
pub const INBOX_TARGET: u32 = 1;

/// A payload, mapped into memory.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    index: &'a [u8],
    files: u32,
    /// Text for the program that runs in the jail.
    pub text: &'a [u8],
    data: &'a [u8],
}

/// One file of a payload.
#[derive(Clone, Copy)]
pub struct PayloadEntry<'a> {
    /// Where it is written: 0 for the workspace, 1 for the inbox.
    pub target: u32,
    /// Its permissions.
    pub mode: u32,
    /// Its path below the target.
    pub path: &'a [u8],
    /// Its content.
    pub content: &'a [u8],
}

/// A file that could not be written.
pub struct UnpackError<'a> {
    /// The path of the file.
    pub path: &'a [u8],
    /// The errno.
    pub errno: RawErrno,
}

impl<'a> Payload<'a> {
    /// Maps a payload into memory; it is never unmapped.
    pub fn map(fd: i32) -> SysResult<Payload<'static>> {
        const SEEK_END: usize = 2;
        const PROT_READ: usize = 1;
        const MAP_PRIVATE: usize = 2;
        let len = safe_syscall(number::LSEEK, &[fd as usize, 0, SEEK_END])?;
        let at = safe_syscall(number::MMAP, &[0, len, PROT_READ, MAP_PRIVATE, fd as usize, 0])?;
        // SAFETY: the kernel just mapped `len` readable bytes at `at`; the file is sealed against changes,
        // and nothing unmaps it.
        let bytes = unsafe { core::slice::from_raw_parts(at as *const u8, len) };
        Payload::parse(bytes).ok_or(EBADMSG)
    }

    /// Splits the bytes into index, text and file contents. Returns `None` if they are truncated.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = bytes;
        let (files, text) = (take_u32(&mut rest)?, take_u32(&mut rest)?);
        let index = rest;
        for _ in 0..files {
            skip_entry(&mut rest)?;
        }
        let index = &index[..index.len() - rest.len()];
        let (text, data) = rest.split_at_checked(text as usize)?;
        Some(Self { index, files, text, data })
    }

    /// Iterates over the files. Stops early if the contents are truncated.
    pub fn entries(self) -> impl Iterator<Item = PayloadEntry<'a>> {
        let (mut index, mut data) = (self.index, self.data);
        (0..self.files).map_while(move |_| {
            let (target, mode) = (take_u32(&mut index)?, take_u32(&mut index)?);
            let len = usize::try_from(take_u64(&mut index)?).ok()?;
            let path_len = take_u32(&mut index)? as usize;
            let path = take_bytes(&mut index, path_len)?;
            Some(PayloadEntry { target, mode, path, content: take_bytes(&mut data, len)? })
        })
    }

    /// Writes the files with one target below `folder`, as the current user of this process.
    pub fn unpack(self, target: u32, folder: i32) -> Result<(), UnpackError<'a>> {
        for entry in self.entries().filter(|entry| entry.target == target) {
            write_file(&entry, folder).map_err(|why| UnpackError { path: entry.path, errno: why })?;
        }
        Ok(())
    }
}

fn take_bytes<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take_bytes(bytes, 4)?.try_into().ok()?))
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take_bytes(bytes, 8)?.try_into().ok()?))
}

fn skip_entry(bytes: &mut &[u8]) -> Option<()> {
    take_bytes(bytes, 16)?;
    let path = take_u32(bytes)?;
    take_bytes(bytes, path as usize).map(drop)
}

fn write_file(entry: &PayloadEntry<'_>, folder: i32) -> SysResult<()> {
    let mut parts = entry.path.split(|byte| *byte == b'/');
    let name = parts.next_back().unwrap_or_default();
    let mut here = folder;
    for part in parts {
        let next = create_and_open_dir(here, part);
        close_unless_base(here, folder);
        here = next?;
    }
    let written = if name.is_empty() { Ok(()) } else { create_file(here, name, entry) };
    close_unless_base(here, folder);
    written
}

/// Creates a directory and opens it. Refuses symbolic links, which a host workspace can contain.
fn create_and_open_dir(at: i32, part: &[u8]) -> SysResult<i32> {
    let name = CPath::new(part)?;
    // SAFETY: the name ends in NUL and lives across the call.
    match unsafe { syscall(number::MKDIRAT, [at as usize, name.pointer(), 0o755, 0, 0, 0]) } {
        Ok(_) | Err(EEXIST) => {}
        Err(refused) => return Err(refused),
    }
    open(at, &name, O_NOFOLLOW_DIRECTORY_PATH, 0)
}

fn create_file(at: i32, name: &[u8], entry: &PayloadEntry<'_>) -> SysResult<()> {
    let mode = entry.mode as usize;
    let file = open(at, &CPath::new(name)?, O_NEW_FILE, mode)?;
    // The umask applies to the mode given to `open`, but not to `fchmod`.
    let done = write_all(file, entry.content)
        .and_then(|()| safe_syscall(number::FCHMOD, &[file as usize, mode]).map(drop));
    close(file);
    done
}

fn open(at: i32, name: &CPath, flags: usize, mode: usize) -> SysResult<i32> {
    // SAFETY: the name ends in NUL and lives across the call.
    unsafe { syscall(number::OPENAT, [at as usize, name.pointer(), flags, mode, 0, 0]) }.map(|fd| fd as i32)
}

fn close_unless_base(here: i32, folder: i32) {
    if here != folder {
        close(here);
    }
}

/// A path of limited length that ends in NUL.
pub(crate) struct CPath([u8; PATH_MAX]);

impl CPath {
    pub(crate) fn new(bytes: &[u8]) -> SysResult<Self> {
        const NAME_TOO_LONG: RawErrno = RawErrno(36);
        let mut name = [0; PATH_MAX];
        name.get_mut(..bytes.len())
            .filter(|_| bytes.len() < PATH_MAX)
            .ok_or(NAME_TOO_LONG)?
            .copy_from_slice(bytes);
        Ok(Self(name))
    }

    pub(crate) fn as_c_str(&self) -> &core::ffi::CStr {
        // `new` leaves at least one NUL at the end.
        core::ffi::CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }

    pub(crate) fn pointer(&self) -> usize {
        self.0.as_ptr() as usize
    }
}
