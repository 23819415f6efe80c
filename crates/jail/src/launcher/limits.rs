//! The limits of a jail's cgroup, and the isolation layers that will be in force.

use belljar_model::layer::Layer;

use super::ids::lease::IdLease;
use super::setup::{LauncherContext, controller_layer};
use crate::cgroup::{self, Group};
use crate::fault;
use crate::inside;
use crate::spec::{Jail, JailLimits};
use crate::step::{Step, StepFailed};

/// Sets the limits of a cgroup.
pub(super) fn set_group_limits(group: &Group, limits: &cgroup::GroupLimits) -> Result<(), StepFailed> {
    group.set_limits(limits).map_err(cgroup_failure)
}

pub(super) fn cgroup_failure(error: cgroup::Error) -> StepFailed {
    let (file, errno) = match error {
        cgroup::Error::Write { file, errno } | cgroup::Error::Open { file, errno } => (file, errno),
        cgroup::Error::Make { errno } => ("", errno),
    };
    StepFailed::new(Step::Cgroup, file, errno)
}

/// Returns the cgroup limits for a jail. `ours` processes in the cgroup do not count against the program's
/// limit: PID 1, if it is in the cgroup, and every command that waits for its turn.
pub(super) fn group_limits(limits: &JailLimits, ours: usize) -> cgroup::GroupLimits {
    let pids = limits.processes + ours as u32;
    cgroup::GroupLimits {
        memory_bytes: if fault::is_left_out(Layer::CgroupMemory) { 1 << 40 } else { limits.memory_bytes },
        cpu_millis: if fault::is_left_out(Layer::CgroupCpu) { 1_000_000 } else { limits.cpu_millis },
        pids: if fault::is_left_out(Layer::CgroupPids) { 1 << 20 } else { pids },
    }
}

/// Returns the isolation layers that will be in force in a jail.
pub(super) fn layers(context: &LauncherContext, jail: &Jail, ids: IdLease) -> Vec<Layer> {
    let mut layers = inside::layers(jail, context.has_landlock, ids.is_separate());
    layers.extend(context.groups.controllers().into_iter().map(controller_layer));
    layers.sort();
    layers
}
