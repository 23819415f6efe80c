//! A warm jail: requested from the builder, then built, then entered by a child.
//!
//! A request that finds a built jail waits only for the fork and the inspection of the child, so in `fork`
//! mode some jails are built ahead of demand, when the launcher is idle. They count as pool memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use belljar_model::layer::Layer;
use belljar_zygote::message::{SetupStep, without};
use rustix::io::Errno;

use super::builder::JailBuilder;
use super::namespaces::NamespaceSet;
use super::zygote::Zygote;
use crate::cgroup::Group;
use crate::fault;
use crate::inside::{self, BuilderRequest, JailPlan, NamespaceSetPlan};
use crate::launcher::ids::lease::IdLease;
use crate::launcher::limits::{cgroup_failure, group_limits, set_group_limits};
use crate::launcher::process::ProcessHandle;
use crate::launcher::reaper::{DyingJail, WarmOrigin};
use crate::launcher::recyclable::{IdSource, Recyclable};
use crate::launcher::setup::LauncherContext;
use crate::spec::JailLimits;
use crate::step::{Step, StepFailed, step};

/// Number of namespaces that belong to the jail itself and not to its namespace set.
const OWN_NAMESPACE_COUNT: usize = 5;

/// A jail that the builder is building or has built.
pub(super) struct WarmJail {
    /// The number of the jail and of the child that enters it.
    pub(super) number: u64,
    pub(super) limits: JailLimits,
    /// Whether it is reserved for an idle child.
    pub(super) for_pool: bool,
    pub(super) requested: Instant,
    pub(super) group: Option<Group>,
    pub(super) ids: IdLease,
    /// Keeps the builder alive, and with it the pid namespace of the jail.
    pub(super) builder: Rc<JailBuilder>,
    /// The namespace set: a reused one from the start, a new one once the jail is built.
    pub(super) namespace_set: Option<NamespaceSet>,
    pub(super) built: Option<BuiltJail>,
    /// The liveness pipe: PID 1 exits when it is closed.
    pub(super) liveness_pipe: OwnedFd,
}

/// The parts of a built jail, in which PID 1 is the only process.
pub(super) struct BuiltJail {
    pub(super) init: ProcessHandle,
    /// The mount, ipc, uts, cgroup and pid namespaces, in this order.
    namespaces: Vec<OwnedFd>,
    /// Files through which the child joins its cgroups, opened with the rights of its own user.
    pub(super) cgroup_join_fds: Vec<OwnedFd>,
    /// The workspace, through which the launcher inspects the disk without resolving a path in it.
    pub(super) disk: OwnedFd,
    /// The jail's own `/proc`, until the child has been inspected.
    pub(super) proc: Option<OwnedFd>,
    /// The Landlock ruleset, if the kernel supports Landlock.
    pub(super) landlock_ruleset: Option<OwnedFd>,
}

impl WarmJail {
    /// Asks a zygote's builder to build a jail.
    pub(super) fn request(
        number: u64,
        context: &mut LauncherContext,
        zygote: &mut Zygote,
        limits: &JailLimits,
        for_pool: bool,
    ) -> Result<Self, StepFailed> {
        let namespace_set = zygote.take_namespace_set();
        let ids = match &namespace_set {
            Some(namespace_set) => namespace_set.ids,
            None => step(Step::UserId, "", || context.ids.lease(false))?,
        };
        Self::send_build_request(number, context, zygote, (namespace_set, ids), limits, for_pool)
            .inspect_err(|_| context.ids.release(ids))
    }

