//! Admission of writable roots.

use crate::Error;
use crate::admit::AdmissionRules;
use crate::plan::{DiskStorage, Image, RootAccess};
use belljar_model::sandbox::SandboxRequest;

/// Why packages cannot be added to a sandbox with a writable root, and what to do instead.
pub(super) const CANNOT_ADD_PACKAGES: &str = "packages cannot be added to an open sandbox whose root is writable; install them in it (pip install, npm install)";

/// Checks the root that a request asks for. A writable one needs an image, and a disk in a file to write to.
pub(super) fn admit_root(
    request: &SandboxRequest,
    image: &Image,
    rules: &AdmissionRules<'_>,
) -> Result<RootAccess, Error> {
    if request.root == RootAccess::ReadOnly {
        return Ok(RootAccess::ReadOnly);
    }
    let refuse = |message: &str| Err(Error::Unsupported { field: "root", message: message.to_owned() });
    if !rules.sandboxes.writable_root {
        return refuse(
            "requests may not ask for a writable root; writable_root in [server] of belljar.toml allows it",
        );
    }
    let sandboxes = rules.provider.capabilities().sandboxes.as_ref();
    if let Some(why) = sandboxes.and_then(|can| can.cannot_write_root.as_ref()) {
        return refuse(&format!("a writable root is not possible here: {why}"));
    }
    if *image == Image::Host {
        return refuse(
            "image 'host' is only a part of this machine's files, so no package manager can work on it; name an image",
        );
    }
    if request.disk_storage == Some(DiskStorage::Memory) {
        return refuse(
            "a writable root is on the disk, which must then be in a file; use disk_storage 'file'",
        );
    }
    if request.volumes.iter().any(|volume| !volume.read_only) {
        return refuse(
            "a sandbox with a writable root can make set-uid files; mount volumes with \"read_only\": true",
        );
    }
    Ok(RootAccess::Writable)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::{Value, json};

    use super::*;
    use crate::profile::Profile;
    use crate::provider::{Capabilities, ImageChoice};
    use crate::provider_set::SelectedProvider;
    use crate::sandbox::{SandboxRules, admit_in_sandbox, admit_sandbox};
    use crate::sandbox_handle::SandboxCapabilities;

    fn admit(
        request: Value,
        allowed: bool,
        obstacle: Option<&str>,
    ) -> Result<(RootAccess, DiskStorage), String> {
        let sandboxes =
            SandboxCapabilities { cannot_write_root: obstacle.map(str::to_owned), ..Default::default() };
        let capabilities = Capabilities {
            sandboxes: Some(sandboxes),
            host_paths: true,
            images: ImageChoice::Unpacked,
            ..Capabilities::default()
        };
        let provider = SelectedProvider::with_capabilities(capabilities);
        let sandboxes = SandboxRules { writable_root: allowed, ..SandboxRules::default() };
        let rules = AdmissionRules { sandboxes, ..AdmissionRules::of_provider(&provider) };
        let named = Profile { image: Some("/srv/debian".to_owned()), ..Profile::default() };
        let profile = if request["image"] == "host" { Profile::default() } else { named };
        let request = serde_json::from_value(request).unwrap();
        let admitted = admit_sandbox(request, &profile, &rules).map_err(|error| error.to_string())?;
        if admitted.plan.root == RootAccess::Writable {
            assert_eq!(admitted.plan.image, Image::Folder(PathBuf::from("/srv/debian")));
            let code =
                json!({"language": "python", "code": "import six", "dependencies": {"packages": ["six"]}});
            let code = serde_json::from_value(code).unwrap();
            let refused = admit_in_sandbox(&admitted, code, &rules).unwrap_err().to_string();
            assert!(refused.contains("install them in it"), "{refused}");
        }
        Ok((admitted.plan.root, admitted.plan.disk_storage))
    }

    #[test]
    fn a_writable_root_needs_permission_an_image_and_a_disk_in_a_file() {
        let asked = json!({"root": "writable"});
        assert_eq!(admit(json!({}), true, None), Ok((RootAccess::ReadOnly, DiskStorage::Memory)));
        assert_eq!(admit(asked.clone(), true, None), Ok((RootAccess::Writable, DiskStorage::File)));
        let refused = |request, allowed, obstacle| admit(request, allowed, obstacle).unwrap_err();
        assert!(refused(asked.clone(), false, None).contains("writable_root in [server]"));
        assert!(refused(asked, true, Some("no root")).contains("not possible here: no root"));
        assert!(refused(json!({"root": "writable", "image": "host"}), true, None).contains("name an image"));
        let memory = json!({"root": "writable", "disk_storage": "memory"});
        assert!(refused(memory, true, None).contains("disk_storage 'file'"));
        let volumes = json!([{"name": "v", "path": "/data"}]);
        assert!(refused(json!({"root": "writable", "volumes": volumes}), true, None).contains("read_only"));
        let volumes = json!([{"name": "v", "path": "/data", "read_only": true}]);
        assert!(admit(json!({"root": "writable", "volumes": volumes}), true, None).is_ok());
    }
}
