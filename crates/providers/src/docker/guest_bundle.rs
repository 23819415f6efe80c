//! The files mounted into a container besides its image: this program, which runs as PID 1, and the libraries
//! that this process has loaded. The image's libraries may differ or be missing.

use std::path::{Path, PathBuf};

use belljar_engine::provider::ProviderError;
use belljar_guest::{ARCHIVE_WORKER_NAME, GATED_ARGUMENT, GUEST_NAME, STDIO_ARGUMENT};
use bollard::models::{Mount, MountBindOptions, MountType};

/// The directory of our own files inside.
pub(super) const BUNDLE_PATH: &str = "/.belljar";

/// The mounts, and the commands that start the guest and its worker.
#[derive(Debug, Clone)]
pub(super) struct GuestBundle {
    pub(super) mounts: Vec<Mount>,
    guest: Vec<String>,
    worker: Vec<String>,
}

impl GuestBundle {
    pub(super) fn from_current_process() -> Result<Self, ProviderError> {
        let failed =
            |error: std::io::Error| ProviderError::setup("find this program and its libraries", error);
        let program = std::env::current_exe().map_err(failed)?;
        if !program.is_file() {
            return Err(failed(std::io::Error::other(
                "the program file was replaced or removed; restart belljar",
            )));
        }
        let maps = std::fs::read_to_string("/proc/self/maps").map_err(failed)?;
        Ok(Self::new(&program, &libraries(&maps)))
    }

    fn new(program: &Path, libraries: &[PathBuf]) -> Self {
        // Mounted twice: the file name selects the role.
        let names = [GUEST_NAME, ARCHIVE_WORKER_NAME].map(|name| format!("{BUNDLE_PATH}/{name}"));
        let mut mounts: Vec<_> = names.iter().map(|name| read_only(program, name)).collect();
        let mut loader = Vec::new();
        for library in libraries {
            let Some(name) = library.file_name().and_then(|name| name.to_str()) else { continue };
            let inside = format!("{BUNDLE_PATH}/lib/{name}");
            mounts.push(read_only(library, &inside));
            // The program is started through the loader, which then finds the other libraries.
            if name.starts_with("ld-") {
                loader = vec![inside, "--library-path".to_owned(), format!("{BUNDLE_PATH}/lib")];
            }
        }
        let [guest, worker] = names.map(|name| loader.iter().cloned().chain([name]).collect());
        Self { mounts, guest, worker }
    }

    /// Returns the command that starts the guest, with or without egress.
    pub(super) fn guest_command(&self, gated: bool) -> Vec<String> {
        let words =
            [gated.then_some(GATED_ARGUMENT), Some(STDIO_ARGUMENT)].into_iter().flatten().map(str::to_owned);
        self.guest.iter().cloned().chain(words).chain(self.worker.iter().cloned()).collect()
    }
}

/// Returns a bind mount without submounts, because those would stay writable.
pub(super) fn mount(source: &str, destination: &str, writable: bool) -> Mount {
    Mount {
        target: Some(destination.to_owned()),
        source: Some(source.to_owned()),
        typ: Some(MountType::BIND),
        read_only: Some(!writable),
        bind_options: Some(MountBindOptions { non_recursive: Some(true), ..MountBindOptions::default() }),
        ..Mount::default()
    }
}

fn read_only(source: &Path, target: &str) -> Mount {
    mount(&source.display().to_string(), target, false)
}

/// Returns the shared objects mapped by a process, without duplicates.
fn libraries(maps: &str) -> Vec<PathBuf> {
    let paths = maps.lines().filter_map(|line| line.split_once('/').map(|(_, path)| format!("/{path}")));
    let mut found: Vec<PathBuf> = paths
        .map(PathBuf::from)
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.ends_with(".so") || name.contains(".so.")
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_is_started_by_its_own_loader() {
        let maps = "55d0-55d1 r-xp 00000000 fe:00 12 /usr/bin/belljar\n\
            7f00-7f01 r-xp 00000000 fe:00 13 /usr/lib/x86_64-linux-gnu/libc.so.6\n\
            7f01-7f02 r--p 00000000 fe:00 13 /usr/lib/x86_64-linux-gnu/libc.so.6\n\
            7f02-7f03 r-xp 00000000 fe:00 14 /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2\n\
            7ffc-7ffd rw-p 00000000 00:00 0 [stack]\n";
        let bundle = GuestBundle::new(Path::new("/usr/bin/belljar"), &libraries(maps));
        let loader = "/.belljar/lib/ld-linux-x86-64.so.2 --library-path /.belljar/lib";
        let expected =
            format!("{loader} /.belljar/{GUEST_NAME} stdio {loader} /.belljar/{ARCHIVE_WORKER_NAME}");
        assert_eq!(bundle.guest_command(false).join(" "), expected);
        assert!(bundle.guest_command(true).join(" ").contains(&format!("{GUEST_NAME} gated stdio {loader}")));
        assert_eq!(bundle.mounts.len(), 4);
        assert!(bundle.mounts.iter().all(|mount| mount.read_only == Some(true)));
    }

    #[test]
    fn a_static_program_is_started_as_it_is() {
        let bundle = GuestBundle::new(
            Path::new("/usr/bin/belljar"),
            &libraries("55d0-55d1 r-xp 0 fe:00 12 /usr/bin/belljar\n"),
        );
        assert_eq!(
            bundle.guest_command(false).join(" "),
            format!("/.belljar/{GUEST_NAME} stdio /.belljar/{ARCHIVE_WORKER_NAME}")
        );
    }
}
