//! `belljar doctor`: starts a real sandbox, and reports for each isolation layer whether it is in force, why
//! it is missing, and how to fix that.

mod host;
mod show;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use belljar_engine::layer::Layer;
use belljar_engine::provider::{Blind, Capabilities, Provider};
use belljar_engine::report::{Report, Status};
use belljar_engine::request::{HostPaths, Request};
use belljar_engine::{Engine, Error, ErrorCode};
use belljar_providers::settings::DockerSettings;
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::config::Config;
use crate::env::Environment;
use crate::failure::Failure;
use crate::identity::execution_id;
use crate::os::{self, FoundLanguage, Started};

pub(crate) use host::kernel_release;

/// The results of the checks. Field names are those of `--json`.
#[derive(Debug, Serialize)]
struct Findings {
    booted: bool,
    error: Option<String>,
    layers: Vec<LayerFinding>,
    languages: Vec<LanguageFinding>,
    installers: Vec<InstallerFinding>,
    providers: Vec<ProviderFinding>,
    hints: Vec<String>,
    kernel: Option<String>,
    euid: Option<u32>,
}

#[derive(Debug, Serialize)]
struct LayerFinding {
    name: &'static str,
    enforced: bool,
    what: &'static str,
    reason: Option<String>,
    remedy: Option<String>,
}

/// The installer of a language's packages, and a faster one if there is any.
#[derive(Debug, Serialize)]
struct InstallerFinding {
    language: &'static str,
    program: String,
    faster: Option<&'static str>,
}

/// A configured provider and its problems.
#[derive(Debug, Serialize)]
struct ProviderFinding {
    name: &'static str,
    error: Option<String>,
    /// Isolation layers that it lacks, with the reasons.
    missing: Vec<String>,
}

#[derive(Debug, Serialize)]
struct LanguageFinding {
    name: &'static str,
    program: Option<PathBuf>,
    install: &'static str,
}

/// Checks this machine. Returns 0 if a sandbox started with every layer of the floor, else 1.
pub(crate) fn run(args: DoctorArgs, environment: &Environment, config: Config) -> Result<u8, Failure> {
    let docker = config.providers.docker();
    let services = config.providers.clone().filled_by(environment).services();
    let mut findings = match os::launch() {
        Ok(started) => os::runtime()?.block_on(examine(started, config)),
        Err(failure) if failure.code == ErrorCode::Unsupported => return Err(failure),
        Err(failure) => Findings::new(Err(failure.message), &Capabilities::default(), Vec::new()),
    };
    findings.installers = installers(environment);
    if let Some(docker) = docker {
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
            Err(Failure::host(format!("write to standard output: {error}")))
        }
        _ => Ok(u8::from(!findings.healthy())),
    }
}

async fn examine(started: Started, config: Config) -> Findings {
    let host = match started.connect(config.warm, config.sandbox_memory).await {
        Ok(host) => host,
        Err(failure) => return Findings::new(Err(failure.message), &Capabilities::default(), Vec::new()),
    };
    let engine = Engine::new(host.provider(), config.profiles, config.ceiling);
    let proof = boot(&engine).await;
    let findings = Findings::new(proof, &engine.capabilities(), host.languages());
    engine.shut_down().await;
    findings
}

/// Runs the smallest possible program and returns the isolation layers in force around it.
async fn boot(engine: &Engine) -> Result<Vec<Layer>, String> {
    let request = Request { command: Some(vec!["true".to_owned()]), ..Request::default() };
    let report = execute(engine, request).await.map_err(|failure| failure.message)?;
    match report.status {
        Status::Succeeded => Ok(report.isolation().to_vec()),
        _ => Err(format!("command 'true' failed in the sandbox: {}", report.error.unwrap_or_default())),
    }
}

async fn execute(engine: &Engine, request: Request) -> Result<Report, Failure> {
    let admitted = engine.admit(request, HostPaths::default())?;
    let never = Box::pin(std::future::pending());
    Ok(engine.execute(execution_id()?, admitted, &mut Blind, never).await?)
}

