//! The pipeline: admits a request, prepares its packages, runs it and reports the result.

use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use belljar_analysis::policy::{Policies, Policy};
use futures_util::future::{Either, select};

use crate::admit::{AdmissionRules, AdmittedRequest, admit};
use crate::artifact::ArtifactLimits;
use crate::explain::{explain_failure, missing_limits};
use crate::images::StoredImages;
use crate::limits::Limits;
use crate::network::{HostRules, NetworkCeiling, PrivateRanges};
use crate::outcome::{DEFAULT_RESULT_BYTES, Ending, Kernel, Outcome, Receipt};
use crate::packages::{
    AdmittedPackages, PackageNeeds, PackageResolver, PackageStats, Progress, ProvidedPackages,
};
use crate::plan::{CodeSource, Network, OutputOverflow, Plan, Program, Task};
use crate::policy::select_policies;
use crate::profile::Profiles;
use crate::provider::{
    BoxFuture, Capabilities, ConfinementMismatch, LongestTurns, PoolMetrics, Provider, Sink, SinkControl,
    Stream,
};
use crate::provider_set::{ProviderSet, SelectedProvider};
use crate::report::{self, Report};
use crate::request::{HostPaths, NetworkSpec, Request};
use crate::sandbox::{
    AdmittedCommand, AdmittedSandbox, CommandRequest, SandboxRequest, SandboxRules, admit_command,
    admit_in_sandbox, admit_sandbox, admit_timeout,
};
use crate::sandbox_handle::SandboxHandle;
use crate::{Capture, Error};

/// Settings of a tenant that apply to all of its requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct TenantRules<'a> {
    /// Name of a policy that always applies, whatever the request selects.
    pub policy: Option<&'a str>,
    /// Name of the provider for requests for which neither the request nor the profile names one.
    pub provider: Option<&'a str>,
}

/// The engine: admits and runs requests.
#[derive(Debug)]
pub struct Engine {
    providers: Arc<ProviderSet>,
    profiles: RwLock<Arc<Profiles>>,
    ceiling: Limits,
    policies: Policies,
    packages: Option<Arc<dyn PackageResolver>>,
    images: Option<Arc<dyn StoredImages>>,
    network_ceiling: NetworkCeiling,
    private_ranges: PrivateRanges,
    artifacts: ArtifactLimits,
    result_bytes: u64,
    sandboxes: SandboxRules,
}

impl Engine {
    /// Creates an engine with one provider.
    pub fn new(provider: Arc<dyn Provider>, profiles: Profiles, ceiling: Limits) -> Self {
        Self::with_providers(Arc::new(ProviderSet::single(provider)), profiles, ceiling)
    }

    /// Creates an engine with a set of providers.
    pub fn with_providers(providers: Arc<ProviderSet>, profiles: Profiles, ceiling: Limits) -> Self {
        let (profiles, policies) = (RwLock::new(Arc::new(profiles)), Policies::default());
        Self {
            providers,
            profiles,
            ceiling,
            policies,
            packages: None,
            images: None,
            network_ceiling: NetworkCeiling::default(),
            private_ranges: PrivateRanges::default(),
            artifacts: ArtifactLimits::DEFAULT,
            result_bytes: DEFAULT_RESULT_BYTES,
            sandboxes: SandboxRules::default(),
        }
    }

    /// Returns the ceiling of each limit.
    pub fn ceiling(&self) -> &Limits {
        &self.ceiling
    }

    /// Replaces the built-in policies.
    #[must_use]
    pub fn with_policies(self, policies: Policies) -> Self {
        Self { policies, ..self }
    }

    /// Sets the network ceiling for requests.
    #[must_use]
    pub fn with_network_ceiling(self, network_ceiling: NetworkCeiling) -> Self {
        Self { network_ceiling, ..self }
    }

    /// Sets address ranges treated as private, in addition to the built-in ones.
    #[must_use]
    pub fn with_private_ranges(self, private_ranges: PrivateRanges) -> Self {
        Self { private_ranges, ..self }
    }

    /// Sets the limits on artifacts.
    #[must_use]
    pub fn with_artifact_limits(self, artifacts: ArtifactLimits) -> Self {
        Self { artifacts, ..self }
    }

