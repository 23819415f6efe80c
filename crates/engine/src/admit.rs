//! Admission: checks a [`Request`] once and turns it into an [`AdmittedRequest`], which is valid by
//! construction.
//!
//! The policies check the code here, once for every front end. A refused program gives a report that says so,
//! and no sandbox is opened for it.

mod input;
mod program;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use belljar_analysis::policy::{Policies, Policy};
use serde_json::{Map, Value};

use crate::Error;
use crate::artifact::ArtifactLimits;
use crate::gpus::Gpus;
use crate::images::StoredImages;
use crate::json_text::has_rounded_integer;
use crate::layer::Layer;
use crate::limits::{Limits, admit_limits};
use crate::network::{NetworkCeiling, PrivateRanges};
use crate::package_layer::check_names;
use crate::packages::AdmittedPackages;
use crate::plan::{DiskStorage, Image, Mount, Network, OutputOverflow, Plan, RootAccess, Task, WORKSPACE};
use crate::policy::{self, PolicyCheck, Verdict};
use crate::profile::Profile;
use crate::provider::{Capabilities, Capability, ImageChoice};
use crate::provider_set::SelectedProvider;
use crate::request::{Dependencies, HostPaths, NetworkSpec, Request};
pub use crate::request::{MAX_CODE_BYTES, MAX_REQUEST_BYTES, MAX_STDIN_BYTES};
use crate::sandbox::SandboxRules;

use input::text_or_base64;
pub(crate) use input::{admit_files, admit_stdin, check_files_fit};
use program::admit_program;
pub(crate) use program::check_argv;
pub(crate) use program::{admit_arguments, refuse_name_clash};

/// The tenant of a request that names none.
pub const DEFAULT_TENANT: &str = "default";
/// Maximum number of input files.
pub const MAX_INPUT_FILES: usize = 10_000;
const MAX_METADATA_BYTES: usize = 16 << 10;
/// Maximum length of an image name: registry, path, tag and digest together.
const MAX_IMAGE_NAME_BYTES: usize = 512;

/// A request that passed admission.
#[derive(Debug, Clone)]
pub struct AdmittedRequest {
    pub(crate) provider: SelectedProvider,
    pub(crate) plan: Plan,
    pub(crate) task: Task,
    pub(crate) packages: AdmittedPackages,
    pub(crate) overflow: OutputOverflow,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) verdict: Verdict,
    /// This request, admitted for a provider that takes over if nothing runs.
    pub(crate) fallback: Option<Box<AdmittedRequest>>,
}

impl AdmittedRequest {
    /// Sets the tenant, in place of [`DEFAULT_TENANT`].
    #[must_use]
    pub fn with_tenant(mut self, tenant: &str) -> Self {
        tenant.clone_into(&mut self.plan.tenant);
        self.fallback = self.fallback.map(|fallback| Box::new(fallback.with_tenant(tenant)));
        self
    }

    /// Sets the request to run if the provider fails before anything ran.
    #[must_use]
    pub(crate) fn with_fallback(self, fallback: Option<Self>) -> Self {
        Self { fallback: fallback.map(Box::new), ..self }
    }

    /// Sets a network that no request could ask for: Belljar's own installers may reach what an administrator
    /// configured, including private addresses.
    #[must_use]
    pub fn with_network(mut self, network: Network) -> Self {
        self.fallback = self.fallback.map(|fallback| Box::new(fallback.with_network(network.clone())));
        self.plan.network = network;
        self
    }

    /// Checks the program against these policies and stores the verdict. `code` is the content of a file in a
    /// host workspace.
    pub(crate) fn with_verdict(mut self, policies: &[Arc<Policy>], code: Option<&str>) -> Self {
        if policies.iter().any(|policy| !policy.allows_everything()) {
            self.verdict = PolicyCheck { policies, plan: &self.plan }.check_task(&self.task, code);
        }
        self
    }

