//! Cold starts: sets up a jail, on demand or in advance, and then sends it what to run.

use std::cell::OnceCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use belljar_model::layer::Layer;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use super::mounts::{map_disk_owners, open_host_folders, open_lower_layer};
use crate::cgroup::{self, Controller, Group};
use crate::fault;
use crate::inside::{self, JailSetup, MountPlan};
use crate::launcher::ids::lease::IdLease;
use crate::launcher::ids::map::write_maps;
use crate::launcher::limits;
use crate::launcher::oom_score::{OomScores, Standing, open_oom_score, set_oom_score};
use crate::launcher::pending_run::chown_streams;
use crate::launcher::process::ProcessHandle;
use crate::launcher::reaper::DyingJail;
use crate::launcher::recyclable::{IdSource, Recyclable};
use crate::launcher::run::{Run, StartedJail};
use crate::launcher::setup::LauncherContext;
use crate::launcher::watch::seccomp_notify::NotifyListener;
use crate::root_trees::BuiltRoot;
use crate::seccomp::{FilterFor, SeccompFilter};
use crate::spec::{HostBind, INNER_UID, Jail, JailNetwork, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::sys::{self, CloneResult};
use crate::wire;

/// The parts of a jail that must be known when it is set up, before it is known what will run in it.
pub(crate) struct SetupRequest<'a> {
    pub(crate) root: &'a BuiltRoot,
    pub(crate) network: JailNetwork,
    /// Host folders, including the playground.
    pub(crate) binds: Vec<HostBind>,
    /// How many commands will run in the jail.
    pub(crate) commands: usize,
    /// Whether the jail is a sandbox, so that PID 1 becomes the guest.
    pub(crate) is_sandbox: bool,
    /// Where PID 1 sends the descriptors of the jail's network gate.
    pub(crate) gate: Option<&'a OwnedFd>,
    /// Mount of the disk, if it is in a file. It is used once.
    pub(crate) disk_mount: Option<&'a OwnedFd>,
    /// Whether the root is writable.
    pub(crate) writable_root: bool,
}

/// The seccomp filters of a cold jail.
pub(crate) struct ColdFilters {
    /// For PID 1.
    init: SeccompFilter,
    /// For commands; the launcher listens to its notifications.
    program: SeccompFilter,
    /// Both filters for jails with a writable root, once one was asked for.
    root: OnceCell<(SeccompFilter, SeccompFilter)>,
}

impl ColdFilters {
    pub(crate) fn new() -> Self {
        Self {
            init: SeccompFilter::for_this_machine(FilterFor::Init),
            program: SeccompFilter::for_this_machine(FilterFor::Program),
            root: OnceCell::new(),
        }
    }

    /// Returns the filter of PID 1.
    fn init(&self, writable_root: bool) -> &SeccompFilter {
        if writable_root { &self.of_root_user().0 } else { &self.init }
    }

    /// Returns the filter of commands.
    fn program(&self, writable_root: bool) -> &SeccompFilter {
        if writable_root { &self.of_root_user().1 } else { &self.program }
    }

    fn of_root_user(&self) -> &(SeccompFilter, SeccompFilter) {
        self.root.get_or_init(|| {
            let [init, program] =
                [FilterFor::RootInit, FilterFor::RootProgram].map(SeccompFilter::for_this_machine);
            (init, program)
        })
    }
}

/// A jail that is set up, or about to be, and whose PID 1 waits to learn what to run. Used once.
pub(crate) struct SpareJail {
    /// The number of its root tree.
    pub(super) root_number: u64,
    pid: i32,
    pidfd: OwnedFd,
    report: OwnedFd,
    init_socket: OwnedFd,
    command_sockets: Vec<OwnedFd>,
    /// `oom_score_adj` of PID 1, opened for writing and passed to the guest.
    oom_score_fd: Option<OwnedFd>,
    group: Option<Group>,
    /// The cgroup limits set so far.
    limits: Option<cgroup::GroupLimits>,
    ids: IdLease,
}

/// Sets up a jail that then waits to learn what to run.
pub(crate) fn set_up_jail(
    context: &mut LauncherContext,
    filters: &ColdFilters,
    request: &SetupRequest<'_>,
) -> Result<SpareJail, StepFailed> {
    let ids = step(Step::UserId, "", || match request.writable_root {
        true => context.ids.lease_block(),
        false => context.ids.lease(!request.binds.is_empty()),
    })?;
    set_up_jail_with_ids(context, filters, request, ids).inspect_err(|_| context.ids.release(ids))
}

