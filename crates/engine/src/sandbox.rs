//! Admission of requests for long-lived sandboxes, and of tasks and commands that run in them.

mod command;
mod disk;
mod execute;
mod modules;
mod packages;
mod root;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_analysis::policy::Policy;
use serde_json::{Map, Value};

use crate::Error;
use crate::admit::{
    AdmissionRules, AdmittedRequest, DEFAULT_TENANT, admit_image, admit_metadata, admit_packages,
    admit_required_layers, check_relative, merge_image_env, parse_mount, require_gpus, require_host_paths,
    require_package_layers, resolve, select_network,
};

use crate::limits::{Limits, LimitsSpec};
use crate::packages::AdmittedPackages;
use crate::plan::{DiskStorage, Mount, OutputOverflow, Plan, RootAccess};
use crate::policy;
use crate::profile::Profile;
use crate::provider_set::SelectedProvider;
use crate::quantity::show_duration;
use crate::request::{Dependencies, HostPaths, Request};

pub use belljar_model::command::{CommandRequest, SignalSpec, TerminalSizeSpec};
pub use belljar_model::sandbox::{OnTimeout, SandboxRequest, VolumeSpec};
pub use command::{AdmittedCommand, admit_command, admit_signal, admit_terminal_size};
pub use disk::{MIN_DISK_FILE_BYTES, SandboxRules};
use disk::{admit_disk_storage, admit_sandbox_limits};
pub use packages::SandboxPackages;
use root::admit_root;

/// Default of how long a sandbox may be unused.
pub const DEFAULT_SANDBOX_TIMEOUT: Duration = Duration::from_secs(3_600);
/// Default timeout of a command in a sandbox.
pub const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum number of volumes of one sandbox.
pub const MAX_VOLUMES: usize = 16;
const MAX_VOLUME_NAME_BYTES: usize = 64;

/// Returns the error for a volume or host folder that does not exist.
pub fn volume_not_found(volume: &VolumeSpec) -> Error {
    let message = match (&volume.name, &volume.host) {
        (_, Some(host)) => format!("there is no host folder '{host}'"),
        (name, None) => format!("there is no volume '{}'", name.as_deref().unwrap_or_default()),
    };
    Error::invalid("volumes", message)
}

/// A request for a sandbox that passed admission.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AdmittedSandbox {
    /// The plan for the sandbox.
    pub plan: Plan,
    /// How long the sandbox may be unused.
    pub timeout: Duration,
    /// Life of the sandbox, used or not; `None` if the request has no opinion.
    pub life: Option<Duration>,
    /// Action taken when it was not used for its timeout.
    pub on_timeout: OnTimeout,
    /// Volumes to mount; see [`AdmittedSandbox::with_volumes`].
    pub volumes: Vec<VolumeSpec>,
    /// Id of the snapshot to restore.
    pub snapshot: Option<String>,
    /// Data returned with the sandbox.
    pub metadata: Map<String, Value>,
    pub(crate) provider: SelectedProvider,
    pub(crate) packages: AdmittedPackages,
    overflow: OutputOverflow,
    policies: Vec<Arc<Policy>>,
    /// This request, admitted for a provider that takes over if the sandbox cannot be opened.
    fallback: Option<Box<AdmittedSandbox>>,
}

impl AdmittedSandbox {
    /// Sets the tenant, in place of [`DEFAULT_TENANT`].
    #[must_use]
    pub fn with_tenant(mut self, tenant: &str) -> Self {
        tenant.clone_into(&mut self.plan.tenant);
        self.fallback = self.fallback.map(|fallback| Box::new(fallback.with_tenant(tenant)));
        self
    }

    /// Sets the request to use if the provider cannot open the sandbox.
    #[must_use]
    pub(crate) fn with_fallback(self, fallback: Option<Self>) -> Self {
        Self { fallback: fallback.map(Box::new), ..self }
    }

