//! The resources that a queued execution needs.

use std::time::Duration;

use belljar_engine::quantity::show_bytes;
use belljar_store::Quotas;

use crate::error::Error;
use crate::fair_share::Tenure;

/// Longest time limit of an execution that may borrow slots beyond its tenant's half.
pub(crate) const MAX_BRIEF_TIME_LIMIT: Duration = Duration::from_secs(60);

/// The resources that an execution needs from the run queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResourceNeed {
    /// Memory limit of the execution, in bytes.
    pub(crate) memory_bytes: u64,
    pub(crate) tenure: Tenure,
}

impl ResourceNeed {
    /// Returns the need of an execution with this memory limit and time limit.
    pub(crate) fn new(memory: u64, time_limit: Duration) -> Self {
        let tenure = if time_limit <= MAX_BRIEF_TIME_LIMIT { Tenure::Brief } else { Tenure::Lasting };
        Self { memory_bytes: memory, tenure }
    }
}

/// Refuses an execution that exceeds the tenant's memory quota by itself, and so could never run.
pub(crate) fn check_fits_quota(quotas: &Quotas, memory: u64) -> Result<(), Error> {
    match quotas.memory_bytes {
        Some(most) if memory > most => {
            let (memory, most) = (show_bytes(memory), show_bytes(most));
            let message = format!("{memory} is more than the {most} that this tenant may have at one time");
            Err(Error::Invalid { field: "limits.memory_bytes", message })
        }
        _ => Ok(()),
    }
}
