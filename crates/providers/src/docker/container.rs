//! A container, hardened like a jail, with the guest as PID 1.
//!
//! ```text
//! create ─▶ attach ─▶ start ─▶ guest greets ─▶ inspect ─▶ receipt: enforced layers; a missing one ends it
//! ```
//!
//! The jail's tables set the masked paths, limits and the filter (`container_settings`, `seccomp::listing`).

use std::collections::HashMap;
use std::sync::Arc;

use belljar_egress::Egress;
use belljar_engine::layer::Layer;
use belljar_engine::limits::Limits;
use belljar_engine::outcome::Kernel;
use belljar_engine::plan::{Network, WORKSPACE};
use belljar_engine::provider::ProviderError;
use belljar_guest::Guest;
use belljar_jail::container_settings;
use bollard::errors::Error;
use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    ResourcesUlimits,
};
use bollard::query_parameters::{AttachContainerOptions, InspectContainerOptions, StartContainerOptions};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

use super::attach_stream::AttachStream;
use super::container_spec::ContainerSpec;
use super::daemon::{Daemon, DaemonConnection, OWNER_LABEL};
use super::egress::ContainerEgress;
use super::image::DockerImage;
use super::user_ids::UserIdLease;
use super::{dev, receipt, seccomp_profile, stats};
use crate::guest_sandbox::{GUEST_CONNECT_TIMEOUT, INBOX, PrestartedInterpreter, guest_settings};

/// The period of the CPU quota.
const CPU_PERIOD_US: i64 = 100_000;
/// The first port that needs no capability to listen on.
const UNPRIVILEGED_PORT_SYSCTL: &str = "net.ipv4.ip_unprivileged_port_start";
/// Processes of the guest: one process with one thread.
const GUEST_PROCESSES: u64 = 1;
/// Host threads allowed for gVisor itself, and for each process inside it. Slightly more than the 78 and 5
/// that were measured, so that `nproc`, which gVisor honors, refuses first. Beyond this limit gVisor exits.
const GVISOR_BASE_THREADS: i64 = 256;
const GVISOR_THREADS_PER_PROCESS: i64 = 10;
/// Writable paths and their modes. All are tmpfs, accounted as memory.
const WRITABLE_PATHS: [(&str, &str); 5] = [
    ("/workspace", "0755"),
    ("/tmp", "1777"),
    ("/dev/shm", "1777"),
    ("/home/sandbox", "0700"),
    (INBOX, "0700"),
];
/// When the machine runs out of memory, containers are killed before other processes. The guest raises its
/// programs' score further.
const OOM_SCORE_ADJUSTMENT: i64 = 500;
/// Entries of `/sys` that do not concern the container itself.
const MASKED_SYS_ENTRIES: [&str; 10] =
    ["block", "bus", "class", "dev", "devices", "firmware", "hypervisor", "kernel", "module", "power"];

/// A running container. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) guest: Guest,
    /// The image it was created from.
    pub(super) image: DockerImage,
    pub(super) isolation: Vec<Layer>,
    pub(super) kernel: Kernel,
    /// Its egress, if it may reach individual hosts.
    pub(super) egress: Option<Egress>,
    /// The interpreter pre-started in it.
    pub(super) prestarted: Option<PrestartedInterpreter>,
    pub(super) owned: OwnedContainer,
}

/// A container that exists in Docker. Dropping it removes it.
#[derive(Debug)]
pub(super) struct OwnedContainer {
    pub(super) id: String,
    daemon: Arc<Daemon>,
    /// Released once the container is gone.
    reservation: Option<(OwnedSemaphorePermit, UserIdLease)>,
    runtime: Handle,
}

impl OwnedContainer {
    /// Starts removing the container. The handle can be awaited.
    pub(super) fn remove(&mut self) -> Option<JoinHandle<()>> {
        let held = self.reservation.take()?;
        let (daemon, id) = (Arc::clone(&self.daemon), self.id.clone());
        Some(self.runtime.spawn(async move {
            daemon.remove(&id).await;
            drop(held);
        }))
    }
}

impl Drop for OwnedContainer {
    fn drop(&mut self) {
        let _going = self.remove();
    }
}

impl Container {
    /// Creates a container. If the caller stops waiting, the container is still created fully and then
    /// removed.
    pub(super) async fn create(
        daemon: &Arc<Daemon>,
        spec: &ContainerSpec,
        image: DockerImage,
    ) -> Result<Self, ProviderError> {
        let making = tokio::spawn(create_container(Arc::clone(daemon), spec.clone(), image));
        making.await.unwrap_or_else(|error| Err(ProviderError::lost(error)))
    }
}

