//! Reasons why a controller cannot be used, and their remedies.

use std::fmt::Display;

use rustix::io::Errno;

use super::parse::CgroupVersion;
use super::{Controller, MissingController};

/// A reason why a group with this limit cannot be created. Directories are named as an administrator of the
/// host sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// `/proc` does not show the cgroup of this process.
    NoProc,
    NotMounted,
    /// The hierarchy is mounted, but the part that contains this process is not visible.
    NotVisible,
    ReadOnly {
        folder: String,
    },
    Denied {
        folder: String,
    },
    /// The parent group does not delegate the controller.
    NotOffered {
        folder: String,
        above: Option<String>,
    },
    /// Other processes are in the only group that was delegated to us.
    Occupied {
        folder: String,
        pids: Vec<u32>,
    },
    /// v1 `cpuset` shares the hierarchy: a new group there has no CPUs, so nothing can join it.
    SharedWithCpuset,
    /// The kernel has the controller but not this limit.
    NoSuchLimit {
        file: &'static str,
    },
    Failed {
        path: String,
        errno: Errno,
    },
}

/// Properties of the environment that remedies depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostTraits {
    pub(super) root: bool,
    pub(super) systemd: bool,
    pub(super) container: bool,
}

impl Obstacle {
    /// Converts the errno of a failed operation in `folder` to an obstacle.
    pub(super) fn failed(folder: &str, file: &str, errno: Errno) -> Obstacle {
        match errno {
            Errno::ROFS => Obstacle::ReadOnly { folder: folder.to_owned() },
            Errno::ACCESS | Errno::PERM => Obstacle::Denied { folder: folder.to_owned() },
            errno => Obstacle::Failed { path: format!("{folder}/{file}"), errno },
        }
    }

    pub(super) fn missing(
        &self,
        controller: Controller,
        version: CgroupVersion,
        setting: HostTraits,
    ) -> MissingController {
        MissingController {
            controller,
            reason: self.reason(controller),
            remedy: self.remedy(controller, version, setting),
        }
    }

    /// Returns why `controller` cannot be used.
    pub(super) fn reason(&self, controller: impl Display) -> String {
        match self {
            Obstacle::NoProc => "/proc does not show which cgroup this process is in".to_owned(),
            Obstacle::NotMounted => {
                format!("no cgroup file system with the {controller} controller is mounted")
            }
            Obstacle::NotVisible => {
                format!(
                    "the {controller} hierarchy is mounted, but the part with this process is not visible"
                )
            }
            Obstacle::ReadOnly { folder } => format!("{folder} is mounted read-only"),
            Obstacle::Denied { folder } => format!("{folder} is not writable by this user"),
            Obstacle::NotOffered { folder, .. } => {
                format!("the {controller} controller is not in {folder}/cgroup.controllers")
            }
            Obstacle::Occupied { folder, pids } => {
                format!(
                    "{folder} also contains processes that do not belong to belljar: {}",
                    format_pids(pids)
                )
            }
            Obstacle::SharedWithCpuset => {
                format!("the {controller} controller shares its v1 hierarchy with cpuset")
            }
            Obstacle::NoSuchLimit { file } => format!("this kernel's {controller} controller has no {file}"),
            Obstacle::Failed { path, errno } => format!("{path}: {errno}"),
        }
    }

    fn remedy(&self, controller: Controller, version: CgroupVersion, setting: HostTraits) -> String {
        match self {
            Obstacle::NoProc => "mount -t proc proc /proc".to_owned(),
            Obstacle::ReadOnly { .. } if setting.container => container_remedy(version),
            Obstacle::NotMounted | Obstacle::NotVisible if setting.container => container_remedy(version),
            Obstacle::NotMounted | Obstacle::NotVisible => mount_command(controller, version),
            Obstacle::ReadOnly { folder } => {
                format!("remount the cgroup file system that holds {folder} read-write")
            }
            Obstacle::NotOffered { above, .. } => delegation_remedy(controller, above.as_deref(), setting),
            Obstacle::NoSuchLimit { .. } => match controller {
                Controller::Cpu => "use a kernel built with CONFIG_CFS_BANDWIDTH".to_owned(),
                Controller::Memory | Controller::Pids => "use a kernel that has this limit".to_owned(),
            },
            Obstacle::SharedWithCpuset => {
                format!("mount {controller} separately from cpuset, or boot with cgroup v2")
            }
            Obstacle::Denied { .. } | Obstacle::Occupied { .. } | Obstacle::Failed { .. } => {
                own_group_remedy(version, setting)
            }
        }
    }
}

