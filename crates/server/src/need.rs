//! What something that runs needs of the gate.

use std::time::Duration;

use belljar_engine::quantity::show_bytes;
use belljar_store::Quotas;

use crate::error::Error;
use crate::fair_share::Tenure;

/// Turns beyond a tenant's half are lent only to executions whose time limit is no longer than this.
pub(crate) const BRIEF: Duration = Duration::from_secs(60);

/// What an execution needs of the gate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    /// The memory that it may take.
    pub(crate) memory: u64,
    pub(crate) tenure: Tenure,
}

impl Need {
    /// Returns the need of something that may take so much memory and time.
    pub(crate) fn new(memory: u64, time_limit: Duration) -> Self {
        let tenure = if time_limit <= BRIEF { Tenure::Brief } else { Tenure::Lasting };
        Self { memory, tenure }
    }
}

/// What never fits is not worth waiting for.
pub(crate) fn fits_at_all(quotas: &Quotas, memory: u64) -> Result<(), Error> {
    match quotas.memory_bytes {
        Some(most) if memory > most => {
            let (memory, most) = (show_bytes(memory), show_bytes(most));
            let message = format!("{memory} is more than the {most} that this tenant may have at one time");
            Err(Error::Invalid { field: "limits.memory_bytes", message })
        }
        _ => Ok(()),
    }
}