async fn create_container(
    daemon: Arc<Daemon>,
    spec: ContainerSpec,
    image: DockerImage,
) -> Result<Container, ProviderError> {
    let connected = daemon.connection().await?;
    let explained = |step: &'static str| {
        let daemon = Arc::clone(&daemon);
        move |error| daemon.explain(step, &error)
    };
    if spec.gpus.is_some() {
        daemon.check_gpus(connected).await?;
    }
    let permit = Arc::clone(&daemon.container_slots).acquire_owned().await;
    let permit = permit.map_err(ProviderError::lost)?;
    let user = daemon.users.lease(connected.maps_users);
    let ids = user_and_group(&spec, &user, connected)?;
    let egress = ContainerEgress::for_network(&spec.network, &spec.tenant)?;
    let request = CreateRequest { daemon: &daemon, connected, spec: &spec, ids, egress: egress.as_ref() };
    let created = connected.client.create_container(None, request.body(&image.id)).await;
    let owned = OwnedContainer {
        id: created.map_err(explained("create the container"))?.id,
        daemon: Arc::clone(&daemon),
        reservation: Some((permit, user)),
        runtime: Handle::current(),
    };
    daemon.retry_removals().await;
    let stream = attach(connected, &owned.id).await.map_err(explained("attach to the container"))?;
    let started = connected.client.start_container(&owned.id, None::<StartContainerOptions>).await;
    started.map_err(explained("start the container"))?;
    let guest = connect_guest(stream, &spec.limits, &daemon, &owned.id).await?;
    let inspected = connected.client.inspect_container(&owned.id, None::<InspectContainerOptions>).await;
    let inspected = inspected.map_err(explained("inspect the container"))?;
    let kernel = super::kernel(&daemon.settings);
    let Some(seen) = stats::guest_status(&guest).await else {
        return Err(ProviderError::lost(daemon.exit_cause(&owned.id).await));
    };
    let isolation = receipt::enforced_layers(&inspected, connected.maps_users, kernel, &seen);
    receipt::require_layers(&isolation, kernel, &spec.network, &spec.require)?;
    let egress = egress.map(|egress| egress.egress);
    Ok(Container { guest, image, isolation, kernel, egress, prestarted: None, owned })
}

/// Returns the ids to run as: unique ones, or those of the owner of the writable host folders.
fn user_and_group(
    spec: &ContainerSpec,
    user: &UserIdLease,
    connected: &DaemonConnection,
) -> Result<(u32, u32), ProviderError> {
    match spec.writable_owner()? {
        Some(_) if connected.maps_users => Err(ProviderError::Unsupported {
            field: "mount",
            message:
                "this daemon remaps user ids, so a container cannot own a host folder; mount it read-only, \
                 or use provider 'native'"
                    .to_owned(),
        }),
        owner => Ok(owner.unwrap_or((user.id, user.id))),
    }
}

async fn attach(connected: &DaemonConnection, id: &str) -> Result<AttachStream, Error> {
    let options = AttachContainerOptions {
        stream: true,
        stdin: true,
        stdout: true,
        stderr: true,
        ..Default::default()
    };
    connected.client.attach_container(id, Some(options)).await.map(AttachStream::new)
}

async fn connect_guest(
    stream: AttachStream,
    limits: &Limits,
    daemon: &Daemon,
    id: &str,
) -> Result<Guest, ProviderError> {
    let stderr = stream.stderr();
    let cause =
        match tokio::time::timeout(GUEST_CONNECT_TIMEOUT, Guest::connect(stream, guest_settings(limits)))
            .await
        {
            Ok(Ok(guest)) => return Ok(guest),
            Ok(Err(_)) if !stderr.text().is_empty() => stderr.text(),
            Ok(Err(error)) => {
                format!("{error}: {}; limits.memory_bytes may be too low", daemon.exit_cause(id).await)
            }
            Err(_) => "the guest did not answer in time".to_owned(),
        };
    Err(ProviderError::setup("start the guest in the container", cause))
}

/// The parameters of a container to create.
struct CreateRequest<'a> {
    daemon: &'a Daemon,
    connected: &'a DaemonConnection,
    spec: &'a ContainerSpec,
    ids: (u32, u32),
    egress: Option<&'a ContainerEgress>,
}