/// Returns how to get a cgroup without other processes in it.
fn own_group_remedy(version: CgroupVersion, setting: HostTraits) -> String {
    match version {
        CgroupVersion::V1 if setting.root => container_remedy(version),
        CgroupVersion::V1 => "run belljar as root: cgroup v1 cannot be delegated safely to a user".to_owned(),
        CgroupVersion::V2 if setting.container => {
            format!(
                "make belljar the container's command, without a shell around it, and {}",
                container_remedy(version)
            )
        }
        CgroupVersion::V2 if setting.systemd && setting.root => {
            "systemd-run --scope -p Delegate=yes -- belljar …".to_owned()
        }
        CgroupVersion::V2 if setting.systemd => {
            "systemd-run --user --scope -p Delegate=yes -- belljar …".to_owned()
        }
        CgroupVersion::V2 => {
            "run belljar as root, or in an empty cgroup whose directory this user owns".to_owned()
        }
    }
}

fn container_remedy(version: CgroupVersion) -> String {
    match version {
        CgroupVersion::V1 => "start the container with --privileged, or with -v /sys/fs/cgroup:/sys/fs/cgroup:rw",
        CgroupVersion::V2 => {
            "start the container with --cgroupns=private -v /sys/fs/cgroup:/sys/fs/cgroup:rw, or with --privileged"
        }
    }
    .to_owned()
}

fn mount_command(controller: Controller, version: CgroupVersion) -> String {
    match version {
        CgroupVersion::V1 => format!(
            "mkdir -p /sys/fs/cgroup/{controller} && mount -t cgroup -o {controller} cgroup /sys/fs/cgroup/{controller}"
        ),
        CgroupVersion::V2 => "mount -t cgroup2 cgroup2 /sys/fs/cgroup".to_owned(),
    }
}

/// Returns how to delegate a controller from the parent group; for the topmost visible group, from outside.
fn delegation_remedy(controller: Controller, above: Option<&str>, setting: HostTraits) -> String {
    match above {
        Some(_) if setting.systemd && !setting.root => {
            "sudo systemctl edit user@.service, add [Service] Delegate=memory pids cpu, and log in again"
                .to_owned()
        }
        Some(above) => format!("echo +{controller} > {above}/cgroup.subtree_control"),
        None if setting.container => {
            format!("delegate the {controller} controller to the container from the host")
        }
        None => {
            format!("boot a kernel that has the {controller} controller, without cgroup_disable={controller}")
        }
    }
}

/// Formats the first few pids.
fn format_pids(pids: &[u32]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = pids.iter().take(SHOWN).map(u32::to_string).collect();
    let more = if pids.len() > SHOWN { " …" } else { "" };
    format!("{}{more}", shown.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: HostTraits = HostTraits { root: false, systemd: true, container: false };

    #[test]
    fn user_remedy_is_delegation_on_v2_and_root_on_v1() {
        let denied = Obstacle::failed("/sys/fs/cgroup/a", "x", Errno::ACCESS);
        let v2 = denied.missing(Controller::Memory, CgroupVersion::V2, USER);
        assert_eq!(v2.reason, "/sys/fs/cgroup/a is not writable by this user");
        assert_eq!(v2.remedy, "systemd-run --user --scope -p Delegate=yes -- belljar …");
        assert!(
            denied
                .missing(Controller::Memory, CgroupVersion::V1, USER)
                .remedy
                .starts_with("run belljar as root")
        );
    }

    #[test]
    fn container_remedy_names_its_flags() {
        let container = HostTraits { root: true, systemd: false, container: true };
        let read_only = Obstacle::failed("/sys/fs/cgroup", "x", Errno::ROFS);
        let missing = read_only.missing(Controller::Pids, CgroupVersion::V2, container);
        assert!(missing.reason.contains("read-only"));
        assert!(missing.remedy.contains("--cgroupns=private"));
    }

    #[test]
    fn missing_delegation_names_controller_and_file() {
        let (folder, above) = ("/sys/fs/cgroup/a/b".to_owned(), Some("/sys/fs/cgroup/a".to_owned()));
        let obstacle = Obstacle::NotOffered { folder, above };
        let root = HostTraits { root: true, ..USER };
        let missing = obstacle.missing(Controller::Cpu, CgroupVersion::V2, root);
        assert_eq!(missing.remedy, "echo +cpu > /sys/fs/cgroup/a/cgroup.subtree_control");
        let at_the_root = Obstacle::NotOffered { folder: "/sys/fs/cgroup".to_owned(), above: None };
        assert!(
            at_the_root
                .missing(Controller::Cpu, CgroupVersion::V2, root)
                .remedy
                .contains("cgroup_disable=cpu")
        );
    }

    #[test]
    fn listed_pids_are_bounded() {
        assert_eq!(format_pids(&[1, 2]), "1 2");
        assert_eq!(format_pids(&[1, 2, 3, 4, 5, 6]), "1 2 3 4 5 …");
    }
}
