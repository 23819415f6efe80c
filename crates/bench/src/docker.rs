//! Docker variants: warm containers, `docker run` and `docker exec`, all with the image of provider 'docker'.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use belljar_engine::outcome::Warmth;
use belljar_providers::docker::Docker;
use belljar_providers::settings::DockerSettings;

use crate::command::{CommandBench, FOLDER, output_with_timeout};
use crate::measure::Variant;
use crate::other_tools::installed;
use crate::sandboxed::{ExpectedLayers, SandboxBench};
use crate::workload::Workload;

/// Warm containers; each run takes one, and a replacement is started.
const POOL: usize = 4;

/// The three variants, and the container that they need while they are measured.
#[derive(Debug)]
pub(crate) struct DockerVariants {
    pub(crate) pool: Arc<SandboxBench>,
    pub(crate) run: CommandBench,
    pub(crate) exec: CommandBench,
    _running: ExecContainer,
}

impl DockerVariants {
    /// Prepares all variants and runs the workload once in each. Returns the reason if one fails.
    pub(crate) async fn prepare(
        settings: &DockerSettings,
        control: &CommandBench,
        workload: &'static Workload,
    ) -> Result<Self, String> {
        let mut words = vec![installed("docker")?];
        words.extend(settings.host.iter().flat_map(|host| ["--host".to_owned(), host.clone()]));
        let running = ExecContainer::start(&words, &settings.image, &control.place)?;
        let program = [workload.interpreter(), &format!("{FOLDER}/{}", workload.file)].map(str::to_owned);
        let mount = format!("{FOLDER}:{FOLDER}:ro");
        let flags = ["run", "--rm", "--network", "none", "--volume", &mount, &settings.image];
        let command = |name, own: &[&str]| {
            let own = own.iter().map(|word| (*word).to_owned());
            let words = words.iter().cloned().chain(own).chain(program.clone()).collect();
            // The client finds its daemon through environment variables.
            CommandBench { name, words, env: None, ..control.clone() }
        };
        let run = command("docker", &flags);
        let exec = command("d. exec", &["exec", &running.id]);
        run.try_once(&workload.code_sample())?;
        exec.try_once(&workload.code_sample())?;
        let provider = Docker::new(DockerSettings { pool: POOL, ..settings.clone() });
        let pool = SandboxBench::new(Arc::new(provider), workload, Warmth::Pool, ExpectedLayers::default())
            .waiting_as("d. pool");
        let first = pool.run_once(&workload.code_sample()).await;
        if let Err(failure) = first {
            pool.engine().shut_down().await;
            return Err(failure.to_string());
        }
        Ok(Self { pool: Arc::new(pool), run, exec, _running: running })
    }

    pub(crate) fn variants(&self) -> [Variant; 3] {
        let command = |command: &CommandBench| Variant::Command(Arc::new(command.clone()));
        [Variant::Sandbox(Arc::clone(&self.pool)), command(&self.exec), command(&self.run)]
    }
}

/// A container for `docker exec` with the code mounted; removed on drop.
#[derive(Debug)]
struct ExecContainer {
    docker: Vec<String>,
    id: String,
}

impl ExecContainer {
    fn start(docker: &[String], image: &str, place: &Path) -> Result<Self, String> {
        let mount = format!("{0}:{0}:ro", place.display());
        let flags = ["run", "--detach", "--rm", "--network", "none", "--volume", &mount];
        let mut command = client(docker);
        let output = output_with_timeout(command.args(flags).args([image, "sleep", "infinity"]))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(said.lines().next().unwrap_or("the Docker daemon does not answer").trim().to_owned());
        }
        let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Self { docker: docker.to_vec(), id })
    }
}

impl Drop for ExecContainer {
    fn drop(&mut self) {
        let _removed = output_with_timeout(client(&self.docker).args(["rm", "--force", &self.id]));
    }
}

fn client(words: &[String]) -> Command {
    let mut words = words.iter();
    let mut command = Command::new(words.next().map_or("docker", String::as_str));
    command.args(words);
    command
}
