//! A container's `/dev`. The one that Docker mounts holds devices and is mounted to be written, and so is what runc hides
//! files behind, which is a copy of its `null`. Ours runc fills as well, and then makes it read-only.

use std::collections::HashMap;

use bollard::models::{Mount, MountType, MountVolumeOptions, MountVolumeOptionsDriverConfig};

/// Where it is, and how it is mounted.
pub(super) const PLACE: (&str, &str) = ("/dev", "ro,dev,nosuid,noexec,size=64k,mode=0755");
/// Where terminals are.
pub(super) const TERMINALS: &str = "/dev/pts";
/// An instance of its own, as Docker would have mounted.
const INSTANCE: [(&str, &str); 3] =
    [("type", "devpts"), ("device", "devpts"), ("o", "newinstance,nosuid,noexec,ptmxmode=0666,mode=0620")];

/// Docker mounts nothing below a `/dev` that is not its own. Terminals are a volume without a name, which goes with its container.
pub(super) fn terminals() -> Mount {
    let options: HashMap<_, _> =
        INSTANCE.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let driver = MountVolumeOptionsDriverConfig { name: Some("local".to_owned()), options: Some(options) };
    Mount {
        target: Some(TERMINALS.to_owned()),
        typ: Some(MountType::VOLUME),
        volume_options: Some(MountVolumeOptions {
            no_copy: Some(true),
            driver_config: Some(driver),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}