impl CreateRequest<'_> {
    fn body(&self, image: &str) -> ContainerCreateBody {
        let (user, group) = self.ids;
        ContainerCreateBody {
            image: Some(image.to_owned()),
            user: Some(format!("{user}:{group}")),
            hostname: Some("sandbox".to_owned()),
            entrypoint: Some(self.connected.bundle.guest_command(self.egress.is_some())),
            cmd: Some(Vec::new()),
            working_dir: Some("/".to_owned()),
            // The guest reads from stdin: when this process is gone, stdin closes, the guest exits, and the
            // container ends.
            open_stdin: Some(true),
            stdin_once: Some(true),
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(false),
            healthcheck: Some(HealthConfig {
                test: Some(vec!["NONE".to_owned()]),
                ..HealthConfig::default()
            }),
            labels: Some(HashMap::from([(OWNER_LABEL.to_owned(), self.connected.owner.to_label())])),
            stop_signal: Some("SIGKILL".to_owned()),
            host_config: Some(self.host_config()),
            ..ContainerCreateBody::default()
        }
    }

    fn host_config(&self) -> HostConfig {
        let limits = &self.spec.limits;
        let network = if self.spec.network == Network::Full { "bridge" } else { "none" };
        let seccomp = format!("seccomp={}", seccomp_profile::profile_json());
        HostConfig {
            runtime: self.daemon.settings.runtime.clone(),
            auto_remove: Some(true),
            readonly_rootfs: Some(true),
            cap_drop: Some(vec!["ALL".to_owned()]),
            security_opt: Some(vec!["no-new-privileges".to_owned(), seccomp]),
            masked_paths: Some(masked_paths()),
            readonly_paths: Some(vec!["/proc/sys".to_owned(), "/proc/sysrq-trigger".to_owned()]),
            network_mode: Some(network.to_owned()),
            // The container's own DNS listener, in a network that has no other.
            sysctls: self
                .egress
                .map(|_| HashMap::from([(UNPRIVILEGED_PORT_SYSCTL.to_owned(), "0".to_owned())])),
            dns: self.egress.map(|_| vec!["127.0.0.1".to_owned()]),
            ipc_mode: Some("private".to_owned()),
            cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
            memory: Some(signed(limits.memory_bytes)),
            memory_swap: Some(signed(limits.memory_bytes)),
            // A quota, because Docker refuses a number of CPUs above that of the machine.
            cpu_period: Some(CPU_PERIOD_US),
            cpu_quota: Some(i64::from(limits.cpu_millis) * CPU_PERIOD_US / 1_000),
            oom_score_adj: Some(OOM_SCORE_ADJUSTMENT),
            pids_limit: Some(self.process_limit()),
            ulimits: Some(ulimits(limits, self.spec.writes_to_host())),
            tmpfs: Some(self.tmpfs_mounts()),
            mounts: Some(self.mounts()),
            device_requests: self.spec.device_requests(),
            log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
            init: Some(false),
            ..HostConfig::default()
        }
    }

    /// Returns the host's process limit. gVisor runs several threads of its own for each thread of a program.
    fn process_limit(&self) -> i64 {
        let inside = i64::from(self.spec.limits.processes) + GUEST_PROCESSES as i64;
        match super::kernel(&self.daemon.settings) {
            Kernel::Gvisor => GVISOR_BASE_THREADS + GVISOR_THREADS_PER_PROCESS * inside,
            _ => inside,
        }
    }

    /// Each tmpfs has the full size, because Docker cannot mount one tmpfs at several paths.
    fn tmpfs_mounts(&self) -> HashMap<String, String> {
        let (size, (user, group)) =
            (container_settings::tmpfs_options(self.spec.limits.disk_bytes), self.ids);
        let options = |mode| format!("rw,exec,nosuid,nodev,{size},mode={mode},uid={user},gid={group}");
        let taken = self.spec.has_host_workspace();
        let paths = WRITABLE_PATHS.iter().filter(|(path, _)| !(taken && *path == WORKSPACE));
        let paths = paths.map(|(path, mode)| ((*path).to_owned(), options(mode)));
        let dev = self.mounts_own_dev().then(|| (dev::DEV_TMPFS.0.to_owned(), dev::DEV_TMPFS.1.to_owned()));
        paths.chain(dev).collect()
    }

    /// Returns whether the container uses our `/dev`. gVisor brings its own, and a daemon that remaps users
    /// could not provide terminals in ours.
    fn mounts_own_dev(&self) -> bool {
        super::kernel(&self.daemon.settings) != Kernel::Gvisor && !self.connected.maps_users
    }

    fn mounts(&self) -> Vec<Mount> {
        let bundle = self.connected.bundle.mounts.iter().cloned();
        let terminals = self.mounts_own_dev().then(dev::devpts_mount);
        bundle
            .chain(self.spec.mounts())
            .chain(self.egress.iter().flat_map(|egress| egress.mounts()))
            .chain(terminals)
            .collect()
    }
}

fn masked_paths() -> Vec<String> {
    // Naming masked paths replaces Docker's list, so its entries are repeated here.
    let docker = ["/proc/kcore", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug"];
    let system = MASKED_SYS_ENTRIES.map(|name| format!("/sys/{name}"));
    container_settings::masked_paths().chain(docker.map(str::to_owned)).chain(system).collect()
}

/// With a user id that other processes share, only the cgroup limits processes.
fn ulimits(limits: &Limits, shared_user: bool) -> Vec<ResourcesUlimits> {
    // Above the cgroup's limit, so that the cgroup refuses first, because it counts refusals.
    let named = container_settings::resource_limits(&limits.into(), GUEST_PROCESSES + 2).into_iter();
    let named = named.filter(|(name, ..)| !(shared_user && *name == "nproc"));
    let ulimit = |(name, soft, hard): container_settings::NamedLimit| ResourcesUlimits {
        name: Some(name.to_owned()),
        soft: Some(signed(soft)),
        hard: Some(signed(hard)),
    };
    named.map(ulimit).collect()
}

/// The ceiling keeps quantities far below `i64::MAX`.
fn signed(quantity: u64) -> i64 {
    i64::try_from(quantity).unwrap_or(i64::MAX)
}

/// Returns all writable paths.
pub(super) fn writable_paths() -> impl Iterator<Item = &'static str> {
    WRITABLE_PATHS.iter().map(|(path, _)| *path)
}