    /// Replaces this with its fallback. Returns whether there is one.
    pub(crate) fn fall_back(&mut self) -> bool {
        let Some(fallback) = self.fallback.take() else { return false };
        // Set by the caller after admission.
        *self = Self { timeout: self.timeout, ..*fallback };
        true
    }

    /// Returns the failing provider that another one replaces for this sandbox.
    pub fn replaced_provider(&self) -> Option<&'static str> {
        self.provider.instead_of
    }

    /// Adds mounts for the volumes. `folder_of` returns the host folder of a volume that the tenant may use.
    ///
    /// # Errors
    /// Names the first volume for which `folder_of` returns `None`.
    pub fn with_volumes(mut self, folder_of: impl Fn(&VolumeSpec) -> Option<PathBuf>) -> Result<Self, Error> {
        for volume in &self.volumes {
            let source = folder_of(volume).ok_or_else(|| volume_not_found(volume))?;
            let (destination, writable) = (volume.path.clone(), !volume.read_only);
            let mount = Mount { source, destination, writable };
            let fallback = self.fallback.as_mut().map(|fallback| &mut fallback.plan);
            for plan in std::iter::once(&mut self.plan).chain(fallback) {
                plan.mounts.push(mount.clone());
            }
        }
        Ok(self)
    }
}

/// Checks a sandbox request and resolves it against its profile.
///
/// # Errors
/// Names the invalid field and how to fix it.
pub fn admit_sandbox(
    request: SandboxRequest,
    profile: &Profile,
    rules: &AdmissionRules<'_>,
) -> Result<AdmittedSandbox, Error> {
    let mut limits = request.limits.or(&profile.limits);
    limits.timeout_ms.get_or_insert(DEFAULT_COMMAND_TIMEOUT.as_millis() as i64);
    let image = admit_image(request.image.as_deref(), None, profile, rules)?;
    let root = admit_root(&request, &image, rules)?;
    let asked = if root == RootAccess::Writable { Some(DiskStorage::File) } else { request.disk_storage };
    let disk_storage = admit_disk_storage(asked, rules)?;
    let plan = Plan {
        env: merge_image_env(&image, profile.merge_env(&request.env)?),
        image,
        host_workspace: None,
        mounts: profile.mounts.iter().map(|text| parse_mount(text)).collect::<Result<_, _>>()?,
        limits: admit_sandbox_limits(&limits, disk_storage, rules)?,
        root,
        disk_storage,
        artifacts: rules.artifacts,
        result_bytes: rules.result_bytes,
        network: select_network(request.network.as_ref(), profile, rules)?,
        gpus: request.gpus,
        require: admit_required_layers(&request.require, rules.provider.capabilities())?,
        tenant: DEFAULT_TENANT.to_owned(),
        preimports: Vec::new(),
        frequent_imports: Vec::new(),
        package_layers: Vec::new(),
        package_lease: None,
    };
    admit_metadata(&request.metadata)?;
    let folders = [("volumes", !request.volumes.is_empty()), ("mount", !plan.mounts.is_empty())];
    require_host_paths(&folders, rules.provider)?;
    require_package_layers(&request.dependencies, rules.provider)?;
    require_gpus(request.gpus, rules.provider)?;
    let admitted = AdmittedSandbox {
        timeout: admit_timeout(request.timeout_ms, rules.ceiling.timeout)?,
        life: request.life_ms.map(|life| positive_time("life_ms", life)).transpose()?,
        on_timeout: admit_on_timeout(request.on_timeout, rules)?,
        volumes: admit_volumes(request.volumes)?,
        snapshot: request.snapshot,
        metadata: request.metadata,
        provider: rules.provider.clone(),
        packages: admit_sandbox_packages(request.dependencies, profile)?,
        overflow: profile.output_overflow,
        policies: policy::select_policies(
            rules.policies,
            request.policy.as_deref(),
            profile.policy.as_deref(),
            rules.policy_floor,
        )?,
        plan,
        fallback: None,
    };
    Ok(admitted)
}

