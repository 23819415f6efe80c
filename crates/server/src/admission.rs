//! What an execution waits for before it runs: its order in a sandbox, where it runs inside one, and then a turn.
//!
//! One after the other: an execution that waits for others in its sandbox holds no turn meanwhile.

use belljar_store::{Quotas, TenantName};

use crate::accounts::Caller;
use crate::conduct::Job;
use crate::error::Error;
use crate::gate::{Entry, Need, Turn};
use crate::world::World;

/// The way of one execution through the gates.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Turns that it has.
    have: Vec<Turn>,
    /// The gate at which it waits.
    at: Option<Entry>,
    /// What it will need of the server's gate after its sandbox's.
    then: Option<(TenantName, Quotas, Need)>,
}

impl Admission {
    /// Enters the first gate, and the second where the first is open.
    ///
    /// # Errors
    /// Too much of the tenant waits already.
    pub(crate) fn enter(world: &World, caller: &Caller, job: &Job) -> Result<Self, Error> {
        let limits = job.admitted.limits();
        let Some(sandbox) = &job.inside else {
            let need = Need::new(limits.memory_bytes, limits.timeout);
            let at = world.gate.enter(&caller.tenant, &caller.quotas, need)?;
            return Ok(Self { have: Vec::new(), at: Some(at), then: None });
        };
        // The sandbox's memory is counted already.
        let need = Need::new(0, limits.timeout);
        let at = sandbox.gate.enter(&caller.tenant, &Quotas::default(), need)?;
        let then = Some((caller.tenant.clone(), caller.quotas, need));
        Ok(Self { have: Vec::new(), at: Some(at), then }.advanced(world))
    }

    /// Goes as far as it can without waiting.
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

    /// Returns whether it may run at once.
    pub(crate) fn is_now(&self) -> bool {
        !matches!(self.at, Some(Entry::Later(_)))
    }

    /// Waits for all turns.
    pub(crate) async fn turns(self, world: &World) -> Result<Vec<Turn>, Error> {
        let mut admission = self.advanced(world);
        while let Some(Entry::Later(mut waiting)) = admission.at.take() {
            let turn = waiting.turn().await?;
            admission = Self { at: Some(Entry::Now(turn)), ..admission }.advanced(world);
        }
        Ok(admission.have)
    }
}