    /// Sets the size limit of what `main` returns, as JSON, in bytes.
    #[must_use]
    pub fn with_result_limit(self, result_bytes: u64) -> Self {
        Self { result_bytes, ..self }
    }

    /// Sets what long-lived sandboxes may have beyond a run.
    #[must_use]
    pub fn with_sandbox_rules(self, sandboxes: SandboxRules) -> Self {
        Self { sandboxes, ..self }
    }

    /// Returns the policies.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// Sets the package resolver. Without one, code only sees packages installed in its image.
    #[must_use]
    pub fn with_packages(self, packages: Arc<dyn PackageResolver>) -> Self {
        Self { packages: Some(packages), ..self }
    }

    /// Sets the stored images. Without them, only `host` and the provider's own images are available.
    #[must_use]
    pub fn with_images(self, images: Arc<dyn StoredImages>) -> Self {
        Self { images: Some(images), ..self }
    }

    /// Replaces the profiles for future requests.
    pub fn set_profiles(&self, profiles: Profiles) {
        *self.profiles.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(profiles);
    }

    fn profiles(&self) -> Arc<Profiles> {
        Arc::clone(&self.profiles.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the set of providers.
    pub fn providers(&self) -> &ProviderSet {
        &self.providers
    }

    /// Returns the capabilities of the default provider.
    pub fn capabilities(&self) -> Capabilities {
        self.providers.default_entry().map(|entry| entry.capabilities.clone()).unwrap_or_default()
    }

    /// Checks a request without running it.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn admit(&self, request: Request, paths: HostPaths) -> Result<AdmittedRequest, Error> {
        self.admit_for_tenant(request, paths, TenantRules::default())
    }

    /// Checks a request of a tenant without running it.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn admit_for_tenant(
        &self,
        request: Request,
        paths: HostPaths,
        rules: TenantRules<'_>,
    ) -> Result<AdmittedRequest, Error> {
        let profiles = self.profiles();
        let profile = profiles.of_request(request.profile.as_deref())?;
        let name = profile.provider_of(request.provider.as_deref(), rules.provider);
        let selected = self.providers.choose(name)?;
        // A provider that cannot serve this request is no fallback for it.
        let fallback = selected.fallbacks().into_iter().find_map(|fallback| {
            let rules = self.admission_rules(&fallback, rules.policy);
            admit(request.clone(), paths.clone(), profile, &rules).ok()
        });
        let admitted = admit(request, paths, profile, &self.admission_rules(&selected, rules.policy))?;
        Ok(admitted.with_fallback(fallback))
    }

    /// Returns the policies of a request: its own choice, its profile's and its tenant's.
    pub(crate) fn policies_of(
        &self,
        request: &Request,
        floor: Option<&str>,
    ) -> Result<Vec<Arc<Policy>>, Error> {
        let profiles = self.profiles();
        let profile = profiles.of_request(request.profile.as_deref())?;
        select_policies(&self.policies, request.policy.as_deref(), profile.policy.as_deref(), floor)
    }

