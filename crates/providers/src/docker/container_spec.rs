//! The requirements for a container: mounts, limits, network, and the user to run as.

use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use belljar_engine::gpus::Gpus;
use belljar_engine::layer::Layer;
use belljar_engine::limits::Limits;
use belljar_engine::plan::{Image, Network, Plan, WORKSPACE};
use belljar_engine::provider::ProviderError;
use bollard::models::{DeviceRequest, Mount};
use rustix::fs::{Gid, OFlags, Uid};

use super::guest_bundle::{BUNDLE_PATH, mount};
use crate::host_paths;

/// Docker's minimum.
const MIN_MEMORY_BYTES: u64 = 6 << 20;
/// The owner that an empty root-owned folder gets when a container is to write there, because nothing in a
/// container runs as root. No user and no container has this id.
pub(super) const WRITER_ID: u32 = super::user_ids::FIRST_USER_ID - 1;

/// A host folder or file to mount.
#[derive(Debug, Clone, PartialEq)]
struct HostMount {
    source: String,
    destination: String,
    writable: bool,
}

/// The requirements for a container. A pooled container serves only plans with equal requirements.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ContainerSpec {
    pub(super) tenant: String,
    /// The image's name.
    pub(super) image: String,
    pub(super) limits: Limits,
    pub(super) network: Network,
    pub(super) gpus: Option<Gpus>,
    pub(super) require: Vec<Layer>,
    binds: Vec<HostMount>,
}

impl ContainerSpec {
    /// Derives the requirements from a plan.
    pub(super) fn from_plan(plan: &Plan) -> Result<Self, ProviderError> {
        let Image::Named(image) = &plan.image else {
            return Err(ProviderError::unsupported(
                "image",
                "provider 'docker' runs only Docker images, by name",
            ));
        };
        if plan.limits.memory_bytes < MIN_MEMORY_BYTES {
            return Err(ProviderError::unsupported(
                "limits.memory_bytes",
                "provider 'docker' needs 6 MB or more",
            ));
        }
        let spec = Self {
            tenant: plan.tenant.clone(),
            image: image.clone(),
            // Timeout and output limits apply per task, so they are normalized here.
            limits: Limits { timeout: Limits::DEFAULT.timeout, output_bytes: 1, ..plan.limits },
            network: plan.network.clone(),
            gpus: plan.gpus,
            require: plan.require.clone(),
            binds: binds(plan)?,
        };
        spec.refuse_unenforceable_layers()?;
        Ok(spec)
    }

