//! The pipeline: admits a request, prepares its packages, runs it and reports the result.

use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use belljar_analysis::policy::Policies;
use futures_util::future::{Either, select};

use crate::admit::{Admitted, Rules, admit};
use crate::explain::{explain, not_limited};
use crate::fleet::{Chosen, Fleet};
use crate::images::Images;
use crate::limits::Limits;
use crate::living::{Living, LivingError};
use crate::network::{HostRules, PrivateRanges, Reach};
use crate::outcome::{Ending, Kernel, Outcome, Receipt, Usage, Warmth};
use crate::packages::{Needs, Packages, Prepared, Progress, Stock, Wanted};
use crate::plan::{Network, Overflow, Plan, Program, Source, Task};
use crate::profile::Profiles;
use crate::provider::{
    BoxFuture, Capabilities, Flow, LoopTurns, Mismatch, PoolMetrics, Provider, ProviderError, Sink, Stream,
};
use crate::report::Report;
use crate::request::{HostPaths, Request};
use crate::sandbox::{
    AdmittedCommand, AdmittedSandbox, CommandRequest, SandboxRequest, admit_command, admit_inside,
    admit_sandbox, admit_timeout,
};
use crate::{Capture, Error};

/// Settings of a tenant that apply to all of its requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tenancy<'a> {
    /// Name of a policy that always applies, whatever the request selects.
    pub policy: Option<&'a str>,
    /// Name of the provider for requests for which neither the request nor the profile names one.
    pub provider: Option<&'a str>,
}

/// The engine: admits and runs requests.
#[derive(Debug)]
pub struct Engine {
    fleet: Arc<Fleet>,
    profiles: RwLock<Arc<Profiles>>,
    ceiling: Limits,
    policies: Policies,
    packages: Option<Arc<dyn Packages>>,
    images: Option<Arc<dyn Images>>,
    reach: Reach,
    private_ranges: PrivateRanges,
}

impl Engine {
    /// Creates an engine with one provider.
    pub fn new(provider: Arc<dyn Provider>, profiles: Profiles, ceiling: Limits) -> Self {
        Self::over(Arc::new(Fleet::of(provider)), profiles, ceiling)
    }

    /// Creates an engine with a set of providers.
    pub fn over(fleet: Arc<Fleet>, profiles: Profiles, ceiling: Limits) -> Self {
        let (profiles, policies) = (RwLock::new(Arc::new(profiles)), Policies::default());
        let (reach, private_ranges) = (Reach::default(), PrivateRanges::default());
        Self { fleet, profiles, ceiling, policies, packages: None, images: None, reach, private_ranges }
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
    pub fn with_reach(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }

    /// Sets address ranges treated as private, in addition to the built-in ones.
    #[must_use]
    pub fn with_private_ranges(self, private_ranges: PrivateRanges) -> Self {
        Self { private_ranges, ..self }
    }

    /// Returns the policies.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// Sets the package resolver. Without one, code only sees packages installed in its image.
    #[must_use]
    pub fn with_packages(self, packages: Arc<dyn Packages>) -> Self {
        Self { packages: Some(packages), ..self }
    }

    /// Sets the stored images. Without them, only `host` and the provider's own images are available.
    #[must_use]
    pub fn with_images(self, images: Arc<dyn Images>) -> Self {
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
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Returns the capabilities of the default provider.
    pub fn capabilities(&self) -> Capabilities {
        self.fleet.usual().map(|post| post.capabilities.clone()).unwrap_or_default()
    }

    /// Checks a request without running it.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn admit(&self, request: Request, paths: HostPaths) -> Result<Admitted, Error> {
        self.admit_under(request, paths, Tenancy::default())
    }

    /// Checks a request of a tenant without running it.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn admit_under(
        &self,
        request: Request,
        paths: HostPaths,
        tenancy: Tenancy<'_>,
    ) -> Result<Admitted, Error> {
        let profiles = self.profiles();
        let named = [request.provider.as_deref(), tenancy.provider];
        let chosen = self.choose(&profiles, request.profile.as_deref(), named)?;
        admit(request, paths, &self.rules(&profiles, &chosen, tenancy.policy))
    }

