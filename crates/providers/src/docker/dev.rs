//! A container's `/dev`. Docker's own is mounted writable, and so are the copies of `null` with which runc
//! masks files. With this mount, runc populates `/dev` as well and then remounts it read-only.

use std::collections::HashMap;

use bollard::models::{Mount, MountType, MountVolumeOptions, MountVolumeOptionsDriverConfig};

/// The path and the mount options.
pub(super) const DEV_TMPFS: (&str, &str) = ("/dev", "ro,dev,nosuid,noexec,size=64k,mode=0755");
/// The path of the terminals.
pub(super) const DEVPTS_PATH: &str = "/dev/pts";
/// A separate devpts instance, with the options that Docker would use.
const DEVPTS_OPTIONS: [(&str, &str); 3] =
    [("type", "devpts"), ("device", "devpts"), ("o", "newinstance,nosuid,noexec,ptmxmode=0666,mode=0620")];

/// Returns the mount for terminals. Docker mounts nothing below a `/dev` that is not its own, so devpts is an
/// anonymous volume, which is removed with its container.
pub(super) fn devpts_mount() -> Mount {
    let options: HashMap<_, _> =
        DEVPTS_OPTIONS.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let driver = MountVolumeOptionsDriverConfig { name: Some("local".to_owned()), options: Some(options) };
    Mount {
        target: Some(DEVPTS_PATH.to_owned()),
        typ: Some(MountType::VOLUME),
        volume_options: Some(MountVolumeOptions {
            no_copy: Some(true),
            driver_config: Some(driver),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}
