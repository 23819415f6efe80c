//! Differences between operating systems. No other module checks which one it runs on.

mod machine;
mod terminal;
mod unpack_folder;

use std::fs::Metadata;
use std::path::PathBuf;

use belljar_engine::language::Language;
use tokio::runtime::{Builder, Runtime};

use crate::error::CliError;

pub(crate) use machine::{lower_oom_score, machine_resources};
pub(crate) use terminal::{RawTerminal, TerminalEvent, TerminalEvents, hide_typing, window_size};
pub(crate) use unpack_folder::UnpackFolder;

#[cfg(target_os = "linux")]
pub(crate) use native::{
    ImageBuilder, NativeHost, StartedLauncher, check_docker, check_docker_gpus, docker, host_image_parts,
    run_launcher_if_requested, start_launcher,
};
#[cfg(not(target_os = "linux"))]
pub(crate) use nowhere::{
    ImageBuilder, NativeHost, StartedLauncher, check_docker, check_docker_gpus, docker, host_image_parts,
    run_launcher_if_requested, start_launcher,
};

#[cfg(not(unix))]
pub(crate) use elsewhere::{
    Hangups, Interrupts, create_private_folder, effective_uid, max_open_files, permissions,
};
#[cfg(unix)]
pub(crate) use posix::{
    Hangups, Interrupts, create_private_folder, effective_uid, max_open_files, permissions,
};

/// A language and its interpreter on this machine, if found.
#[derive(Debug)]
pub(crate) struct FoundLanguage {
    pub(crate) language: &'static Language,
    pub(crate) program: Option<PathBuf>,
}

/// Creates the event loop of a command: single-threaded, because it waits for one run only.
pub(crate) fn runtime() -> Result<Runtime, CliError> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::host(format!("start the event loop: {error}")))
}

/// Creates the event loop of a server: one thread per core.
pub(crate) fn server_runtime() -> Result<Runtime, CliError> {
    Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::host(format!("start the event loop: {error}")))
}

#[cfg(target_os = "linux")]
mod native {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use belljar_engine::Error;
    use belljar_engine::host_storage::HostStorage;
    use belljar_engine::provider::Provider;
    use belljar_engine::warm::WarmSettings;
    use belljar_images::SealEntry;
    use belljar_jail::spec::RootEntry;
    pub(crate) use belljar_providers::docker::ImageBuilder;

    use belljar_providers::build_cache::BuildCache;
    use belljar_providers::docker::Docker;
    use belljar_providers::host_storage::{DataFolder, HostFolderSpec as Allowed};
    use belljar_providers::native::{Native, SpawnedLauncher};
    use belljar_providers::settings::DockerSettings;

    use super::{CliError, FoundLanguage};
    use crate::config::BuildCacheSettings;
    use crate::serve::settings::HostFolderEntry;

    /// Runs the launcher or a sandbox's guest if this process was started as one, and then does not return.
    pub(crate) fn run_launcher_if_requested() {
        belljar_providers::native::run_if_asked();
    }

    /// Creates provider Docker, which connects to its daemon on first use.
    pub(crate) fn docker(settings: DockerSettings) -> Option<Arc<dyn Provider>> {
        Some(Arc::new(Docker::new(settings)))
    }

    /// Checks that Docker can run a container. Returns what to do if it cannot.
    pub(crate) async fn check_docker(settings: DockerSettings) -> Result<(), String> {
        Docker::new(settings).self_test().await.map_err(|error| error.to_string())
    }

    /// Checks that Docker can give GPUs to containers. Returns what to do if it cannot.
    pub(crate) async fn check_docker_gpus(settings: DockerSettings) -> Result<(), String> {
        Docker::new(settings).check_gpus().await.map_err(|error| error.to_string())
    }

    /// Starts the launcher. Must be called before any other thread exists, and on the thread that lives to
    /// the end.
    pub(crate) fn start_launcher() -> Result<StartedLauncher, CliError> {
        Ok(StartedLauncher(SpawnedLauncher::start().map_err(Error::from)?))
    }

    /// Returns the files that image `host` shows of this machine, except those that every sandbox creates
    /// itself.
    pub(crate) fn host_image_parts() -> Result<Vec<SealEntry>, CliError> {
        let parts = belljar_providers::native::host_root().into_iter().filter_map(|entry| match entry {
            RootEntry::Bind { source, path } => Some(SealEntry::Copy { source: source.into(), path }),
            RootEntry::Link { path, target } if !path.starts_with("/dev/") => {
                Some(SealEntry::Link { path, target })
            }
            RootEntry::File { path, content } => Some(SealEntry::File { path, content }),
            _ => None,
        });
        Ok(parts.collect())
    }