    /// Selects the provider: named by the request, else its profile, else its tenant, else the default.
    fn choose(
        &self,
        profiles: &Profiles,
        profile: Option<&str>,
        [named, tenants]: [Option<&str>; 2],
    ) -> Result<Chosen, Error> {
        let profile = profiles.named(profile.unwrap_or("default"))?;
        self.fleet.choose([named, profile.provider.as_deref(), tenants])
    }

    fn rules<'a>(&'a self, profiles: &'a Profiles, chosen: &'a Chosen, floor: Option<&'a str>) -> Rules<'a> {
        let Self { ceiling, policies, reach, private_ranges, .. } = self;
        let images = self.images.as_deref();
        Rules { profiles, ceiling, chosen, policies, floor, reach: *reach, private_ranges, images }
    }

    /// Checks a request for a long-lived sandbox without opening it.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn admit_sandbox<'a>(
        &self,
        request: SandboxRequest,
        tenancy: impl Into<Option<Tenancy<'a>>>,
    ) -> Result<AdmittedSandbox, Error> {
        let (profiles, tenancy) = (self.profiles(), tenancy.into().unwrap_or_default());
        let named = [request.provider.as_deref(), tenancy.provider];
        let chosen = self.choose(&profiles, request.profile.as_deref(), named)?;
        admit_sandbox(request, &self.rules(&profiles, &chosen, tenancy.policy))
    }

    /// Checks the lifetime of a sandbox.
    ///
    /// # Errors
    /// Fails if it is not above zero, or above the ceiling.
    pub fn admit_timeout(&self, millis: i64) -> Result<Duration, Error> {
        admit_timeout(Some(millis), self.ceiling.timeout)
    }

    /// Checks the hosts that a sandbox may reach.
    ///
    /// # Errors
    /// Names the invalid host.
    pub fn admit_hosts(&self, hosts: &[String]) -> Result<HostRules, Error> {
        let rules = HostRules::parse(hosts).map_err(|message| Error::Invalid { field: "hosts", message })?;
        self.reach.hold(Network::Hosts(rules.clone()))?;
        Ok(rules.with_private_ranges(&self.private_ranges))
    }

    /// Opens a long-lived sandbox; `progress` receives messages about its packages.
    ///
    /// # Errors
    /// Says why the sandbox could not be opened.
    pub async fn open_sandbox(
        &self,
        admitted: &AdmittedSandbox,
        progress: &mut dyn Progress,
    ) -> Result<(Box<dyn Living>, Prepared), Error> {
        let mut plan = admitted.plan.clone();
        let needs = Needs {
            tenant: &admitted.plan.tenant,
            image: &admitted.plan.image,
            language: None,
            detect: false,
            code: None,
            files: &[],
            playground: true,
            packages: &admitted.wanted.packages,
            standing: &admitted.wanted.standing,
            build: admitted.wanted.build,
        };
        let prepared = self.prepare(&admitted.chosen, needs, progress).await?;
        plan.package_layers.clone_from(&prepared.layers);
        plan.held.clone_from(&prepared.held);
        let post = &admitted.chosen.post;
        let opened = post.provider.open_living(&plan).await;
        post.note(opened.as_ref().err());
        Ok((opened?, prepared))
    }

    async fn prepare(
        &self,
        chosen: &Chosen,
        needs: Needs<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Prepared, Error> {
        let packages = self.packages.as_ref().filter(|_| chosen.capabilities().package_layers);
        let Some(packages) = packages else { return without_packages(&needs) };
        let others = packages.serving(&chosen.post.provider);
        let packages = others.as_ref().unwrap_or(packages);
        Ok(packages.prepare(needs, progress).await?)
    }

    /// Checks a task for an open sandbox.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn admit_inside(
        &self,
        sandbox: &AdmittedSandbox,
        request: Request,
        floor: Option<&str>,
    ) -> Result<Admitted, Error> {
        admit_inside(sandbox, request, &self.rules(&self.profiles(), &sandbox.chosen, floor))
    }

    /// Checks a command for an open sandbox.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn admit_command(
        &self,
        sandbox: &AdmittedSandbox,
        request: CommandRequest,
        floor: Option<&str>,
    ) -> Result<AdmittedCommand, Error> {
        admit_command(sandbox, request, &self.rules(&self.profiles(), &sandbox.chosen, floor))
    }

    /// Runs a task in an open sandbox.
    ///
    /// # Errors
    /// Says why nothing ran, or what happened to the sandbox.
    pub async fn execute_inside(
        &self,
        sandbox: &dyn Living,
        id: String,
        admitted: Admitted,
        view: &mut dyn Sink,
        cancel: BoxFuture<'_, ()>,
    ) -> Result<Report, LivingError> {
        if admitted.verdict.refusal.is_some() {
            return Ok(Report::refused(id, admitted));
        }
        let limits = admitted.plan.limits;
        let mut recorder = Recorder::new(view, &limits, admitted.overflow);
        let mut outcome = sandbox.run(&admitted.task, &limits, &mut recorder, cancel).await?;
        let (stdout, stderr) = recorder.finish();
        explain(&mut outcome, &admitted.plan, &stderr);
        let report = Report::new(id, outcome, &limits, &stdout, &stderr, admitted.metadata);
        Ok(report.after(admitted.verdict))
    }

    /// Runs a request; `view` receives output as it arrives, up to the head that the report will keep.
    ///
    /// # Errors
    /// Says why nothing ran.
    pub async fn execute(
        &self,
        id: String,
        admitted: Admitted,
        view: &mut dyn Sink,
        cancel: BoxFuture<'_, ()>,
    ) -> Result<Report, Error> {
        if admitted.verdict.refusal.is_some() {
            return Ok(Report::refused(id, admitted));
        }
        let Admitted { chosen, mut plan, task, wanted, overflow, metadata, verdict } = admitted;
        let limits = plan.limits;
        let mut recorder = Recorder::new(view, &limits, overflow);
        let ready = {
            let mut told = Told(&mut *recorder.view);
            let preparing = pin!(self.prepare(&chosen, needs(&plan, &task, &wanted), &mut told));
            match select(preparing, cancel).await {
                Either::Left((prepared, cancel)) => Some((prepared?, cancel)),
                Either::Right(_) => None,
            }
        };
        let Some((prepared, cancel)) = ready else {
            let (stdout, stderr) = recorder.finish();
            return Ok(Report::new(id, never_began(&chosen), &limits, &stdout, &stderr, metadata));
        };
        plan.package_layers.clone_from(&prepared.layers);
        plan.held.clone_from(&prepared.held);
        plan.frequent_imports.clone_from(&prepared.frequent_imports);
        if prepared.profile_replaced {
            plan.preimports.clear();
        }
        let mut outcome = run(&chosen, &plan, &task, &mut recorder, cancel).await?;
        let (stdout, stderr) = recorder.finish();
        outcome.findings.extend(not_limited(chosen.capabilities(), &outcome.receipt.isolation));
        explain(&mut outcome, &plan, &stderr);
        let report = Report::new(id, outcome, &limits, &stdout, &stderr, metadata);
        Ok(report.instead_of(chosen.instead_of).with_packages(prepared).after(verdict))
    }

    /// Returns metrics of the providers' warm pools.
    pub async fn pools(&self) -> Vec<PoolMetrics> {
        let mut pools = Vec::new();
        for post in self.fleet.all() {
            pools.extend(post.provider.pools().await);
        }
        pools
    }

    /// Takes the confinement mismatches seen since the last call.
    pub fn take_mismatches(&self) -> Vec<Mismatch> {
        self.fleet.all().iter().flat_map(|post| post.provider.take_mismatches()).collect()
    }

    /// Returns the longest turns of the providers' event loops.
    pub async fn turns(&self) -> Vec<LoopTurns> {
        let mut turns = Vec::new();
        for post in self.fleet.all() {
            turns.extend(post.provider.turns().await);
        }
        turns
    }

    /// Returns package statistics, or `None` without a package resolver.
    pub async fn stock(&self) -> Option<Stock> {
        match &self.packages {
            Some(packages) => Some(packages.stock().await),
            None => None,
        }
    }

    /// Shuts down all providers and waits until nothing is left.
    pub async fn shut_down(&self) {
        for post in self.fleet.all() {
            post.provider.shut_down().await;
        }
    }
}

