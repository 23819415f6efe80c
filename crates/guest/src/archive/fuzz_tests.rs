//! Fuzz targets for untrusted input: protocol frames and messages, names in archives, and archives. `cargo
//! test` runs each for a second, the group `fuzz` of `./test --all` for five minutes. `cargo bolero test -p
//! belljar-guest archive::fuzz_tests::fuzz_frames` runs until it is stopped, guided by coverage.

use std::time::Duration;

use bolero::{TypeGenerator, check, produce};

use super::parse_name;
use super::unpack::unpack;
use crate::protocol::{
    ArchiveFormat, ArchiveLimits, FrameError, GuestEvent, GuestFrame, GuestReply, GuestRequest, Hello,
    MAX_BODY_BYTES, decode, read_frame,
};

fn test_time() -> Duration {
    let full = std::env::var("BELLJAR_TEST_SIZE").is_ok_and(|size| size == "full");
    Duration::from_secs(if full { 300 } else { 1 })
}

/// A frame with an arbitrary header; its length may not match its body.
#[derive(Debug, Clone, TypeGenerator)]
struct FrameLike {
    honest: bool,
    length: u32,
    channel: u32,
    kind: u8,
    body: Vec<u8>,
}

impl FrameLike {
    fn bytes(&self) -> Vec<u8> {
        let length = if self.honest { self.body.len() as u32 } else { self.length };
        let kind = if self.honest { self.kind % 8 } else { self.kind };
        [&length.to_le_bytes()[..], &self.channel.to_le_bytes(), &[kind], &self.body].concat()
    }
}

async fn read_all(mut line: &[u8]) {
    loop {
        match read_frame(&mut line).await {
            Ok(Some(frame)) => understand(&frame),
            Ok(None) => return,
            Err(FrameError::TooLong(length)) => return assert!(length as usize > MAX_BODY_BYTES),
            Err(FrameError::UnknownKind(_) | FrameError::Io(_)) => return,
        }
    }
}

fn understand(frame: &GuestFrame) {
    assert!(frame.body.len() <= MAX_BODY_BYTES && frame.body.capacity() <= MAX_BODY_BYTES);
    let _any = (frame.credit_amount(), frame.cost(), frame.header());
    messages(&frame.body);
}

fn messages(body: &[u8]) {
    let _any = (
        decode::<GuestRequest>(body),
        decode::<GuestReply>(body),
        decode::<GuestEvent>(body),
        decode::<Hello>(body),
    );
}

#[test]
fn fuzz_frames() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    check!().with_test_time(test_time()).with_generator(produce::<Vec<FrameLike>>()).for_each(|frames| {
        runtime.block_on(read_all(&frames.iter().flat_map(FrameLike::bytes).collect::<Vec<u8>>()));
    });
}

#[test]
fn fuzz_messages() {
    check!().with_test_time(test_time()).with_generator(produce::<Vec<u8>>()).for_each(|body| messages(body));
}

/// Components of names, and arbitrary bytes.
#[derive(Debug, Clone, TypeGenerator)]
enum NamePiece {
    Up,
    Here,
    Slash,
    Nothing,
    Bytes(Vec<u8>),
}

fn name(pieces: &[NamePiece]) -> Vec<u8> {
    let bytes = |piece: &NamePiece| match piece {
        NamePiece::Up => b"..".to_vec(),
        NamePiece::Here => b".".to_vec(),
        NamePiece::Slash => b"/".to_vec(),
        NamePiece::Nothing => b"\0".to_vec(),
        NamePiece::Bytes(bytes) => bytes.clone(),
    };
    pieces.iter().flat_map(bytes).collect()
}

#[test]
fn fuzz_paths() {
    let names = produce::<(Vec<NamePiece>, Vec<NamePiece>)>();
    check!().with_test_time(test_time()).with_generator(names).for_each(|(one, target)| {
        let (bytes, target) = (name(one), name(target));
        let Ok(Some(path)) = parse_name(&bytes) else { return };
        let odd = |part: &&[u8]| part.is_empty() || [&b"."[..], b".."].contains(part) || part.contains(&b'/');
        assert!(!path.parts().iter().any(odd), "{bytes:?}");
        assert!(!path.parts().concat().contains(&0), "{bytes:?}");
        let _shown = path.display();
        if path.may_link_to(&target) {
            let depth = i64::try_from(path.parts().len()).unwrap() - 1;
            let mut at = depth;
            for part in target.split(|byte| *byte == b'/') {
                at += match part {
                    b".." => -1,
                    b"" | b"." => 0,
                    _ => 1,
                };
                assert!(at >= 0, "{bytes:?} -> {target:?} leads out");
            }
        }
    });
}

/// A tar entry with an arbitrary name, kind and link.
#[derive(Debug, Clone, TypeGenerator)]
struct TarEntry {
    name: Vec<NamePiece>,
    kind: u8,
    link: Vec<NamePiece>,
    mode: u32,
    data: Vec<u8>,
}

fn tar_of(entries: &[TarEntry], changes: &[(u16, u8)]) -> Vec<u8> {
    const KINDS: &[u8] = b"0012567gxLKS";
    let mut archive = Vec::new();
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        let old = header.as_old_mut();
        for (field, bytes) in [(&mut old.name, name(&entry.name)), (&mut old.linkname, name(&entry.link))] {
            let len = bytes.len().min(field.len());
            field[..len].copy_from_slice(&bytes[..len]);
        }
        old.linkflag = [KINDS[usize::from(entry.kind) % KINDS.len()]];
        header.set_mode(entry.mode);
        header.set_size(entry.data.len() as u64);
        header.set_cksum();
        archive.extend(header.as_bytes());
        archive.extend(&entry.data);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    let len = archive.len();
    changes.iter().filter(|_| len > 0).for_each(|(at, byte)| archive[usize::from(*at) % len] = *byte);
    archive
}

#[test]
fn fuzz_archives() {
    let inputs = produce::<(Vec<TarEntry>, Vec<(u16, u8)>, u8)>();
    check!().with_test_time(test_time()).with_generator(inputs).for_each(|(entries, changes, format)| {
        let archive = tar_of(entries, changes);
        let format = [ArchiveFormat::Tar, ArchiveFormat::Tar, ArchiveFormat::TarGz, ArchiveFormat::Zip]
            [usize::from(*format) % 4];
        let around = tempfile::tempdir().unwrap();
        let inner = around.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let limits = ArchiveLimits { entries: 100, bytes: 1 << 20, ..ArchiveLimits::default() };
        let _either = unpack(&inner, format, limits, archive.as_slice());
        assert_eq!(std::fs::read_dir(around.path()).unwrap().count(), 1, "an entry outside the folder");
    });
}
