//! Wires providers: the table of all kinds, and the set of providers that are configured on this machine.

mod spec;

use std::sync::Arc;
use std::time::Duration;

use belljar_engine::catalog::{self, Catalog, Settings};
use belljar_engine::fleet::{AUTO, Fleet, Member};
use belljar_engine::provider::Provider;
use belljar_engine::{Engine, Error};
use belljar_providers::remote::Remote;
use belljar_providers::settings::{AgentRunSettings, DockerSettings, E2bSettings};
use belljar_providers::simulated::{self, Simulated};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) use spec::ProviderSpec;

use crate::failure::Failure;
use crate::{env, os};

/// Name of this machine's own provider.
pub(crate) const NATIVE: &str = "native";
/// Name of provider Docker in requests.
pub(crate) const DOCKER: &str = "docker";
/// Time limit of a provider's health check.
const PATIENCE: Duration = Duration::from_secs(10);

/// A provider, or the error in its settings.
pub(crate) type Built = Result<Arc<dyn Provider>, Error>;

/// A kind of provider.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// One-line description for people who choose a provider.
    pub(crate) what: &'static str,
    /// Whether it is available without being configured.
    stands: bool,
    /// Environment variables of this kind, and the settings that they set.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// Facts about it on this machine that cannot be set.
    facts: fn() -> Vec<Fact>,
    schema: fn() -> Value,
    build: fn(&Settings, Option<&Arc<dyn Provider>>) -> Built,
}

/// A fact about a provider on this machine, shown as a read-only setting.
struct Fact {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    value: String,
}

/// All kinds of providers; a new provider adds a line.
#[rustfmt::skip]
pub(crate) const KINDS: &[Kind] = &[
    Kind { name: "agentrun", what: "Aliyun AgentRun's cloud sandboxes; isolation is up to the service", stands: false, environment: env::AGENTRUN, facts: Vec::new,
           schema: schema::<AgentRunSettings>, build: |settings, _| Ok(Arc::new(Remote::agentrun(&read(settings)?)?)) },
    Kind { name: DOCKER, what: "Docker containers on this machine, with runc or gVisor", stands: false, environment: &[], facts: docker_facts,
           schema: schema::<DockerSettings>, build: |settings, _| os::docker(read(settings)?).ok_or_else(|| absent(DOCKER)) },
    Kind { name: "e2b", what: "E2B's cloud sandboxes; isolation is up to the service", stands: false, environment: env::E2B, facts: Vec::new,
           schema: schema::<E2bSettings>, build: |settings, _| Ok(Arc::new(Remote::e2b(&read(settings)?)?)) },
    Kind { name: NATIVE, what: "Belljar's own jail on this machine: fastest, nothing to install", stands: true, environment: &[], facts: native_facts,
           schema: schema::<Nothing>, build: |_, native| native.cloned().ok_or_else(|| absent(NATIVE)) },
    Kind { name: simulated::NAME, what: "runs nothing and says so; for developing an agent", stands: true, environment: &[], facts: Vec::new,
           schema: schema::<Nothing>, build: |_, _| Ok(Arc::new(Simulated)) },
];

fn names() -> Vec<&'static str> {
    KINDS.iter().map(|kind| kind.name).collect()
}