    fn admission_rules<'a>(
        &'a self,
        selected: &'a SelectedProvider,
        policy_floor: Option<&'a str>,
    ) -> AdmissionRules<'a> {
        let Self { ceiling, policies, network_ceiling, private_ranges, .. } = self;
        let images = self.images.as_deref();
        AdmissionRules {
            ceiling,
            provider: selected,
            policies,
            policy_floor,
            network_ceiling: *network_ceiling,
            private_ranges,
            images,
            artifacts: self.artifacts,
            result_bytes: self.result_bytes,
            sandboxes: self.sandboxes,
        }
    }

    /// Checks a request for a long-lived sandbox without opening it.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn admit_sandbox<'a>(
        &self,
        request: SandboxRequest,
        rules: impl Into<Option<TenantRules<'a>>>,
    ) -> Result<AdmittedSandbox, Error> {
        let (profiles, rules) = (self.profiles(), rules.into().unwrap_or_default());
        let profile = profiles.of_request(request.profile.as_deref())?;
        let name = profile.provider_of(request.provider.as_deref(), rules.provider);
        let selected = self.providers.choose(name)?;
        let fallback = selected.fallbacks().into_iter().find_map(|fallback| {
            admit_sandbox(request.clone(), profile, &self.admission_rules(&fallback, rules.policy)).ok()
        });
        let admitted = admit_sandbox(request, profile, &self.admission_rules(&selected, rules.policy))?;
        Ok(admitted.with_fallback(fallback))
    }

    /// Checks the lifetime of a sandbox.
    ///
    /// # Errors
    /// Fails if it is not above zero, or above the ceiling.
    pub fn admit_timeout(&self, millis: i64) -> Result<Duration, Error> {
        admit_timeout(Some(millis), self.ceiling.timeout)
    }

    /// Checks a new network for an open sandbox with a gate: other hosts, or the internet.
    ///
    /// # Errors
    /// Names the invalid host or mode.
    pub fn admit_network_change(&self, spec: &NetworkSpec) -> Result<HostRules, Error> {
        let network = self.network_ceiling.check(Network::parse(Some(spec))?)?;
        let only_gated =
            || Error::invalid("mode", "an open sandbox can only change to 'hosts' or 'internet'");
        let rules = network.gate_rules().ok_or_else(only_gated)?;
        Ok(rules.clone().with_private_ranges(&self.private_ranges))
    }

    /// Opens a long-lived sandbox; `progress` receives messages about its packages. If the provider cannot set it up,
    /// its fallback opens it, and `admitted` becomes what was admitted for that one.
    ///
    /// # Errors
    /// Says why the sandbox could not be opened.
    pub async fn open_sandbox(
        &self,
        admitted: &mut AdmittedSandbox,
        progress: &mut dyn Progress,
    ) -> Result<(Box<dyn SandboxHandle>, ProvidedPackages), Error> {
        match self.open_once(admitted, progress).await {
            Err(error) if error.is_setup_failure() && admitted.fall_back() => {
                self.open_once(admitted, progress).await
            }
            done => done,
        }
    }

    async fn open_once(
        &self,
        admitted: &AdmittedSandbox,
        progress: &mut dyn Progress,
    ) -> Result<(Box<dyn SandboxHandle>, ProvidedPackages), Error> {
        let mut plan = admitted.plan.clone();
        let needs = PackageNeeds {
            tenant: &admitted.plan.tenant,
            image: &admitted.plan.image,
            language: None,
            detect: false,
            code: None,
            files: &[],
            has_host_workspace: true,
            packages: &admitted.packages.packages,
            profile_packages: &admitted.packages.profile_packages,
            allow_build: admitted.packages.allow_build,
            is_built: false,
            open_sandbox: None,
        };
        let prepared = self.prepare(&admitted.provider, needs, progress).await?;
        plan.package_layers.clone_from(&prepared.layers);
        plan.package_lease.clone_from(&prepared.lease);
        let entry = &admitted.provider.entry;
        let opened = entry.provider.open(&plan).await;
        entry.record_result(opened.as_ref().err());
        Ok((opened?, prepared))
    }

    pub(crate) async fn prepare(
        &self,
        selected: &SelectedProvider,
        needs: PackageNeeds<'_>,
        progress: &mut dyn Progress,
    ) -> Result<ProvidedPackages, Error> {
        let packages = self.packages.as_ref().filter(|_| selected.capabilities().package_layers);
        let Some(packages) = packages else { return without_packages(&needs) };
        let resolver = packages.resolver_for(&selected.entry.provider);
        let packages = resolver.as_ref().unwrap_or(packages);
        Ok(packages.prepare(needs, progress).await?)
    }

    /// Checks a task for an open sandbox.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn admit_in_sandbox(
        &self,
        sandbox: &AdmittedSandbox,
        request: Request,
        policy_floor: Option<&str>,
    ) -> Result<AdmittedRequest, Error> {
        admit_in_sandbox(sandbox, request, &self.admission_rules(&sandbox.provider, policy_floor))
    }

    /// Checks a command for an open sandbox.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn admit_command(
        &self,
        sandbox: &AdmittedSandbox,
        request: CommandRequest,
        policy_floor: Option<&str>,
    ) -> Result<AdmittedCommand, Error> {
        admit_command(sandbox, request, &self.admission_rules(&sandbox.provider, policy_floor))
    }

    /// Runs a request; `view` receives output as it arrives, up to the head that the report will keep. If the
    /// provider cannot set it up, its fallback runs it.
    ///
    /// # Errors
    /// Says why nothing ran.
    pub async fn execute(
        &self,
        id: String,
        mut admitted: AdmittedRequest,
        view: &mut dyn Sink,
        cancel: BoxFuture<'_, ()>,
    ) -> Result<Report, Error> {
        let Some(fallback) = admitted.fallback.take() else {
            return self.execute_once(id, admitted, view, cancel).await;
        };
        let (mut cancel, mut canceled) = (cancel, false);
        let noted = Box::pin(async {
            (&mut cancel).await;
            canceled = true;
        });
        let first = self.execute_once(id.clone(), admitted, view, noted).await;
        match first {
            Err(error) if error.is_setup_failure() && !canceled => {
                self.execute_once(id, *fallback, view, cancel).await
            }
            done => done,
        }
    }

    async fn execute_once(
        &self,
        id: String,
        admitted: AdmittedRequest,
        view: &mut dyn Sink,
        cancel: BoxFuture<'_, ()>,
    ) -> Result<Report, Error> {
        if admitted.verdict.refusal.is_some() {
            return Ok(report::refused(id, admitted));
        }
        let AdmittedRequest {
            provider: selected, mut plan, task, packages, overflow, metadata, verdict, ..
        } = admitted;
        let limits = plan.limits;
        let mut recorder = OutputRecorder::new(view, &limits, overflow);
        let ready = {
            let mut progress = SinkProgress(&mut *recorder.view);
            let is_built = match &task.program {
                Program::Code { language, .. } if language.has_prebuilt_library() => {
                    selected.entry.provider.is_built(&plan, &task).await
                }
                _ => false,
            };
            let needs = PackageNeeds { is_built, ..package_needs(&plan, &task, &packages) };
            let preparing = pin!(self.prepare(&selected, needs, &mut progress));
            match select(preparing, cancel).await {
                Either::Left((prepared, cancel)) => Some((prepared?, cancel)),
                Either::Right(_) => None,
            }
        };
        let Some((prepared, cancel)) = ready else {
            // No sandbox was created, so the receipt lists no layers.
            let receipt = Receipt::new(selected.entry.provider.name(), Kernel::Host);
            let outcome = Outcome::new(Ending::Cancelled, Duration::ZERO, receipt);
            let (stdout, stderr) = recorder.finish();
            return Ok(report::from_outcome(id, outcome, &limits, &stdout, &stderr, metadata));
        };
        plan.package_layers.clone_from(&prepared.layers);
        plan.package_lease.clone_from(&prepared.lease);
        plan.frequent_imports.clone_from(&prepared.frequent_imports);
        if prepared.profile_replaced {
            plan.preimports.clear();
        }
        let entry = &selected.entry;
        let outcome = entry.provider.run(&plan, &task, &mut recorder, cancel).await;
        entry.record_result(outcome.as_ref().err());
        let mut outcome = outcome?;
        let (stdout, stderr) = recorder.finish();
        outcome.findings.extend(missing_limits(selected.capabilities(), &outcome.receipt.isolation));
        explain_failure(&mut outcome, &plan, &stderr);
        outcome.receipt.instead_of = selected.instead_of;
        let report = report::from_outcome(id, outcome, &limits, &stdout, &stderr, metadata);
        Ok(report::with_policy_findings(report::with_packages(report, prepared), verdict))
    }

    /// Returns metrics of the providers' warm pools.
    pub async fn pools(&self) -> Vec<PoolMetrics> {
        let mut pools = Vec::new();
        for entry in self.providers.entries() {
            pools.extend(entry.provider.pools().await);
        }
        pools
    }

    /// Takes the confinement mismatches seen since the last call.
    pub fn take_mismatches(&self) -> Vec<ConfinementMismatch> {
        self.providers.entries().iter().flat_map(|entry| entry.provider.take_mismatches()).collect()
    }

    /// Returns the longest turns of the providers' event loops.
    pub async fn longest_turns(&self) -> Vec<LongestTurns> {
        let mut turns = Vec::new();
        for entry in self.providers.entries() {
            turns.extend(entry.provider.longest_turns().await);
        }
        turns
    }

    /// Returns package statistics, or `None` without a package resolver.
    pub async fn package_stats(&self) -> Option<PackageStats> {
        match &self.packages {
            Some(packages) => Some(packages.stats().await),
            None => None,
        }
    }

    /// Removes the packages and built programs that are cached for a tenant alone.
    ///
    /// # Errors
    /// Some could not be removed.
    pub async fn remove_tenant_caches(&self, tenant: &str) -> Result<(), Error> {
        for entry in self.providers.entries() {
            entry.provider.remove_tenant(tenant).await?;
        }
        match &self.packages {
            Some(packages) => Ok(packages.remove_tenant(tenant).await?),
            None => Ok(()),
        }
    }

    /// Shuts down all providers and waits until nothing is left.
    pub async fn shut_down(&self) {
        for entry in self.providers.entries() {
            entry.provider.shut_down().await;
        }
    }
}

