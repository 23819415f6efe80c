//! Artifacts of executions: small ones are part of the result, large ones are stored beside it and have a URL.

use belljar_engine::report::{ArtifactReport, Report};
use belljar_store::executions::NewArtifact;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters of a path that are encoded in a URL. Its slashes stay.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_').remove(b'~');

/// Returns the URL of an artifact, without the server's address.
fn url(execution: &str, path: &str) -> String {
    format!("/v1/executions/{execution}/artifacts/{}", utf8_percent_encode(path, ENCODED))
}

/// Takes the contents out of a report that together with the smaller ones exceed `inline_bytes`, and sets URLs in
/// their place.
pub(super) fn take_large_artifacts(report: &mut Report, inline_bytes: u64) -> Vec<NewArtifact> {
    let mut by_size: Vec<&mut ArtifactReport> = report.artifacts.iter_mut().collect();
    by_size.sort_by_key(|artifact| artifact.size);
    let mut inline = 0;
    let mut large = Vec::new();
    for artifact in by_size {
        inline += artifact.size as u64;
        if inline <= inline_bytes {
            continue;
        }
        if let Some(content) = artifact.content.take() {
            artifact.url = Some(url(&report.id, &artifact.name));
            large.push(NewArtifact { path: artifact.name.clone(), media_type: artifact.mime_type, content });
        }
    }
    large
}

#[cfg(test)]
mod tests {
    use belljar_engine::report::Status;
    use serde_json::Map;

    use super::*;

    #[test]
    fn small_artifacts_stay_in_the_result() {
        let mut report = Report::blank("exec_1".to_owned(), Status::Succeeded, None, Map::new());
        let sizes = [("large", 6), ("a b/ü?.txt", 5), ("small", 1), ("empty", 0)];
        report.artifacts = sizes
            .map(|(name, size)| ArtifactReport {
                name: name.to_owned(),
                mime_type: "text/plain",
                size,
                content: Some(vec![b'x'; size]),
                url: None,
            })
            .into();
        let mut stored = take_large_artifacts(&mut report, 5);
        stored.sort_by_key(|artifact| artifact.content.len());
        let paths: Vec<_> = stored.iter().map(|artifact| artifact.path.as_str()).collect();
        assert_eq!(paths, ["a b/ü?.txt", "large"]);
        let urls: Vec<_> = report.artifacts.iter().map(|artifact| artifact.url.as_deref()).collect();
        assert_eq!(
            urls,
            [
                Some("/v1/executions/exec_1/artifacts/large"),
                Some("/v1/executions/exec_1/artifacts/a%20b/%C3%BC%3F.txt"),
                None,
                None
            ]
        );
        assert!(report.artifacts.iter().all(|artifact| artifact.content.is_none() == artifact.url.is_some()));
    }
}
