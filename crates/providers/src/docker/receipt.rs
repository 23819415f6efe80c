//! Which layers confine a container, taken from what Docker reports and never from what was requested, minus
//! what the kernel does not confirm: capabilities and filter are read from the guest's `/proc/self/status`
//! before any tenant code runs.

use belljar_engine::layer::Layer;
use belljar_engine::outcome::Kernel;
use belljar_engine::plan::Network;
use belljar_engine::provider::ProviderError;
use bollard::models::{ContainerInspectResponse, HostConfig, HostConfigCgroupnsModeEnum};

use super::dev;

/// Returns the layers of a container in order, including user namespaces if the daemon remaps user ids.
pub(super) fn reported_layers(inspected: &ContainerInspectResponse, daemon_maps_users: bool) -> Vec<Layer> {
    let (Some(host), Some(config)) = (&inspected.host_config, &inspected.config) else { return Vec::new() };
    let is_own =
        |mode: &Option<String>| mode.as_deref().is_none_or(|mode| mode.is_empty() || mode == "private");
    let user = config.user.as_deref().unwrap_or_default();
    let holds = |layer: &&Layer| match layer {
        Layer::UserNs => daemon_maps_users && host.userns_mode.as_deref() != Some("host"),
        Layer::PidNs => is_own(&host.pid_mode),
        Layer::MountNs => inspected.id.is_some(),
        Layer::IpcNs => is_own(&host.ipc_mode),
        Layer::UtsNs => is_own(&host.uts_mode),
        Layer::NetNs => host.network_mode.as_deref() == Some("none"),
        Layer::CgroupNs => host.cgroupns_mode == Some(HostConfigCgroupnsModeEnum::PRIVATE),
        Layer::ReadOnlyRoot => host.readonly_rootfs == Some(true),
        Layer::DiskQuota => has_disk_quota(inspected, host),
        Layer::SeparateUid => user.parse().is_ok_and(|user: UserAndGroup| user.is_separate()),
        Layer::NoCapabilities => has_no_capabilities(host),
        Layer::NoNewPrivs => has_option(host, |option| option.starts_with("no-new-privileges")),
        Layer::Rlimits => host.ulimits.as_ref().is_some_and(|limits| !limits.is_empty()),
        Layer::Landlock => false,
        Layer::Seccomp => has_option(host, |option| option.starts_with("seccomp={")),
        Layer::CgroupMemory => {
            let memory = host.memory.unwrap_or(0);
            memory > 0 && host.memory_swap == Some(memory)
        }
        Layer::CgroupCpu => host.cpu_quota.unwrap_or(0) > 0 && host.cpu_period.unwrap_or(0) > 0,
        Layer::CgroupPids => host.pids_limit.unwrap_or(0) > 0,
    };
    Layer::ALL.iter().filter(holds).copied().collect()
}

/// Layers that cgroups enforce.
const CGROUP_LAYERS: [Layer; 3] = [Layer::CgroupMemory, Layer::CgroupCpu, Layer::CgroupPids];
/// All capability sets of a process.
const CAPABILITY_SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];

/// The guest's confinement as the kernel reports it, read before any tenant code runs.
pub(super) struct GuestStatus {
    /// `/proc/self/status` of the guest.
    pub(super) status: String,
    /// Whether the tmpfs mounts limit the number of files.
    pub(super) limits_file_count: bool,
}