    /// A launcher that is started but not connected.
    #[derive(Debug)]
    pub(crate) struct StartedLauncher(SpawnedLauncher);

    impl StartedLauncher {
        /// Connects to the launcher, inside a runtime, and configures what it keeps warm.
        pub(crate) async fn connect(
            self,
            warm: WarmSettings,
            sandbox_memory: Option<u64>,
            builds: BuildCacheSettings,
            always_proxy: bool,
            disk_folder: Option<PathBuf>,
        ) -> Result<NativeHost, CliError> {
            let folder = builds.folder.filter(|_| builds.max_bytes > 0);
            let cache = folder.map(|folder| BuildCache::new(folder, builds.max_bytes));
            let launched = self.0.with_total_memory(sandbox_memory).with_build_cache(cache);
            let launched = launched.with_proxy_only(always_proxy);
            let launched = launched.with_disk_folder(disk_folder);
            Ok(NativeHost(Arc::new(Native::connect(launched, warm).await.map_err(Error::from)?)))
        }
    }

    /// This machine's native provider.
    #[derive(Debug)]
    pub(crate) struct NativeHost(Arc<Native>);

    impl NativeHost {
        pub(crate) fn provider(&self) -> Arc<dyn Provider> {
            self.0.clone()
        }

        /// Opens the storage that outlives sandboxes: volumes, snapshots and host folders.
        pub(crate) fn places(
            &self,
            data: &Path,
            host_folders: BTreeMap<String, HostFolderEntry>,
        ) -> Result<Arc<dyn HostStorage>, CliError> {
            let allowed = host_folders.into_iter().map(|(name, folder)| {
                let HostFolderEntry { path, writable, tenants } = folder;
                Allowed { name, path, writable, tenants }
            });
            Ok(Arc::new(DataFolder::open(data, allowed.collect()).map_err(Error::from)?))
        }

