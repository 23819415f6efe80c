//! Admission of one execution: its order within its sandbox, if it runs in one, then a slot of the server.
//!
//! The waits are sequential: an execution that waits for others in its sandbox holds no slot of the server.

use belljar_store::{Quotas, TenantName};

use super::ExecutionJob;
use crate::authentication::Caller;
use crate::error::Error;
use crate::run_queue::{ResourceNeed, RunEntry, RunQueue, RunSlot};

/// The progress of one execution through the queues.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Slots already taken.
    slots: Vec<RunSlot>,
    /// The queue it waits in.
    waiting_in: Option<RunEntry>,
    /// Needs to be requested from the server's queue once the sandbox's queue lets it pass.
    server_need: Option<(TenantName, Quotas, ResourceNeed)>,
}

impl Admission {
    /// Enters the first queue, and the second if the first does not make it wait.
    ///
    /// # Errors
    /// The tenant has too many queued executions.
    pub(crate) fn enter(run_queue: &RunQueue, caller: &Caller, job: &ExecutionJob) -> Result<Self, Error> {
        let limits = job.admitted.limits();
        let Some(sandbox) = &job.sandbox else {
            let need = ResourceNeed::new(limits.memory_bytes, limits.timeout);
            let at = run_queue.enter(&caller.tenant, &caller.quotas, need)?;
            return Ok(Self { slots: Vec::new(), waiting_in: Some(at), server_need: None });
        };
        // The memory of the sandbox is already counted.
        let need = ResourceNeed::new(0, limits.timeout);
        let at = sandbox.run_queue.enter(&caller.tenant, &Quotas::default(), need)?;
        let then = Some((caller.tenant.clone(), caller.quotas, need));
        Ok(Self { slots: Vec::new(), waiting_in: Some(at), server_need: then }.advance(run_queue))
    }

    /// Advances as far as possible without waiting.
    fn advance(mut self, run_queue: &RunQueue) -> Self {
        loop {
            match self.waiting_in.take() {
                Some(RunEntry::Now(turn)) => self.slots.push(turn),
                waiting @ Some(RunEntry::Queued(_)) => return Self { waiting_in: waiting, ..self },
                None => return self,
            }
            self.waiting_in = self
                .server_need
                .take()
                .map(|(tenant, quotas, need)| run_queue.enter_from_sandbox(&tenant, &quotas, need));
        }
    }

    /// Returns whether the execution can run at once.
    pub(crate) fn can_run_now(&self) -> bool {
        !matches!(self.waiting_in, Some(RunEntry::Queued(_)))
    }

    /// Waits for all slots.
    pub(crate) async fn wait_for_slots(self, run_queue: &RunQueue) -> Result<Vec<RunSlot>, Error> {
        let mut admission = self.advance(run_queue);
        while let Some(RunEntry::Queued(mut waiting)) = admission.waiting_in.take() {
            let turn = waiting.wait().await?;
            admission = Self { waiting_in: Some(RunEntry::Now(turn)), ..admission }.advance(run_queue);
        }
        Ok(admission.slots)
    }
}