/// Returns the layers that Docker reports, minus those that the kernel does not confirm.
pub(super) fn enforced_layers(
    inspected: &ContainerInspectResponse,
    daemon_maps_users: bool,
    kernel: Kernel,
    seen: &GuestStatus,
) -> Vec<Layer> {
    let status = seen.status.as_str();
    let mut layers = reported_layers(inspected, daemon_maps_users);
    // gVisor may be configured to ignore cgroups, which Docker does not notice: the cgroup layers count only
    // if the container's process is in a cgroup of its own.
    if kernel == Kernel::Gvisor && !is_in_own_cgroup(inspected) {
        layers.retain(|layer| !CGROUP_LAYERS.contains(layer));
    }
    layers.retain(|layer| match layer {
        Layer::Seccomp => field(status, "Seccomp") == Some("2"),
        Layer::NoCapabilities => CAPABILITY_SETS.iter().all(|set| is_zero(field(status, set))),
        // gVisor does not report it, and supports nothing that would grant privileges.
        Layer::NoNewPrivs => kernel == Kernel::Gvisor || field(status, "NoNewPrivs") == Some("1"),
        Layer::DiskQuota => seen.limits_file_count,
        _ => true,
    });
    layers
}

fn is_in_own_cgroup(inspected: &ContainerInspectResponse) -> bool {
    let pid = inspected.state.as_ref().and_then(|state| state.pid).unwrap_or(0);
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    inspected.id.as_ref().is_some_and(|id| groups.contains(id.as_str()))
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
}

/// A set that the kernel does not list does not exist.
fn is_zero(set: Option<&str>) -> bool {
    set.is_none_or(|set| !set.is_empty() && set.bytes().all(|digit| digit == b'0'))
}

/// Fails if a layer of the floor or a required one is missing, whatever the daemon did with the request.
pub(super) fn require_layers(
    layers: &[Layer],
    kernel: Kernel,
    network: &Network,
    require: &[Layer],
) -> Result<(), ProviderError> {
    let given_up = |layer: &Layer| match layer {
        Layer::NetNs => *network == Network::Full,
        // System calls end in gVisor: no host system call can be made from inside, filtered or not.
        Layer::Seccomp => kernel == Kernel::Gvisor,
        _ => false,
    };
    let floor = Layer::MANDATORY.iter().filter(|layer| !given_up(layer));
    match floor.chain(require).find(|layer| !layers.contains(layer)) {
        None => Ok(()),
        Some(layer) => Err(ProviderError::Setup {
            step: format!("enforce {layer} in Docker"),
            cause: "the container that Docker created lacks this layer; see the Docker daemon's log"
                .to_owned(),
        }),
    }
}

fn has_option(host: &HostConfig, is_it: impl Fn(&str) -> bool) -> bool {
    host.security_opt.iter().flatten().any(|option| is_it(option))
}

fn has_no_capabilities(host: &HostConfig) -> bool {
    let dropped = host.cap_drop.iter().flatten().any(|name| name == "ALL");
    dropped && host.cap_add.iter().flatten().next().is_none() && host.privileged != Some(true)
}

/// Returns whether every writable path is a tmpfs with a size limit. Programs cannot store files in `/dev` or
/// devpts.
fn has_disk_quota(inspected: &ContainerInspectResponse, host: &HostConfig) -> bool {
    let tmpfs = host.tmpfs.iter().flatten();
    let mut tmpfs = tmpfs.filter(|(path, options)| (path.as_str(), options.as_str()) != dev::DEV_TMPFS);
    let sized = tmpfs.all(|(_, options)| options.contains("size=") && options.contains("nr_inodes="));
    // Docker creates the volumes that an image declares.
    let mounts = inspected.mounts.iter().flatten();
    let mut mounts = mounts.filter(|mount| mount.destination.as_deref() != Some(dev::DEVPTS_PATH));
    let writable = mounts.any(|mount| mount.rw == Some(true));
    sized && host.tmpfs.as_ref().is_some_and(|tmpfs| !tmpfs.is_empty()) && !writable
}

/// A user id and group id in the syntax of `--user`.
struct UserAndGroup(u32, u32);

impl UserAndGroup {
    fn is_separate(&self) -> bool {
        self.0 >= super::user_ids::FIRST_USER_ID && self.0 == self.1
    }
}

impl std::str::FromStr for UserAndGroup {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (user, group) = text.split_once(':').unwrap_or((text, text));
        Ok(Self(user.parse()?, group.parse()?))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use bollard::models::ContainerConfig;

