//! Profiles: named sets of limits, network, image, mounts and environment that an administrator edits.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Error;
use crate::limits::{Limits, LimitsSpec, admit_limits};
use crate::network::Network;
use crate::package_layer::check_names;
use crate::plan::OutputOverflow;
use crate::request::NetworkSpec;

/// Maximum size of all environment variables, or of all arguments, in bytes.
pub(crate) const MAX_ENV_BYTES: usize = 64 << 10;

/// A profile: named defaults for requests, as in `belljar.toml`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(example = profile_example())]
pub struct Profile {
    /// Limits that differ from the defaults.
    pub limits: LimitsSpec,
    /// Network access.
    pub network: Option<NetworkSpec>,
    /// Only in `belljar.toml`: `host`, the name of an image, or the folder of an unpacked root.
    #[schemars(skip)]
    pub image: Option<String>,
    /// Only in `belljar.toml`: host folders, `SOURCE:DESTINATION[:ro|rw]`.
    #[schemars(skip)]
    pub mounts: Vec<String>,
    /// Environment variables of every execution.
    pub env: BTreeMap<String, String>,
    /// Modules that warm interpreters import in advance.
    pub preimports: Vec<String>,
    /// Packages of every execution: Python packages, or JavaScript packages with the prefix `npm:`.
    pub packages: Vec<String>,
    /// Whether packages may be built from source and run install scripts, in a sandbox without network.
    pub build_packages: bool,
    /// Action when output exceeds its limit: truncate or kill.
    pub output_overflow: OutputOverflow,
    /// Provider of requests that name none: a name, or `auto`.
    pub provider: Option<String>,
    /// Policy that always applies to requests with this profile; the strictest policy decides.
    pub policy: Option<String>,
    /// Whether it came with the code, from a `belljar.toml` in the current folder. Such a profile is not the
    /// operator's, so nothing of it reaches a zygote: its packages and variables count as the request's own.
    #[serde(skip)]
    pub came_with_code: bool,
}

fn profile_example() -> Value {
    json!({"limits": {"timeout_ms": 1000}, "output_overflow": "kill"})
}

impl Profile {
    /// Returns the packages that the operator chose for every run.
    pub(crate) fn operators_packages(&self) -> &[String] {
        if self.came_with_code { &[] } else { &self.packages }
    }

    /// Adds the packages that count as a request's own.
    pub(crate) fn add_packages_to(&self, request: &mut Vec<String>) {
        if self.came_with_code {
            request.extend(self.packages.iter().cloned());
        }
    }

    /// Returns the modules that the operator preimports into zygotes.
    pub(crate) fn operators_preimports(&self) -> &[String] {
        if self.came_with_code { &[] } else { &self.preimports }
    }

    /// Returns the environment variables that a zygote may be started with.
    pub(crate) fn operators_env(&self) -> BTreeMap<String, String> {
        if self.came_with_code { BTreeMap::new() } else { self.env.clone() }
    }

    /// Returns the environment variables of a request with this profile; its own replace the profile's.
    pub(crate) fn merge_env(
        &self,
        given: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, Error> {
        let mut env = self.env.clone();
        env.extend(given.iter().map(|(key, value)| (key.clone(), value.clone())));
        check_env(&env)?;
        Ok(env)
    }

    /// Returns the provider of a request with this profile: the one that the request names, else the profile's,
    /// else the fallback.
    pub fn provider_of<'a>(&'a self, named: Option<&'a str>, fallback: Option<&'a str>) -> Option<&'a str> {
        named.or(self.provider.as_deref()).or(fallback)
    }

    /// Checks that requests can use the profile on a host with this ceiling.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(&self, ceiling: &Limits) -> Result<(), Error> {
        admit_limits(&self.limits, ceiling)?;
        Network::parse(self.network.as_ref())?;
        check_names("packages", &self.packages)?;
        check_env(&self.env)
    }
}

/// Checks names, values and total size of environment variables.
pub(crate) fn check_env(env: &BTreeMap<String, String>) -> Result<(), Error> {
    for (key, value) in env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            return Err(Error::invalid(
                "env",
                format!(
                    "'{key}' is not a valid variable: the name must not be empty or contain '=', and no part may contain NUL"
                ),
            ));
        }
    }
    if env_bytes(env) > MAX_ENV_BYTES { Err(env_too_large()) } else { Ok(()) }
}

