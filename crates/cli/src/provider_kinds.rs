//! Wires providers: the table of all kinds, and the set of providers that are configured on this machine.

mod spec;

use std::sync::Arc;
use std::time::Duration;

use belljar_engine::catalog::{self, ProviderCatalog, ProviderSettings};
use belljar_engine::provider::Provider;
use belljar_engine::provider_set::{AUTO, ProviderSet, ProviderWithFallbacks};
use belljar_engine::{Engine, Error};
use belljar_providers::remote::RemoteProvider;
use belljar_providers::settings::{AgentRunSettings, DockerSettings, E2bSettings};
use belljar_providers::simulated::{self, Simulated};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) use spec::ProviderSpec;

use crate::env::Environment;
use crate::error::CliError;
use crate::os;

/// Name of this machine's own provider.
pub(crate) const NATIVE: &str = "native";
/// Name of provider Docker in requests.
pub(crate) const DOCKER: &str = "docker";
/// Variables of provider E2B and their settings; overridden by `providers.e2b`.
const E2B_VARIABLES: &[(&str, &str)] = &[("E2B_API_KEY", "api_key")];
/// Variables of provider Aliyun AgentRun and their settings; overridden by `providers.agentrun`.
const AGENTRUN_VARIABLES: &[(&str, &str)] = &[
    ("AGENTRUN_ACCESS_KEY_ID", "access_key_id"),
    ("AGENTRUN_ACCESS_KEY_SECRET", "access_key_secret"),
    ("AGENTRUN_SECURITY_TOKEN", "security_token"),
    ("AGENTRUN_ACCOUNT_ID", "account_id"),
    ("AGENTRUN_REGION", "region"),
    ("AGENTRUN_TEMPLATE", "template"),
    ("AGENTRUN_DATA_ENDPOINT", "data_url"),
];
/// Time limit of a provider's health check.
const TEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A provider, or the error in its settings.
pub(crate) type BuildResult = Result<Arc<dyn Provider>, Error>;

/// A kind of provider.
pub(crate) struct ProviderKind {
    pub(crate) name: &'static str,
    /// One-line description for people who choose a provider.
    pub(crate) what: &'static str,
    /// Whether it is available without being configured.
    built_in: bool,
    /// Environment variables of this kind, and the settings that they set.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// Facts about it on this machine that cannot be set.
    facts: fn() -> Vec<HostFact>,
    schema: fn() -> Value,
    build: fn(&ProviderSettings, Option<&Arc<dyn Provider>>) -> BuildResult,
}

/// A fact about a provider on this machine, shown as a read-only setting.
struct HostFact {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    value: String,
}

/// All kinds of providers; a new provider adds a line.
#[rustfmt::skip]
pub(crate) const KINDS: &[ProviderKind] = &[
    ProviderKind { name: "agentrun", what: "Aliyun AgentRun's cloud sandboxes; isolation is up to the service", built_in: false, environment: AGENTRUN_VARIABLES, facts: Vec::new,
           schema: schema::<AgentRunSettings>, build: |settings, _| Ok(Arc::new(RemoteProvider::agentrun(&read(settings)?)?)) },
    ProviderKind { name: DOCKER, what: "Docker containers on this machine, with runc or gVisor", built_in: false, environment: &[], facts: docker_facts,
           schema: schema::<DockerSettings>, build: |settings, _| os::docker(read(settings)?).ok_or_else(|| needs_linux(DOCKER)) },
    ProviderKind { name: "e2b", what: "E2B's cloud sandboxes; isolation is up to the service", built_in: false, environment: E2B_VARIABLES, facts: Vec::new,
           schema: schema::<E2bSettings>, build: |settings, _| Ok(Arc::new(RemoteProvider::e2b(&read(settings)?)?)) },
    ProviderKind { name: NATIVE, what: "Belljar's own jail on this machine: fastest, nothing to install", built_in: true, environment: &[], facts: native_facts,
           schema: schema::<NoSettings>, build: |_, native| native.cloned().ok_or_else(|| needs_linux(NATIVE)) },
    ProviderKind { name: simulated::NAME, what: "runs nothing and says so; for developing an agent", built_in: true, environment: &[], facts: Vec::new,
           schema: schema::<NoSettings>, build: |_, _| Ok(Arc::new(Simulated)) },
];

