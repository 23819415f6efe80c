//! Malformed and hostile layers.

use std::io::Write;

use super::*;

fn expanded(packed: &[u8], digest: &ContentDigest, left: u64) -> Result<(), ImageError> {
    expand(packed, packed.len() as u64, &mut tempfile::tempfile().unwrap(), digest, left)
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn every_compression_is_expanded_and_checked_against_its_digest() {
    let plain = b"a layer of some bytes".repeat(100);
    let digest = ContentDigest::from_bytes(&plain);
    let zstd = ruzstd::encoding::compress_to_vec(&*plain, ruzstd::encoding::CompressionLevel::Fastest);
    for packed in [plain.clone(), gzip(&plain), zstd.clone()] {
        assert_eq!(expanded(&packed, &digest, 1 << 20), Ok(()));
        let other = expanded(&packed, &ContentDigest::from_bytes(b"other"), 1 << 20);
        assert!(matches!(other, Err(ImageError::Tampered { .. })), "{other:?}");
        let large = expanded(&packed, &digest, 100);
        assert!(matches!(large, Err(ImageError::TooLarge { .. })), "{large:?}");
    }
    for packed in [gzip(&plain), zstd] {
        let cut = expanded(&packed[..packed.len() - 9], &digest, 1 << 20);
        assert!(matches!(cut, Err(ImageError::Refused(_) | ImageError::Tampered { .. })), "{cut:?}");
    }
}

#[test]
fn compression_bombs_are_refused() {
    let plain = vec![0; MIN_BOUND_BYTES as usize + (1 << 20)];
    let bomb = expanded(&gzip(&plain), &ContentDigest::from_bytes(&plain), u64::MAX);
    assert!(matches!(&bomb, Err(ImageError::Refused(why)) if why.contains("unpacks to more")), "{bomb:?}");
}
