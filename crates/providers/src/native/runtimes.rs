//! Finds interpreters and compilers: the first on `PATH`, looking behind version managers' shims.
//!
//! A program in `/usr` or `/bin` is used directly: those folders are visible inside. Any other program is
//! resolved to the real binary, and only the prefix that contains it becomes visible. Asking a version
//! manager's shim takes a tenth of a second, so answers are cached in the user's cache folder until the shim
//! changes.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use belljar_engine::language::{Language, Runtime};
use belljar_engine::provider::ProviderError;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::program::FoundRuntime;
pub(crate) use crate::program::{image_folders, parse_version};

/// Folders that are always visible inside.
const VISIBLE_FOLDERS: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib64"];
const FALLBACK_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A runtime, and the host folders outside the visible ones that it needs.
#[derive(Debug, Clone)]
pub(super) struct LocatedRuntime {
    pub(super) found: FoundRuntime,
    pub(super) prefixes: Vec<PathBuf>,
}

#[derive(Debug)]
pub(super) struct HostRuntimes {
    cache: Mutex<BTreeMap<&'static str, Option<LocatedRuntime>>>,
}

impl HostRuntimes {
    pub(super) fn new() -> Self {
        Self { cache: Mutex::new(BTreeMap::new()) }
    }

    /// Returns the runtime of a language on this host.
    pub(super) fn on_host(&self, language: &'static Language) -> Result<LocatedRuntime, ProviderError> {
        let mut known = self.cache.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let located = known.entry(language.name).or_insert_with(|| language.runtimes.iter().find_map(locate));
        located.clone().ok_or_else(|| ProviderError::LanguageMissing {
            language: language.name,
            image: "host".to_owned(),
            install: format!("install it with: {}", language.install),
        })
    }

    /// Returns the runtime of a language in an unpacked root. Found by name, never executed outside a
    /// sandbox.
    pub(super) fn in_folder(
        language: &'static Language,
        folder: &Path,
        path: Option<&str>,
    ) -> Result<LocatedRuntime, ProviderError> {
        let missing = || ProviderError::LanguageMissing {
            language: language.name,
            image: folder.display().to_string(),
            install: format!("install it in the image, for example with: {}", language.install),
        };
        let root =
            rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(|errno| ProviderError::Invalid {
                    field: "image",
                    message: format!("'{}': {}", folder.display(), std::io::Error::from(errno)),
                })?;
        let exists = |path: &String| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            rustix::fs::openat2(&root, path.as_str(), flags, Mode::empty(), ResolveFlags::IN_ROOT).is_ok()
        };
        let folders = image_folders(path);
        let located = language.runtimes.iter().find_map(|runtime| {
            let candidates = folders.iter().map(|folder| format!("{folder}/{}", runtime.program));
            candidates
                .filter(exists)
                .map(|program| LocatedRuntime {
                    found: FoundRuntime { runtime, program },
                    prefixes: Vec::new(),
                })
                .next()
        });
        located.ok_or_else(missing)
    }
}

/// Returns the first usable candidate on `PATH`.
fn locate(runtime: &'static Runtime) -> Option<LocatedRuntime> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(FALLBACK_PATH.split(':')).filter(|folder| folder.starts_with('/'));
    let candidates =
        folders.map(|folder| Path::new(folder).join(runtime.program)).filter(|path| is_executable(path));
    candidates
        .filter_map(|candidate| resolve(runtime, &candidate))
        .find(|located| is_new_enough(runtime, located))
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
}

fn is_visible(path: &Path) -> bool {
    VISIBLE_FOLDERS.iter().any(|folder| path.starts_with(folder))
}

fn resolve(runtime: &'static Runtime, candidate: &Path) -> Option<LocatedRuntime> {
    let real = std::fs::canonicalize(candidate).ok()?;
    if is_visible(candidate) && is_visible(&real) {
        let program = candidate.to_str()?.to_owned();
        return Some(LocatedRuntime { found: FoundRuntime { runtime, program }, prefixes: Vec::new() });
    }
    if let Some(located) = virtual_environment(runtime, candidate, &real) {
        return Some(located);
    }
    let real = if is_real_binary(runtime, &real) { real } else { resolve_shim(runtime, candidate)? };
    let prefixes = if is_visible(&real) { Vec::new() } else { vec![prefix(&real)?] };
    let program = real.to_str()?.to_owned();
    Some(LocatedRuntime { found: FoundRuntime { runtime, program }, prefixes })
}

