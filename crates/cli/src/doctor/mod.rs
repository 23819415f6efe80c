//! `belljar doctor`: starts a real sandbox, and reports for each isolation layer whether it is in force, why
//! it is missing, and how to fix that.

mod gpus;
mod host;
mod show;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use belljar_engine::layer::Layer;
use belljar_engine::provider::{Capabilities, DiscardSink, Provider};
use belljar_engine::provider_set::ProviderSet;
use belljar_engine::report::{Report, Status};
use belljar_engine::request::{HostPaths, Request};
use belljar_engine::{Engine, Error, ErrorCode};
use belljar_providers::settings::DockerSettings;
use clap::Args;
use serde::Serialize;

use gpus::GpuCheck;

use crate::config::Config;
use crate::env::Environment;
use crate::error::CliError;
use crate::identity::execution_id;
use crate::os::{self, FoundLanguage, StartedLauncher};
use crate::wire::{self, EngineParts};

/// Arguments of `belljar doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// The results of the checks. Field names are those of `--json`.
#[derive(Debug, Serialize)]
struct DoctorReport {
    booted: bool,
    error: Option<String>,
    layers: Vec<LayerCheck>,
    languages: Vec<LanguageCheck>,
    installers: Vec<InstallerCheck>,
    providers: Vec<ProviderCheck>,
    gpus: GpuCheck,
    hints: Vec<String>,
    kernel: Option<String>,
    euid: Option<u32>,
}

#[derive(Debug, Serialize)]
struct LayerCheck {
    name: &'static str,
    enforced: bool,
    what: &'static str,
    reason: Option<String>,
    remedy: Option<String>,
}

/// The installer of a language's packages, and a faster one if there is any.
#[derive(Debug, Serialize)]
struct InstallerCheck {
    language: &'static str,
    program: String,
    faster: Option<&'static str>,
}

/// A configured provider and its problems.
#[derive(Debug, Serialize)]
struct ProviderCheck {
    name: &'static str,
    error: Option<String>,
    /// Isolation layers that it lacks, with the reasons.
    missing: Vec<String>,
}

#[derive(Debug, Serialize)]
struct LanguageCheck {
    name: &'static str,
    program: Option<PathBuf>,
    install: &'static str,
}

/// Checks this machine. Returns 0 if a sandbox started with every layer of the floor, else 1.
pub(crate) fn run(args: DoctorArgs, environment: &Environment, config: Config) -> Result<u8, CliError> {
    let docker = config.providers.docker();
    let services = config.providers.clone().with_environment(environment).services();
    let mut findings = match os::start_launcher() {
        Ok(started) => os::runtime()?.block_on(examine(started, &config)),
        Err(failure) if failure.code == ErrorCode::Unsupported => return Err(failure),
        Err(failure) => DoctorReport::new(Err(failure.message), &Capabilities::default(), Vec::new()),
    };
    findings.installers = installers(environment);
    if let Some(docker) = docker {
        findings.gpus = GpuCheck::of_docker(docker.clone())?;
        findings.providers.push(docker_finding(docker)?);
    }
    for (name, service) in services {
        findings.providers.push(service_finding(name, service)?);
    }
    let mut stdout = anstream::stdout().lock();
    let written =
        if args.json { show::json(&findings, &mut stdout) } else { show::text(&findings, &mut stdout) };
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::host(format!("write to standard output: {error}")))
        }
        _ => Ok(u8::from(!findings.healthy())),
    }
}

async fn examine(started: StartedLauncher, config: &Config) -> DoctorReport {
    let host = match started
        .connect(config.warm, config.sandbox_memory, config.builds.clone(), config.always_proxy, None)
        .await
    {
        Ok(host) => host,
        Err(failure) => return DoctorReport::new(Err(failure.message), &Capabilities::default(), Vec::new()),
    };
    let providers = Arc::new(ProviderSet::single(host.provider()));
    let engine = wire::build_engine(config, EngineParts::new(providers));
    let proof = run_probe(&engine).await;
    let findings = DoctorReport::new(proof, &engine.capabilities(), host.languages());
    engine.shut_down().await;
    findings
}

/// Runs the smallest possible program and returns the isolation layers in force around it.
async fn run_probe(engine: &Engine) -> Result<Vec<Layer>, String> {
    let request = Request { command: Some(vec!["true".to_owned()]), ..Request::default() };
    let report = execute(engine, request).await.map_err(|failure| failure.message)?;
    match report.status {
        Status::Succeeded => Ok(report.isolation().to_vec()),
        _ => Err(format!("command 'true' failed in the sandbox: {}", report.error.unwrap_or_default())),
    }
}

async fn execute(engine: &Engine, request: Request) -> Result<Report, CliError> {
    let admitted = engine.admit(request, HostPaths::default())?;
    let never = Box::pin(std::future::pending());
    Ok(engine.execute(execution_id()?, admitted, &mut DiscardSink, never).await?)
}

