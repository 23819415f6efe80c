//! Packs a jail's payload. See `belljar_zygote::payload` for its layout and for unpacking.

use std::io::Write;
use std::os::fd::OwnedFd;

use rustix::fs::MemfdFlags;

use crate::spec::PayloadFile;
use crate::sys;

/// Largest payload that is written in a single call.
const SINGLE_WRITE_BYTES: usize = 64 << 10;

/// Packs files, and a text for the warm interpreter that will run the program.
///
/// # Errors
/// Errors of creating and writing the memory file.
pub fn pack(text: &[u8], files: &[(PayloadFile, &[u8])]) -> std::io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("payload", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(fd);
    let mut start = Vec::new();
    let words = |start: &mut Vec<u8>, words: &[u32]| {
        start.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    };
    words(&mut start, &[files.len() as u32, text.len() as u32]);
    for (entry, content) in files {
        words(&mut start, &[entry.target as u32, entry.mode]);
        start.extend((content.len() as u64).to_le_bytes());
        words(&mut start, &[entry.path.len() as u32]);
        start.extend(entry.path.as_bytes());
    }
    start.extend(text);
    let total: usize = start.len() + files.iter().map(|(_, content)| content.len()).sum::<usize>();
    if total <= SINGLE_WRITE_BYTES {
        files.iter().for_each(|(_, content)| start.extend(*content));
        file.write_all(&start)?;
    } else {
        file.write_all(&start)?;
        files.iter().try_for_each(|(_, content)| file.write_all(content))?;
    }
    let fd = OwnedFd::from(file);
    sys::seal(&fd)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::PayloadTarget;
    use belljar_zygote::payload::Payload;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;

    fn entry(path: &str, mode: u32) -> PayloadFile {
        PayloadFile { target: PayloadTarget::Workspace, path: path.to_owned(), mode }
    }

    #[test]
    fn files_are_unpacked_with_modes_and_links_are_not_followed() {
        let folder = std::env::temp_dir().join(format!("belljar-payload-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let dir = std::fs::File::open(&folder).unwrap();
        let unpack = |packed: OwnedFd| {
            let payload = Payload::map(packed.as_raw_fd()).unwrap();
            let unpacked = payload.unpack(PayloadTarget::Workspace as u32, dir.as_raw_fd());
            unpacked.map(|()| payload.text).map_err(|file| String::from_utf8_lossy(file.path).into_owned())
        };
        let files = [(entry("a/b/run", 0o755), &b"one"[..]), (entry("empty", 0o600), b"")];
        assert_eq!(unpack(pack(b"said", &files).unwrap()).unwrap(), b"said");
        assert_eq!(std::fs::read(folder.join("a/b/run")).unwrap(), b"one");
        assert_eq!(std::fs::metadata(folder.join("a/b/run")).unwrap().permissions().mode() & 0o7777, 0o755);
        let big = vec![7; 3 << 20];
        unpack(pack(b"", &[(entry("big", 0o644), &big)]).unwrap()).unwrap();
        assert_eq!(std::fs::read(folder.join("big")).unwrap(), big);

        std::os::unix::fs::symlink("/tmp", folder.join("link")).unwrap();
        for path in ["link/x", "link"] {
            assert_eq!(unpack(pack(b"", &[(entry(path, 0o644), b"x")]).unwrap()).unwrap_err(), path);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn truncated_payloads_are_rejected() {
        for bytes in [&b""[..], b"\x01\0\0\0", b"\x01\0\0\0\0\0\0\0", b"\0\0\0\0\x09\0\0\0short"] {
            assert!(Payload::parse(bytes).is_none(), "{bytes:?}");
        }
        let endless = [&b"\x01\0\0\0\0\0\0\0"[..], &[0; 8], &[0xff; 8], b"\x01\0\0\0a"].concat();
        assert_eq!(Payload::parse(&endless).unwrap().entries().count(), 0);
    }
}
