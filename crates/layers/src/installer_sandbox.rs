//! Runs installers in sandboxes: a separate engine over the same provider, with its own limits, and without a
//! tenant's data or environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_beneath::ContentDigest;
use belljar_engine::Engine;
use belljar_engine::admit::AdmittedRequest;
use belljar_engine::limits::{Limits, LimitsSpec};
use belljar_engine::packages::PackagesError;
use belljar_engine::plan::{Image, Mount, Network};
use belljar_engine::profile::{Profile, Profiles};
use belljar_engine::provider::{DiscardSink, Provider};
use belljar_engine::report::{Report, Status};
use belljar_engine::request::{HostPaths, Request};
use tokio::sync::Semaphore;

use crate::explain::end_of;
use crate::registries::PackageRegistries;
use crate::store::{InstallerCaches, LayerScope};
use crate::tools::{InstallerTool, InstallerTools, TOOLS_DIR};

/// Maximum number of concurrent steps; others wait.
const MAX_CONCURRENT_STEPS: usize = 4;
/// Time limit of one step.
const STEP_TIMEOUT: Duration = Duration::from_secs(300);
/// Disk space that one step may use, in bytes.
const STEP_DISK_BYTES: u64 = 4 << 30;
/// How often the free disk space is checked.
const DISK_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Where installer caches are mounted.
const CACHE_DIR: &str = "/opt/belljar/cache";

/// Runs installers in sandboxes.
#[derive(Debug)]
pub(crate) struct InstallerSandbox {
    engine: Engine,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) registries: PackageRegistries,
    pub(crate) tools: InstallerTools,
    caches: InstallerCaches,
    folder: PathBuf,
    slots: Semaphore,
}

/// One step of an installation.
#[derive(Debug, Default)]
pub(crate) struct InstallStep<'a> {
    pub(crate) command: Vec<String>,
    pub(crate) stdin: String,
    pub(crate) env: BTreeMap<String, String>,
    /// The working folder; without one, the step leaves no files.
    pub(crate) folder: Option<&'a Path>,
    pub(crate) tool: Option<&'a InstallerTool>,
    /// The cache to mount, by name.
    pub(crate) cache: Option<(&'static str, CacheMode<'a>)>,
    /// Additional mounts.
    pub(crate) mounts: Vec<Mount>,
    /// Whether the step can reach the registries and receives their configuration.
    pub(crate) download: bool,
}

/// Where an installer's downloads are cached, and who shares them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CacheMode<'a> {
    /// A persistent cache, shared within this scope.
    Shared(&'a LayerScope),
    /// A temporary cache in this folder, which no other step uses.
    Temporary(&'a Path),
}

/// A step that runs code of packages. It has no network, no registries and no caches.
#[derive(Debug, Default)]
pub(crate) struct BuildStep<'a> {
    /// A description of the build, for messages.
    pub(crate) what: &'a str,
    pub(crate) command: Vec<String>,
    pub(crate) stdin: String,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) folder: Option<&'a Path>,
    pub(crate) mounts: Vec<Mount>,
}