    /// Returns the capabilities of the selected provider.
    pub fn capabilities(&self) -> &Capabilities {
        self.provider.capabilities()
    }

    /// Returns the verdict of the policies. A refused request is reported as refused and never runs.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Returns the effective limits.
    pub fn limits(&self) -> &Limits {
        &self.plan.limits
    }
}

/// Inputs to admission: policies, ceilings and the selected provider.
#[derive(Debug, Clone, Copy)]
pub struct AdmissionRules<'a> {
    /// The ceiling of each limit.
    pub ceiling: &'a Limits,
    /// The provider that will run the request, with its capabilities.
    pub provider: &'a SelectedProvider,
    /// Policies by name.
    pub policies: &'a Policies,
    /// Name of a policy that always applies, whatever the request selects.
    pub policy_floor: Option<&'a str>,
    /// The most network access a request may ask for.
    pub network_ceiling: NetworkCeiling,
    /// Address ranges treated as private, in addition to the built-in ones.
    pub private_ranges: &'a PrivateRanges,
    /// Stored images, besides `host`.
    pub images: Option<&'a dyn StoredImages>,
    /// Limits on artifacts.
    pub artifacts: ArtifactLimits,
    /// Size limit of what `main` returns, as JSON, in bytes.
    pub result_bytes: u64,
    /// What a long-lived sandbox may have beyond a run.
    pub sandboxes: SandboxRules,
}

#[cfg(test)]
impl<'a> AdmissionRules<'a> {
    /// Returns rules that only the provider restricts.
    pub(crate) fn of_provider(provider: &'a SelectedProvider) -> Self {
        use std::sync::LazyLock;

        use crate::outcome::DEFAULT_RESULT_BYTES;
        static POLICIES: LazyLock<Policies> = LazyLock::new(Policies::default);
        static PRIVATE_RANGES: LazyLock<PrivateRanges> = LazyLock::new(PrivateRanges::default);
        Self {
            ceiling: &Limits::CEILING,
            provider,
            policies: &POLICIES,
            policy_floor: None,
            network_ceiling: NetworkCeiling::Full,
            private_ranges: &PRIVATE_RANGES,
            images: None,
            artifacts: ArtifactLimits::DEFAULT,
            result_bytes: DEFAULT_RESULT_BYTES,
            sandboxes: SandboxRules::default(),
        }
    }
}

/// Checks a request, resolves it against its profile, and checks its code against the policies.
///
/// # Errors
/// Names the invalid field and how to fix it.
pub fn admit(
    request: Request,
    paths: HostPaths,
    profile: &Profile,
    rules: &AdmissionRules<'_>,
) -> Result<AdmittedRequest, Error> {
    let chosen = (request.policy.as_deref(), profile.policy.as_deref());
    let policies = policy::select_policies(rules.policies, chosen.0, chosen.1, rules.policy_floor)?;
    let code = request.code.clone().filter(|_| paths.source_in_workspace.is_some());
    Ok(resolve(request, paths, profile, rules)?.with_verdict(&policies, code.as_deref()))
}