/// Returns the package needs of a task. Imports are detected in code only, not in commands.
pub(crate) fn package_needs<'a>(
    plan: &'a Plan,
    task: &'a Task,
    packages: &'a AdmittedPackages,
) -> PackageNeeds<'a> {
    let (language, code) = match &task.program {
        Program::Code { language, source: CodeSource::Text { code, .. }, .. } => {
            (Some(*language), Some(&**code))
        }
        Program::Code { language, source: CodeSource::Existing(_), .. } => {
            (Some(*language), packages.code.as_deref())
        }
        Program::Command(_) => (None, None),
    };
    PackageNeeds {
        tenant: &plan.tenant,
        image: &plan.image,
        language,
        detect: packages.detect,
        code,
        files: &task.files,
        has_host_workspace: plan.host_workspace.is_some(),
        packages: &packages.packages,
        profile_packages: &packages.profile_packages,
        allow_build: packages.allow_build,
        is_built: false,
        open_sandbox: None,
    }
}

/// Handles package needs without a resolver: requested packages are refused, and a profile's must be in the
/// image.
fn without_packages(needs: &PackageNeeds<'_>) -> Result<ProvidedPackages, Error> {
    if needs.packages.is_empty() {
        return Ok(ProvidedPackages::default());
    }
    let message = "no packages are installed here; the image must have them".to_owned();
    Err(Error::Unsupported { field: "dependencies.packages", message })
}

