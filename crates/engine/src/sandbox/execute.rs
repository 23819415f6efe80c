//! Runs tasks in open sandboxes, after adding the packages that they need.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};

use super::modules::present_modules;
use super::packages::{AttachedPackages, SandboxPackages};
use crate::admit::AdmittedRequest;
use crate::explain::explain_failure;
use crate::outcome::{Ending, Outcome};
use crate::packages::{OpenSandboxModules, PackageNeeds, Progress, ProvidedPackages};
use crate::pipeline::{OutputRecorder, SinkProgress, package_needs};
use crate::provider::{BoxFuture, ProviderError, Sink};
use crate::report::{self, Report};
use crate::sandbox_handle::{SandboxError, SandboxHandle};
use crate::{Engine, Error};

impl Engine {
    /// Adds the packages that a task needs to an open sandbox.
    async fn add_packages(
        &self,
        sandbox: &dyn SandboxHandle,
        attached: &mut AttachedPackages,
        admitted: &AdmittedRequest,
        progress: &mut dyn Progress,
    ) -> Result<ProvidedPackages, SandboxError> {
        let AdmittedRequest { provider, plan, task, packages, .. } = admitted;
        let needs = package_needs(plan, task, packages);
        let is_javascript =
            needs.language.is_some_and(|known| matches!(known.name, "javascript" | "typescript"));
        let detect = needs.detect && (!is_javascript || attached.has_node_modules());
        let needs = PackageNeeds { detect, ..needs };
        let modules = match needs.language.filter(|_| needs.detect) {
            Some(language) => present_modules(sandbox.files(), language).await,
            None => Vec::new(),
        };
        let present = OpenSandboxModules { packages: &attached.packages, modules: &modules };
        let needs = PackageNeeds { has_host_workspace: true, open_sandbox: Some(present), ..needs };
        let mut provided = self.prepare(provider, needs, progress).await.map_err(sandbox_error)?;
        attached.attach(sandbox, &provided).await?;
        provided.packages.clone_from(&attached.packages);
        Ok(provided)
    }

    /// Runs a task in an open sandbox, after adding the packages that it needs and the sandbox lacks.
    ///
    /// # Errors
    /// Says why nothing ran, or what happened to the sandbox.
    pub async fn execute_in_sandbox(
        &self,
        sandbox: &dyn SandboxHandle,
        packages: &SandboxPackages,
        id: String,
        admitted: AdmittedRequest,
        view: &mut dyn Sink,
        cancel: BoxFuture<'_, ()>,
    ) -> Result<Report, SandboxError> {
        if admitted.verdict.refusal.is_some() {
            return Ok(report::refused(id, admitted));
        }
        let limits = admitted.plan.limits;
        let mut recorder = OutputRecorder::new(view, &limits, admitted.overflow);
        let ready = {
            let mut progress = SinkProgress(&mut *recorder.view);
            let adding = pin!(async {
                let mut attached = packages.lock().await;
                self.add_packages(sandbox, &mut attached, &admitted, &mut progress).await
            });
            match select(adding, cancel).await {
                Either::Left((provided, cancel)) => Some((provided?, cancel)),
                Either::Right(_) => None,
            }
        };
        let (mut outcome, provided) = match ready {
            Some((provided, cancel)) => {
                (sandbox.run(&admitted.task, &limits, &mut recorder, cancel).await?, provided)
            }
            None => {
                let outcome = Outcome::new(Ending::Cancelled, Duration::ZERO, sandbox.receipt().await?);
                (outcome, ProvidedPackages::default())
            }
        };
        let (stdout, stderr) = recorder.finish();
        outcome.receipt.instead_of = admitted.provider.instead_of;
        explain_failure(&mut outcome, &admitted.plan, &stderr);
        let report = report::from_outcome(id, outcome, &limits, &stdout, &stderr, admitted.metadata);
        Ok(report::with_policy_findings(report::with_packages(report, provided), admitted.verdict))
    }
}

/// Converts an error of preparing packages for an open sandbox.
fn sandbox_error(error: Error) -> SandboxError {
    match error {
        Error::Packages(error) => error.into(),
        Error::Provider(error) => error.into(),
        other => ProviderError::unsupported("dependencies", other.to_string()).into(),
    }
}