    #[test]
    fn settings_dropped_by_docker_are_not_in_the_receipt() {
        let inspected = |host: HostConfig| ContainerInspectResponse {
            id: Some("x".to_owned()),
            config: Some(ContainerConfig { user: Some("0:0".to_owned()), ..ContainerConfig::default() }),
            host_config: Some(host),
            ..ContainerInspectResponse::default()
        };
        let bare = reported_layers(&inspected(HostConfig::default()), false);
        assert_eq!(bare, [Layer::PidNs, Layer::MountNs, Layer::IpcNs, Layer::UtsNs]);
        assert!(
            require_layers(&bare, Kernel::Host, &Network::None, &[])
                .unwrap_err()
                .to_string()
                .contains("net_ns")
        );
        // Without swap accounting in the kernel, Docker drops the limit with a warning.
        let swap = HostConfig { memory: Some(1 << 20), memory_swap: Some(-1), ..HostConfig::default() };
        assert!(!reported_layers(&inspected(swap), false).contains(&Layer::CgroupMemory));
        let added = HostConfig {
            cap_drop: Some(vec!["ALL".to_owned()]),
            cap_add: Some(vec!["SYS_ADMIN".to_owned()]),
            ..HostConfig::default()
        };
        assert!(!reported_layers(&inspected(added), false).contains(&Layer::NoCapabilities));
    }

    #[test]
    fn layers_unknown_to_the_kernel_are_not_in_the_receipt() {
        let path = HashMap::from([("/tmp".to_owned(), "size=1,nr_inodes=1".to_owned())]);
        let asked = HostConfig {
            tmpfs: Some(path),
            cap_drop: Some(vec!["ALL".to_owned()]),
            security_opt: Some(vec!["no-new-privileges".to_owned(), "seccomp={}".to_owned()]),
            ..HostConfig::default()
        };
        let inspected = ContainerInspectResponse {
            id: Some("x".to_owned()),
            config: Some(ContainerConfig::default()),
            host_config: Some(asked),
            ..ContainerInspectResponse::default()
        };
        let seen = |status: &str, counts_files| GuestStatus {
            status: status.to_owned(),
            limits_file_count: counts_files,
        };
        for counts in [true, false] {
            let layers = enforced_layers(&inspected, false, Kernel::Gvisor, &seen("", counts));
            assert_eq!(layers.contains(&Layer::DiskQuota), counts);
        }
        let held = |kernel, status: &str| {
            let layers = enforced_layers(&inspected, false, kernel, &seen(status, true));
            [Layer::NoCapabilities, Layer::NoNewPrivs, Layer::Seccomp].map(|layer| layers.contains(&layer))
        };
        let sets = "CapInh:\t0000\nCapPrm:\t0000\nCapEff:\t0000\nCapBnd:\t0000\nCapAmb:\t0000\n";
        assert_eq!(held(Kernel::Host, &format!("{sets}NoNewPrivs:\t1\nSeccomp:\t2\n")), [true; 3]);
        assert_eq!(held(Kernel::Host, &format!("{sets}NoNewPrivs:\t0\nSeccomp:\t0\n")), [true, false, false]);
        assert_eq!(held(Kernel::Host, "CapBnd:\t0400\nNoNewPrivs:\t1\nSeccomp:\t2\n"), [false, true, true]);
        assert_eq!(held(Kernel::Gvisor, &format!("{sets}Seccomp:\t0\n")), [true, true, false]);
        assert!(require_layers(Layer::MANDATORY, Kernel::Host, &Network::None, &[]).is_ok());
        let without = |kernel| {
            let floor: Vec<_> =
                Layer::MANDATORY.iter().copied().filter(|layer| *layer != Layer::Seccomp).collect();
            require_layers(&floor, kernel, &Network::None, &[])
        };
        assert!(without(Kernel::Host).is_err() && without(Kernel::Gvisor).is_ok());
    }
}
