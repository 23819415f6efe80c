//! The closed list of layers that can enforce a run: the words of `receipt.isolation` and of `--require`.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

macro_rules! layers {
    ($($variant:ident $name:literal $what:literal),+ $(,)?) => {
        /// One thing that stands between a program and the host.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub enum Layer { $(#[doc = $what] #[serde(rename = $name)] $variant),+ }

        impl Layer {
            /// Every layer, in the order in which receipts list them.
            pub const ALL: &[Layer] = &[$(Layer::$variant),+];

            /// The fixed name.
            pub fn name(self) -> &'static str {
                match self { $(Layer::$variant => $name),+ }
            }

            /// What it does, in one line.
            pub fn what(self) -> &'static str {
                match self { $(Layer::$variant => $what),+ }
            }
        }
    };
}

layers! {
    UserNs "user_ns" "user and group ids of its own; no id maps to host root",
    PidNs "pid_ns" "sees and signals only its own processes",
    MountNs "mount_ns" "a file tree of its own",
    IpcNs "ipc_ns" "no shared memory, semaphores or queues with others",
    UtsNs "uts_ns" "a host name of its own",
    NetNs "net_ns" "a network of its own: loopback and nothing else",
    CgroupNs "cgroup_ns" "does not see where it stands in the host's control groups",
    ReadOnlyRoot "read_only_root" "the system part of the tree cannot be written",
    DiskQuota "disk_quota" "every writable place has a size and an inode limit",
    SeparateUid "separate_uid" "a host user id that no other live sandbox and no person has",
    NoCapabilities "no_capabilities" "all capability sets are empty",
    NoNewPrivs "no_new_privs" "setuid programs give nothing",
    Rlimits "rlimits" "open files, core dumps, locked memory, file size",
    Landlock "landlock" "a second, path-based guard on writes, devices, signals and sockets",
    Seccomp "seccomp" "system calls by allow-list",
    CgroupMemory "cgroup.memory" "memory of the whole group, without swap",
    CgroupCpu "cgroup.cpu" "processor share of the whole group",
    CgroupPids "cgroup.pids" "number of processes and threads of the whole group",
}

impl Layer {
    /// Without one of these nothing runs.
    pub const FLOOR: &[Layer] = &[
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
