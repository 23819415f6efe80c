//! Admission of where the disk of a sandbox is.

use crate::Error;
use crate::admit::AdmissionRules;
use crate::limits::{Limits, LimitsSpec, admit_limits};
use crate::plan::DiskStorage;
use crate::quantity::show_bytes;

pub use belljar_model::sandbox::MIN_DISK_FILE_BYTES;

/// What long-lived sandboxes may have beyond a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SandboxRules {
    /// Where the disk of a sandbox is whose request does not say.
    pub disk_storage: DiskStorage,
    /// Maximum size of a disk in a file.
    pub disk_file_bytes: u64,
    /// Whether a request may ask for a writable root.
    pub writable_root: bool,
}

impl Default for SandboxRules {
    fn default() -> Self {
        Self { disk_storage: DiskStorage::Memory, disk_file_bytes: 10 << 30, writable_root: false }
    }
}

/// Returns where the disk is. A request is refused if that is impossible; the default then falls back to memory,
/// and the receipt says so.
pub(super) fn admit_disk_storage(
    asked: Option<DiskStorage>,
    rules: &AdmissionRules<'_>,
) -> Result<DiskStorage, Error> {
    let sandboxes = rules.provider.capabilities().sandboxes.as_ref();
    match (asked, sandboxes.and_then(|can| can.cannot_use_disk_file.as_ref())) {
        (Some(DiskStorage::File), Some(why)) => {
            let message = format!("a disk in a file is not possible here: {why}; use 'memory'");
            Err(Error::Unsupported { field: "disk_storage", message })
        }
        (Some(asked), _) => Ok(asked),
        (None, Some(_)) => Ok(DiskStorage::Memory),
        (None, None) => Ok(rules.sandboxes.disk_storage),
    }
}

/// Checks limits. A disk in a file may be larger than memory.
pub(super) fn admit_sandbox_limits(
    spec: &LimitsSpec,
    storage: DiskStorage,
    rules: &AdmissionRules<'_>,
) -> Result<Limits, Error> {
    if storage == DiskStorage::Memory {
        return admit_limits(spec, rules.ceiling);
    }
    let most = rules.sandboxes.disk_file_bytes;
    let refuse = |message| Err(Error::Limit { name: "disk_bytes", message });
    let limits = admit_limits(spec, &Limits { disk_bytes: u64::MAX, ..*rules.ceiling })?;
    match limits.disk_bytes {
        bytes if bytes < MIN_DISK_FILE_BYTES => {
            let (bytes, least) = (show_bytes(bytes), show_bytes(MIN_DISK_FILE_BYTES));
            refuse(format!("{bytes} is too small for a disk in a file; the minimum is {least}"))
        }
        bytes if bytes > most => {
            let (bytes, most) = (show_bytes(bytes), show_bytes(most));
            refuse(format!(
                "{bytes} is above {most}, the most for a disk in a file; ask for less, or raise disk_file_bytes in \
                 [server] of belljar.toml"
            ))
        }
        _ => Ok(limits),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::profile::Profile;
    use crate::provider::Capabilities;
    use crate::provider_set::SelectedProvider;
    use crate::sandbox::{AdmittedSandbox, admit_sandbox};
    use crate::sandbox_handle::SandboxCapabilities;

    fn admit(
        request: serde_json::Value,
        usual: DiskStorage,
        obstacle: Option<&str>,
    ) -> Result<AdmittedSandbox, String> {
        let sandboxes =
            SandboxCapabilities { cannot_use_disk_file: obstacle.map(str::to_owned), ..Default::default() };
        let capabilities = Capabilities { sandboxes: Some(sandboxes), ..Capabilities::default() };
        let provider = SelectedProvider::with_capabilities(capabilities);
        let ceiling = Limits { disk_bytes: 1 << 30, ..Limits::CEILING };
        let sandboxes = SandboxRules { disk_storage: usual, disk_file_bytes: 4 << 30, writable_root: false };
        let rules = AdmissionRules { ceiling: &ceiling, sandboxes, ..AdmissionRules::of_provider(&provider) };
        let request = serde_json::from_value(request).unwrap();
        admit_sandbox(request, &Profile::default(), &rules).map_err(|error| error.to_string())
    }

    #[test]
    fn a_request_names_the_storage_or_gets_the_usual_one() {
        let storage = |request, usual, obstacle| admit(request, usual, obstacle).unwrap().plan.disk_storage;
        let (memory, file) = (DiskStorage::Memory, DiskStorage::File);
        assert_eq!(storage(json!({}), memory, None), memory);
        assert_eq!(storage(json!({}), file, None), file);
        assert_eq!(storage(json!({"disk_storage": "memory"}), file, None), memory);
        assert_eq!(storage(json!({"disk_storage": "file"}), memory, None), file);
        assert_eq!(storage(json!({}), file, Some("no root")), memory, "the receipt says so");
        let refused = admit(json!({"disk_storage": "file"}), memory, Some("no root")).unwrap_err();
        assert_eq!(refused, "disk_storage: a disk in a file is not possible here: no root; use 'memory'");
    }

    #[test]
    fn a_disk_in_a_file_has_bounds_of_its_own() {
        let sized = |bytes: u64, storage: &str| {
            let request = json!({"disk_storage": storage, "limits": {"disk_bytes": bytes}});
            admit(request, DiskStorage::Memory, None).map(|admitted| admitted.plan.limits.disk_bytes)
        };
        assert_eq!(sized(4 << 30, "file"), Ok(4 << 30), "it may exceed the ceiling of memory");
        assert!(sized(4 << 30, "memory").unwrap_err().contains("ceiling of 1 GB"));
        assert!(sized((4 << 30) + 1, "file").unwrap_err().contains("disk_file_bytes"));
        assert!(sized((16 << 20) - 1, "file").unwrap_err().contains("the minimum is 16 MB"));
        assert_eq!(sized(16 << 20, "file"), Ok(16 << 20));
    }
}