/// Checks a request and resolves it against its profile.
///
/// # Errors
/// Names the invalid field and how to fix it.
pub(crate) fn resolve(
    request: Request,
    paths: HostPaths,
    profile: &Profile,
    rules: &AdmissionRules<'_>,
) -> Result<AdmittedRequest, Error> {
    refuse_unsupported(&request)?;
    let limits = admit_limits(&request.limits.or(&profile.limits), rules.ceiling)?;
    let require = admit_required_layers(&request.require, rules.provider.capabilities())?;
    let image = admit_image(request.image.as_deref(), paths.image.clone(), profile, rules)?;
    let mut mounts = profile.mounts.iter().map(|text| parse_mount(text)).collect::<Result<Vec<_>, _>>()?;
    mounts.extend(paths.mounts.iter().cloned());
    let network = select_network(request.network.as_ref(), profile, rules)?;
    let folders = [("workspace", paths.host_workspace.is_some()), ("mount", !mounts.is_empty())];
    require_host_paths(&folders, rules.provider)?;
    require_package_layers(&request.dependencies, rules.provider)?;
    require_gpus(request.gpus, rules.provider)?;
    let env = profile.merge_env(&request.env)?;
    let workdir = admit_workdir(request.workdir.as_deref())?;
    let files = admit_files(&request.files, limits.disk_bytes)?;
    let stdin = admit_stdin(request.stdin, request.stdin_base64.as_deref())?.unwrap_or_default();
    let code = text_or_base64("code", request.code, request.code_base64.as_deref())?;
    let elsewhere = paths.source_in_workspace.as_ref().and(code.as_ref());
    let elsewhere = elsewhere.map(|code| String::from_utf8_lossy(code).into_owned());
    let wanted = admit_packages(request.dependencies, profile, elsewhere)?;
    let program = admit_program(request.language, code, request.command, request.arguments, &paths)?;
    refuse_name_clash(&program, &files)?;
    admit_metadata(&request.metadata)?;
    let plan = Plan {
        env: merge_image_env(&image, profile.operators_env()),
        image,
        host_workspace: paths.host_workspace,
        mounts,
        limits,
        root: RootAccess::ReadOnly,
        disk_storage: DiskStorage::Memory,
        artifacts: rules.artifacts,
        result_bytes: rules.result_bytes,
        network,
        gpus: request.gpus,
        require,
        tenant: DEFAULT_TENANT.to_owned(),
        preimports: profile.operators_preimports().to_vec(),
        frequent_imports: Vec::new(),
        package_layers: Vec::new(),
        package_lease: None,
    };
    let task = Task { program, stdin, env, files, workdir };
    let (overflow, metadata) = (profile.output_overflow, request.metadata);
    let chosen = rules.provider.clone();
    Ok(AdmittedRequest {
        provider: chosen,
        plan,
        task,
        packages: wanted,
        overflow,
        metadata,
        verdict: Verdict::default(),
        fallback: None,
    })
}

/// Admits packages. `code` is the code to scan, if the task has only its path.
pub(crate) fn admit_packages(
    mut given: Dependencies,
    profile: &Profile,
    code: Option<String>,
) -> Result<AdmittedPackages, Error> {
    check_names("dependencies.packages", &given.packages)?;
    profile.add_packages_to(&mut given.packages);
    Ok(AdmittedPackages {
        detect: given.detect.unwrap_or(true),
        packages: given.packages,
        profile_packages: profile.operators_packages().to_vec(),
        allow_build: profile.build_packages,
        code,
    })
}

pub(crate) fn admit_metadata(metadata: &Map<String, Value>) -> Result<(), Error> {
    if serde_json::to_string(metadata).map_or(0, |text| text.len()) > MAX_METADATA_BYTES {
        return Err(Error::invalid("metadata", "more than 16 KB"));
    }
    if let Some((name, _)) = metadata.iter().find(|(_, value)| has_rounded_integer(value)) {
        let message = format!("'{name}' has an integer beyond 64 bits; pass it as a string");
        return Err(Error::invalid("metadata", message));
    }
    Ok(())
}

fn refuse_unsupported(request: &Request) -> Result<(), Error> {
    let unsupported = |field, message: &str| Err(Error::Unsupported { field, message: message.to_owned() });
    if request.wait == Some(false) {
        return unsupported("wait", "only a server can answer before the execution ends");
    }
    if request.inputs.is_some() {
        let message =
            "one program runs with many inputs by POST /v1/executions of a server, or belljar run --inputs";
        return unsupported("inputs", message);
    }
    if request.jobs.is_some() {
        return Err(Error::invalid(
            "jobs",
            "is the number of inputs that run at the same time, but there are no inputs",
        ));
    }
    Ok(())
}