/// Returns a Python virtual environment, whose folder becomes visible along with its interpreter's.
fn virtual_environment(runtime: &'static Runtime, candidate: &Path, real: &Path) -> Option<LocatedRuntime> {
    let environment = candidate.parent()?.parent()?;
    if !environment.join("pyvenv.cfg").is_file() || !is_real_binary(runtime, real) {
        return None;
    }
    let environment = std::fs::canonicalize(environment).ok()?;
    let program = environment.join("bin").join(runtime.program).to_str()?.to_owned();
    let mut prefixes = vec![environment];
    if !is_visible(real) {
        prefixes.push(prefix(real)?);
    }
    Some(LocatedRuntime { found: FoundRuntime { runtime, program }, prefixes })
}

/// Returns whether a file is the runtime itself and not a shim: an ELF binary with a matching name.
fn is_real_binary(runtime: &Runtime, real: &Path) -> bool {
    let named = real
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with(runtime.program.trim_end_matches(|c: char| c.is_ascii_digit())));
    let mut magic = [0; 4];
    let read =
        std::fs::File::open(real).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
    named && read.is_ok() && magic == *b"\x7fELF"
}

/// Returns the folder that contains a runtime, or only the program if that folder would expose a home folder.
fn prefix(real: &Path) -> Option<PathBuf> {
    let prefix = real.parent()?.parent()?;
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let too_wide =
        prefix.components().count() <= 2 || home.starts_with(prefix) || prefix == home.join(".local");
    Some(if too_wide { real.to_owned() } else { prefix.to_owned() })
}

/// Asks a shim for the path of the real program. The answer is cached.
fn resolve_shim(runtime: &Runtime, candidate: &Path) -> Option<PathBuf> {
    let (arguments, suffix) = runtime.locate;
    if arguments.is_empty() {
        return None;
    }
    let answer = cached_answer(candidate, arguments, || output(candidate, arguments))?;
    let real = std::fs::canonicalize(format!("{}{suffix}", answer.trim())).ok()?;
    is_real_binary(runtime, &real).then_some(real)
}

fn is_new_enough(runtime: &Runtime, located: &LocatedRuntime) -> bool {
    let Some(wanted) = runtime.at_least else { return true };
    let program = Path::new(&located.found.program);
    let arguments = &["--version"];
    cached_answer(program, arguments, || output(program, arguments))
        .and_then(|text| parse_version(&text))
        .is_some_and(|found| found >= wanted)
}

fn output(program: &Path, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// Returns a cached answer, or asks and caches it. The key includes the program, its modification time and
/// the current folder, because version managers depend on all three.
fn cached_answer(program: &Path, arguments: &[&str], ask: impl FnOnce() -> Option<String>) -> Option<String> {
    let metadata = std::fs::metadata(program).ok()?;
    let folder = std::env::current_dir().unwrap_or_default();
    let (time, inode) = (metadata.mtime_nsec() ^ (metadata.mtime() << 30), metadata.ino());
    let key = format!("{} {time} {inode} {} {}", program.display(), folder.display(), arguments.join(" "));
    let cache = cache_file();
    let mut known: BTreeMap<String, String> = cache
        .as_ref()
        .and_then(|path| std::fs::read(path).ok())
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    if let Some(answer) = known.get(&key) {
        return Some(answer.clone());
    }
    let answer = ask()?;
    if known.len() >= MAX_CACHED_ANSWERS {
        known.clear();
    }
    known.insert(key, answer.clone());
    if let Some(path) = cache {
        write_cache(&path, &known);
    }
    Some(answer)
}

const MAX_CACHED_ANSWERS: usize = 500;

fn cache_file() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))?;
    Some(base.join("belljar").join("runtimes.json"))
}

/// Writes the cache, ignoring errors: without it, the shim is asked again next time.
fn write_cache(path: &Path, known: &BTreeMap<String, String>) {
    let Some(folder) = path.parent() else { return };
    let temporary = folder.join(format!("runtimes.{}", std::process::id()));
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&temporary, serde_json::to_vec(known).unwrap_or_default()))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _removed = std::fs::remove_file(&temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed() {
        assert_eq!(parse_version("v22.18.0"), Some((22, 18)));
        assert_eq!(parse_version("openjdk 17 2021-09-14"), Some((17, 0)));
        assert_eq!(parse_version("none"), None);
    }

    #[test]
    fn a_home_is_never_a_prefix() {
        let home = std::env::var("HOME").unwrap();
        let binary = Path::new(&home).join("bin/node");
        assert_eq!(prefix(&binary), Some(binary.clone()));
        let local = Path::new(&home).join(".local/bin/bun");
        assert_eq!(prefix(&local), Some(local.clone()));
        assert_eq!(prefix(Path::new("/opt/py/3.12/bin/python3")), Some("/opt/py/3.12".into()));
        assert_eq!(prefix(Path::new("/opt/bin/node")), Some("/opt/bin/node".into()));
    }
}
