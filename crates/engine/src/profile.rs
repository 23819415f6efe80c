//! Profiles: named limits, network, image, mounts and environment; the unit an administrator edits.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Error;
use crate::admit::{admit_env, admit_network};
use crate::limits::{Limits, LimitsSpec};
use crate::packages::check_names;
use crate::plan::Overflow;
use crate::request::NetworkSpec;

/// A profile as `belljar.toml` gives it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    /// Limits that differ from the defaults.
    pub limits: LimitsSpec,
    /// What may be reached.
    pub network: Option<NetworkSpec>,
    /// `host`, or the folder of an unpacked root.
    pub image: Option<String>,
    /// Host folders, `SOURCE:DESTINATION[:ro|rw]`.
    pub mounts: Vec<String>,
    /// Environment of every run.
    pub env: BTreeMap<String, String>,
    /// Modules that a warm interpreter imports ahead of time.
    pub preimports: Vec<String>,
    /// Packages of every run: of Python, or with `npm:` before the name of JavaScript.
    pub packages: Vec<String>,
    /// Whether packages may be built from their sources, and run their install scripts: without network, and not on the host.
    pub build_packages: bool,
    /// What happens when a program writes more than is kept.
    pub output_overflow: Overflow,
    /// Who serves it, where the request does not say: the name of a provider, or `auto`.
    pub provider: Option<String>,
    /// The policy that holds, above which no request can go.
    pub policy: Option<String>,
    /// Whether it came with the code, from a `belljar.toml` of the current folder. The operator did not write it, so
    /// nothing of it reaches a warm interpreter: its packages and variables count as a request's own.
    #[serde(skip)]
    pub came_with_code: bool,
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

    /// Returns the modules that the operator has warm interpreters import.
    pub(crate) fn operators_preimports(&self) -> &[String] {
        if self.came_with_code { &[] } else { &self.preimports }
    }

    /// Returns the variables with which a warm interpreter may be started.
    pub(crate) fn operators_env(&self) -> BTreeMap<String, String> {
        if self.came_with_code { BTreeMap::new() } else { self.env.clone() }
    }

    /// Finds what no request could have with it, on a host with this ceiling.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn check(&self, ceiling: &Limits) -> Result<(), Error> {
        Limits::admit(&self.limits, ceiling)?;
        admit_network(self.network.as_ref())?;
        check_names("packages", &self.packages)?;
        admit_env(&BTreeMap::new(), self).map(drop)
    }
}

/// All profiles by name.
#[derive(Debug, Clone)]
pub struct Profiles(BTreeMap<String, Profile>);

impl Profiles {
    /// The ones that are always there: `default`, `terminal` (longer, with room for installs) and `data`.
    pub fn shipped() -> Self {
        let limits = |timeout_ms, memory: i64, cpus, disk: i64| LimitsSpec {
            timeout_ms: Some(timeout_ms),
            memory_bytes: Some(memory << 20),
            cpus: Some(cpus),
            disk_bytes: Some(disk << 20),
            ..LimitsSpec::default()
        };
        // The disk is memory-backed, so a profile with much disk has the memory to fill it.
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

    /// Adds or replaces.
    pub fn insert(&mut self, name: String, profile: Profile) {
        self.0.insert(name, profile);
    }

    /// Returns all of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Profile)> {
        self.0.iter().map(|(name, profile)| (name.as_str(), profile))
    }

    /// Finds one.
    ///
    /// # Errors
    /// Lists the names that are known.
    pub fn named(&self, name: &str) -> Result<&Profile, Error> {
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
        let profiles = Profiles::shipped();
        for name in ["default", "terminal", "data"] {
            let limits = Limits::admit(&profiles.named(name).unwrap().limits, &Limits::CEILING).unwrap();
            assert!(limits.disk_bytes < limits.memory_bytes, "{name}: a full disk would be an out-of-memory");
        }
        let terminal = Limits::admit(&profiles.named("terminal").unwrap().limits, &Limits::CEILING).unwrap();
        assert_eq!((terminal.timeout.as_secs(), terminal.disk_bytes), (120, 1 << 30));
        assert!(profiles.named("nope").unwrap_err().to_string().contains("data, default, terminal"));
    }
}
