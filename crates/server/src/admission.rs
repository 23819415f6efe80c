//! Admission of one execution: its order within its sandbox, if it runs in one, then a slot of the server.
//!
//! The waits are sequential: an execution that waits for others in its sandbox holds no slot of the server.

use belljar_store::{Quotas, TenantName};

use crate::accounts::Caller;
use crate::conduct::Job;
use crate::error::Error;
use crate::gate::{Entry, Need, Turn};
use crate::world::World;

/// The progress of one execution through the queues.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Slots already taken.
    have: Vec<Turn>,
    /// The queue it waits in.
    at: Option<Entry>,
    /// Needs to be requested from the server's queue once the sandbox's queue lets it pass.
    then: Option<(TenantName, Quotas, Need)>,
}

impl Admission {
    /// Enters the first queue, and the second if the first does not make it wait.
    ///
    /// # Errors
    /// The tenant has too many queued executions.
    pub(crate) fn enter(world: &World, caller: &Caller, job: &Job) -> Result<Self, Error> {
        let limits = job.admitted.limits();
        let Some(sandbox) = &job.inside else {
            let need = Need::new(limits.memory_bytes, limits.timeout);
            let at = world.gate.enter(&caller.tenant, &caller.quotas, need)?;
            return Ok(Self { have: Vec::new(), at: Some(at), then: None });
        };
        // The memory of the sandbox is already counted.
        let need = Need::new(0, limits.timeout);
        let at = sandbox.gate.enter(&caller.tenant, &Quotas::default(), need)?;
        let then = Some((caller.tenant.clone(), caller.quotas, need));
        Ok(Self { have: Vec::new(), at: Some(at), then }.advanced(world))
    }

    /// Advances as far as possible without waiting.
    fn advanced(mut self, world: &World) -> Self {
        loop {
            match self.at.take() {
                Some(Entry::Now(turn)) => self.have.push(turn),
                waiting @ Some(Entry::Later(_)) => return Self { at: waiting, ..self },
                None => return self,
            }
            self.at = self
                .then
                .take()
                .map(|(tenant, quotas, need)| world.gate.enter_from_sandbox(&tenant, &quotas, need));
        }
    }

    /// Returns whether the execution can run at once.
    pub(crate) fn is_now(&self) -> bool {
        !matches!(self.at, Some(Entry::Later(_)))
    }

    /// Waits for all slots.
    pub(crate) async fn turns(self, world: &World) -> Result<Vec<Turn>, Error> {
        let mut admission = self.advanced(world);
        while let Some(Entry::Later(mut waiting)) = admission.at.take() {
            let turn = waiting.turn().await?;
            admission = Self { at: Some(Entry::Now(turn)), ..admission }.advanced(world);
        }
        Ok(admission.have)
    }
}
