//! Which runtime of an image runs a language: found inside a container of the image, then cached.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use belljar_engine::language::{Language, Runtime};
use belljar_engine::packages::PackageLayer;
use belljar_engine::plan::Plan;
use belljar_engine::provider::ProviderError;
use belljar_engine::sandbox_handle::{AttachOptions, FileKind, OutputEvent, StartCommand};
use belljar_guest::Guest;

use super::image::DockerImage;
use crate::program::{FoundRuntime, IMAGE_FOLDERS, image_folders, parse_version};

/// Cached pairs of image and language.
const MAX_CACHED: usize = 1_000;
/// More than any program prints as its version.
const MAX_VERSION_BYTES: usize = 4 << 10;
const KEEP_BYTES: u32 = 64 << 10;
const VERSION_TIMEOUT_MS: u64 = 10_000;

/// Returns the search path inside a container, given the image's own.
pub(super) fn search_path(plan: &Plan, own: Option<&str>) -> String {
    let packages = plan.package_layers.iter().filter_map(PackageLayer::bin_folder);
    let own = own.map_or_else(|| IMAGE_FOLDERS.join(":"), str::to_owned);
    packages.chain([own]).collect::<Vec<_>>().join(":")
}

/// The cache of runtimes found in images.
#[derive(Debug, Default)]
pub(super) struct ImageRuntimes(Mutex<HashMap<(String, &'static str), Option<FoundRuntime>>>);

impl ImageRuntimes {
    pub(super) async fn find(
        &self,
        guest: &Guest,
        image: &DockerImage,
        language: &'static Language,
        name: &str,
    ) -> Result<FoundRuntime, ProviderError> {
        let key = (image.id.clone(), language.name);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let found = match known {
            Some(found) => found,
            None => {
                let found = find_runtime(guest, language, image.variables.path.as_deref()).await;
                if guest.is_gone() {
                    return Err(ProviderError::lost("the container ended"));
                }
                let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                if known.len() >= MAX_CACHED {
                    known.clear();
                }
                known.insert(key, found.clone());
                found
            }
        };
        found.ok_or_else(|| ProviderError::LanguageMissing {
            language: language.name,
            image: name.to_owned(),
            install: format!("install it in the image, for example with: {}", language.install),
        })
    }
}

async fn find_runtime(
    guest: &Guest,
    language: &'static Language,
    path: Option<&str>,
) -> Option<FoundRuntime> {
    let folders = image_folders(path);
    for runtime in language.runtimes {
        for folder in &folders {
            let program = format!("{folder}/{}", runtime.program);
            if is_program(guest, &program).await && is_new_enough(guest, runtime, &program).await {
                return Some(FoundRuntime { runtime, program });
            }
        }
    }
    None
}

async fn is_program(guest: &Guest, path: &str) -> bool {
    let found = guest.stat(path, true).await;
    found.is_ok_and(|found| found.kind == FileKind::File && found.mode & 0o111 != 0)
}

async fn is_new_enough(guest: &Guest, runtime: &Runtime, program: &str) -> bool {
    let Some(wanted) = runtime.at_least else { return true };
    let output = read_output(guest, vec![program.to_owned(), "--version".to_owned()]).await;
    output.and_then(|text| parse_version(&text)).is_some_and(|found| found >= wanted)
}

/// Runs a program and returns its output, if it exits in time.
async fn read_output(guest: &Guest, words: Vec<String>) -> Option<String> {
    let mut command = StartCommand::program(words);
    command.keep_bytes = KEEP_BYTES;
    command.timeout_ms = Some(VERSION_TIMEOUT_MS);
    let (_, mut output) = guest.start_attached(command, AttachOptions { from: 0, hold: true }).await.ok()?;
    let mut text = Vec::new();
    while let Ok(Some(event)) = output.next().await {
        if let OutputEvent::Bytes { bytes, .. } = event {
            text.extend_from_slice(&bytes);
            text.truncate(MAX_VERSION_BYTES);
        }
    }
    String::from_utf8(text).ok()
}
