//! Runs installers in sandboxes: a separate engine over the same provider, with its own limits, and without a
//! tenant's data or environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::Engine;
use belljar_engine::admit::Admitted;
use belljar_engine::limits::{Limits, LimitsSpec};
use belljar_engine::packages::PackagesError;
use belljar_engine::plan::{Image, Mount, Network};
use belljar_engine::profile::{Profile, Profiles};
use belljar_engine::provider::{Blind, Provider};
use belljar_engine::report::{Report, Status};
use belljar_engine::request::{HostPaths, Request};
use tokio::sync::Semaphore;

use crate::explain::end_of;
use crate::registries::Registries;
use crate::shelf::{Caches, Digest, Scope};
use crate::tools::{TOOLS, Tool, Tools};

/// Maximum number of concurrent steps; others wait.
const AT_A_TIME: usize = 4;
/// Time limit of one step.
const PATIENCE: Duration = Duration::from_secs(300);
/// Disk space that one step may use, in bytes.
const ROOM: u64 = 4 << 30;
/// How often the free disk space is checked.
const LOOK: Duration = Duration::from_millis(200);
/// Where installer caches are mounted.
const CACHE: &str = "/opt/belljar/cache";

/// Runs installers in sandboxes.
#[derive(Debug)]
pub(crate) struct Workshop {
    engine: Engine,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) registries: Registries,
    pub(crate) tools: Tools,
    caches: Caches,
    folder: PathBuf,
    turns: Semaphore,
}

/// One step of an installation.
#[derive(Debug, Default)]
pub(crate) struct Job<'a> {
    pub(crate) command: Vec<String>,
    pub(crate) stdin: String,
    pub(crate) env: BTreeMap<String, String>,
    /// The working folder; without one, the step leaves no files.
    pub(crate) folder: Option<&'a Path>,
    pub(crate) tool: Option<&'a Tool>,
    /// The cache to mount, by name.
    pub(crate) cache: Option<(&'static str, Kept<'a>)>,
    /// Additional mounts.
    pub(crate) mounts: Vec<Mount>,
    /// Whether the step can reach the registries and receives their configuration.
    pub(crate) download: bool,
}

