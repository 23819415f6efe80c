//! Results of a task: its return value, and new or changed artifacts.

use std::collections::BTreeMap;

use belljar_engine::outcome::{Artifact, ReturnValue};
use belljar_engine::sandbox_handle::{FailureKind, FileKind, Files, SandboxError};
use tokio::io::AsyncReadExt;

use crate::program::{
    ARTIFACT_EXTENSIONS, MAX_ARTIFACT_BYTES, MAX_ARTIFACT_COUNT, MAX_RESULT_BYTES, PreparedProgram,
    return_value,
};

/// Most files considered when artifacts are compared.
const MAX_LISTED_FILES: usize = 10_000;
const ARTIFACTS_FOLDER: &str = "/workspace/artifacts";

/// Size and modification time of each possible artifact.
pub(super) type ArtifactSnapshot = BTreeMap<String, (u64, i64)>;

/// Lists files that qualify as artifacts, with size and modification time.
pub(super) async fn list_artifacts(files: &dyn Files) -> Result<ArtifactSnapshot, SandboxError> {
    let mut seen = ArtifactSnapshot::new();
    let mut after = None;
    loop {
        let page = match files.list(ARTIFACTS_FOLDER, after, 256).await {
            Ok(page) => page,
            Err(error) if is_missing(&error) => return Ok(seen),
            Err(error) => return Err(error),
        };
        let artifacts = page.entries.into_iter().filter(|entry| {
            let metadata = &entry.metadata;
            let size = 1..=MAX_ARTIFACT_BYTES;
            metadata.kind == FileKind::File && size.contains(&metadata.size) && is_artifact_name(&entry.name)
        });
        seen.extend(artifacts.map(|entry| (entry.name, (entry.metadata.size, entry.metadata.modified_ms))));
        after = page.next;
        if after.is_none() || seen.len() > MAX_LISTED_FILES {
            return Ok(seen);
        }
    }
}

fn is_missing(error: &SandboxError) -> bool {
    matches!(error.kind(), Some(FailureKind::NotFound | FailureKind::NotADirectory | FailureKind::Denied))
}

fn is_artifact_name(name: &str) -> bool {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    !name.starts_with('.')
        && ending.is_some_and(|ending| ARTIFACT_EXTENSIONS.iter().any(|e| e.eq_ignore_ascii_case(ending)))
}

/// A return value and artifacts.
pub(super) type TaskResults = (ReturnValue, Vec<Artifact>);

/// Collects the return value and the artifacts that are new or changed.
pub(super) async fn collect_results(
    files: &dyn Files,
    prepared: &PreparedProgram,
    folder: &str,
    before: &ArtifactSnapshot,
) -> Result<TaskResults, SandboxError> {
    let mut result = ReturnValue::Absent;
    if prepared.has_result_pipe {
        let bytes = read_file_start(files, &format!("{folder}/result"), MAX_RESULT_BYTES as u64 + 1).await;
        result = return_value(&bytes.unwrap_or_default());
    }
    let mut artifacts = Vec::new();
    for (name, seen) in list_artifacts(files).await? {
        if artifacts.len() == MAX_ARTIFACT_COUNT {
            break;
        }
        if before.get(&name) != Some(&seen) {
            let content =
                read_whole_file(files, &format!("{ARTIFACTS_FOLDER}/{name}"), MAX_ARTIFACT_BYTES).await;
            artifacts.extend(content.map(|content| Artifact { name, content }));
        }
    }
    Ok((result, artifacts))
}

/// Reads a whole file, unless it is longer than the bound.
async fn read_whole_file(files: &dyn Files, path: &str, bound: u64) -> Option<Vec<u8>> {
    read_file_start(files, path, bound + 1).await.filter(|bytes| bytes.len() as u64 <= bound)
}

/// Reads the first `count` bytes of a file, or all if there are fewer.
async fn read_file_start(files: &dyn Files, path: &str, count: u64) -> Option<Vec<u8>> {
    let (_, reader) = files.read(path, 0, Some(count)).await.ok()?;
    let mut bytes = Vec::new();
    reader.take(count).read_to_end(&mut bytes).await.ok()?;
    Some(bytes)
}