    fn refuse_unenforceable_layers(&self) -> Result<(), ProviderError> {
        let refuse = |layer: Layer, why: &str| {
            Err(ProviderError::unsupported("require", format!("'{layer}' cannot be enforced: {why}")))
        };
        let writes = self.writes_to_host();
        for layer in &self.require {
            match layer {
                Layer::NetNs if self.network == Network::Full => {
                    return refuse(*layer, "network 'full' is unrestricted");
                }
                Layer::DiskQuota if writes => {
                    return refuse(*layer, "a writable host folder has no disk quota");
                }
                Layer::SeparateUid if writes => {
                    return refuse(*layer, "a writable host folder is accessed as its owner");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns whether a container may be started in advance: it uses nothing of the host and needs no egress.
    pub(super) fn can_be_pooled(&self) -> bool {
        self.binds.is_empty() && self.gpus.is_none() && self.network.gate_rules().is_none()
    }

    /// Returns whether the workspace is a host folder.
    pub(super) fn has_host_workspace(&self) -> bool {
        self.binds.iter().any(|bind| bind.destination == WORKSPACE)
    }

    /// Returns whether the container can modify host files.
    pub(super) fn writes_to_host(&self) -> bool {
        self.binds.iter().any(|bind| bind.writable)
    }

    /// Returns the request for GPUs, as `docker run --gpus` sends it.
    pub(super) fn device_requests(&self) -> Option<Vec<DeviceRequest>> {
        let count = match self.gpus? {
            // Docker's number for all.
            Gpus::All => -1,
            Gpus::Count(count) => count.into(),
        };
        let capabilities = Some(vec![vec!["gpu".to_owned()]]);
        Some(vec![DeviceRequest { count: Some(count), capabilities, ..DeviceRequest::default() }])
    }

    /// Returns the mounts for Docker.
    pub(super) fn mounts(&self) -> impl Iterator<Item = Mount> {
        self.binds.iter().map(|bind| mount(&bind.source, &bind.destination, bind.writable))
    }

    /// Returns the owner of the writable folders, which the container runs as, or `None` if nothing is
    /// writable.
    pub(super) fn writable_owner(&self) -> Result<Option<(u32, u32)>, ProviderError> {
        let mut owner = None;
        let writable: Vec<_> = self.binds.iter().filter(|bind| bind.writable).collect();
        for bind in &writable {
            let found = mount_owner(bind)?;
            if *owner.get_or_insert(found) != found {
                let message = "writable folders belong to different users, but a container runs as one user; \
                     use provider 'native'";
                return Err(ProviderError::unsupported("mount", message));
            }
        }
        Ok(owner)
    }
}

fn binds(plan: &Plan) -> Result<Vec<HostMount>, ProviderError> {
    let mut binds = Vec::new();
    if let Some(folder) = &plan.host_workspace {
        let source = host_paths::check_host_workspace(folder)?;
        binds.push(HostMount { source, destination: WORKSPACE.to_owned(), writable: true });
    }
    for mount in &plan.mounts {
        let lies_in = |folder: &str| {
            mount
                .destination
                .strip_prefix(folder)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        // Docker would create the mount point inside the user's folder, as root.
        if plan.host_workspace.is_some() && lies_in(WORKSPACE) {
            let message = "cannot mount inside a workspace that is a host folder; choose another destination";
            return Err(ProviderError::unsupported("mount", message));
        }
        if lies_in(BUNDLE_PATH) {
            return Err(ProviderError::unsupported("mount", "this path is reserved for Belljar"));
        }
        let bind = host_paths::check_mount(mount)?;
        let (source, destination) = (bind.source, bind.destination);
        binds.push(HostMount { source, destination, writable: bind.writable });
    }
    for layer in &plan.package_layers {
        let source = host_paths::utf8_path("dependencies", &layer.source)?;
        binds.push(HostMount { source, destination: layer.destination.to_owned(), writable: false });
    }
    Ok(binds)
}

/// Returns the owner. Changes the owner of an empty root-owned folder, so that volumes and our own folders
/// are usable.
fn mount_owner(bind: &HostMount) -> Result<(u32, u32), ProviderError> {
    let failed = |error: std::io::Error| ProviderError::Invalid {
        field: "mount",
        message: format!("'{}': {error}", bind.source),
    };
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let found =
        OpenOptions::new().read(true).custom_flags(flags as i32).open(&bind.source).map_err(failed)?;
    let metadata = found.metadata().map_err(failed)?;
    if metadata.uid() != 0 {
        return Ok((metadata.uid(), group_of(&metadata)));
    }
    if !metadata.is_dir() || !is_empty(&found).map_err(failed)? {
        let message = format!(
            "'{}' belongs to root, but nothing in a container runs as root; give it to another user, mount \
             it read-only, or use provider 'native'",
            bind.source
        );
        return Err(ProviderError::unsupported("mount", message));
    }
    let writer = (Uid::from_raw(WRITER_ID), Gid::from_raw(WRITER_ID));
    rustix::fs::fchown(&found, Some(writer.0), Some(writer.1)).map_err(|errno| failed(errno.into()))?;
    Ok((WRITER_ID, WRITER_ID))
}

/// Returns the group to run as for a folder of this owner. Group 0 may read what an image keeps from its users, so
/// the owner's id stands in for it; access as the owner does not need the group.
fn group_of(metadata: &Metadata) -> u32 {
    if metadata.gid() == 0 { metadata.uid() } else { metadata.gid() }
}

fn is_empty(folder: &File) -> std::io::Result<bool> {
    let mut entries = rustix::fs::Dir::read_from(folder)?;
    while let Some(entry) = entries.read() {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_requested_as_by_docker_itself() {
        let spec = |gpus| ContainerSpec {
            tenant: String::new(),
            image: String::new(),
            limits: Limits::DEFAULT,
            network: Network::None,
            gpus,
            require: Vec::new(),
            binds: Vec::new(),
        };
        let asked = |gpus| serde_json::to_value(spec(Some(gpus)).device_requests()).unwrap();
        assert_eq!(asked(Gpus::All), serde_json::json!([{"Count": -1, "Capabilities": [["gpu"]]}]));
        assert_eq!(asked(Gpus::Count(2)), serde_json::json!([{"Count": 2, "Capabilities": [["gpu"]]}]));
        assert!(!spec(Some(Gpus::Count(1))).can_be_pooled());
        assert!(spec(None).device_requests().is_none() && spec(None).can_be_pooled());
    }
}
