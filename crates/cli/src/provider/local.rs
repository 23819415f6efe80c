//! `belljar provider --local`: this machine's providers, from its configuration file.

use std::time::{Duration, Instant};

use belljar_engine::Engine;
use belljar_engine::provider::DiscardSink;
use belljar_engine::request::{HostPaths, Request};
use serde_json::{Value, json};

use super::{show_list, show_test, test_result};
use crate::config::Config;
use crate::env::Environment;
use crate::error::CliError;
use crate::identity::execution_id;
use crate::provider_kinds::{KINDS, NATIVE};
use crate::wire;

/// Time limit of a provider's health check.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn list(config: &Config, environment: &Environment, json: bool) -> Result<u8, CliError> {
    let usual = config.providers.default_provider.as_deref().unwrap_or(NATIVE);
    let seeds = &config.providers.configs;
    wire::with_engine(None, config, environment, async |wired| {
        let mut providers = Vec::new();
        for kind in KINDS {
            let entry =
                wired.engine.providers().entries().into_iter().find(|entry| entry.name() == kind.name);
            let mut shown =
                json!({"name": kind.name, "usual": usual == kind.name, "configured": entry.is_some()});
            if let Some(entry) = entry {
                let error = entry.run_self_test(tokio::time::sleep(HEALTH_TIMEOUT)).await.err();
                let missing =
                    entry.capabilities().missing.iter().map(|missing| json!({"layer": missing.layer.name()}));
                shown["capabilities"] = json!({"missing_layers": missing.collect::<Vec<_>>()});
                shown["health"] = json!({"works": error.is_none(), "error": error});
                shown["instead"] = json!(seeds.get(kind.name).map(|seed| &seed.instead));
            }
            providers.push(shown);
        }
        Ok(show_list(&json!({"usual": usual, "providers": providers}), json))
    })
}

/// Runs a real program with a provider and prints the result.
pub(crate) fn test(
    name: &str,
    config: Config,
    environment: &Environment,
    json: bool,
) -> Result<u8, CliError> {
    let config = Config { providers: config.providers.with_named(Some(name), environment), ..config };
    let began = Instant::now();
    wire::with_engine(Some(name), &config, environment, async |wired| {
        let ran = run(&wired.engine, name).await.map_err(|failure| failure.message);
        Ok(show_test(&test_result(name, began.elapsed().as_secs_f64() * 1_000.0, ran), json))
    })
}

async fn run(engine: &Engine, name: &str) -> Result<Value, CliError> {
    let request = Request {
        language: Some("python".to_owned()),
        code: Some("print(6 * 7)".to_owned()),
        provider: Some(name.to_owned()),
        ..Request::default()
    };
    let admitted = engine.admit(request, HostPaths::default())?;
    let never = Box::pin(std::future::pending());
    let report = engine.execute(execution_id()?, admitted, &mut DiscardSink, never).await?;
    Ok(serde_json::to_value(report).unwrap_or_default())
}