/// Admits the packages of a long-lived sandbox.
fn admit_sandbox_packages(given: Dependencies, profile: &Profile) -> Result<AdmittedPackages, Error> {
    if given.detect == Some(true) {
        let message = "a new sandbox has no code to detect packages from; name the packages".to_owned();
        return Err(Error::Unsupported { field: "dependencies.detect", message });
    }
    admit_packages(Dependencies { detect: Some(false), ..given }, profile, None)
}

/// Checks a task for an open sandbox. Fields that were fixed when the sandbox was opened are refused.
///
/// # Errors
/// Names the invalid field and how to fix it.
pub fn admit_in_sandbox(
    sandbox: &AdmittedSandbox,
    mut request: Request,
    rules: &AdmissionRules<'_>,
) -> Result<AdmittedRequest, Error> {
    refuse_fixed_fields(&request)?;
    let detects = admit_more_packages(&request.dependencies, sandbox)?;
    let policies = policy::add_policies(
        rules.policies,
        sandbox.policies.clone(),
        [request.policy.as_deref(), rules.policy_floor],
    )?;
    let own = &sandbox.plan.limits;
    request.limits = LimitsSpec {
        timeout_ms: request.limits.timeout_ms.or(Some(own.timeout.as_millis() as i64)),
        output_bytes: request.limits.output_bytes.or(Some(own.output_bytes as i64)),
        // Only used to check that the task's files fit.
        disk_bytes: Some(own.disk_bytes as i64),
        ..LimitsSpec::default()
    };
    let given = std::mem::take(&mut request.env);
    let mut env = sandbox.plan.env.clone();
    env.extend(given);
    request.env = env;
    let inside = AdmissionRules { ceiling: &Limits { disk_bytes: u64::MAX, ..*rules.ceiling }, ..*rules };
    // The profile is already part of the sandbox's plan.
    let mut admitted = resolve(request, HostPaths::default(), &Profile::default(), &inside)?;
    let Limits { timeout, output_bytes, .. } = admitted.plan.limits;
    admitted.plan = sandbox.plan.clone();
    admitted.plan.limits = Limits { timeout, output_bytes, ..*own };
    admitted.overflow = sandbox.overflow;
    admitted.packages = AdmittedPackages {
        detect: detects,
        profile_packages: sandbox.packages.profile_packages.clone(),
        allow_build: sandbox.packages.allow_build,
        ..admitted.packages
    };
    Ok(admitted.with_verdict(&policies, None))
}

/// Admits packages for an open sandbox, and returns whether to detect imports. Where none can be added, imports
/// are not detected, and named packages are refused.
fn admit_more_packages(given: &Dependencies, sandbox: &AdmittedSandbox) -> Result<bool, Error> {
    let provider = &sandbox.provider;
    let obstacle = match sandbox.plan.root {
        RootAccess::Writable => Some(root::CANNOT_ADD_PACKAGES.to_owned()),
        RootAccess::ReadOnly => {
            provider.capabilities().sandboxes.as_ref().and_then(|can| can.cannot_add_packages.clone())
        }
    };
    let Some(message) = obstacle else {
        require_package_layers(given, provider)?;
        return Ok(given.detect.unwrap_or(true));
    };
    match (given.packages.is_empty(), given.detect) {
        (false, _) => Err(Error::Unsupported { field: "dependencies.packages", message }),
        (true, Some(true)) => Err(Error::Unsupported { field: "dependencies.detect", message }),
        (true, _) => Ok(false),
    }
}

fn refuse_fixed_fields(request: &Request) -> Result<(), Error> {
    let limits = &request.limits;
    let decided = [
        ("image", request.image.is_some()),
        ("profile", request.profile.is_some()),
        ("provider", request.provider.is_some()),
        ("network", request.network.is_some()),
        ("gpus", request.gpus.is_some()),
        ("require", !request.require.is_empty()),
        ("limits.memory_bytes", limits.memory_bytes.is_some()),
        ("limits.cpus", limits.cpus.is_some()),
        ("limits.disk_bytes", limits.disk_bytes.is_some()),
        ("limits.processes", limits.processes.is_some()),
    ];
    match decided.into_iter().find(|(_, given)| *given) {
        Some((field, _)) => Err(Error::invalid(
            field,
            "was fixed when the sandbox was opened; leave it out, or open another sandbox",
        )),
        None => Ok(()),
    }
}