/// Opens a sandbox and runs the task in it.
async fn run(
    chosen: &Chosen,
    plan: &Plan,
    task: &Task,
    sink: &mut dyn Sink,
    cancel: BoxFuture<'_, ()>,
) -> Result<Outcome, ProviderError> {
    let outcome = async {
        let mut sandbox = chosen.post.provider.open(plan).await?;
        sandbox.run(task, sink, cancel).await
    };
    let outcome = outcome.await;
    chosen.post.note(outcome.as_ref().err());
    outcome
}

/// Returns the outcome of an execution that was canceled while its packages were installed. No sandbox was
/// created, so the receipt lists no layers.
fn never_began(chosen: &Chosen) -> Outcome {
    let receipt = Receipt {
        provider: chosen.post.provider.name(),
        kernel: Kernel::Host,
        isolation: Vec::new(),
        warm: Warmth::Cold,
        simulated: false,
        service: None,
    };
    Outcome {
        ending: Ending::Cancelled,
        duration: Duration::ZERO,
        usage: Usage::default(),
        result: None,
        artifacts: Vec::new(),
        findings: Vec::new(),
        receipt,
    }
}

/// Returns the package needs of a task. Imports are detected in code only, not in commands.
fn needs<'a>(plan: &'a Plan, task: &'a Task, wanted: &'a Wanted) -> Needs<'a> {
    let (language, code) = match &task.program {
        Program::Code { language, source: Source::Text { code, .. }, .. } => (Some(*language), Some(&**code)),
        Program::Code { language, source: Source::Existing(_), .. } => {
            (Some(*language), wanted.code.as_deref())
        }
        Program::Command(_) => (None, None),
    };
    Needs {
        tenant: &plan.tenant,
        image: &plan.image,
        language,
        detect: wanted.detect,
        code,
        files: &task.files,
        playground: plan.playground.is_some(),
        packages: &wanted.packages,
        standing: &wanted.standing,
        build: wanted.build,
    }
}

