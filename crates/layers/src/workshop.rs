//! Where installers work: an engine of its own over the same provider, with limits of its own, nobody's data and nobody's
//! environment.

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

use crate::registries::Registries;
use crate::shelf::{Digest, Scope};
use crate::tools::{TOOLS, Tool, Tools};

/// How many steps are under way at one time; others wait for their turn.
const AT_A_TIME: usize = 4;
/// How long one step may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// How much of the disk one step may take.
const ROOM: u64 = 4 << 30;
/// How often somebody looks.
const LOOK: Duration = Duration::from_millis(200);
/// Where caches of installers are seen.
const CACHE: &str = "/opt/belljar/cache";

/// Runs installers.
#[derive(Debug)]
pub(crate) struct Workshop {
    engine: Engine,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) registries: Registries,
    pub(crate) tools: Tools,
    caches: PathBuf,
    turns: Semaphore,
}

/// One step.
#[derive(Debug, Default)]
pub(crate) struct Job<'a> {
    pub(crate) command: Vec<String>,
    pub(crate) stdin: String,
    pub(crate) env: BTreeMap<String, String>,
    /// The folder that it works in; without one it leaves nothing.
    pub(crate) folder: Option<&'a Path>,
    pub(crate) tool: Option<&'a Tool>,
    /// A cache of this name, of whoever it is for.
    pub(crate) cache: Option<(&'static str, &'a Scope)>,
    /// Whether it reaches the registries, and is told how.
    pub(crate) download: bool,
}

/// How a step ended.
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
        caches: PathBuf,
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
        Self { engine, provider, registries, tools, caches, turns: Semaphore::new(AT_A_TIME) }
    }

    /// Where a cache is seen inside.
    pub(crate) fn cache(name: &str) -> String {
        format!("{CACHE}/{name}")
    }

    /// Runs a step in an image.
    pub(crate) async fn run(&self, image: &Image, job: Job<'_>) -> Result<Done, PackagesError> {
        let mut mounts: Vec<Mount> = job.tool.map(mount_of).into_iter().collect();
        if let Some((name, scope)) = job.cache {
            mounts.push(Mount {
                source: self.cache_folder(name, scope)?,
                destination: Self::cache(name),
                writable: true,
            });
        }
        let mut env = job.env;
        if job.download {
            mounts.extend(self.registries.mounts.iter().cloned());
            env.extend(self.registries.env.clone());
            // Whatever is configured there, bun looks for its settings in its home.
            env.insert("HOME".to_owned(), TOOLS.to_owned());
        }
        let request =
            Request { command: Some(job.command), stdin: Some(job.stdin), env, ..Request::default() };
        let paths = HostPaths { playground: job.folder.map(Path::to_owned), mounts, ..of_image(image) };
        let admitted = self.engine.admit(request, paths).map_err(|error| host(&error))?;
        done(self.execute(if job.download { self.let_out(admitted)? } else { admitted }).await?)
    }

    /// Runs code of ours in a language, without anything around it.
    pub(crate) async fn ask(&self, image: &Image, language: &str, code: &str) -> Result<Done, PackagesError> {
        let request = Request {
            language: Some(language.to_owned()),
            code: Some(code.to_owned()),
            ..Request::default()
        };
        let admitted = self.engine.admit(request, of_image(image)).map_err(|error| host(&error))?;
        done(self.execute(admitted).await?)
    }

    /// With a way to the registries.
    fn let_out(&self, admitted: Admitted) -> Result<Admitted, PackagesError> {
        Ok(admitted.reaching(match self.registries.reached()? {
            Some(hosts) => Network::Hosts(hosts.trusting()),
            None => Network::Full,
        }))
    }

    async fn execute(&self, admitted: Admitted) -> Result<Report, PackagesError> {
        // It is never closed.
        let _turn = self.turns.acquire().await;
        let made = std::fs::create_dir_all(&self.caches);
        made.map_err(|error| PackagesError::Host(format!("make {}: {error}", self.caches.display())))?;
        let too_much = Box::pin(room_goes(&self.caches, ROOM));
        self.engine
            .execute("install".to_owned(), admitted, &mut Blind, too_much)
            .await
            .map_err(|error| host(&error))
    }

    /// A folder that only installers write, each tenant's own where layers are.
    fn cache_folder(&self, name: &str, scope: &Scope) -> Result<PathBuf, PackagesError> {
        let scope = match scope {
            Scope::Shared => "shared".to_owned(),
            Scope::Tenant(tenant) => Digest::of("belljar installer cache", [tenant]).to_string(),
        };
        let folder = self.caches.join(scope).join(name);
        let made = std::fs::create_dir_all(&folder);
        made.map_err(|error| PackagesError::Host(format!("make {}: {error}", folder.display())))?;
        Ok(folder)
    }
}

/// Ends when the file system of a folder has so much less room than now. Nobody has to look into folders in which an
/// installer works for that.
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

fn of_image(image: &Image) -> HostPaths {
    let image = match image {
        Image::Host => None,
        Image::Folder(folder) => Some(folder.clone()),
    };
    HostPaths { image, ..HostPaths::default() }
}

fn host(error: &belljar_engine::Error) -> PackagesError {
    PackagesError::Host(format!("the installer's own sandbox: {error}"))
}

fn done(report: Report) -> Result<Done, PackagesError> {
    match (report.status, report.limit) {
        (Status::TimedOut, _) => Err(PackagesError::Host(format!(
            "installing took longer than {} s; name fewer packages, or look at the network",
            PATIENCE.as_secs()
        ))),
        (Status::Cancelled, _) => Err(PackagesError::Unresolvable(
            "installing took more than 4 GB of disk; name fewer or smaller packages".to_owned(),
        )),
        (_, Some(limit)) => Err(PackagesError::Unresolvable(format!(
            "installing went beyond its limit of {limit:?}; name fewer or smaller packages"
        ))),
        (status, None) => {
            Ok(Done { succeeded: status == Status::Succeeded, stdout: report.stdout, stderr: report.stderr })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