        pub(crate) fn languages(&self) -> Vec<FoundLanguage> {
            let states = self.0.languages().into_iter();
            states.map(|state| FoundLanguage { language: state.language, program: state.program }).collect()
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod nowhere {
    use std::collections::{BTreeMap, HashMap};
    use std::convert::Infallible;
    use std::fs::File;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use belljar_engine::ErrorCode;
    use belljar_engine::host_storage::HostStorage;
    use belljar_engine::provider::{Provider, Sink};
    use belljar_engine::warm::WarmSettings;
    use belljar_providers::settings::DockerSettings;

    use super::{CliError, FoundLanguage};
    use crate::config::BuildCacheSettings;
    use crate::serve::settings::HostFolderEntry;

    pub(crate) fn run_launcher_if_requested() {}

    /// Returns `None`: containers run this very program, which must be a Linux binary.
    pub(crate) fn docker(_settings: DockerSettings) -> Option<Arc<dyn Provider>> {
        None
    }

    pub(crate) async fn check_docker(_settings: DockerSettings) -> Result<(), String> {
        Err("provider 'docker' needs belljar on Linux".to_owned())
    }

    pub(crate) async fn check_docker_gpus(settings: DockerSettings) -> Result<(), String> {
        check_docker(settings).await
    }

    /// Docker's image builder, which does not exist on this system.
    #[derive(Debug)]
    pub(crate) struct ImageBuilder(Infallible);

    impl ImageBuilder {
        pub(crate) async fn connect(settings: DockerSettings) -> Result<Self, String> {
            check_docker(settings).await.and(Err(String::new()))
        }

        pub(crate) async fn ensure_image(&self, _sink: &mut dyn Sink) -> Result<(), String> {
            match self.0 {}
        }

        pub(crate) async fn build(
            &self,
            _context: Vec<u8>,
            _name: &str,
            _arguments: HashMap<String, String>,
            _network: Option<String>,
            _sink: &mut dyn Sink,
        ) -> Result<String, String> {
            match self.0 {}
        }

        pub(crate) async fn import(
            &self,
            _root: File,
            _name: &str,
            _changes: &[&str],
            _sink: &mut dyn Sink,
        ) -> Result<String, String> {
            match self.0 {}
        }
    }

    pub(crate) fn host_image_parts() -> Result<Vec<belljar_images::SealEntry>, CliError> {
        start_launcher().map(|_| Vec::new())
    }

    pub(crate) fn start_launcher() -> Result<StartedLauncher, CliError> {
        let message =
            "this system has no native isolation; run belljar on Linux (a virtual machine is enough)";
        Err(CliError { code: ErrorCode::Unsupported, message: message.to_owned() })
    }

    #[derive(Debug)]
    pub(crate) struct StartedLauncher(Infallible);

    impl StartedLauncher {
        pub(crate) async fn connect(
            self,
            _warm: WarmSettings,
            _memory: Option<u64>,
            _builds: BuildCacheSettings,
            _always_proxy: bool,
            _disk_folder: Option<PathBuf>,
        ) -> Result<NativeHost, CliError> {
            match self.0 {}
        }
    }

    #[derive(Debug)]
    pub(crate) struct NativeHost(Infallible);

    impl NativeHost {
        pub(crate) fn provider(&self) -> Arc<dyn Provider> {
            match self.0 {}
        }

        pub(crate) fn places(
            &self,
            _data: &Path,
            _host_folders: BTreeMap<String, HostFolderEntry>,
        ) -> Result<Arc<dyn HostStorage>, CliError> {
            match self.0 {}
        }

        pub(crate) fn languages(&self) -> Vec<FoundLanguage> {
            match self.0 {}
        }
    }
}

#[cfg(unix)]
mod posix {
    use std::fs::DirBuilder;
    use std::io;
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    use std::path::Path;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use tokio::signal::unix::{Signal, SignalKind, signal};

    use super::{CliError, Metadata};

    /// Returns the permission bits, without setuid, setgid and sticky.
    pub(crate) fn permissions(metadata: &Metadata) -> u32 {
        metadata.permissions().mode() & 0o777
    }

    pub(crate) fn effective_uid() -> Option<u32> {
        Some(rustix::process::geteuid().as_raw())
    }

    /// Raises the limit of open files to its maximum and returns it.
    pub(crate) fn max_open_files() -> u64 {
        let limit = getrlimit(Resource::Nofile);
        let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let room = if raised.is_ok() { limit.maximum } else { limit.current };
        room.unwrap_or(u64::MAX)
    }

    /// Creates a folder that only its owner may access, if it is missing.
    pub(crate) fn create_private_folder(path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    /// SIGHUP, the request to reload files; caught from the creation of this value on.
    #[derive(Debug)]
    pub(crate) struct Hangups(Signal);

    impl Hangups {
        pub(crate) fn listen() -> Result<Self, CliError> {
            let caught = signal(SignalKind::hangup());
            caught.map(Self).map_err(|error| CliError::host(format!("listen for hangups: {error}")))
        }

        /// Waits for the next signal.
        pub(crate) async fn next(&mut self) {
            self.0.recv().await;
        }
    }

    /// SIGINT and SIGTERM; caught from the creation of this value on.
    #[derive(Debug)]
    pub(crate) struct Interrupts {
        interrupt: Signal,
        terminate: Signal,
    }

    impl Interrupts {
        pub(crate) fn listen() -> Result<Self, CliError> {
            let catch = |kind| {
                signal(kind).map_err(|error| CliError::host(format!("listen for interrupts: {error}")))
            };
            Ok(Self {
                interrupt: catch(SignalKind::interrupt())?,
                terminate: catch(SignalKind::terminate())?,
            })
        }

        /// Waits for the next signal.
        pub(crate) async fn next(&mut self) {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
            }
        }
    }
}

#[cfg(not(unix))]
mod elsewhere {
    use super::{CliError, Metadata};

    pub(crate) fn permissions(_metadata: &Metadata) -> u32 {
        0o644
    }

    pub(crate) fn effective_uid() -> Option<u32> {
        None
    }

    pub(crate) fn max_open_files() -> u64 {
        u64::MAX
    }

    pub(crate) fn create_private_folder(path: &std::path::Path) -> std::io::Result<()> {
        std::fs::create_dir_all(path)
    }

    #[derive(Debug)]
    pub(crate) struct Hangups;

    impl Hangups {
        pub(crate) fn listen() -> Result<Self, CliError> {
            Ok(Self)
        }

        pub(crate) async fn next(&mut self) {
            std::future::pending().await
        }
    }

    #[derive(Debug)]
    pub(crate) struct Interrupts;

    impl Interrupts {
        pub(crate) fn listen() -> Result<Self, CliError> {
            Ok(Self)
        }

        pub(crate) async fn next(&mut self) {
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending().await
            }
        }
    }
}
