//! The one way through: request in, report out.

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

/// What a tenant's administrator says about all of its requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tenancy<'a> {
    /// The policy above which none can go.
    pub policy: Option<&'a str>,
    /// Who serves those that name no provider, and whose profile does not either.
    pub provider: Option<&'a str>,
}

/// Runs requests.
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
    /// An engine over one provider.
    pub fn new(provider: Arc<dyn Provider>, profiles: Profiles, ceiling: Limits) -> Self {
        Self::over(Arc::new(Fleet::of(provider)), profiles, ceiling)
    }

    /// An engine over several providers.
    pub fn over(fleet: Arc<Fleet>, profiles: Profiles, ceiling: Limits) -> Self {
        let (profiles, policies) = (RwLock::new(Arc::new(profiles)), Policies::default());
        let (reach, private_ranges) = (Reach::default(), PrivateRanges::default());
        Self { fleet, profiles, ceiling, policies, packages: None, images: None, reach, private_ranges }
    }

    /// Returns the highest limits that may be asked for.
    pub fn ceiling(&self) -> &Limits {
        &self.ceiling
    }

    /// The same with other policies than the ones that are built in.
    #[must_use]
    pub fn with_policies(self, policies: Policies) -> Self {
        Self { policies, ..self }
    }

    /// The same for requests that may ask for no more of the network than this.
    #[must_use]
    pub fn with_reach(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }

    /// Sets addresses that are not public, in addition to the built-in ones.
    #[must_use]
    pub fn with_private_ranges(self, private_ranges: PrivateRanges) -> Self {
        Self { private_ranges, ..self }
    }

    /// Policies by name.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// The same with somebody who makes packages available; without, code has what its image has.
    #[must_use]
    pub fn with_packages(self, packages: Arc<dyn Packages>) -> Self {
        Self { packages: Some(packages), ..self }
    }

    /// The same with images beside the host's own.
    #[must_use]
    pub fn with_images(self, images: Arc<dyn Images>) -> Self {
        Self { images: Some(images), ..self }
    }

    /// Requests from now on know these profiles, and no others.
    pub fn set_profiles(&self, profiles: Profiles) {
        *self.profiles.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(profiles);
    }

    fn profiles(&self) -> Arc<Profiles> {
        Arc::clone(&self.profiles.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The providers.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// What the usual provider can do here.
    pub fn capabilities(&self) -> Capabilities {
        self.fleet.usual().map(|post| post.capabilities.clone()).unwrap_or_default()
    }

    /// Checks a request without running it.
    ///
    /// # Errors
    /// Names what is wrong with it.
    pub fn admit(&self, request: Request, paths: HostPaths) -> Result<Admitted, Error> {
        self.admit_under(request, paths, Tenancy::default())
    }

    /// The same for a request of a tenant.
    ///
    /// # Errors
    /// Names what is wrong with it.
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

    /// Who serves a request: whom it names, else whom its profile names, else its tenant's, else the usual one.
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

    /// Checks a request for a living sandbox without opening it.
    ///
    /// # Errors
    /// Names what is wrong with it.
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

    /// Checks how long a sandbox is to live.
    ///
    /// # Errors
    /// It is not above zero, or above the ceiling.
    pub fn admit_timeout(&self, millis: i64) -> Result<Duration, Error> {
        admit_timeout(Some(millis), self.ceiling.timeout)
    }

    /// Checks which hosts a sandbox is to reach.
    ///
    /// # Errors
    /// Names the one that is wrong.
    pub fn admit_hosts(&self, hosts: &[String]) -> Result<HostRules, Error> {
        let rules = HostRules::parse(hosts).map_err(|message| Error::Invalid { field: "hosts", message })?;
        self.reach.hold(Network::Hosts(rules.clone()))?;
        Ok(rules.with_private_ranges(&self.private_ranges))
    }

    /// Opens a living sandbox; `progress` hears of its packages.
    ///
    /// # Errors
    /// Says why there is none.
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

    /// Checks a task that is to run in a sandbox.
    ///
    /// # Errors
    /// Names what is wrong with it.
    pub fn admit_inside(
        &self,
        sandbox: &AdmittedSandbox,
        request: Request,
        floor: Option<&str>,
    ) -> Result<Admitted, Error> {
        admit_inside(sandbox, request, &self.rules(&self.profiles(), &sandbox.chosen, floor))
    }

    /// Checks a command that is to be started in a sandbox.
    ///
    /// # Errors
    /// Names what is wrong with it.
    pub fn admit_command(
        &self,
        sandbox: &AdmittedSandbox,
        request: CommandRequest,
        floor: Option<&str>,
    ) -> Result<AdmittedCommand, Error> {
        admit_command(sandbox, request, &self.rules(&self.profiles(), &sandbox.chosen, floor))
    }

    /// Runs a task in a sandbox that is open.
    ///
    /// # Errors
    /// Says why nothing ran, or what became of the sandbox meanwhile.
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

    /// Runs a request; `view` sees output as it comes, up to what will be kept of its beginning.
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

    /// What the providers keep ready, and how often that was of use.
    pub async fn pools(&self) -> Vec<PoolMetrics> {
        let mut pools = Vec::new();
        for post in self.fleet.all() {
            pools.extend(post.provider.pools().await);
        }
        pools
    }

    /// Takes what was seen of forks that were not confined as they said; each is given once.
    pub fn take_mismatches(&self) -> Vec<Mismatch> {
        self.fleet.all().iter().flat_map(|post| post.provider.take_mismatches()).collect()
    }

    /// The longest turns of the providers' loops.
    pub async fn turns(&self) -> Vec<LoopTurns> {
        let mut turns = Vec::new();
        for post in self.fleet.all() {
            turns.extend(post.provider.turns().await);
        }
        turns
    }

    /// What was made available of packages; `None` where nobody does that.
    pub async fn stock(&self) -> Option<Stock> {
        match &self.packages {
            Some(packages) => Some(packages.stock().await),
            None => None,
        }
    }

    /// Ends everything and waits until nothing is left.
    pub async fn shut_down(&self) {
        for post in self.fleet.all() {
            post.provider.shut_down().await;
        }
    }
}

/// Makes the place and runs the task in it.
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

/// Cancelled while its packages were installed: nothing was made that could enforce anything.
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

/// What a task needs. Imports are looked for in code only, and in all of it that is at hand.
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

/// Where nobody installs anything, the image has to have what a profile names, and nothing can be asked for.
fn without_packages(needs: &Needs<'_>) -> Result<Prepared, Error> {
    if needs.packages.is_empty() {
        return Ok(Prepared::default());
    }
    let message = "no packages are installed here; the image must have them".to_owned();
    Err(Error::Unsupported { field: "dependencies.packages", message })
}

/// Passes on how far things are.
struct Told<'a>(&'a mut dyn Sink);

impl Progress for Told<'_> {
    fn at(&mut self, what: &str) {
        self.0.progress(what);
    }
}

/// Keeps what the result will show, and passes on what a live view may see.
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

    /// Shows the tails, and gives back everything.
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
