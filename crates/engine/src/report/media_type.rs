//! Media types of artifacts, by file extension, else by content.

/// Extensions and their types.
#[rustfmt::skip]
const BY_EXTENSION: &[(&str, &str)] = &[
    ("7z", "application/x-7z-compressed"), ("arrow", "application/vnd.apache.arrow.file"),
    ("avi", "video/x-msvideo"), ("avif", "image/avif"), ("bmp", "image/bmp"), ("bz2", "application/x-bzip2"),
    ("c", "text/plain"), ("cpp", "text/plain"), ("css", "text/css"), ("csv", "text/csv"),
    ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ("epub", "application/epub+zip"), ("geojson", "application/geo+json"), ("gif", "image/gif"),
    ("gz", "application/gzip"), ("h5", "application/x-hdf5"), ("htm", "text/html"), ("html", "text/html"),
    ("ico", "image/x-icon"), ("ipynb", "application/x-ipynb+json"), ("jpeg", "image/jpeg"), ("jpg", "image/jpeg"),
    ("js", "text/javascript"), ("json", "application/json"), ("jsonl", "application/jsonl"), ("log", "text/plain"),
    ("md", "text/markdown"), ("mov", "video/quicktime"), ("mp3", "audio/mpeg"), ("mp4", "video/mp4"),
    ("npy", "application/x-npy"), ("npz", "application/x-npz"), ("ogg", "audio/ogg"),
    ("parquet", "application/vnd.apache.parquet"), ("pdf", "application/pdf"), ("png", "image/png"),
    ("pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
    ("py", "text/x-python"), ("rs", "text/plain"), ("rtf", "application/rtf"), ("sh", "text/x-shellscript"),
    ("sql", "application/sql"), ("sqlite", "application/vnd.sqlite3"), ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"), ("tex", "text/x-tex"), ("tif", "image/tiff"), ("tiff", "image/tiff"),
    ("toml", "application/toml"), ("tsv", "text/tab-separated-values"), ("txt", "text/plain"),
    ("wav", "audio/wav"), ("webm", "video/webm"), ("webp", "image/webp"), ("xls", "application/vnd.ms-excel"),
    ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"), ("xml", "application/xml"),
    ("xz", "application/x-xz"), ("yaml", "application/yaml"), ("yml", "application/yaml"), ("zip", "application/zip"),
    ("zst", "application/zstd"),
];

/// First bytes of a file and its type.
const BY_FIRST_BYTES: &[(&[u8], &str)] = &[
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"\xfd7zXZ\0", "application/x-xz"),
    (b"BZh", "application/x-bzip2"),
    (b"PAR1", "application/vnd.apache.parquet"),
    (b"SQLite format 3\0", "application/vnd.sqlite3"),
    (b"\x89HDF\r\n\x1a\n", "application/x-hdf5"),
    (b"\x93NUMPY", "application/x-npy"),
];

/// How much of a file is read to tell text from other content.
const MAX_TEXT_SAMPLE_BYTES: usize = 4 << 10;

/// Returns the media type of a file.
pub(crate) fn media_type(name: &str, content: &[u8]) -> &'static str {
    let name = name.rsplit('/').next().unwrap_or_default();
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    let known = BY_EXTENSION.iter().find(|(known, _)| Some(*known) == extension.as_deref());
    known.map_or_else(|| by_content(content), |(_, media_type)| media_type)
}

fn by_content(content: &[u8]) -> &'static str {
    if let Some((_, media_type)) = BY_FIRST_BYTES.iter().find(|(first, _)| content.starts_with(first)) {
        return media_type;
    }
    if content.starts_with(b"RIFF") && content.get(8..12) == Some(b"WEBP") {
        return "image/webp";
    }
    if is_text(&content[..content.len().min(MAX_TEXT_SAMPLE_BYTES)]) {
        return "text/plain";
    }
    "application/octet-stream"
}

fn is_text(sample: &[u8]) -> bool {
    let valid = match std::str::from_utf8(sample) {
        Ok(text) => text,
        // The sample may end within a character.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&sample[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    !sample.is_empty() && !valid.contains(|letter: char| letter.is_control() && !"\t\r\n".contains(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_follows_the_extension_and_else_the_content() {
        let types = [
            ("a/plot.PNG", &b"not a picture"[..], "image/png"),
            ("a.csv/plot", b"\x89PNG\r\n\x1a\n...", "image/png"),
            ("model.bin", b"\0\x01\x02", "application/octet-stream"),
            ("Makefile", b"all:\n\techo \xc3\xbc\n", "text/plain"),
            ("empty", b"", "application/octet-stream"),
            (".csv", b"", "text/csv"),
            ("picture", b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        ];
        for (name, content, media_type) in types {
            assert_eq!(super::media_type(name, content), media_type, "{name}");
        }
        let cut = format!("{}ü", "x".repeat(MAX_TEXT_SAMPLE_BYTES - 1));
        assert_eq!(super::media_type("cut", cut.as_bytes()), "text/plain");
        assert!(BY_EXTENSION.is_sorted());
    }
}
