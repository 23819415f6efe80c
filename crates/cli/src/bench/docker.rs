//! Docker variants: warm containers, `docker run` and `docker exec`, all with the image of provider 'docker'.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use belljar_engine::outcome::Warmth;
use belljar_providers::settings::DockerSettings;

use super::inside::{Inside, Layers};
use super::measure::Way;
use super::outside::{FOLDER, Outside, bounded};
use super::rivals::installed;
use super::workload::Workload;
use crate::os;

/// Warm containers; each run takes one, and a replacement is started.
const POOL: usize = 4;

/// The three variants, and the container that they need while they are measured.
#[derive(Debug)]
pub(super) struct InDocker {
    pub(super) pool: Arc<Inside>,
    pub(super) run: Outside,
    pub(super) exec: Outside,
    _running: Running,
}

impl InDocker {
    /// Prepares all variants and runs the workload once in each. Returns the reason if one fails.
    pub(super) async fn find(
        settings: &DockerSettings,
        control: &Outside,
        workload: &'static Workload,
    ) -> Result<Self, String> {
        let mut words = vec![installed("docker")?];
        words.extend(settings.host.iter().flat_map(|host| ["--host".to_owned(), host.clone()]));
        let running = Running::start(&words, &settings.image, &control.place)?;
        let program = [workload.interpreter(), &format!("{FOLDER}/{}", workload.file)].map(str::to_owned);
        let mount = format!("{FOLDER}:{FOLDER}:ro");
        let flags = ["run", "--rm", "--network", "none", "--volume", &mount, &settings.image];
        let outside = |name, own: &[&str]| {
            let own = own.iter().map(|word| (*word).to_owned());
            let words = words.iter().cloned().chain(own).chain(program.clone()).collect();
            // The client finds its daemon through environment variables.
            Outside { name, words, env: None, ..control.clone() }
        };
        let run = outside("docker", &flags);
        let exec = outside("d. exec", &["exec", &running.id]);
        run.trial(&workload.piece())?;
        exec.trial(&workload.piece())?;
        let provider = os::docker(DockerSettings { pool: POOL, ..settings.clone() });
        let provider = provider.ok_or("provider 'docker' needs belljar on Linux")?;
        let pool = Inside::new(provider, workload, Warmth::Pool, Layers::default()).waited_for("d. pool");
        let first = pool.once(&workload.piece()).await;
        if let Err(failure) = first {
            pool.engine().shut_down().await;
            return Err(failure.message);
        }
        Ok(Self { pool: Arc::new(pool), run, exec, _running: running })
    }

    pub(super) fn ways(&self) -> [Way; 3] {
        let outside = |outside: &Outside| Way::Outside(Arc::new(outside.clone()));
        [Way::Inside(Arc::clone(&self.pool)), outside(&self.exec), outside(&self.run)]
    }
}

/// A container for `docker exec` with the code mounted; removed on drop.
#[derive(Debug)]
struct Running {
    docker: Vec<String>,
    id: String,
}

impl Running {
    fn start(docker: &[String], image: &str, place: &Path) -> Result<Self, String> {
        let mount = format!("{0}:{0}:ro", place.display());
        let flags = ["run", "--detach", "--rm", "--network", "none", "--volume", &mount];
        let mut command = client(docker);
        let output = bounded(command.args(flags).args([image, "sleep", "infinity"]))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(said.lines().next().unwrap_or("the Docker daemon does not answer").trim().to_owned());
        }
        let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Self { docker: docker.to_vec(), id })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _removed = bounded(client(&self.docker).args(["rm", "--force", &self.id]));
    }
}

fn client(words: &[String]) -> Command {
    let mut words = words.iter();
    let mut command = Command::new(words.next().map_or("docker", String::as_str));
    command.args(words);
    command
}