/// Returns the variables of all kinds.
pub(crate) fn variables() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|kind| kind.environment).map(|(variable, _)| *variable)
}

fn names() -> Vec<&'static str> {
    KINDS.iter().map(|kind| kind.name).collect()
}

/// Settings of a kind that has none.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoSettings {}

impl ProviderKind {
    /// Finds a kind by name.
    pub(crate) fn find(name: &str) -> Result<&'static Self, Error> {
        KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| catalog::unknown_provider(name, &names()))
    }

    /// Returns the JSON schema of its settings, with this machine's facts as read-only properties.
    pub(crate) fn schema(&self) -> Value {
        let mut schema = (self.schema)();
        for HostFact { name, title, description, value } in (self.facts)() {
            schema["properties"][name] = json!({
                "type": "string", "readOnly": true, "const": value, "title": title, "description": description,
            });
        }
        schema
    }

    /// Returns the settings that this kind's variables have.
    pub(crate) fn settings_in(&self, environment: &Environment) -> ProviderSettings {
        let set = self.environment.iter().filter_map(|(variable, setting)| {
            Some(((*setting).to_owned(), environment.providers.get(variable)?.reveal().into()))
        });
        set.collect()
    }

    /// Creates a provider; `native` is this machine's own.
    pub(crate) fn build(
        &self,
        settings: &ProviderSettings,
        native: Option<&Arc<dyn Provider>>,
    ) -> BuildResult {
        catalog::check_settings(&self.schema(), settings)?;
        (self.build)(settings, native)
    }
}

/// Generates a schema without references, so that a form can be built from it directly.
fn schema<S: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<S>().to_value()
}

/// Parses settings that fit the schema. An error shows no details, because its message might contain a
/// secret.
fn read<S: DeserializeOwned>(settings: &ProviderSettings) -> Result<S, Error> {
    serde_json::from_value(Value::Object(settings.clone())).map_err(|_| Error::Invalid {
        field: "settings",
        message: "do not fit together; check them against: belljar provider schema".to_owned(),
    })
}

fn needs_linux(name: &str) -> Error {
    let message = format!("'{name}' needs belljar on Linux");
    Error::Unsupported { field: "provider", message }
}

fn native_facts() -> Vec<HostFact> {
    let value = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    let description = "The operating system and the processor of this machine.";
    vec![HostFact { name: "system", title: "System", description, value }]
}

fn docker_facts() -> Vec<HostFact> {
    let description = "`DOCKER_HOST` of this process: the daemon's address, unless `host` is set.";
    let fact =
        |value| HostFact { name: "docker_host", title: "Daemon from the environment", description, value };
    std::env::var("DOCKER_HOST").ok().map(fact).into_iter().collect()
}

/// Implements the engine's provider catalog with the table of kinds.
#[derive(Debug)]
pub(crate) struct KindCatalog {
    pub(crate) native: Arc<dyn Provider>,
}

impl ProviderCatalog for KindCatalog {
    fn names(&self) -> Vec<&'static str> {
        names()
    }

    fn exists_unconfigured(&self, name: &str) -> bool {
        ProviderKind::find(name).is_ok_and(|kind| kind.built_in)
    }

    fn schema(&self, name: &str) -> Result<Value, Error> {
        ProviderKind::find(name).map(ProviderKind::schema)
    }

    fn build(&self, name: &str, settings: &ProviderSettings) -> Result<Arc<dyn Provider>, Error> {
        ProviderKind::find(name)?.build(settings, Some(&self.native))
    }
}

/// Builds the provider set: this machine's own provider, the configured ones, and the simulated one, which
/// serves only requests that name it.
pub(crate) fn configured_providers(
    native: &Arc<dyn Provider>,
    spec: &ProviderSpec,
) -> Result<Arc<ProviderSet>, CliError> {
    let mut entries = Vec::new();
    for kind in KINDS {
        let config = match spec.configs.get(kind.name) {
            Some(config) => config.clone(),
            None if kind.built_in => Default::default(),
            None => continue,
        };
        entries.push(ProviderWithFallbacks {
            provider: kind.build(&config.settings, Some(native))?,
            fallbacks: config.instead,
        });
    }
    Ok(Arc::new(ProviderSet::new(entries, spec.default_provider.as_deref().unwrap_or(NATIVE), names())?))
}