impl Findings {
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
        let hints = if error.is_some() { host::Readings::take(euid).hints() } else { Vec::new() };
        Self {
            booted: error.is_none(),
            error,
            layers: Layer::ALL.iter().map(|layer| layer_finding(*layer, &enforced, capabilities)).collect(),
            languages: languages.into_iter().map(language_finding).collect(),
            installers: Vec::new(),
            providers: Vec::new(),
            hints,
            kernel: host::kernel_release(),
            euid,
        }
    }

    fn healthy(&self) -> bool {
        let holds =
            |layer: &Layer| self.layers.iter().any(|found| found.name == layer.name() && found.enforced);
        self.booted && Layer::FLOOR.iter().all(holds)
    }
}

fn layer_finding(layer: Layer, enforced: &[Layer], capabilities: &Capabilities) -> LayerFinding {
    let missing = capabilities.missing.iter().find(|missing| missing.layer == layer);
    LayerFinding {
        name: layer.name(),
        enforced: enforced.contains(&layer),
        what: layer.what(),
        reason: missing.map(|missing| missing.reason.clone()),
        remedy: missing.map(|missing| missing.remedy.clone()),
    }
}

fn docker_finding(settings: DockerSettings) -> Result<ProviderFinding, Failure> {
    let provider = os::docker(settings.clone());
    let missing = provider.map(|provider| provider.capabilities().missing).unwrap_or_default();
    let missing = missing.iter().map(|missing| format!("{}: {}", missing.layer, missing.reason)).collect();
    let error = os::runtime()?.block_on(os::check_docker(settings)).err();
    Ok(ProviderFinding { name: "docker", error, missing })
}

/// Checks whether a remote service answers and accepts the API key. It has no isolation layers, which one
/// line states.
fn service_finding(
    name: &'static str,
    service: Result<Arc<dyn Provider>, Error>,
) -> Result<ProviderFinding, Failure> {
    let checked = match &service {
        Ok(provider) => os::runtime()?.block_on(provider.check()).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let missing = service.ok().and_then(|provider| provider.capabilities().missing.into_iter().next());
    let missing = missing.map(|missing| format!("any layer: {}", missing.reason)).into_iter().collect();
    Ok(ProviderFinding { name, error: checked.err(), missing })
}

fn installers(environment: &Environment) -> Vec<InstallerFinding> {
    let tools = crate::deps::tools(environment.home.as_deref());
    let finding = |language, fast: Option<belljar_layers::Tool>, usual: &str, faster| InstallerFinding {
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

fn language_finding(found: FoundLanguage) -> LanguageFinding {
    LanguageFinding { name: found.language.name, program: found.program, install: found.language.install }
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

    fn text(findings: &Findings) -> String {
        let mut out = anstream::StripStream::new(Vec::new());
        show::text(findings, &mut out).unwrap();
        String::from_utf8(out.into_inner()).unwrap()
    }

    #[test]
    fn health_is_a_start_and_the_whole_floor() {
        let found = |proof| Findings::new(proof, &missing(), Vec::new());
        assert!(found(Ok(Layer::FLOOR.to_vec())).healthy());
        assert!(!found(Ok(Layer::FLOOR[1..].to_vec())).healthy());
        assert!(!found(Err("mount /proc: EPERM".to_owned())).healthy());
    }

    #[test]
    fn what_is_missing_is_told_once_with_its_remedy() {
        let text = text(&Findings::new(Ok(Layer::FLOOR.to_vec()), &missing(), Vec::new()));
        assert!(text.contains("A sandbox started"), "{text}");
        assert_eq!(text.matches("cgroup.memory, cgroup.pids: no controller").count(), 1, "{text}");
        assert!(text.contains("fix: mount it"), "{text}");
    }

    #[test]
    fn a_failed_start_names_its_step() {
        let findings =
            Findings::new(Err("set-up failed: mount /proc: EPERM".to_owned()), &missing(), Vec::new());
        let text = text(&findings);
        assert!(text.contains("No sandbox started: set-up failed: mount /proc: EPERM"), "{text}");
        let mut json = Vec::new();
        show::json(&findings, &mut json).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(value["booted"], false);
        assert_eq!(value["layers"].as_array().unwrap().len(), Layer::ALL.len());
    }
}
