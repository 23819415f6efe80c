//! The closed list of isolation layers, as named in `receipt.isolation` and `--require`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! layers {
    ($($variant:ident $name:literal $what:literal),+ $(,)?) => {
        /// An isolation layer between a program and the host.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum Layer { $(#[doc = $what] #[serde(rename = $name)] $variant),+ }

        impl Layer {
            /// Every layer, in the order in which receipts list them.
            pub const ALL: &[Layer] = &[$(Layer::$variant),+];

            /// Returns the name of the layer.
            pub fn name(self) -> &'static str {
                match self { $(Layer::$variant => $name),+ }
            }

            /// Returns a one-line description of the layer.
            pub fn description(self) -> &'static str {
                match self { $(Layer::$variant => $what),+ }
            }
        }
    };
}

layers! {
    UserNs "user_ns" "its own user and group ids; no id maps to host root",
    PidNs "pid_ns" "sees and signals only its own processes",
    MountNs "mount_ns" "its own file tree",
    IpcNs "ipc_ns" "no shared memory, semaphores or message queues with others",
    UtsNs "uts_ns" "its own host name",
    NetNs "net_ns" "its own network: loopback only",
    CgroupNs "cgroup_ns" "does not see its place in the host's cgroups",
    ReadOnlyRoot "read_only_root" "the system part of the file tree is read-only",
    DiskQuota "disk_quota" "every writable place has a size and an inode limit",
    SeparateUid "separate_uid" "a host user id that no other running sandbox and no person uses",
    NoCapabilities "no_capabilities" "all capability sets are empty",
    NoNewPrivs "no_new_privs" "setuid programs gain no privileges",
    Rlimits "rlimits" "limits on open files, core dumps, locked memory and file size",
    Landlock "landlock" "a second, path-based check of writes, devices, signals and sockets",
    Seccomp "seccomp" "an allow-list of system calls",
    CgroupMemory "cgroup.memory" "limits memory of the whole group, without swap",
    CgroupCpu "cgroup.cpu" "limits CPU time of the whole group",
    CgroupPids "cgroup.pids" "limits the number of processes and threads of the whole group",
}

impl Layer {
    /// Layers without which nothing runs.
    pub const MANDATORY: &[Layer] = &[
        Layer::PidNs,
        Layer::MountNs,
        Layer::NetNs,
        Layer::ReadOnlyRoot,
        Layer::Seccomp,
        Layer::NoNewPrivs,
        Layer::NoCapabilities,
    ];
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Layer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Layer::ALL.iter().copied().find(|layer| layer.name() == text).ok_or_else(|| {
            let known: Vec<_> = Layer::ALL.iter().map(|layer| layer.name()).collect();
            format!("unknown layer '{text}'; known: {}", known.join(", "))
        })
    }
}

/// An isolation layer that is not enforced, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MissingLayer {
    /// The layer.
    pub layer: Layer,
    /// Reason it is missing.
    pub reason: String,
    /// How to enable it.
    pub remedy: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back() {
        for layer in Layer::ALL {
            assert_eq!(layer.name().parse::<Layer>().unwrap(), *layer);
        }
        assert!("root".parse::<Layer>().unwrap_err().contains("seccomp"));
    }
}