pub(crate) fn admit_required_layers(
    names: &[String],
    capabilities: &Capabilities,
) -> Result<Vec<Layer>, Error> {
    let mut layers = Vec::new();
    for name in names {
        let layer: Layer = name.parse().map_err(|message| Error::Invalid { field: "require", message })?;
        if let Some(missing) = capabilities.missing.iter().find(|missing| missing.layer == layer) {
            let reason = format!("{}; {}", missing.reason, missing.remedy);
            return Err(Error::LayerUnavailable { layer, reason });
        }
        layers.push(layer);
    }
    Ok(layers)
}

/// Refuses host folders unless the provider can mount them. `given` lists fields and whether each names a
/// folder.
pub(crate) fn require_host_paths(
    given: &[(&'static str, bool)],
    chosen: &SelectedProvider,
) -> Result<(), Error> {
    match given.iter().find(|(_, given)| *given) {
        Some((field, _)) => chosen.require_capability(Capability::HostPaths, field),
        None => Ok(()),
    }
}

/// Refuses requested packages unless the provider can install them. A profile's own packages are not checked:
/// the image may already contain them.
pub(crate) fn require_package_layers(given: &Dependencies, chosen: &SelectedProvider) -> Result<(), Error> {
    match given.packages.is_empty() {
        true => Ok(()),
        false => chosen.require_capability(Capability::PackageLayers, "dependencies.packages"),
    }
}

/// Refuses GPUs unless the provider has them.
pub(crate) fn require_gpus(given: Option<Gpus>, chosen: &SelectedProvider) -> Result<(), Error> {
    given.map_or(Ok(()), |_| chosen.require_capability(Capability::Gpus, "gpus"))
}

/// Returns the image that the request names, else the profile's, else the provider's default.
pub(crate) fn admit_image(
    name: Option<&str>,
    folder: Option<PathBuf>,
    profile: &Profile,
    rules: &AdmissionRules<'_>,
) -> Result<Image, Error> {
    let named = name.or(profile.image.as_deref());
    // Only a profile may name a folder: a request must not choose which host files it sees.
    let in_profile = named.filter(|text| name.is_none() && text.starts_with('/')).map(PathBuf::from);
    let named = named.filter(|_| folder.is_none() && in_profile.is_none());
    if folder.is_some() || in_profile.is_some() || named == Some("host") {
        rules.provider.require_capability(Capability::UnpackedImages, "image")?;
    }
    match (folder.or(in_profile), named, &rules.provider.capabilities().images) {
        (Some(folder), _, _) => Ok(Image::Folder(folder)),
        (None, Some("host"), _) => Ok(Image::Host),
        (None, None, ImageChoice::Named { default_image: usual, .. }) => Ok(Image::Named(usual.clone())),
        (None, None, _) => Ok(Image::Host),
        (None, Some(name), ImageChoice::Named { default_image: usual, allowed: others }) => {
            named_image(name, usual, others)
        }
        (None, Some(name), ImageChoice::Unpacked) => unpacked_image(name, rules.images),
        (None, Some(_), ImageChoice::None) => {
            rules.provider.require_capability(Capability::NamedImages, "image").map(|()| Image::Host)
        }
    }
}

fn unpacked_image(name: &str, images: Option<&dyn StoredImages>) -> Result<Image, Error> {
    match images {
        Some(images) => Ok(Image::Stored(Arc::new(images.find(name)?))),
        None => Err(Error::invalid("image", format!("unknown image '{}'; use 'host'", name.escape_debug()))),
    }
}

/// Returns one of the provider's own images, if an administrator allows requests to name it.
fn named_image(name: &str, usual: &str, others: &[String]) -> Result<Image, Error> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    let shown: String = name.chars().take(MAX_IMAGE_NAME_BYTES).collect();
    let shown = shown.escape_debug();
    if name.len() > MAX_IMAGE_NAME_BYTES
        || !name.starts_with(|c: char| c.is_ascii_alphanumeric())
        || !name.chars().all(fine)
    {
        return Err(Error::invalid("image", format!("'{shown}' is not a valid image name")));
    }
    if name != usual && !others.iter().any(|other| other == "*" || other == name) {
        let message = format!("requests may not use image '{shown}'; leave it out to use '{usual}'");
        return Err(Error::Invalid { field: "image", message });
    }
    Ok(Image::Named(name.to_owned()))
}

/// Adds the image's variables to `env`, which takes precedence.
pub(crate) fn merge_image_env(image: &Image, env: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let Image::Stored(stored) = image else { return env };
    let mut all = stored.env.clone();
    all.extend(env);
    all
}

/// Parses `SOURCE:DESTINATION[:ro|rw]`. The default mode is read-only.
///
/// # Errors
/// Says which part is invalid.
pub fn parse_mount(text: &str) -> Result<Mount, Error> {
    let wrong =
        |why: &str| Error::invalid("mount", format!("'{text}': {why}; write SOURCE:DESTINATION[:ro|rw]"));
    let (rest, writable) = match text.rsplit_once(':') {
        Some((rest, "ro")) => (rest, false),
        Some((rest, "rw")) => (rest, true),
        _ => (text, false),
    };
    let (source, destination) = rest.rsplit_once(':').ok_or_else(|| wrong("no destination"))?;
    if source.is_empty() || source.contains('\0') {
        return Err(wrong("no source"));
    }
    let inside = destination.strip_prefix('/').ok_or_else(|| wrong("the destination must be absolute"))?;
    check_relative(inside).map_err(|why| wrong(&why))?;
    let top = inside.split('/').next().unwrap_or_default();
    let ours = ["workspace", "tmp", "home", "home/sandbox", "run", "run/belljar"];
    if matches!(top, "proc" | "dev" | "sys") || ours.contains(&inside) {
        return Err(wrong("that path is reserved by Belljar"));
    }
    Ok(Mount { source: source.into(), destination: destination.to_owned(), writable })
}

/// Returns the network that the request asks for, if the network ceiling allows it, else the profile's.
pub(crate) fn select_network(
    asked: Option<&NetworkSpec>,
    profile: &Profile,
    rules: &AdmissionRules<'_>,
) -> Result<Network, Error> {
    let network = match asked {
        Some(asked) if profile.network.as_ref() != Some(asked) => {
            rules.network_ceiling.check(Network::parse(Some(asked))?)?
        }
        _ => Network::parse(profile.network.as_ref())?,
    };
    match network {
        Network::Hosts(hosts) | Network::Internet(hosts) => {
            rules.provider.require_capability(Capability::SingleHosts, "network")?;
            Ok(Network::from_rules(hosts.with_private_ranges(rules.private_ranges)))
        }
        Network::None | Network::Full => Ok(network),
    }
}

fn admit_workdir(given: Option<&str>) -> Result<String, Error> {
    match given {
        None => Ok(WORKSPACE.to_owned()),
        Some(path) if path.starts_with('/') && !path.contains('\0') => Ok(path.to_owned()),
        Some(path) => {
            Err(Error::invalid("workdir", format!("'{}' is not an absolute path", path.escape_debug())))
        }
    }
}

/// Checks that a path is relative and stays below the folder it is placed in.
pub(crate) fn check_relative(path: &str) -> Result<(), String> {
    if path.contains('\0') {
        return Err("a path cannot contain NUL".to_owned());
    }
    if path.starts_with('/') {
        return Err("must be relative to the workspace, but is absolute".to_owned());
    }
    if path.len() > 4_096 || path.split('/').any(|part| part.len() > 255) {
        return Err("is too long".to_owned());
    }
    match path.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        Some("..") => Err("'..' would leave the workspace".to_owned()),
        Some(_) => Err("has an empty or '.' component".to_owned()),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "fuzz_tests.rs"]
mod fuzz_tests;
#[cfg(test)]
#[path = "admit_tests.rs"]
mod tests;
