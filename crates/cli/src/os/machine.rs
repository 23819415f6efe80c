//! Resources for sandboxes: the memory, processors and processes of the machine, or of this process's cgroup
//! if that has less.

use std::path::{Path, PathBuf};

use belljar_engine::limits::HostCapacity;

/// Returns the resources of this machine.
pub(crate) fn machine_resources() -> HostCapacity {
    machine_below(Path::new("/"))
}

/// Makes the OOM killer prefer other processes over this one, if the user may ask for that.
pub(crate) fn lower_oom_score() {
    // Needs CAP_SYS_RESOURCE; without it nothing changes.
    let _lowered = std::fs::write("/proc/self/oom_score_adj", "-900");
}

fn machine_below(root: &Path) -> HostCapacity {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let groups = read("proc/self/cgroup").map(|text| own_groups(&text)).unwrap_or_default();
    let least = |file: &str| groups.iter().filter_map(|group| lowest_limit(root, group, file)).min();
    let total = read("proc/meminfo").and_then(|text| total_memory(&text));
    let memory = [total, least("memory.max"), least("memory.limit_in_bytes")].into_iter().flatten().min();
    let processes = [
        read("proc/sys/kernel/pid_max").and_then(|text| text.trim().parse().ok()),
        read("proc/sys/kernel/threads-max").and_then(|text| text.trim().parse().ok()),
        least("pids.max"),
    ];
    let cpus = std::thread::available_parallelism().ok();
    HostCapacity {
        memory_bytes: memory.map(HostCapacity::sandbox_share),
        cpu_millis: cpus
            .and_then(|cpus| u32::try_from(cpus.get()).ok())
            .map(|cpus| cpus.saturating_mul(1_000)),
        processes: processes.into_iter().flatten().min().map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
    }
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let kilobytes = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    kilobytes.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

/// Returns the folders of this process's cgroups, relative to the file system root, at their usual mount
/// points.
fn own_groups(text: &str) -> Vec<PathBuf> {
    let folder = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let mount = Path::new("sys/fs/cgroup");
        let mount = if controllers.is_empty() { mount.to_owned() } else { mount.join(controllers) };
        Some(mount.join(path.trim_start_matches('/')))
    };
    text.lines().filter_map(folder).collect()
}

/// Returns the lowest limit of a cgroup and its ancestors; `None` if none is set.
fn lowest_limit(root: &Path, group: &Path, file: &str) -> Option<u64> {
    let above = group.ancestors().take_while(|folder| folder.starts_with("sys/fs/cgroup"));
    let limit =
        |folder: &Path| std::fs::read_to_string(root.join(folder).join(file)).ok()?.trim().parse().ok();
    above.filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:       8388608 kB\nMemFree: 1 kB\n");

    #[test]
    fn the_lower_of_machine_and_cgroup_limits_applies() {
        let plain = host(&[MEMINFO, ("proc/sys/kernel/pid_max", "32768\n")]);
        let found = machine_below(plain.path());
        assert_eq!(found.memory_bytes, Some(HostCapacity::sandbox_share(8 << 30)));
        assert_eq!(found.processes, Some(32_768));
        let v2 = host(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/system.slice/belljar.service\n"),
            ("sys/fs/cgroup/system.slice/belljar.service/memory.max", "max\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/system.slice/pids.max", "500\n"),
        ]);
        let found = machine_below(v2.path());
        assert_eq!(found.memory_bytes, Some(HostCapacity::sandbox_share(4 << 30)), "from an ancestor cgroup");
        assert_eq!(found.processes, Some(500));
        let v1 = host(&[
            MEMINFO,
            ("proc/self/cgroup", "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n"),
            ("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "2147483648\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(machine_below(v1.path()).memory_bytes, Some(HostCapacity::sandbox_share(2 << 30)));
        assert_eq!(machine_below(Path::new("/nowhere")).memory_bytes, None);
    }
}