fn set_up_jail_with_ids(
    context: &LauncherContext,
    filters: &ColdFilters,
    request: &SetupRequest<'_>,
    ids: IdLease,
) -> Result<SpareJail, StepFailed> {
    let opened = open_mounts(context, request, ids)?;
    let guest = request.is_sandbox.then(|| context.guest()).transpose()?;
    let group = if request.is_sandbox { context.create_sandbox_cgroup() } else { context.create_cgroup(1) }?;
    let own_network = request.network != JailNetwork::Host && !fault::is_left_out(Layer::NetNs);
    // Only the owner of a network namespace may bind the DNS port or create a device in it. So with a gate,
    // PID 1 owns the namespace until it drops its rights.
    let make_network = request.network == JailNetwork::Own && own_network && context.can_change_network;
    let network = make_network.then(|| context.create_network()).transpose()?;
    let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
    let (report, report_writer) = step(Step::Namespaces, "", pipe)?;
    let (go, let_go) = step(Step::Namespaces, "", pipe)?;
    let (init_socket, init_socket_inside) = step(Step::Namespaces, "", sys::packet_socketpair)?;
    let (command_sockets, command_sockets_inside) = create_command_sockets(request.commands)?;
    let setup = JailSetup {
        mounts: MountPlan {
            tree: &request.root.tree,
            root_path: &request.root.path,
            binds: &opened.binds,
            owner: if request.writable_root { (0, 0) } else { (INNER_UID, INNER_UID) },
            disk_bytes: None,
            disk_mount: request.disk_mount,
            lower_mount: opened.lower.as_ref(),
        },
        cgroup_join_fds: group.as_ref().map_or(&[], Group::v1_join_fds),
        id_map_ready: go,
        init_socket: init_socket_inside,
        command_sockets: command_sockets_inside,
        report: report_writer,
        init_filter: filters.init(request.writable_root),
        program_filter: filters.program(request.writable_root),
        guest_binary: guest,
        gate_socket: request.gate,
        has_tun: request.network == JailNetwork::Tun,
        has_landlock: context.has_landlock,
        own_init_uid: ids.is_separate(),
        new_network: own_network && network.is_none(),
        cgroup_limits_processes: context.has_controller(Controller::Pids),
        limit_memory_per_process: !context.has_controller(Controller::Memory),
    };
    let into = group.as_ref().and_then(Group::v2_dir_fd);
    let cloned = step(Step::Namespaces, "", || clone_into_network(context, &setup, network.as_ref(), into))?;
    let (pid, pidfd) = match cloned {
        CloneResult::Child => inside::run_pid1(&setup),
        CloneResult::Parent { pid, pidfd } => (pid, pidfd.ok_or(Errno::NOSYS)),
    };
    let pidfd = pidfd.map_err(|errno| StepFailed::new(Step::Namespaces, "", errno))?;
    drop(setup);
    let mut spare = SpareJail {
        root_number: request.root.number,
        pid,
        pidfd,
        report,
        init_socket,
        command_sockets,
        oom_score_fd: None,
        group,
        limits: None,
        ids,
    };
    let scores = OomScores::for_standing(Standing::WithinShare, request.is_sandbox);
    set_oom_score(context, pid, scores.main);
    if request.is_sandbox {
        // The launcher may open the score only now. If it cannot, all processes in the jail have the same
        // score.
        spare.oom_score_fd = open_oom_score(context, pid).ok();
    }
    match release_init(context, &spare, &let_go) {
        Ok(()) => Ok(spare),
        Err(failed) => {
            // This does not block for long: PID 1 has not done anything yet.
            spare.kill().wait();
            Err(failed)
        }
    }
}

/// Detached mounts for a jail.
struct OpenedMounts {
    /// Host folders with their destinations.
    binds: Vec<(OwnedFd, String)>,
    /// The image of a writable root.
    lower: Option<OwnedFd>,
}

/// Opens the host folders of a jail and the image of a writable root, and maps the ids of its disk.
fn open_mounts(
    context: &LauncherContext,
    request: &SetupRequest<'_>,
    ids: IdLease,
) -> Result<OpenedMounts, StepFailed> {
    if let Some(mount) = request.disk_mount {
        step(Step::Owners, "the disk", || map_disk_owners(context, mount, ids))?;
    }
    let lower = request.writable_root.then(|| open_lower_layer(context, request.root, ids)).transpose()?;
    Ok(OpenedMounts { binds: open_host_folders(context, &request.binds, ids)?, lower })
}

/// Creates a pair of sockets for each command.
fn create_command_sockets(commands: usize) -> Result<(Vec<OwnedFd>, Vec<OwnedFd>), StepFailed> {
    (0..commands).map(|_| step(Step::Namespaces, "", sys::packet_socketpair)).collect()
}

/// Writes the id maps of PID 1 and lets it proceed.
fn release_init(context: &LauncherContext, spare: &SpareJail, let_go: &OwnedFd) -> Result<(), StepFailed> {
    let (uids, gids) = spare.ids.maps();
    step(Step::IdMap, "", || {
        write_maps(&context.proc, spare.pid, &uids, &gids)?;
        rustix::io::write(let_go, b"1").map(drop)
    })
}

/// Clones PID 1 into a network namespace. The launcher enters that namespace for the duration of the clone,
/// because these jails do not own their network namespace.
fn clone_into_network(
    context: &LauncherContext,
    setup: &JailSetup<'_>,
    network: Option<&OwnedFd>,
    group: Option<BorrowedFd<'_>>,
) -> Result<CloneResult, Errno> {
    if let Some(network) = network {
        sys::setns(network.as_fd(), libc::CLONE_NEWNET)?;
    }
    let cloned = sys::clone(namespace_flags(setup.new_network), group);
    if network.is_some() && !matches!(cloned, Ok(CloneResult::Child)) {
        sys::setns(context.network.as_fd(), libc::CLONE_NEWNET)?;
    }
    cloned
}