/// The result of a step.
#[derive(Debug)]
pub(crate) struct StepResult {
    pub(crate) succeeded: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl InstallerSandbox {
    pub(crate) fn new(
        provider: Arc<dyn Provider>,
        registries: PackageRegistries,
        tools: InstallerTools,
        caches: InstallerCaches,
        folder: PathBuf,
    ) -> Self {
        let mut profiles = Profiles::built_in();
        let limits = LimitsSpec {
            timeout_ms: Some(STEP_TIMEOUT.as_millis() as i64),
            memory_bytes: Some(2 << 30),
            cpus: Some(4.0),
            disk_bytes: Some(1 << 30),
            processes: Some(512),
            output_bytes: Some(16 << 20),
        };
        profiles.insert(
            "default".to_owned(),
            Profile { limits, policy: Some("off".to_owned()), ..Profile::default() },
        );
        let engine = Engine::new(Arc::clone(&provider), profiles, Limits::CEILING);
        Self {
            engine,
            provider,
            registries,
            tools,
            caches,
            folder,
            slots: Semaphore::new(MAX_CONCURRENT_STEPS),
        }
    }

    /// Returns the path of a cache in the sandbox.
    pub(crate) fn cache_path(name: &str) -> String {
        format!("{CACHE_DIR}/{name}")
    }

    /// Runs a step in an image.
    pub(crate) async fn run(&self, image: &Image, job: InstallStep<'_>) -> Result<StepResult, PackagesError> {
        let (mut mounts, mut lent) = (job.mounts, None);
        mounts.extend(job.tool.map(mount_of));
        if let Some((name, kept)) = job.cache {
            let source = match kept {
                CacheMode::Shared(scope) => {
                    lent.insert(self.caches.lease(scope, &cache_name(name, image))?).path()
                }
                CacheMode::Temporary(folder) => folder,
            };
            mounts.push(Mount {
                source: source.to_owned(),
                destination: Self::cache_path(name),
                writable: true,
            });
        }
        let mut env = job.env;
        if job.download {
            // The image's interpreter or npm may run there, and must not see credentials.
            let (variables, files) = match image.is_trusted() {
                true => (self.registries.env.clone(), self.registries.mounts.clone()),
                false => self.registries.without_credentials(),
            };
            mounts.extend(files);
            env.extend(variables);
            // bun reads its settings from its home folder, wherever they are configured.
            env.insert("HOME".to_owned(), TOOLS_DIR.to_owned());
        }
        let (command, stdin) = (Some(job.command), Some(job.stdin));
        let request = Request { command, stdin, env, ..image_request(image) };
        let paths =
            HostPaths { host_workspace: job.folder.map(Path::to_owned), mounts, ..image_paths(image) };
        let admitted = self.engine.admit(request, paths).map_err(|error| host_error(&error))?;
        let report =
            self.execute(if job.download { self.with_registry_access(admitted)? } else { admitted }).await?;
        drop(lent);
        step_result(report)
    }

    /// Trims installer caches to their bound. Removed entries are downloaded again when needed.
    pub(crate) async fn trim_caches(&self) {
        let caches = self.caches.clone();
        // If this fails, the next call retries.
        let _ = tokio::task::spawn_blocking(move || caches.enforce_limit()).await;
    }

    /// Runs code of packages in an image, and returns its output.
    pub(crate) async fn build(&self, image: &Image, build: BuildStep<'_>) -> Result<String, PackagesError> {
        let BuildStep { what, command, stdin, env, folder, mounts } = build;
        let request = Request { command: Some(command), stdin: Some(stdin), env, ..image_request(image) };
        let paths = HostPaths { host_workspace: folder.map(Path::to_owned), mounts, ..image_paths(image) };
        let admitted = self.engine.admit(request, paths).map_err(|error| host_error(&error))?;
        let report = self.execute(admitted).await?;
        let why = match (report.status, report.limit) {
            (Status::Succeeded, None) => return Ok(report.stdout),
            (Status::TimedOut, _) => format!("it took longer than {} s", STEP_TIMEOUT.as_secs()),
            (Status::Cancelled, _) => "it used more than 4 GB of disk".to_owned(),
            (_, Some(limit)) => format!("it exceeded its limit of {limit:?}"),
            (_, None) => end_of(&format!("{}\n{}", report.stdout, report.stderr)),
        };
        Err(PackagesError::BuildFailed(format!("{what} could not be built: {why}")))
    }

    /// Runs a trusted script in a language, without network or mounts.
    pub(crate) async fn run_script(
        &self,
        image: &Image,
        language: &str,
        code: &str,
    ) -> Result<StepResult, PackagesError> {
        let request = Request {
            language: Some(language.to_owned()),
            code: Some(code.to_owned()),
            ..image_request(image)
        };
        let admitted = self.engine.admit(request, image_paths(image)).map_err(|error| host_error(&error))?;
        step_result(self.execute(admitted).await?)
    }

    /// Runs a trusted program in a language, with these variables. Its file is in the working folder, a folder of
    /// the host in which it may write.
    pub(crate) async fn run_program(
        &self,
        image: &Image,
        language: &str,
        (file, code): (&str, &str),
        folder: &Path,
        env: BTreeMap<String, String>,
    ) -> Result<StepResult, PackagesError> {
        let request = Request {
            language: Some(language.to_owned()),
            code: Some(code.to_owned()),
            env,
            ..image_request(image)
        };
        let paths = HostPaths {
            host_workspace: Some(folder.to_owned()),
            source_in_workspace: Some(file.to_owned()),
            ..image_paths(image)
        };
        let admitted = self.engine.admit(request, paths).map_err(|error| host_error(&error))?;
        step_result(self.execute(admitted).await?)
    }

    /// Allows a request to reach the registries.
    fn with_registry_access(&self, admitted: AdmittedRequest) -> Result<AdmittedRequest, PackagesError> {
        Ok(admitted.with_network(Network::Hosts(self.registries.reachable_hosts()?)))
    }

    async fn execute(&self, admitted: AdmittedRequest) -> Result<Report, PackagesError> {
        // Acquiring never fails: the semaphore is never closed.
        let _turn = self.slots.acquire().await;
        let made = std::fs::create_dir_all(&self.folder);
        made.map_err(|error| PackagesError::Host(format!("make {}: {error}", self.folder.display())))?;
        let too_much = Box::pin(wait_until_disk_used(&self.folder, STEP_DISK_BYTES));
        // Boxed, so that this large future is not part of every caller's state.
        Box::pin(self.engine.execute("install".to_owned(), admitted, &mut DiscardSink, too_much))
            .await
            .map_err(|error| host_error(&error))
    }
}

/// Completes once the file system of a folder has `bound` bytes less free space than at the start. Watching
/// free space avoids walking folders in which an installer works.
async fn wait_until_disk_used(folder: &Path, bound: u64) {
    let free = || rustix::fs::statvfs(folder).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    if let Ok(before) = free() {
        while free().is_ok_and(|now| before.saturating_sub(now) <= bound) {
            tokio::time::sleep(DISK_POLL_INTERVAL).await;
        }
    }
}

fn mount_of(tool: &InstallerTool) -> Mount {
    Mount { source: tool.path.clone(), destination: tool.sandbox_path(), writable: false }
}

/// Creates a request for an image known by name. An image in a folder is set by [`image_paths`].
fn image_request(image: &Image) -> Request {
    let image = match image {
        Image::Named(name) => Some(name.clone()),
        Image::Host | Image::Folder(_) | Image::Stored(_) => None,
    };
    Request { image, ..Request::default() }
}

/// Returns the name of a cache on this machine. The image's own programs write to it, so no two images share
/// one.
fn cache_name(name: &str, image: &Image) -> String {
    match image {
        Image::Host => name.to_owned(),
        Image::Folder(_) | Image::Stored(_) | Image::Named(_) => {
            let identity =
                ContentDigest::from_parts("belljar image caches", [image.identity().as_bytes()]).to_string();
            format!("{name}-{}", &identity[..32])
        }
    }
}

fn image_paths(image: &Image) -> HostPaths {
    HostPaths { image: image.folder().map(Path::to_owned), ..HostPaths::default() }
}

fn host_error(error: &belljar_engine::Error) -> PackagesError {
    PackagesError::Host(format!("installer sandbox: {error}"))
}

fn step_result(report: Report) -> Result<StepResult, PackagesError> {
    match (report.status, report.limit) {
        (Status::TimedOut, _) => Err(PackagesError::Host(format!(
            "installing took longer than {} s; name fewer packages, or check the network",
            STEP_TIMEOUT.as_secs()
        ))),
        (Status::Cancelled, _) => Err(PackagesError::Unresolvable(
            "installing used more than 4 GB of disk; name fewer or smaller packages".to_owned(),
        )),
        (_, Some(limit)) => Err(PackagesError::Unresolvable(format!(
            "installing exceeded its limit of {limit:?}; name fewer or smaller packages"
        ))),
        (status, None) => Ok(StepResult {
            succeeded: status == Status::Succeeded,
            stdout: report.stdout,
            stderr: report.stderr,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_shares_no_cache_with_the_host_or_another_image() {
        let images = [
            Image::Host,
            Image::Folder("/a".into()),
            Image::Folder("/b".into()),
            Image::Named("a".to_owned()),
            Image::Named("b".to_owned()),
        ];
        let names: std::collections::BTreeSet<_> =
            images.iter().map(|image| cache_name("uv", image)).collect();
        assert_eq!(names.len(), images.len(), "{names:?}");
        assert_eq!(cache_name("uv", &Image::Host), "uv");
    }

    #[tokio::test]
    async fn a_step_ends_when_it_takes_too_much_of_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let enough = wait_until_disk_used(folder.path(), 8 << 20);
        let fill = async {
            for number in 0..1_000 {
                std::fs::write(folder.path().join(number.to_string()), vec![1_u8; 1 << 20]).unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            biased;
            () = enough => {}
            () = fill => panic!("a gigabyte was written"),
        }
    }
}
