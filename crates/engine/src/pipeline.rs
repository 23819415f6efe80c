//! The one way through: request in, report out.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use belljar_analysis::policy::Policies;

use crate::admit::{Admitted, Rules, admit};
use crate::explain::explain;
use crate::limits::Limits;
use crate::living::{Living, LivingError};
use crate::network::HostRules;
use crate::plan::Overflow;
use crate::profile::Profiles;
use crate::provider::{BoxFuture, Capabilities, Flow, PoolMetrics, Provider, Sink, Stream};
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
}

impl Engine {
    /// An engine over one provider.
    pub fn new(provider: Arc<dyn Provider>, profiles: Profiles, ceiling: Limits) -> Self {
        let capabilities = provider.capabilities();
        let (profiles, policies) = (RwLock::new(Arc::new(profiles)), Policies::default());
        Self { provider, capabilities, profiles, ceiling, policies }
    }

    /// The same with other policies than the ones that are built in.
    #[must_use]
    pub fn with_policies(self, policies: Policies) -> Self {
        Self { policies, ..self }
    }

    /// Policies by name.
    pub fn policies(&self) -> &Policies {
        &self.policies
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
        let Self { ceiling, capabilities, policies, .. } = self;
        Rules { profiles, ceiling, capabilities, policies, floor }
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
        HostRules::parse(hosts).map_err(|message| Error::Invalid { field: "hosts", message })
    }

    /// Opens a living sandbox.
    ///
    /// # Errors
    /// Says why there is none.
    pub async fn open_sandbox(&self, admitted: &AdmittedSandbox) -> Result<Box<dyn Living>, Error> {
        Ok(self.provider.open_living(&admitted.plan).await?)
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
        let limits = admitted.plan.limits;
        let mut recorder = Recorder::new(view, &limits, admitted.overflow);
        let mut sandbox = self.provider.open(&admitted.plan).await?;
        let mut outcome = sandbox.run(&admitted.task, &mut recorder, cancel).await?;
        let (stdout, stderr) = recorder.finish();
        explain(&mut outcome, &admitted.plan, &stderr);
        let report = Report::new(id, outcome, &limits, &stdout, &stderr, admitted.metadata);
        Ok(report.after(admitted.verdict))
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