fn namespace_flags(network: bool) -> libc::c_int {
    let flags = [
        (network, libc::CLONE_NEWNET),
        (!fault::is_left_out(Layer::UserNs), libc::CLONE_NEWUSER),
        (!fault::is_left_out(Layer::PidNs), libc::CLONE_NEWPID),
        (!fault::is_left_out(Layer::MountNs), libc::CLONE_NEWNS),
        (!fault::is_left_out(Layer::IpcNs), libc::CLONE_NEWIPC),
        (!fault::is_left_out(Layer::UtsNs), libc::CLONE_NEWUTS),
    ];
    flags.into_iter().filter(|(wanted, _)| *wanted).fold(0, |all, (_, flag)| all | flag)
}

/// Returns the playground of a jail and all its other host folders.
pub(crate) fn all_binds(jail: &Jail) -> Vec<HostBind> {
    let playground = jail.host_workspace.iter().map(|source| HostBind {
        source: source.clone(),
        destination: WORKSPACE.to_owned(),
        writable: true,
    });
    playground.chain(jail.binds.iter().cloned()).collect()
}

impl SpareJail {
    /// Returns whether PID 1 is alive and has reported no failure.
    pub(super) fn is_usable(&self) -> bool {
        !sys::is_readable(self.pidfd.as_fd()) && !sys::is_readable(self.report.as_fd())
    }

    /// Returns the pid of its PID 1 on the host.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Kills it.
    pub(crate) fn kill(self) -> DyingJail {
        let init = ProcessHandle { pid: self.pid, pidfd: self.pidfd };
        init.kill();
        let recyclable = Recyclable { group: self.group, ids: IdSource::Lease(self.ids) };
        DyingJail { main: None, init: Some(init), warm: None, recyclable }
    }

    /// Sends it what to run. A jail for which this fails cannot be used again.
    pub(crate) fn start(
        mut self,
        context: &LauncherContext,
        jail: &Jail,
        fds: &[OwnedFd],
        started: Instant,
    ) -> Result<Run, Box<(StepFailed, SpareJail)>> {
        if let Err(failed) = self.send_request(jail, fds) {
            return Err(Box::new((failed, self)));
        }
        let layers = limits::layers(context, jail, self.ids);
        let SpareJail { pid, pidfd, report, init_socket, command_sockets, group, ids, .. } = self;
        let parts = StartedJail {
            pid,
            pidfd,
            report: Some(report),
            recyclable: Recyclable { group, ids: IdSource::Lease(ids) },
        };
        let listener = if jail.is_sandbox {
            NotifyListener::rate_limited(init_socket)
        } else {
            NotifyListener::from_sockets(command_sockets)
        };
        Ok(Run::new(parts, layers, started, jail, listener))
    }

    fn send_request(&mut self, jail: &Jail, fds: &[OwnedFd]) -> Result<(), StepFailed> {
        if jail.require_separate_uid && !self.ids.is_separate() {
            return Err(StepFailed::new(Step::UserId, "of its own, as required", Errno::PERM));
        }
        // The guest is PID 1; a sandbox starts without commands.
        let ours = if jail.is_sandbox { 1 } else { jail.commands.len() };
        self.set_limits(limits::group_limits(&jail.limits, ours))?;
        if jail.is_sandbox {
            let fds: Vec<_> = fds.iter().chain(&self.oom_score_fd).map(AsFd::as_fd).collect();
            return self.or_reported_failure(wire::send(self.init_socket.as_fd(), jail, &fds));
        }
        chown_streams(fds, self.ids)?;
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        // The artifacts pipe, which comes last, goes to PID 1; all others go to the program.
        let (programs, collectors) = fds.split_at(fds.len() - usize::from(jail.artifacts.is_some()));
        let sent = wire::send(self.init_socket.as_fd(), jail, collectors).and_then(|()| {
            self.command_sockets.iter().try_for_each(|socket| wire::send(socket.as_fd(), jail, programs))
        });
        self.or_reported_failure(sent)
    }

    /// Returns the failure that PID 1 reported, if it did not take the request.
    fn or_reported_failure(&self, sent: Result<(), Errno>) -> Result<(), StepFailed> {
        let sent = step(Step::Task, "", || sent);
        sent.map_err(|failed| inside::read_reported_failure(self.report.as_fd()).unwrap_or(failed))
    }

    /// Sets the cgroup limits unless they are already set. Spare jails get them in advance, as a guess.
    pub(super) fn set_limits(&mut self, limits: cgroup::GroupLimits) -> Result<(), StepFailed> {
        let Some(group) = self.group.as_ref().filter(|_| self.limits != Some(limits)) else { return Ok(()) };
        limits::set_group_limits(group, &limits)?;
        self.limits = Some(limits);
        Ok(())
    }
}
