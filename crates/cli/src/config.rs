//! The configuration that results from defaults, files and the environment.

use std::path::PathBuf;

use belljar_analysis::imports::ResolverSettings as DependencySettings;
use belljar_analysis::policy::Policies;
use belljar_engine::artifact::ArtifactLimits;
use belljar_engine::limits::{HostCapacity, Limits};
use belljar_engine::network::PrivateRanges;
use belljar_engine::outcome::DEFAULT_RESULT_BYTES;
use belljar_engine::profile::Profiles;
use belljar_engine::quantity::show_bytes;
use belljar_engine::warm::WarmSettings;

use crate::deps::settings::LayerSettings;
use crate::image::settings::ImageSettings;
use crate::provider_kinds::ProviderSpec;
use crate::serve::settings::ServerSettings;

/// Settings of the cache of built programs: `[build_cache]` in `belljar.toml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BuildCacheSettings {
    /// Its folder. Without one, code is built for each run.
    pub(crate) folder: Option<PathBuf>,
    /// Maximum size; 0 turns it off.
    pub(crate) max_bytes: u64,
}

impl Default for BuildCacheSettings {
    fn default() -> Self {
        Self { folder: None, max_bytes: 1 << 30 }
    }
}

/// The values that wire the parts together. [`Settings`](crate::settings::Settings) reads it.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) profiles: Profiles,
    pub(crate) ceiling: Limits,
    /// The machine's resources, which no ceiling may exceed.
    pub(crate) machine: HostCapacity,
    /// Memory limit of all sandboxes together, if lower than what the machine has for them.
    pub(crate) sandbox_memory: Option<u64>,
    pub(crate) warm: WarmSettings,
    pub(crate) server: ServerSettings,
    pub(crate) dependencies: DependencySettings,
    pub(crate) policies: Policies,
    pub(crate) layers: LayerSettings,
    pub(crate) providers: ProviderSpec,
    pub(crate) images: ImageSettings,
    pub(crate) private_ranges: PrivateRanges,
    /// Whether programs use a proxy also where the host has TUN devices.
    pub(crate) always_proxy: bool,
    pub(crate) artifacts: ArtifactLimits,
    /// Size limit of what `main` returns, as JSON.
    pub(crate) result_bytes: u64,
    pub(crate) builds: BuildCacheSettings,
}

impl Config {
    /// Returns the configuration that applies without any file or variable.
    pub(crate) fn without_files() -> Self {
        Self::for_machine(crate::os::machine_resources())
    }

    /// Returns the configuration that applies on the given machine without any file or variable.
    pub(crate) fn for_machine(machine: HostCapacity) -> Self {
        Self {
            profiles: Profiles::built_in(),
            ceiling: Limits::ceiling_for(&machine),
            machine,
            sandbox_memory: None,
            warm: WarmSettings::default(),
            server: ServerSettings::default(),
            dependencies: DependencySettings::default(),
            policies: Policies::default(),
            layers: LayerSettings::default(),
            providers: ProviderSpec::default(),
            images: ImageSettings::default(),
            private_ranges: PrivateRanges::default(),
            always_proxy: false,
            artifacts: ArtifactLimits::DEFAULT,
            result_bytes: DEFAULT_RESULT_BYTES,
            builds: BuildCacheSettings::default(),
        }
    }

    /// Sets the memory limit of all sandboxes together, from which the ceiling of one sandbox follows.
    pub(crate) fn set_sandbox_memory(&mut self, bytes: u64) -> Result<(), String> {
        if let Some(most) = self.machine.memory_bytes.filter(|most| bytes > *most) {
            let (bytes, most) = (show_bytes(bytes), show_bytes(most));
            return Err(format!("{bytes} is more than the {most} that this machine has for sandboxes"));
        }
        self.sandbox_memory = Some(bytes);
        self.machine.memory_bytes = Some(bytes);
        self.ceiling = Limits::ceiling_for(&self.machine);
        Ok(())
    }

    /// Refuses a ceiling above the machine's resources, because a promised limit must be available.
    pub(crate) fn check_ceiling(&self) -> Result<(), String> {
        let Self { ceiling, machine, .. } = self;
        let memory = machine.memory_bytes.unwrap_or(u64::MAX);
        for value in [ceiling.memory_bytes, ceiling.disk_bytes] {
            if value > memory {
                let (value, memory) = (show_bytes(value), show_bytes(memory));
                return Err(format!("{value} is more than the {memory} that this machine has for sandboxes"));
            }
        }
        let cores = |millis: u32| f64::from(millis) / 1_000.0;
        let counts = [
            (cores(ceiling.cpu_millis), machine.cpu_millis.map(cores)),
            (ceiling.processes.into(), machine.processes.map(f64::from)),
        ];
        for (value, most) in counts {
            if let Some(most) = most.filter(|most| value > *most) {
                return Err(format!("{value} is more than the {most} that this machine has"));
            }
        }
        Ok(())
    }
}