/// Where an installer's downloads are cached, and who shares them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kept<'a> {
    /// A persistent cache, shared within this scope.
    For(&'a Scope),
    /// A temporary cache in this folder, which no other step uses.
    Once(&'a Path),
}

/// A step that runs code of packages. It has no network, no registries and no caches.
#[derive(Debug, Default)]
pub(crate) struct Build<'a> {
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
pub(crate) struct Done {
    pub(crate) succeeded: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Workshop {
    pub(crate) fn new(
        provider: Arc<dyn Provider>,
        registries: Registries,
        tools: Tools,
        caches: Caches,
        folder: PathBuf,
    ) -> Self {
        let mut profiles = Profiles::shipped();
        let limits = LimitsSpec {
            timeout_ms: Some(PATIENCE.as_millis() as i64),
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
        Self { engine, provider, registries, tools, caches, folder, turns: Semaphore::new(AT_A_TIME) }
    }

    /// Returns the path of a cache in the sandbox.
    pub(crate) fn cache(name: &str) -> String {
        format!("{CACHE}/{name}")
    }

    /// Runs a step in an image.
    pub(crate) async fn run(&self, image: &Image, job: Job<'_>) -> Result<Done, PackagesError> {
        let (mut mounts, mut lent) = (job.mounts, None);
        mounts.extend(job.tool.map(mount_of));
        if let Some((name, kept)) = job.cache {
            let source = match kept {
                Kept::For(scope) => lent.insert(self.caches.lend(scope, &kept_as(name, image))?).path(),
                Kept::Once(folder) => folder,
            };
            mounts.push(Mount { source: source.to_owned(), destination: Self::cache(name), writable: true });
        }
        let mut env = job.env;
        if job.download {
            // The image's interpreter or npm may run there, and must not see credentials.
            let (variables, files) = match image.is_operators() {
                true => (self.registries.env.clone(), self.registries.mounts.clone()),
                false => self.registries.without_credentials(),
            };
            mounts.extend(files);
            env.extend(variables);
            // bun reads its settings from its home folder, wherever they are configured.
            env.insert("HOME".to_owned(), TOOLS.to_owned());
        }
        let (command, stdin) = (Some(job.command), Some(job.stdin));
        let request = Request { command, stdin, env, ..in_image(image) };
        let paths = HostPaths { playground: job.folder.map(Path::to_owned), mounts, ..of_image(image) };
        let admitted = self.engine.admit(request, paths).map_err(|error| host(&error))?;
        let report = self.execute(if job.download { self.let_out(admitted)? } else { admitted }).await?;
        drop(lent);
        done(report)
    }

    /// Trims installer caches to their bound. Removed entries are downloaded again when needed.
    pub(crate) async fn tidy(&self) {
        let caches = self.caches.clone();
        // If this fails, the next call retries.
        let _ = tokio::task::spawn_blocking(move || caches.keep_to_bound()).await;
    }

    /// Runs code of packages in an image, and returns its output.
    pub(crate) async fn build(&self, image: &Image, build: Build<'_>) -> Result<String, PackagesError> {
        let Build { what, command, stdin, env, folder, mounts } = build;
        let request = Request { command: Some(command), stdin: Some(stdin), env, ..in_image(image) };
        let paths = HostPaths { playground: folder.map(Path::to_owned), mounts, ..of_image(image) };
        let admitted = self.engine.admit(request, paths).map_err(|error| host(&error))?;
        let report = self.execute(admitted).await?;
        let why = match (report.status, report.limit) {
            (Status::Succeeded, None) => return Ok(report.stdout),
            (Status::TimedOut, _) => format!("it took longer than {} s", PATIENCE.as_secs()),
            (Status::Cancelled, _) => "it used more than 4 GB of disk".to_owned(),
            (_, Some(limit)) => format!("it exceeded its limit of {limit:?}"),
            (_, None) => end_of(&format!("{}\n{}", report.stdout, report.stderr)),
        };
        Err(PackagesError::BuildFailed(format!("{what} could not be built: {why}")))
    }

    /// Runs a trusted script in a language, without network or mounts.
    pub(crate) async fn ask(&self, image: &Image, language: &str, code: &str) -> Result<Done, PackagesError> {
        let request =
            Request { language: Some(language.to_owned()), code: Some(code.to_owned()), ..in_image(image) };
        let admitted = self.engine.admit(request, of_image(image)).map_err(|error| host(&error))?;
        done(self.execute(admitted).await?)
    }

    /// Allows a request to reach the registries.
    fn let_out(&self, admitted: Admitted) -> Result<Admitted, PackagesError> {
        Ok(admitted.reaching(Network::Hosts(self.registries.reached()?)))
    }

    async fn execute(&self, admitted: Admitted) -> Result<Report, PackagesError> {
        // Acquiring never fails: the semaphore is never closed.
        let _turn = self.turns.acquire().await;
        let made = std::fs::create_dir_all(&self.folder);
        made.map_err(|error| PackagesError::Host(format!("make {}: {error}", self.folder.display())))?;
        let too_much = Box::pin(room_goes(&self.folder, ROOM));
        // Boxed, so that this large future is not part of every caller's state.
        Box::pin(self.engine.execute("install".to_owned(), admitted, &mut Blind, too_much))
            .await
            .map_err(|error| host(&error))
    }
}

/// Completes once the file system of a folder has `bound` bytes less free space than at the start. Watching
/// free space avoids walking folders in which an installer works.
async fn room_goes(folder: &Path, bound: u64) {
    let free = || rustix::fs::statvfs(folder).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    if let Ok(before) = free() {
        while free().is_ok_and(|now| before.saturating_sub(now) <= bound) {
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn mount_of(tool: &Tool) -> Mount {
    Mount { source: tool.path.clone(), destination: tool.inside(), writable: false }
}

/// Creates a request for an image known by name. An image in a folder is set by [`of_image`].
fn in_image(image: &Image) -> Request {
    let image = match image {
        Image::Named(name) => Some(name.clone()),
        Image::Host | Image::Folder(_) | Image::Stored(_) => None,
    };
    Request { image, ..Request::default() }
}

/// Returns the name of a cache on this machine. The image's own programs write to it, so no two images share
/// one.
fn kept_as(name: &str, image: &Image) -> String {
    match image {
        Image::Host => name.to_owned(),
        Image::Folder(_) | Image::Stored(_) | Image::Named(_) => {
            let identity = Digest::of("belljar image caches", [image.identity().as_bytes()]).to_string();
            format!("{name}-{}", &identity[..32])
        }
    }
}

fn of_image(image: &Image) -> HostPaths {
    HostPaths { image: image.folder().map(Path::to_owned), ..HostPaths::default() }
}

fn host(error: &belljar_engine::Error) -> PackagesError {
    PackagesError::Host(format!("installer sandbox: {error}"))
}

fn done(report: Report) -> Result<Done, PackagesError> {
    match (report.status, report.limit) {
        (Status::TimedOut, _) => Err(PackagesError::Host(format!(
            "installing took longer than {} s; name fewer packages, or check the network",
            PATIENCE.as_secs()
        ))),
        (Status::Cancelled, _) => Err(PackagesError::Unresolvable(
            "installing used more than 4 GB of disk; name fewer or smaller packages".to_owned(),
        )),
        (_, Some(limit)) => Err(PackagesError::Unresolvable(format!(
            "installing exceeded its limit of {limit:?}; name fewer or smaller packages"
        ))),
        (status, None) => {
            Ok(Done { succeeded: status == Status::Succeeded, stdout: report.stdout, stderr: report.stderr })
        }
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
        let names: std::collections::BTreeSet<_> = images.iter().map(|image| kept_as("uv", image)).collect();
        assert_eq!(names.len(), images.len(), "{names:?}");
        assert_eq!(kept_as("uv", &Image::Host), "uv");
    }

    #[tokio::test]
    async fn a_step_ends_when_it_takes_too_much_of_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let enough = room_goes(folder.path(), 8 << 20);
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
