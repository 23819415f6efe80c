//! The stream in which a jail sends its artifacts. It is untrusted data from the tenant: malformed entries, and
//! entries beyond the limits, are dropped.

use std::collections::HashSet;

use belljar_engine::artifact::{
    ArtifactBudget, ArtifactLimits, MAX_ARTIFACT_PATH_BYTES, MAX_NAMED_SKIPS, SkipReason, SkippedArtifacts,
};
use belljar_engine::outcome::Artifact;
use belljar_jail::spec::{ARTIFACT_END_TAG, ARTIFACT_FILE_TAG, ARTIFACT_MORE_TAG};

/// Tag, length of the path, length of the content.
const HEADER_BYTES: usize = 13;

/// Artifacts, and what was left out.
#[derive(Debug, Default)]
pub(super) struct ArtifactCollection {
    pub(super) artifacts: Vec<Artifact>,
    pub(super) skipped: SkippedArtifacts,
}

/// Returns the size of the longest stream within the limits.
pub(super) fn max_stream_bytes(limits: &ArtifactLimits) -> usize {
    let records = limits.files as usize + MAX_NAMED_SKIPS + 2;
    limits.total_bytes as usize + records * (HEADER_BYTES + MAX_ARTIFACT_PATH_BYTES)
}

/// Parses a stream. An empty one comes from a program that left nothing, or was ended from outside.
pub(super) fn parse_artifacts(mut bytes: &[u8], limits: ArtifactLimits) -> ArtifactCollection {
    let mut collection = ArtifactCollection::default();
    let mut names = HashSet::new();
    let mut budget = ArtifactBudget::new(limits);
    let mut is_complete = bytes.is_empty();
    while let Some((record, rest)) = parse_record(bytes) {
        let Record { tag, path, len, content } = record;
        match tag {
            ARTIFACT_FILE_TAG => {
                if names.insert(path) && budget.admit(path, content.len() as u64) {
                    collection.artifacts.push(Artifact { name: path.to_owned(), content: content.to_vec() });
                }
            }
            ARTIFACT_MORE_TAG => collection.skipped.more = len,
            ARTIFACT_END_TAG => is_complete = true,
            code => {
                if let Some(reason) = SkipReason::from_code(code) {
                    collection.skipped.add(path.as_bytes(), reason);
                }
            }
        }
        bytes = rest;
    }
    if !is_complete {
        collection.skipped.add(b"", SkipReason::Interrupted);
    }
    collection
}

struct Record<'a> {
    tag: u8,
    path: &'a str,
    len: u64,
    content: &'a [u8],
}

fn parse_record(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (path_len, rest) = rest.split_first_chunk::<4>()?;
    let (len, rest) = rest.split_first_chunk::<8>()?;
    let len = u64::from_le_bytes(*len);
    let (path, rest) = rest.split_at_checked(u32::from_le_bytes(*path_len) as usize)?;
    let content_len = if *tag == ARTIFACT_FILE_TAG { usize::try_from(len).ok()? } else { 0 };
    let (content, rest) = rest.split_at_checked(content_len)?;
    Some((Record { tag: *tag, path: std::str::from_utf8(path).ok()?, len, content }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tag: u8, path: &str, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend((path.len() as u32).to_le_bytes());
        bytes.extend((content.len() as u64).to_le_bytes());
        bytes.extend(path.bytes().chain(content.iter().copied()));
        bytes
    }

    fn names(collection: &ArtifactCollection) -> Vec<&str> {
        collection.artifacts.iter().map(|artifact| artifact.name.as_str()).collect()
    }

    #[test]
    fn truncated_streams_keep_whole_files_and_say_so() {
        let files = [record(ARTIFACT_FILE_TAG, "a/b.csv", b"1,2"), record(ARTIFACT_FILE_TAG, "empty", b"")];
        let stream = [files.concat(), record(ARTIFACT_END_TAG, "", b"")].concat();
        let all = parse_artifacts(&stream, ArtifactLimits::DEFAULT);
        assert_eq!((names(&all), all.skipped.named.len()), (vec!["a/b.csv", "empty"], 0));
        assert_eq!(all.artifacts[0].content, b"1,2");
        for cut in 1..stream.len() {
            let cut = parse_artifacts(&stream[..cut], ArtifactLimits::DEFAULT);
            assert_eq!(cut.skipped.named[0].reason, SkipReason::Interrupted);
        }
        assert_eq!(parse_artifacts(b"", ArtifactLimits::DEFAULT).skipped, SkippedArtifacts::default());
    }

    #[test]
    fn stream_is_not_trusted() {
        let limits = ArtifactLimits { files: 2, file_bytes: 4, total_bytes: 6 };
        let file = |path, content| record(ARTIFACT_FILE_TAG, path, content);
        let stream = [
            file("../a", b"x"),
            file("/etc/a", b"x"),
            file("large", b"12345"),
            file("a", b"1234"),
            file("a", b"again"),
            file("together", b"123"),
            file("b", b"12"),
            file("c", b""),
            record(SkipReason::Link.code(), "link", b""),
            record(99, "unknown", b""),
            record(ARTIFACT_END_TAG, "", b""),
        ];
        let parsed = parse_artifacts(&stream.concat(), limits);
        assert_eq!(names(&parsed), ["a", "b"]);
        assert_eq!(parsed.skipped.named.len(), 1);
    }
}
