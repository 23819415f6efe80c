//! Results of a task: its return value, and new or changed artifacts.

use std::collections::BTreeMap;
use std::vec;

use belljar_engine::artifact::{
    ArtifactBudget, ArtifactLimits, MAX_ARTIFACT_DEPTH, MAX_ARTIFACT_ENTRIES, SkipReason, SkippedArtifacts,
};
use belljar_engine::outcome::{Artifact, ReturnValue};
use belljar_engine::plan::WORKSPACE;
use belljar_engine::provider::ProviderError;
use belljar_engine::sandbox_handle::{FailureKind, FileKind, FileMetadata, Files, SandboxError};
use tokio::io::AsyncReadExt;

use crate::program::{ARTIFACTS_FOLDER, PreparedProgram, process_tenant_data, return_value};

/// Entries of a folder that are listed at once.
const PAGE_ENTRIES: u32 = 256;

/// Kind, size and modification time of everything below `./artifacts` but folders.
pub(super) type ArtifactSnapshot = BTreeMap<String, (FileKind, u64, i64)>;

/// Return value and artifacts of a task.
#[derive(Debug, Default)]
pub(super) struct TaskResults {
    pub(super) result: ReturnValue,
    pub(super) artifacts: Vec<Artifact>,
    pub(super) skipped: SkippedArtifacts,
}

/// Returns the path of the folder of artifacts.
pub(super) fn artifacts_folder() -> String {
    format!("{WORKSPACE}/{ARTIFACTS_FOLDER}")
}

/// Notes what is below `./artifacts` before a task.
pub(super) async fn snapshot_artifacts(files: &dyn Files) -> Result<ArtifactSnapshot, SandboxError> {
    let listing = ArtifactListing::list(files).await?;
    Ok(listing.entries.into_iter().map(|(path, metadata)| (path, identity(&metadata))).collect())
}

fn identity(metadata: &FileMetadata) -> (FileKind, u64, i64) {
    (metadata.kind, metadata.size, metadata.modified_ms)
}

/// Collects the return value and the artifacts that are new or changed.
pub(super) async fn collect_results(
    files: &dyn Files,
    prepared: &PreparedProgram,
    folder: &str,
    before: &ArtifactSnapshot,
    (limits, result_bytes): (ArtifactLimits, u64),
) -> Result<TaskResults, SandboxError> {
    let mut results = TaskResults::default();
    if prepared.has_result_pipe {
        let bytes = read_file_start(files, &format!("{folder}/result"), result_bytes + 1).await;
        let bytes = bytes.unwrap_or_default();
        let parsed = process_tenant_data(bytes.len(), move || return_value(&bytes, result_bytes)).await;
        results.result =
            parsed.map_err(|error| SandboxError::Provider(ProviderError::setup("read the result", error)))?;
    }
    let ArtifactListing { entries, skipped } = ArtifactListing::list(files).await?;
    let mut budget = ArtifactBudget::new(limits);
    budget.skipped = skipped;
    let top = artifacts_folder();
    for (path, metadata) in entries {
        if before.get(&path) == Some(&identity(&metadata)) {
            continue;
        }
        match metadata.kind {
            FileKind::File if budget.admit(&path, metadata.size) => {
                match read_whole_file(files, &format!("{top}/{path}"), metadata.size).await {
                    Some(content) => results.artifacts.push(Artifact { name: path, content }),
                    None => budget.skipped.add(path.as_bytes(), SkipReason::Unreadable),
                }
            }
            FileKind::Link => budget.skipped.add(path.as_bytes(), SkipReason::Link),
            FileKind::Other => budget.skipped.add(path.as_bytes(), SkipReason::SpecialFile),
            FileKind::File | FileKind::Directory => {}
        }
    }
    results.skipped = budget.skipped;
    Ok(results)
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

type ListedEntry = (String, FileMetadata);

/// Everything below `./artifacts` but folders, ordered by name within each folder.
#[derive(Debug, Default)]
struct ArtifactListing {
    entries: Vec<ListedEntry>,
    skipped: SkippedArtifacts,
}

impl ArtifactListing {
    async fn list(files: &dyn Files) -> Result<Self, SandboxError> {
        let mut listing = Self::default();
        let mut entries_left = MAX_ARTIFACT_ENTRIES;
        match files.stat(&artifacts_folder(), false).await {
            Ok(metadata) if metadata.kind == FileKind::Directory => {}
            Ok(metadata) => {
                let is_link = metadata.kind == FileKind::Link;
                let reason = if is_link { SkipReason::Link } else { SkipReason::SpecialFile };
                listing.skipped.add(b"", reason);
                return Ok(listing);
            }
            Err(error) if is_absent(&error) => return Ok(listing),
            Err(error) => return Err(error),
        }
        let mut levels = vec![listing.list_folder(files, "", &mut entries_left).await?];
        while let Some(level) = levels.last_mut() {
            match level.next() {
                None => drop(levels.pop()),
                Some((path, metadata)) if metadata.kind != FileKind::Directory => {
                    listing.entries.push((path, metadata));
                }
                Some((path, _)) if levels.len() > MAX_ARTIFACT_DEPTH => {
                    listing.skipped.add(path.as_bytes(), SkipReason::TooDeep);
                }
                Some((path, _)) => {
                    levels.push(listing.list_folder(files, &format!("{path}/"), &mut entries_left).await?);
                }
            }
        }
        Ok(listing)
    }

    /// Lists a folder whose path is empty or ends in `/`.
    async fn list_folder(
        &mut self,
        files: &dyn Files,
        path: &str,
        entries_left: &mut usize,
    ) -> Result<vec::IntoIter<ListedEntry>, SandboxError> {
        let folder = format!("{}/{path}", artifacts_folder());
        let (mut entries, mut after) = (Vec::new(), None);
        loop {
            let page = match files.list(folder.trim_end_matches('/'), after, PAGE_ENTRIES).await {
                Ok(page) => page,
                Err(error) if is_absent(&error) => {
                    self.skipped.add(path.trim_end_matches('/').as_bytes(), SkipReason::Unreadable);
                    break;
                }
                Err(error) => return Err(error),
            };
            let full = page.entries.len() > *entries_left;
            let named =
                page.entries.into_iter().map(|entry| (format!("{path}{}", entry.name), entry.metadata));
            let before = entries.len();
            entries.extend(named.take(*entries_left));
            *entries_left -= entries.len() - before;
            after = page.next;
            if full {
                self.skipped.add(path.trim_end_matches('/').as_bytes(), SkipReason::TooManyEntries);
            }
            if full || after.is_none() {
                break;
            }
        }
        Ok(entries.into_iter())
    }
}

fn is_absent(error: &SandboxError) -> bool {
    matches!(error.kind(), Some(FailureKind::NotFound | FailureKind::NotADirectory | FailureKind::Denied))
}