/// Forwards progress to a sink.
pub(crate) struct SinkProgress<'a>(pub(crate) &'a mut dyn Sink);

impl Progress for SinkProgress<'_> {
    fn report(&mut self, what: &str) {
        self.0.progress(what);
    }
}

/// Captures output for the report and forwards the head to a live view.
pub(crate) struct OutputRecorder<'a> {
    pub(crate) view: &'a mut dyn Sink,
    stdout: Capture,
    stderr: Capture,
    overflow: OutputOverflow,
}

impl<'a> OutputRecorder<'a> {
    pub(crate) fn new(view: &'a mut dyn Sink, limits: &Limits, overflow: OutputOverflow) -> Self {
        let capture = || Capture::new(limits.output_bytes);
        Self { view, stdout: capture(), stderr: capture(), overflow }
    }

    /// Sends the tails to the view and returns both captures.
    pub(crate) fn finish(self) -> (Capture, Capture) {
        self.view.output(Stream::Stdout, &self.stdout.gap_and_tail());
        self.view.output(Stream::Stderr, &self.stderr.gap_and_tail());
        (self.stdout, self.stderr)
    }
}

impl Sink for OutputRecorder<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> SinkControl {
        let capture = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let head = capture.push(bytes);
        let flow = if head.is_empty() { SinkControl::Continue } else { self.view.output(stream, head) };
        match self.overflow {
            OutputOverflow::Kill if capture.is_truncated() => SinkControl::Kill,
            _ => flow,
        }
    }

    fn progress(&mut self, what: &str) {
        self.view.progress(what);
    }

    fn restart(&mut self) -> bool {
        let possible = self.view.restart();
        if possible {
            self.stdout.clear();
            self.stderr.clear();
        }
        possible
    }
}

#[cfg(test)]
#[path = "pipeline_tests.rs"]
mod tests;
