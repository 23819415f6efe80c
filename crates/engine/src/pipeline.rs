//! The one way through: request in, report out.

use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use belljar_analysis::policy::Policies;
use futures_util::future::{Either, select};

use crate::admit::{Admitted, Rules, admit};
use crate::explain::explain;
use crate::limits::Limits;
use crate::living::{Living, LivingError};
use crate::network::{HostRules, Reach};
use crate::outcome::{Ending, Kernel, Outcome, Receipt, Usage, Warmth};
use crate::packages::{Needs, Packages, Prepared, Progress, Wanted};
use crate::plan::{Network, Overflow, Plan, Program, Source, Task};
use crate::profile::Profiles;
use crate::provider::{Blind, BoxFuture, Capabilities, Flow, PoolMetrics, Provider, Sink, Stream};
use crate::report::Report;
use crate::request::{HostPaths, Request};
use crate::sandbox::{
    AdmittedCommand, AdmittedSandbox, CommandRequest, SandboxRequest, admit_command, admit_inside,
    admit_sandbox, admit_timeout,
};
use crate::{Capture, Error};

/// Runs requests.
#[derive(Debug)]
pub struct Engine {
    provider: Arc<dyn Provider>,
    capabilities: Capabilities,
    profiles: RwLock<Arc<Profiles>>,
    ceiling: Limits,
    policies: Policies,
    packages: Option<Arc<dyn Packages>>,
    reach: Reach,
}

impl Engine {
    /// An engine over one provider.
    pub fn new(provider: Arc<dyn Provider>, profiles: Profiles, ceiling: Limits) -> Self {
        let capabilities = provider.capabilities();
        let (profiles, policies) = (RwLock::new(Arc::new(profiles)), Policies::default());
        Self { provider, capabilities, profiles, ceiling, policies, packages: None, reach: Reach::default() }
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

    /// Policies by name.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// The same with somebody who makes packages available; without, code has what its image has.
    #[must_use]
    pub fn with_packages(self, packages: Arc<dyn Packages>) -> Self {
        Self { packages: Some(packages), ..self }
    }

    /// Requests from now on know these profiles, and no others.
    pub fn set_profiles(&self, profiles: Profiles) {
        *self.profiles.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(profiles);
    }

    fn profiles(&self) -> Arc<Profiles> {
        Arc::clone(&self.profiles.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the provider can do here.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Checks a request without running it.
    ///
    /// # Errors
    /// Names what is wrong with it.
    pub fn admit(&self, request: Request, paths: HostPaths) -> Result<Admitted, Error> {
        self.admit_under(request, paths, None)
    }

    /// The same, with a policy above which the request cannot go.
    ///
    /// # Errors
    /// Names what is wrong with it.
    pub fn admit_under(
        &self,
        request: Request,
        paths: HostPaths,
        floor: Option<&str>,
    ) -> Result<Admitted, Error> {
        self.check_provider(request.provider.as_deref())?;
        admit(request, paths, &self.rules(&self.profiles(), floor))
    }

    fn check_provider(&self, name: Option<&str>) -> Result<(), Error> {
        match name.filter(|name| *name != self.provider.name()) {
            Some(name) => {
                let message = format!("'{name}' is not configured; this one is '{}'", self.provider.name());
                Err(Error::Unsupported { field: "provider", message })
            }
            None => Ok(()),
        }
    }

    fn rules<'a>(&'a self, profiles: &'a Profiles, floor: Option<&'a str>) -> Rules<'a> {
        let Self { ceiling, capabilities, policies, reach, .. } = self;
        Rules { profiles, ceiling, capabilities, policies, floor, reach: *reach }
    }

    /// Checks a request for a living sandbox without opening it; `floor` is a policy above which nothing in it can go.
    ///
    /// # Errors
    /// Names what is wrong with it.
    pub fn admit_sandbox(
        &self,
        request: SandboxRequest,
        floor: Option<&str>,
    ) -> Result<AdmittedSandbox, Error> {
        self.check_provider(request.provider.as_deref())?;
        admit_sandbox(request, &self.rules(&self.profiles(), floor))
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
        self.reach.hold(Network::Hosts(rules.clone())).map(|_| rules)
    }

    /// Opens a living sandbox.
    ///
    /// # Errors
    /// Says why there is none.
    pub async fn open_sandbox(
        &self,
        admitted: &AdmittedSandbox,
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
        };
        let prepared = self.prepare(needs, &mut Blind).await?;
        plan.package_layers.clone_from(&prepared.layers);
        plan.held.clone_from(&prepared.held);
        Ok((self.provider.open_living(&plan).await?, prepared))
    }

    async fn prepare(&self, needs: Needs<'_>, sink: &mut dyn Sink) -> Result<Prepared, Error> {
        let Some(packages) = &self.packages else { return without_packages(&needs) };
        Ok(packages.prepare(needs, &mut Told(sink)).await?)
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
        admit_inside(sandbox, request, &self.rules(&self.profiles(), floor))
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
        admit_command(sandbox, request, &self.rules(&self.profiles(), floor))
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
        let Admitted { mut plan, task, wanted, overflow, metadata, verdict } = admitted;
        let limits = plan.limits;
        let mut recorder = Recorder::new(view, &limits, overflow);
        let ready = {
            let preparing = pin!(self.prepare(needs(&plan, &task, &wanted), &mut *recorder.view));
            match select(preparing, cancel).await {
                Either::Left((prepared, cancel)) => Some((prepared?, cancel)),
                Either::Right(_) => None,
            }
        };
        let Some((prepared, cancel)) = ready else {
            let (stdout, stderr) = recorder.finish();
            return Ok(Report::new(id, self.never_began(), &limits, &stdout, &stderr, metadata));
        };
        plan.package_layers.clone_from(&prepared.layers);
        plan.held.clone_from(&prepared.held);
        plan.preimports.extend(prepared.preimports.iter().cloned());
        let mut sandbox = self.provider.open(&plan).await?;
        let mut outcome = sandbox.run(&task, &mut recorder, cancel).await?;
        let (stdout, stderr) = recorder.finish();
        explain(&mut outcome, &plan, &stderr);
        let report = Report::new(id, outcome, &limits, &stdout, &stderr, metadata);
        Ok(report.with_packages(prepared).after(verdict))
    }

    /// Cancelled while its packages were installed: nothing was made that could enforce anything.
    fn never_began(&self) -> Outcome {
        let receipt = Receipt {
            provider: self.provider.name(),
            kernel: Kernel::Host,
            isolation: Vec::new(),
            warm: Warmth::Cold,
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

    /// What the provider keeps ready, and how often that was of use.
    pub async fn pools(&self) -> Vec<PoolMetrics> {
        self.provider.pools().await
    }

    /// Ends everything and waits until nothing is left.
    pub async fn shut_down(&self) {
        self.provider.shut_down().await;
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

    fn restart(&mut self) -> bool {
        let possible = self.view.restart();
        if possible {
            self.stdout.clear();
            self.stderr.clear();
        }
        possible
    }
}