/// Builds a provider that does not need the native one, for a single run. It works on machines that cannot
/// isolate, and keeps nothing warm.
pub(crate) fn standalone_provider(
    named: Option<&str>,
    spec: &ProviderSpec,
) -> Result<Option<Arc<dyn Provider>>, CliError> {
    let Some(kind) = KINDS.iter().find(|kind| named == Some(kind.name) && kind.name != NATIVE) else {
        return Ok(None);
    };
    let mut settings = match spec.configs.get(kind.name) {
        Some(config) => config.settings.clone(),
        None if kind.built_in => ProviderSettings::new(),
        None => return Ok(None),
    };
    // A single run needs no pool, and the user of this machine may as well ask Docker for any image and for GPUs.
    let schema = kind.schema();
    for (setting, value) in [("pool", json!(0)), ("images", json!(["*"])), ("gpus", json!(true))] {
        if !schema["properties"][setting].is_null() {
            settings.insert(setting.to_owned(), value);
        }
    }
    Ok(Some(kind.build(&settings, None)?))
}

/// Tests all candidates, if the strongest working provider is to be chosen.
pub(crate) async fn test_candidates(engine: &Engine, named: Option<&str>) {
    if named == Some(AUTO) {
        for entry in engine.providers().candidates() {
            // A provider that fails its test is not chosen. If all fail, choosing one reports the error.
            let _result = entry.run_self_test(tokio::time::sleep(TEST_TIMEOUT)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_is_flat_and_accepts_its_defaults() {
        for kind in KINDS {
            let schema = kind.schema();
            let properties = schema["properties"].as_object().cloned().unwrap_or_default();
            assert_eq!(schema["additionalProperties"], false, "{}", kind.name);
            for (name, property) in &properties {
                for label in ["title", "description"] {
                    let words = property[label].as_str().unwrap_or_default();
                    assert!(!words.is_empty(), "{}.{name} has no {label}", kind.name);
                }
                for word in property.as_object().unwrap().keys() {
                    assert!(
                        !["$ref", "anyOf", "allOf", "not", "pattern"].contains(&word.as_str()),
                        "{name}: {word}"
                    );
                }
            }
            let defaults = properties.iter().filter(|(_, property)| !property["default"].is_null());
            let defaults =
                defaults.map(|(name, property)| (name.clone(), property["default"].clone())).collect();
            catalog::check_settings(&schema, &defaults).unwrap();
        }
    }

    #[test]
    fn settings_that_direct_a_secret_are_marked_as_destinations() {
        for kind in KINDS {
            let schema = kind.schema();
            let properties = schema["properties"].as_object().into_iter().flatten();
            let marked = properties.filter(|(_, property)| property["x-destination"] == true);
            let mut marked: Vec<_> = marked.map(|(name, _)| name.as_str()).collect();
            marked.sort_unstable();
            let wanted: &[&str] = match kind.name {
                "agentrun" => &["account_id", "data_url", "region"],
                "e2b" => &["api_url", "domain", "sandbox_url"],
                _ => &[],
            };
            assert_eq!(marked, wanted, "{}", kind.name);
            assert_eq!(marked.is_empty(), catalog::secret_names(&schema).is_empty(), "{}", kind.name);
        }
    }

    #[test]
    fn docker_reports_invalid_settings() {
        let build = |settings: Value| {
            ProviderKind::find(DOCKER)
                .unwrap()
                .build(settings.as_object().unwrap(), None)
                .map(drop)
                .map_err(|error| error.to_string())
        };
        assert_eq!(build(json!({"pool": 2, "runtime": null})), Ok(()));
        assert_eq!(build(json!({"pool": 1_000})), Err("settings: pool: must be at most 128".to_owned()));
        assert_eq!(
            build(json!({"image": ""})),
            Err("settings: image: must be at least 1 characters".to_owned())
        );
        assert!(
            ProviderKind::find("dokcer")
                .err()
                .unwrap()
                .to_string()
                .contains("known: agentrun, docker, e2b, native, simulated")
        );
    }
}