    fn send_build_request(
        number: u64,
        context: &LauncherContext,
        zygote: &Zygote,
        (namespace_set, ids): (Option<NamespaceSet>, IdLease),
        limits: &JailLimits,
        for_pool: bool,
    ) -> Result<Self, StepFailed> {
        let group = context.create_cgroup(0)?;
        if let Some(group) = &group {
            set_group_limits(group, &group_limits(limits, 0))?;
        }
        let (end, liveness_pipe) =
            step(Step::Namespaces, "", || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC))?;
        let mut fds = vec![end.as_fd()];
        fds.extend(namespace_set.iter().flat_map(|namespace_set| {
            [namespace_set.user.as_fd(), namespace_set.network.as_fd(), namespace_set.mounts.as_fd()]
        }));
        if let Some(group) = &group {
            fds.extend(group.join_fds().map_err(cgroup_failure)?);
        }
        let (without, fail) = faults();
        let (uids, gids) = ids.maps();
        let own_init_uid = ids.is_separate();
        let plan = JailPlan {
            number,
            new_namespaces: namespace_set.is_none().then_some(NamespaceSetPlan { uids, gids, own_init_uid }),
            own_init_uid,
            disk_options: inside::disk_options(limits.disk_bytes),
            without,
            fail,
        };
        zygote.builder().send(&BuilderRequest::Build(plan), &fds)?;
        drop(fds);
        Ok(Self {
            number,
            limits: *limits,
            for_pool,
            requested: Instant::now(),
            group,
            ids,
            builder: Rc::clone(zygote.builder()),
            namespace_set,
            built: None,
            liveness_pipe,
        })
    }

    /// Takes ownership of the descriptors of a jail that the builder has built.
    pub(super) fn take_built(
        &mut self,
        context: &LauncherContext,
        zygote: u64,
        fds: Vec<OwnedFd>,
        has_rules: bool,
    ) -> Result<(), StepFailed> {
        let lost = || StepFailed::new(Step::Task, "", Errno::BADMSG);
        let mut fds = fds.into_iter();
        let pidfd = fds.next().ok_or_else(lost)?;
        let pid = step(Step::Init, "(it was killed)", || context.pid_of(&pidfd))?;
        let namespaces: Vec<OwnedFd> = fds.by_ref().take(OWN_NAMESPACE_COUNT).collect();
        let (disk, proc) = fds.next().zip(fds.next()).ok_or_else(lost)?;
        let rules = if has_rules { fds.next() } else { None };
        if self.namespace_set.is_none() {
            self.namespace_set = NamespaceSet::new(zygote, self.ids, Rc::clone(&self.builder), fds);
        }
        let group_files = match &self.group {
            Some(group) => group.v1_join_fds_as(self.ids.uid).map_err(cgroup_failure)?,
            None => Vec::new(),
        };
        let init = ProcessHandle { pid, pidfd };
        self.built = Some(BuiltJail {
            init,
            namespaces,
            cgroup_join_fds: group_files,
            disk,
            proc: Some(proc),
            landlock_ruleset: rules,
        });
        Ok(())
    }

    /// Returns the namespaces of a child, in the order in which it enters them.
    pub(super) fn namespaces(&self) -> Option<Vec<BorrowedFd<'_>>> {
        let (namespace_set, built) = (self.namespace_set.as_ref()?, self.built.as_ref()?);
        Some(
            [&namespace_set.user, &namespace_set.network]
                .into_iter()
                .chain(&built.namespaces)
                .map(AsFd::as_fd)
                .collect(),
        )
    }

    /// Closes descriptors that only the inspection needs.
    pub(super) fn close_inspection_fds(&mut self) {
        if let Some(built) = &mut self.built {
            built.namespaces.clear();
            built.cgroup_join_fds.clear();
            (built.proc, built.landlock_ruleset) = (None, None);
        }
    }

    /// Returns whether a child can enter it.
    pub(super) fn is_ready(&self) -> bool {
        self.built.is_some() && !self.init().is_some_and(ProcessHandle::has_exited)
    }

    /// Returns its PID 1, once the jail is built.
    pub(super) fn init(&self) -> Option<&ProcessHandle> {
        self.built.as_ref().map(|built| &built.init)
    }

    /// Kills it, and the child in it, if there is one.
    pub(super) fn kill(self, main: Option<ProcessHandle>) -> DyingJail {
        main.iter().chain(self.init()).for_each(ProcessHandle::kill);
        let ids = match self.namespace_set {
            Some(namespace_set) => IdSource::NamespaceSet(Box::new(namespace_set)),
            None => IdSource::Lease(self.ids),
        };
        let warm =
            WarmOrigin { number: self.number, builder: self.builder, is_building: self.built.is_none() };
        DyingJail {
            main,
            init: self.built.map(|built| built.init),
            warm: Some(warm),
            recyclable: Recyclable { group: self.group, ids },
        }
    }
}

/// Returns, for tests, the layers that a child leaves out and the step that fails.
pub(super) fn faults() -> (u32, u32) {
    let layers = [
        (Layer::Rlimits, without::RLIMITS),
        (Layer::NoCapabilities, without::CAPABILITIES),
        (Layer::NoNewPrivs, without::NO_NEW_PRIVS),
        (Layer::Landlock, without::LANDLOCK),
        (Layer::Seccomp, without::SECCOMP),
        (Layer::CgroupNs, without::CGROUP_NAMESPACE),
    ];
    let without =
        layers.iter().filter(|(layer, _)| fault::is_left_out(*layer)).fold(0, |all, (_, bit)| all | bit);
    let failing = (1..)
        .map_while(SetupStep::from_number)
        .find(|step| fault::inject(inside::common_step(*step)).is_err());
    (without, failing.map_or(0, |step| step as u32))
}
