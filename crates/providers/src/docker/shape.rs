//! What a container is made for: what it shows of the host, and as whom it runs for that.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use belljar_engine::layer::Layer;
use belljar_engine::limits::Limits;
use belljar_engine::plan::{Image, Network, Plan, WORKSPACE};
use belljar_engine::provider::ProviderError;
use bollard::models::{Mount, MountBindOptions, MountType};
use rustix::fs::{Gid, OFlags, Uid};

use crate::native::paths;

/// Docker takes no less.
const LEAST_MEMORY: u64 = 6 << 20;
/// What is ours inside.
pub(super) const KIT: &str = "/.belljar";
/// Whose empty folders of root's become when a container is to write there: nothing in one is ever root. Nobody's id, and
/// none that a container has of its own.
pub(super) const WRITER: u32 = super::users::FIRST - 1;

/// A folder or file of the host.
#[derive(Debug, Clone, PartialEq)]
struct Bind {
    source: String,
    destination: String,
    writable: bool,
}

/// What a container is made for; one that waits is for the same.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shape {
    pub(super) tenant: String,
    /// The name of its image.
    pub(super) image: String,
    pub(super) limits: Limits,
    pub(super) network: Network,
    pub(super) require: Vec<Layer>,
    binds: Vec<Bind>,
}

impl Shape {
    /// What this plan needs.
    pub(super) fn of(plan: &Plan) -> Result<Self, ProviderError> {
        let Image::Named(image) = &plan.image else {
            return Err(unsupported("image", "provider 'docker' runs images that Docker has, by name"));
        };
        if plan.limits.memory_bytes < LEAST_MEMORY {
            return Err(unsupported("limits.memory_bytes", "provider 'docker' needs 6 MB or more"));
        }
        let shape = Self {
            tenant: plan.tenant.clone(),
            image: image.clone(),
            // Time and output are the task's, and no two shapes differ by them.
            limits: Limits { timeout: Limits::DEFAULT.timeout, output_bytes: 1, ..plan.limits },
            network: plan.network.clone(),
            require: plan.require.clone(),
            binds: binds(plan)?,
        };
        shape.refuse_what_cannot_hold()?;
        Ok(shape)
    }

    fn refuse_what_cannot_hold(&self) -> Result<(), ProviderError> {
        let refuse =
            |layer: Layer, why: &str| Err(unsupported("require", &format!("'{layer}' cannot hold: {why}")));
        let writes = self.writes_to_host();
        for layer in &self.require {
            match layer {
                Layer::NetNs if self.network == Network::Full => {
                    return refuse(*layer, "network 'full' reaches everything");
                }
                Layer::DiskQuota if writes => {
                    return refuse(*layer, "a host folder may be written, and has no quota of ours");
                }
                Layer::SeparateUid if writes => {
                    return refuse(*layer, "a host folder is written as its owner");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether one may be made before somebody comes: it would hold nothing of the host, and nobody serves it.
    pub(super) fn can_wait(&self) -> bool {
        self.binds.is_empty() && !matches!(self.network, Network::Hosts(_))
    }

    /// Whether its workspace is a folder of somebody's.
    pub(super) fn has_playground(&self) -> bool {
        self.binds.iter().any(|bind| bind.destination == WORKSPACE)
    }

    /// Whether something of the host can be changed from inside.
    pub(super) fn writes_to_host(&self) -> bool {
        self.binds.iter().any(|bind| bind.writable)
    }

    /// What Docker is to mount.
    pub(super) fn mounts(&self) -> impl Iterator<Item = Mount> {
        self.binds.iter().map(|bind| mount(&bind.source, &bind.destination, bind.writable))
    }

    /// Who owns what can be written: it runs as them. Nobody in particular where that is nothing.
    pub(super) fn owner(&self) -> Result<Option<(u32, u32)>, ProviderError> {
        let mut owner = None;
        let writable: Vec<_> = self.binds.iter().filter(|bind| bind.writable).collect();
        for bind in &writable {
            let found = owner_of(bind)?;
            if *owner.get_or_insert(found) != found {
                let message = "folders that can be written belong to different users, and a container is one; \
                     use provider 'native'";
                return Err(unsupported("mount", message));
            }
        }
        Ok(owner)
    }
}

fn unsupported(field: &'static str, message: &str) -> ProviderError {
    ProviderError::Unsupported { field, message: message.to_owned() }
}

fn binds(plan: &Plan) -> Result<Vec<Bind>, ProviderError> {
    let mut binds = Vec::new();
    if let Some(playground) = &plan.playground {
        let source = paths::playground(playground)?;
        binds.push(Bind { source, destination: WORKSPACE.to_owned(), writable: true });
    }
    for mount in &plan.mounts {
        let lies_in = |folder: &str| {
            mount
                .destination
                .strip_prefix(folder)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        // Docker would make the mount point in there, as root.
        if plan.playground.is_some() && lies_in(WORKSPACE) {
            let message = "nothing is mounted in a workspace that is a folder of yours; name another place";
            return Err(unsupported("mount", message));
        }
        if lies_in(KIT) {
            return Err(unsupported("mount", "that place is Belljar's own"));
        }
        let bind = paths::bind(mount)?;
        let (source, destination) = (bind.source, bind.destination);
        binds.push(Bind { source, destination, writable: bind.writable });
    }
    for layer in &plan.package_layers {
        let source = paths::text("dependencies", &layer.source)?;
        binds.push(Bind { source, destination: layer.destination.to_owned(), writable: false });
    }
    Ok(binds)
}

/// A mount of a host's folder or file, without what is mounted below it: that would stay writable.
pub(super) fn mount(source: &str, destination: &str, writable: bool) -> Mount {
    Mount {
        target: Some(destination.to_owned()),
        source: Some(source.to_owned()),
        typ: Some(MountType::BIND),
        read_only: Some(!writable),
        bind_options: Some(MountBindOptions { non_recursive: Some(true), ..MountBindOptions::default() }),
        ..Mount::default()
    }
}

/// Whose it is. An empty folder of root's is given away, so that volumes and folders of ours can be used.
fn owner_of(bind: &Bind) -> Result<(u32, u32), ProviderError> {
    let failed = |error: std::io::Error| ProviderError::Invalid {
        field: "mount",
        message: format!("'{}': {error}", bind.source),
    };
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let found =
        OpenOptions::new().read(true).custom_flags(flags as i32).open(&bind.source).map_err(failed)?;
    let metadata = found.metadata().map_err(failed)?;
    if metadata.uid() != 0 {
        return Ok((metadata.uid(), metadata.gid()));
    }
    if !metadata.is_dir() || !is_empty(&found).map_err(failed)? {
        let message = format!(
            "'{}' belongs to root, and nothing in a container is ever root; give it to another user, show it \
             read-only, or use provider 'native'",
            bind.source
        );
        return Err(ProviderError::Unsupported { field: "mount", message });
    }
    let writer = (Uid::from_raw(WRITER), Gid::from_raw(WRITER));
    rustix::fs::fchown(&found, Some(writer.0), Some(writer.1)).map_err(|errno| failed(errno.into()))?;
    Ok((WRITER, WRITER))
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
