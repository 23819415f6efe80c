//! Request ids.

use std::fmt;

/// The id of a request in responses, in the log and in the audit log.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(String);

impl RequestId {
    pub(super) fn new() -> Self {
        let mut bytes = [0; 8];
        // Without random bytes the id is not unique, but the request is still served.
        let _ = getrandom::fill(&mut bytes);
        Self(format!("req_{:016x}", u64::from_be_bytes(bytes)))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