/// Handles package needs without a resolver: requested packages are refused, and a profile's must be in the
/// image.
fn without_packages(needs: &Needs<'_>) -> Result<Prepared, Error> {
    if needs.packages.is_empty() {
        return Ok(Prepared::default());
    }
    let message = "no packages are installed here; the image must have them".to_owned();
    Err(Error::Unsupported { field: "dependencies.packages", message })
}

/// Forwards progress to a sink.
struct Told<'a>(&'a mut dyn Sink);

impl Progress for Told<'_> {
    fn at(&mut self, what: &str) {
        self.0.progress(what);
    }
}

/// Captures output for the report and forwards the head to a live view.
struct Recorder<'a> {
    view: &'a mut dyn Sink,
    stdout: Capture,
    stderr: Capture,
    overflow: Overflow,
}

impl<'a> Recorder<'a> {
    fn new(view: &'a mut dyn Sink, limits: &Limits, overflow: Overflow) -> Self {
        let capture = || Capture::new(limits.output_bytes);
        Self { view, stdout: capture(), stderr: capture(), overflow }
    }

    /// Sends the tails to the view and returns both captures.
    fn finish(self) -> (Capture, Capture) {
        self.view.output(Stream::Stdout, &self.stdout.rest());
        self.view.output(Stream::Stderr, &self.stderr.rest());
        (self.stdout, self.stderr)
    }
}

impl Sink for Recorder<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> Flow {
        let capture = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let head = capture.push(bytes);
        let flow = if head.is_empty() { Flow::Continue } else { self.view.output(stream, head) };
        match self.overflow {
            Overflow::Kill if capture.truncated() => Flow::Kill,
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
