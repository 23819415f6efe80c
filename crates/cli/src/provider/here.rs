//! `belljar provider --local`: this machine's providers, from its configuration file.

use std::time::{Duration, Instant};

use belljar_engine::Engine;
use belljar_engine::provider::Blind;
use belljar_engine::request::{HostPaths, Request};
use serde_json::{Value, json};

use super::{show_list, show_test, tested};
use crate::config::Config;
use crate::env::Environment;
use crate::failure::Failure;
use crate::fleet::{KINDS, NATIVE};
use crate::identity::execution_id;
use crate::run::{on_engine, on_provider};

/// Time limit of a provider's health check.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn list(config: Config, environment: &Environment, json: bool) -> Result<u8, Failure> {
    let usual = config.providers.usual.clone().unwrap_or_else(|| NATIVE.to_owned());
    let seeds = config.providers.seeds.clone();
    on_engine(config, environment, async |engine| {
        let mut providers = Vec::new();
        for kind in KINDS {
            let post = engine.fleet().all().into_iter().find(|post| post.name() == kind.name);
            let mut shown =
                json!({"name": kind.name, "usual": usual == kind.name, "configured": post.is_some()});
            if let Some(post) = post {
                let error = post.test(tokio::time::sleep(PATIENCE)).await.err();
                let missing =
                    post.capabilities().missing.iter().map(|missing| json!({"layer": missing.layer.name()}));
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
pub(crate) fn test(name: &str, config: Config, environment: &Environment, json: bool) -> Result<u8, Failure> {
    let config = Config { providers: config.providers.with(Some(name), environment), ..config };
    let began = Instant::now();
    on_provider(Some(name), config, environment, async |engine| {
        let ran = run(engine, name).await.map_err(|failure| failure.message);
        Ok(show_test(&tested(name, began.elapsed().as_secs_f64() * 1_000.0, ran), json))
    })
}

async fn run(engine: &Engine, name: &str) -> Result<Value, Failure> {
    let request = Request {
        language: Some("python".to_owned()),
        code: Some("print(6 * 7)".to_owned()),
        provider: Some(name.to_owned()),
        ..Request::default()
    };
    let admitted = engine.admit(request, HostPaths::default())?;
    let never = Box::pin(std::future::pending());
    let report = engine.execute(execution_id()?, admitted, &mut Blind, never).await?;
    Ok(serde_json::to_value(report).unwrap_or_default())
}