/// Settings of a kind that has none.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl Kind {
    /// Finds a kind by name.
    pub(crate) fn named(name: &str) -> Result<&'static Self, Error> {
        KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| catalog::unknown(name, &names()))
    }

    /// Returns the JSON schema of its settings, with this machine's facts as read-only properties.
    pub(crate) fn schema(&self) -> Value {
        let mut schema = (self.schema)();
        for Fact { name, title, description, value } in (self.facts)() {
            schema["properties"][name] = json!({
                "type": "string", "readOnly": true, "const": value, "title": title, "description": description,
            });
        }
        schema
    }

    /// Creates a provider; `native` is this machine's own.
    pub(crate) fn build(&self, settings: &Settings, native: Option<&Arc<dyn Provider>>) -> Built {
        catalog::check(&self.schema(), settings)?;
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
fn read<S: DeserializeOwned>(settings: &Settings) -> Result<S, Error> {
    serde_json::from_value(Value::Object(settings.clone())).map_err(|_| Error::Invalid {
        field: "settings",
        message: "do not fit together; check them against: belljar provider schema".to_owned(),
    })
}

fn absent(name: &str) -> Error {
    let message = format!("'{name}' needs belljar on Linux");
    Error::Unsupported { field: "provider", message }
}

fn native_facts() -> Vec<Fact> {
    let value = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    let description = "The operating system and the processor of this machine.";
    vec![Fact { name: "system", title: "System", description, value }]
}

fn docker_facts() -> Vec<Fact> {
    let description = "`DOCKER_HOST` of this process: the daemon's address, unless `host` is set.";
    let fact = |value| Fact { name: "docker_host", title: "Daemon from the environment", description, value };
    std::env::var("DOCKER_HOST").ok().map(fact).into_iter().collect()
}

/// Returns whether a setting of the configuration, such as `providers.e2b.api_key`, is a secret.
pub(crate) fn is_secret(name: &str) -> bool {
    let Some((kind, setting)) = name.strip_prefix("providers.").and_then(|name| name.split_once('.')) else {
        return false;
    };
    Kind::named(kind).is_ok_and(|kind| catalog::secrets(&kind.schema()).contains(&setting))
}

/// Implements the engine's provider catalog with the table of kinds.
#[derive(Debug)]
pub(crate) struct Wired {
    pub(crate) native: Arc<dyn Provider>,
}

impl Catalog for Wired {
    fn names(&self) -> Vec<&'static str> {
        names()
    }

    fn stands(&self, name: &str) -> bool {
        Kind::named(name).is_ok_and(|kind| kind.stands)
    }

    fn schema(&self, name: &str) -> Result<Value, Error> {
        Kind::named(name).map(Kind::schema)
    }

    fn build(&self, name: &str, settings: &Settings) -> Result<Arc<dyn Provider>, Error> {
        Kind::named(name)?.build(settings, Some(&self.native))
    }
}

/// Builds the provider set: this machine's own provider, the configured ones, and the simulated one, which
/// serves only requests that name it.
pub(crate) fn usual(native: &Arc<dyn Provider>, said: &ProviderSpec) -> Result<Arc<Fleet>, Failure> {
    let mut members = Vec::new();
    for kind in KINDS {
        let seed = match said.seeds.get(kind.name) {
            Some(seed) => seed.clone(),
            None if kind.stands => Default::default(),
            None => continue,
        };
        members.push(Member { provider: kind.build(&seed.settings, Some(native))?, instead: seed.instead });
    }
    Ok(Arc::new(Fleet::new(members, said.usual.as_deref().unwrap_or(NATIVE), names())?))
}

/// Builds a provider that does not need the native one, for a single run. It works on machines that cannot
/// isolate, and keeps nothing warm.
pub(crate) fn alone(named: Option<&str>, said: &ProviderSpec) -> Result<Option<Arc<dyn Provider>>, Failure> {
    let Some(kind) = KINDS.iter().find(|kind| named == Some(kind.name) && kind.name != NATIVE) else {
        return Ok(None);
    };
    let mut settings = match said.seeds.get(kind.name) {
        Some(seed) => seed.settings.clone(),
        None if kind.stands => Settings::new(),
        None => return Ok(None),
    };
    // A single run needs no pool, and the user of this machine may as well ask Docker for any image.
    let schema = kind.schema();
    for (setting, value) in [("pool", json!(0)), ("images", json!(["*"]))] {
        if !schema["properties"][setting].is_null() {
            settings.insert(setting.to_owned(), value);
        }
    }
    Ok(Some(kind.build(&settings, None)?))
}

/// Tests all candidates, if the strongest working provider is to be chosen.
pub(crate) async fn prove(engine: &Engine, named: Option<&str>) {
    if named == Some(AUTO) {
        for post in engine.fleet().candidates() {
            // A provider that fails its test is not chosen. If all fail, choosing one reports the error.
            let _result = post.test(tokio::time::sleep(PATIENCE)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_is_plain_and_its_defaults_fit() {
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
            catalog::check(&schema, &defaults).unwrap();
        }
    }

    #[test]
    fn whatever_decides_where_a_secret_goes_is_a_destination() {
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
            assert_eq!(marked.is_empty(), catalog::secrets(&schema).is_empty(), "{}", kind.name);
        }
    }

    #[test]
    fn docker_says_what_is_wrong_with_its_settings() {
        let build = |settings: Value| {
            Kind::named(DOCKER)
                .unwrap()
                .build(settings.as_object().unwrap(), None)
                .map(drop)
                .map_err(|error| error.to_string())
        };
        assert_eq!(build(json!({"pool": 2, "runtime": null})), Ok(()));
        assert_eq!(build(json!({"pool": 1_000})), Err("settings: pool: the most is 128".to_owned()));
        assert_eq!(
            build(json!({"image": ""})),
            Err("settings: image: must be at least 1 characters".to_owned())
        );
        assert!(
            Kind::named("dokcer")
                .err()
                .unwrap()
                .to_string()
                .contains("known: agentrun, docker, e2b, native, simulated")
        );
    }
}