pub(crate) fn admit_timeout(given: Option<i64>, most: Duration) -> Result<Duration, Error> {
    let Some(given) = given else { return Ok(DEFAULT_SANDBOX_TIMEOUT.min(most)) };
    let timeout = positive_time("timeout_ms", given)?;
    if timeout > most {
        let (given, most) = (show_duration(timeout), show_duration(most));
        return Err(Error::invalid("timeout_ms", format!("{given} is above the ceiling of {most}")));
    }
    Ok(timeout)
}

fn positive_time(field: &'static str, millis: i64) -> Result<Duration, Error> {
    let time = u64::try_from(millis).ok().filter(|millis| *millis > 0).map(Duration::from_millis);
    time.ok_or_else(|| Error::invalid(field, "must be above zero: there is no 'forever'"))
}

fn admit_on_timeout(wanted: OnTimeout, rules: &AdmissionRules<'_>) -> Result<OnTimeout, Error> {
    let unsupported = |field, message: &str| Err(Error::Unsupported { field, message: message.to_owned() });
    let Some(sandboxes) = &rules.provider.capabilities().sandboxes else {
        return unsupported("provider", "this provider does not support long-lived sandboxes");
    };
    match (wanted, &sandboxes.cannot_pause) {
        (OnTimeout::Pause, Some(why)) => {
            unsupported("on_timeout", &format!("sandboxes cannot be paused here: {why}"))
        }
        _ => Ok(wanted),
    }
}

/// Returns whether a name is valid for a volume; it is also the name of its folder.
pub fn is_volume_name(name: &str) -> bool {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
    !name.is_empty()
        && name.len() <= MAX_VOLUME_NAME_BYTES
        && !name.starts_with(['.', '-'])
        && name.chars().all(fine)
}

fn admit_volumes(volumes: Vec<VolumeSpec>) -> Result<Vec<VolumeSpec>, Error> {
    if volumes.len() > MAX_VOLUMES {
        return Err(Error::invalid("volumes", format!("more than {MAX_VOLUMES}")));
    }
    for (at, volume) in volumes.iter().enumerate() {
        let wrong = |why: &str| Error::invalid("volumes", format!("'{}': {why}", volume.path.escape_debug()));
        let name = match (&volume.name, &volume.host) {
            (Some(name), None) | (None, Some(name)) => name,
            _ => return Err(wrong("needs either 'name', a volume, or 'host', a host folder")),
        };
        if !is_volume_name(name) {
            let name = name.escape_debug();
            return Err(Error::invalid(
                "volumes",
                format!(
                    "'{name}' is not a valid volume name: use up to {MAX_VOLUME_NAME_BYTES} of a-z, 0-9, '-', '_' and '.'"
                ),
            ));
        }
        // Below the workspace, or in a folder reserved for volumes: a volume never hides a part of the root.
        let inside = volume.path.strip_prefix('/').ok_or_else(|| wrong("must be absolute"))?;
        check_relative(inside).map_err(|why| wrong(&why))?;
        let ours = ["workspace", "mnt", "data", "volumes"];
        let mut parts = inside.split('/');
        let (top, deeper) = (parts.next().unwrap_or_default(), parts.next().is_some());
        if !ours.contains(&top) || (!deeper && top != "data") {
            return Err(wrong("must be /data, or below /workspace, /data, /mnt or /volumes"));
        }
        let clash = |other: &VolumeSpec| {
            let (a, b) = (format!("{}/", other.path), format!("{}/", volume.path));
            a.starts_with(&b) || b.starts_with(&a)
        };
        if volumes[..at].iter().any(clash) {
            return Err(wrong("overlaps with another volume"));
        }
    }
    Ok(volumes)
}

#[cfg(test)]
#[path = "sandbox_tests.rs"]
mod tests;
