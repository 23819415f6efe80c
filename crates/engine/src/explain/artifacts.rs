//! Findings about files below `./artifacts` that were left out.

use super::rules::ARTIFACT;
use crate::artifact::{
    ArtifactLimits, MAX_ARTIFACT_DEPTH, MAX_ARTIFACT_ENTRIES, SkipReason, SkippedArtifact, SkippedArtifacts,
};
use crate::finding::Finding;
use crate::quantity::show_bytes;

/// Returns a finding for each file that was left out.
pub fn artifact_findings(skipped: &SkippedArtifacts, limits: &ArtifactLimits) -> Vec<Finding> {
    let more = (skipped.more > 0).then(|| {
        ARTIFACT.finding(
            format!("{} more files below ./artifacts were not returned", skipped.more),
            "see the other findings for the reasons".to_owned(),
            "the limits on artifacts".to_owned(),
        )
    });
    skipped.named.iter().map(|skipped| finding(skipped, limits)).chain(more).collect()
}

fn finding(skipped: &SkippedArtifact, limits: &ArtifactLimits) -> Finding {
    let path = match skipped.path.as_str() {
        "" => "artifacts".to_owned(),
        path => format!("artifacts/{path}"),
    };
    let ArtifactLimits { files, file_bytes, total_bytes } = *limits;
    let raise = |name: &str| format!("raise the setting {name}");
    let (reason, suggestion, decided_by) = match skipped.reason {
        SkipReason::FileTooLarge => (
            format!("it is larger than {}", show_bytes(file_bytes)),
            format!("write a smaller file, or {}", raise("artifacts.max_file_bytes")),
            format!("artifacts.max_file_bytes = {file_bytes}"),
        ),
        SkipReason::TotalTooLarge => (
            format!("all artifacts together would be larger than {}", show_bytes(total_bytes)),
            format!("write less, or {}", raise("artifacts.max_bytes")),
            format!("artifacts.max_bytes = {total_bytes}"),
        ),
        SkipReason::TooManyFiles => (
            format!("there are more than {files} files"),
            format!("write fewer files, pack them into an archive, or {}", raise("artifacts.max_files")),
            format!("artifacts.max_files = {files}"),
        ),
        SkipReason::Link => fixed("it is a symbolic link", "write a file instead: links are not followed"),
        SkipReason::SpecialFile => fixed("it is not a regular file", "write a regular file instead"),
        SkipReason::Name => fixed(
            "its name is not UTF-8, has control characters or is too long",
            "give the file another name",
        ),
        SkipReason::TooDeep => fixed(
            &format!("it is below more than {MAX_ARTIFACT_DEPTH} folders"),
            "use fewer folders, or pack them into an archive",
        ),
        SkipReason::TooManyEntries => fixed(
            &format!("there are more than {MAX_ARTIFACT_ENTRIES} entries, and the rest was not examined"),
            "write fewer files, or pack them into an archive",
        ),
        SkipReason::Unreadable => {
            fixed("it could not be read", "make it readable, and finish writing before the program ends")
        }
        SkipReason::Interrupted => {
            fixed("the collection was interrupted", "write less, or raise limits.timeout_ms (--timeout)")
        }
    };
    ARTIFACT.finding(format!("{path} was not returned: {reason}"), suggestion, decided_by)
}

/// Returns reason, suggestion and origin of a rule that no setting changes.
fn fixed(reason: &str, suggestion: &str) -> (String, String, String) {
    (reason.to_owned(), suggestion.to_owned(), "the rules for artifacts".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_name_the_file_and_the_setting() {
        let mut skipped = SkippedArtifacts { more: 3, ..SkippedArtifacts::default() };
        skipped.add(b"big.bin", SkipReason::FileTooLarge);
        skipped.add(b"", SkipReason::Link);
        let findings = artifact_findings(&skipped, &ArtifactLimits::DEFAULT);
        let messages: Vec<_> = findings.iter().map(|finding| finding.message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "artifacts/big.bin was not returned: it is larger than 32 MB",
                "artifacts was not returned: it is a symbolic link",
                "3 more files below ./artifacts were not returned"
            ]
        );
        assert!(findings[0].suggestion.ends_with("raise the setting artifacts.max_file_bytes"));
        assert_eq!(findings[0].decided_by, "artifacts.max_file_bytes = 33554432");
    }
}