impl DoctorReport {
    fn new(
        proof: Result<Vec<Layer>, String>,
        capabilities: &Capabilities,
        languages: Vec<FoundLanguage>,
    ) -> Self {
        let euid = os::effective_uid();
        let (enforced, error) = match proof {
            Ok(layers) => (layers, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let hints = if error.is_some() { host::HostSettings::read(euid).hints() } else { Vec::new() };
        Self {
            booted: error.is_none(),
            error,
            layers: Layer::ALL.iter().map(|layer| layer_finding(*layer, &enforced, capabilities)).collect(),
            languages: languages.into_iter().map(language_finding).collect(),
            installers: Vec::new(),
            providers: Vec::new(),
            gpus: GpuCheck::without_docker(),
            hints,
            kernel: host::kernel_release(),
            euid,
        }
    }

    fn healthy(&self) -> bool {
        let holds =
            |layer: &Layer| self.layers.iter().any(|found| found.name == layer.name() && found.enforced);
        self.booted && Layer::MANDATORY.iter().all(holds)
    }
}

fn layer_finding(layer: Layer, enforced: &[Layer], capabilities: &Capabilities) -> LayerCheck {
    let missing = capabilities.missing.iter().find(|missing| missing.layer == layer);
    LayerCheck {
        name: layer.name(),
        enforced: enforced.contains(&layer),
        what: layer.description(),
        reason: missing.map(|missing| missing.reason.clone()),
        remedy: missing.map(|missing| missing.remedy.clone()),
    }
}

fn docker_finding(settings: DockerSettings) -> Result<ProviderCheck, CliError> {
    let provider = os::docker(settings.clone());
    let missing = provider.map(|provider| provider.capabilities().missing).unwrap_or_default();
    let missing = missing.iter().map(|missing| format!("{}: {}", missing.layer, missing.reason)).collect();
    let error = os::runtime()?.block_on(os::check_docker(settings)).err();
    Ok(ProviderCheck { name: "docker", error, missing })
}

/// Checks whether a remote service answers and accepts the API key. It has no isolation layers, which one
/// line states.
fn service_finding(
    name: &'static str,
    service: Result<Arc<dyn Provider>, Error>,
) -> Result<ProviderCheck, CliError> {
    let checked = match &service {
        Ok(provider) => os::runtime()?.block_on(provider.self_test()).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let missing = service.ok().and_then(|provider| provider.capabilities().missing.into_iter().next());
    let missing = missing.map(|missing| format!("any layer: {}", missing.reason)).into_iter().collect();
    Ok(ProviderCheck { name, error: checked.err(), missing })
}

fn installers(environment: &Environment) -> Vec<InstallerCheck> {
    let tools = wire::installer_tools(environment.home.as_deref());
    let finding =
        |language, fast: Option<belljar_layers::InstallerTool>, usual: &str, faster| InstallerCheck {
            language,
            faster: fast.is_none().then_some(faster),
            program: fast.map_or_else(|| usual.to_owned(), |tool| tool.path.display().to_string()),
        };
    let uv = "uv, ten times faster; install it with: pip install uv, or see https://docs.astral.sh/uv";
    let bun = "bun, ten times faster; install it with: npm install -g bun, or see https://bun.sh";
    vec![
        finding("python", tools.uv, "the interpreter's pip", uv),
        finding("javascript", tools.bun, "the image's npm", bun),
    ]
}

fn language_finding(found: FoundLanguage) -> LanguageCheck {
    LanguageCheck { name: found.language.name, program: found.program, install: found.language.install }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_engine::provider::MissingLayer;

    fn missing() -> Capabilities {
        let gap =
            |layer| MissingLayer { layer, reason: "no controller".to_owned(), remedy: "mount it".to_owned() };
        Capabilities {
            missing: vec![gap(Layer::CgroupMemory), gap(Layer::CgroupPids)],
            host_paths: true,
            ..Capabilities::default()
        }
    }

    fn text(findings: &DoctorReport) -> String {
        let mut out = anstream::StripStream::new(Vec::new());
        show::text(findings, &mut out).unwrap();
        String::from_utf8(out.into_inner()).unwrap()
    }

    #[test]
    fn healthy_needs_a_start_and_the_whole_floor() {
        let found = |proof| DoctorReport::new(proof, &missing(), Vec::new());
        assert!(found(Ok(Layer::MANDATORY.to_vec())).healthy());
        assert!(!found(Ok(Layer::MANDATORY[1..].to_vec())).healthy());
        assert!(!found(Err("mount /proc: EPERM".to_owned())).healthy());
    }

    #[test]
    fn gpus_come_with_what_to_do() {
        let text = text(&DoctorReport::new(Ok(Layer::MANDATORY.to_vec()), &missing(), Vec::new()));
        assert!(text.contains("GPUs: none: provider native has none; provider docker gives them"), "{text}");
        let unreachable =
            DockerSettings { host: Some("unix:///nowhere.sock".to_owned()), ..DockerSettings::default() };
        let found = GpuCheck::of_docker(unreachable).unwrap();
        assert!(!found.available && found.what.contains("no Docker daemon"), "{found:?}");
    }

    #[test]
    fn missing_layers_are_grouped_with_their_remedy() {
        let text = text(&DoctorReport::new(Ok(Layer::MANDATORY.to_vec()), &missing(), Vec::new()));
        assert!(text.contains("A sandbox started"), "{text}");
        assert_eq!(text.matches("cgroup.memory, cgroup.pids: no controller").count(), 1, "{text}");
        assert!(text.contains("fix: mount it"), "{text}");
    }

    #[test]
    fn a_failed_start_names_its_step() {
        let findings =
            DoctorReport::new(Err("set-up failed: mount /proc: EPERM".to_owned()), &missing(), Vec::new());
        let text = text(&findings);
        assert!(text.contains("No sandbox started: set-up failed: mount /proc: EPERM"), "{text}");
        let mut json = Vec::new();
        show::json(&findings, &mut json).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(value["booted"], false);
        assert_eq!(value["layers"].as_array().unwrap().len(), Layer::ALL.len());
    }
}