/// Returns the size of environment variables, in bytes.
pub(crate) fn env_bytes(env: &BTreeMap<String, String>) -> usize {
    env.iter().map(variable_bytes).sum()
}

/// Returns the size of an environment variable, in bytes.
pub(crate) fn variable_bytes((name, value): (&String, &String)) -> usize {
    name.len() + value.len() + 2
}

/// Returns the error for environment variables that are too large together.
pub(crate) fn env_too_large() -> Error {
    Error::invalid("env", "more than 64 KB; put it into a file instead")
}

/// Profiles by name.
#[derive(Debug, Clone)]
pub struct Profiles(BTreeMap<String, Profile>);

impl Profiles {
    /// Returns the built-in profiles: `default`, `terminal` (longer, with space for installs) and `data`.
    pub fn built_in() -> Self {
        let limits = |timeout_ms, memory: i64, cpus, disk: i64| LimitsSpec {
            timeout_ms: Some(timeout_ms),
            memory_bytes: Some(memory << 20),
            cpus: Some(cpus),
            disk_bytes: Some(disk << 20),
            ..LimitsSpec::default()
        };
        // The disk is memory-backed, so a profile with a large disk needs the memory to fill it.
        let terminal = Profile { limits: limits(120_000, 2_048, 1.0, 1_024), ..Profile::default() };
        let data = Profile {
            limits: limits(120_000, 4_096, 2.0, 1_024),
            env: BTreeMap::from([("MPLBACKEND".to_owned(), "Agg".to_owned())]),
            preimports: ["numpy", "pandas", "matplotlib"].map(str::to_owned).to_vec(),
            packages: ["numpy", "pandas", "matplotlib"].map(str::to_owned).to_vec(),
            ..Profile::default()
        };
        let shipped = [("default", Profile::default()), ("terminal", terminal), ("data", data)];
        Self(shipped.into_iter().map(|(name, profile)| (name.to_owned(), profile)).collect())
    }

    /// Adds or replaces a profile.
    pub fn insert(&mut self, name: String, profile: Profile) {
        self.0.insert(name, profile);
    }

    /// Iterates over all profiles, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Profile)> {
        self.0.iter().map(|(name, profile)| (name.as_str(), profile))
    }

    /// Finds the profile of a request: the one that it names, else `default`.
    ///
    /// # Errors
    /// Lists the known names.
    pub fn of_request(&self, named: Option<&str>) -> Result<&Profile, Error> {
        self.get(named.unwrap_or("default"))
    }

    /// Finds a profile by name.
    ///
    /// # Errors
    /// Lists the known names.
    pub fn get(&self, name: &str) -> Result<&Profile, Error> {
        self.0.get(name).ok_or_else(|| Error::UnknownProfile {
            given: name.to_owned(),
            known: self.0.keys().cloned().collect::<Vec<_>>().join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_above_the_ceiling_of_the_host_is_refused() {
        let ceiling = Limits { memory_bytes: 1 << 30, ..Limits::CEILING };
        let wants = |memory_bytes| Profile {
            limits: LimitsSpec { memory_bytes: Some(memory_bytes), ..LimitsSpec::default() },
            ..Profile::default()
        };
        assert!(wants(1 << 30).check(&ceiling).is_ok());
        let refused = wants(2 << 30).check(&ceiling).unwrap_err().to_string();
        assert!(refused.contains("above the ceiling of 1 GB"), "{refused}");
    }

    #[test]
    fn shipped_profiles_pass_admission() {
        let profiles = Profiles::built_in();
        for name in ["default", "terminal", "data"] {
            let limits = admit_limits(&profiles.get(name).unwrap().limits, &Limits::CEILING).unwrap();
            assert!(
                limits.disk_bytes < limits.memory_bytes,
                "{name}: a full disk would exceed the memory limit"
            );
        }
        let terminal = admit_limits(&profiles.get("terminal").unwrap().limits, &Limits::CEILING).unwrap();
        assert_eq!((terminal.timeout.as_secs(), terminal.disk_bytes), (120, 1 << 30));
        assert!(profiles.get("nope").unwrap_err().to_string().contains("data, default, terminal"));
    }
}
