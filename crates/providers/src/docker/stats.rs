//! Resource usage of a container, read by the guest from the cgroup visible inside (v1 or v2): the cgroup on
//! the host's side may be on another machine. A kernel other than the host's may show none; usage is then
//! unknown.

use std::time::Duration;

use belljar_engine::plan::WORKSPACE;
use belljar_engine::sandbox_handle::SandboxStats;
use belljar_guest::Guest;
use tokio::io::AsyncReadExt;

use super::container::writable_paths;
use super::receipt::GuestStatus;

/// Longer than any of these files.
const MAX_FILE_BYTES: u64 = 4 << 10;
/// The guest itself.
const GUEST_PROCESSES: u64 = 1;

/// Returns the usage. With a host workspace, the workspace is not a tmpfs of the container.
pub(super) async fn stats(guest: &Guest, has_host_workspace: bool) -> SandboxStats {
    let (cpu_time, memory, processes, disk) =
        tokio::join!(cpu(guest), memory(guest), processes(guest), disk(guest, has_host_workspace));
    SandboxStats {
        cpu: cpu_time,
        memory_bytes: memory.0,
        peak_memory_bytes: memory.1,
        memory_kills: memory.2.unwrap_or(0),
        machine_memory_kills: 0,
        processes: processes.0.map(|count| count.saturating_sub(GUEST_PROCESSES)),
        peak_processes: processes.1.map(|count| count.saturating_sub(GUEST_PROCESSES)),
        forks_refused: processes.2.unwrap_or(0),
        disk_bytes: disk.map(|disk| disk.0),
        disk_full: disk.is_some_and(|disk| disk.1),
    }
}

/// Returns the guest's own confinement. No process that it starts can have more privileges.
pub(super) async fn guest_status(guest: &Guest) -> Option<GuestStatus> {
    let (status, space) = tokio::join!(read_text(guest, "/proc/self/status"), guest.space("/tmp"));
    Some(GuestStatus { status: status?, limits_file_count: space.ok()?.counts_files })
}

async fn cpu(guest: &Guest) -> Option<Duration> {
    let (new, old) =
        tokio::join!(read_cgroup_file(guest, "cpu.stat"), read_cgroup_file(guest, "cpuacct/cpuacct.usage"));
    let new = new.and_then(|text| field(&text, "usage_usec")).map(Duration::from_micros);
    new.or_else(|| old?.trim().parse().ok().map(Duration::from_nanos))
}

/// Returns current usage, peak usage, and the number of OOM kills.
async fn memory(guest: &Guest) -> (Option<u64>, Option<u64>, Option<u64>) {
    let (now, most, kills) = tokio::join!(
        read_number(guest, "memory.current", "memory/memory.usage_in_bytes"),
        read_number(guest, "memory.peak", "memory/memory.max_usage_in_bytes"),
        read_either(guest, "memory.events", "memory/memory.oom_control"),
    );
    (now, most.or(now), kills.and_then(|text| field(&text, "oom_kill")))
}

/// Returns the current count, the peak, and the number of refused forks.
async fn processes(guest: &Guest) -> (Option<u64>, Option<u64>, Option<u64>) {
    let (now, most, refused) = tokio::join!(
        read_number(guest, "pids.current", "pids/pids.current"),
        read_number(guest, "pids.peak", "pids/pids.peak"),
        read_either(guest, "pids.events", "pids/pids.events"),
    );
    (now, most, refused.and_then(|text| field(&text, "max")))
}

/// Returns the bytes used in all writable paths, and whether one of them is full.
async fn disk(guest: &Guest, has_host_workspace: bool) -> Option<(u64, bool)> {
    let (mut used, mut full) = (0_u64, false);
    for path in writable_paths().filter(|path| !(has_host_workspace && *path == WORKSPACE)) {
        let space = guest.space(path).await.ok()?;
        used = used.saturating_add(space.used_bytes);
        full |= space.full;
    }
    Some((used, full))
}

async fn read_number(guest: &Guest, new: &str, old: &str) -> Option<u64> {
    read_either(guest, new, old).await?.trim().parse().ok()
}

async fn read_either(guest: &Guest, new: &str, old: &str) -> Option<String> {
    let (new, old) = tokio::join!(read_cgroup_file(guest, new), read_cgroup_file(guest, old));
    new.or(old)
}

async fn read_cgroup_file(guest: &Guest, name: &str) -> Option<String> {
    read_text(guest, &format!("/sys/fs/cgroup/{name}")).await
}

async fn read_text(guest: &Guest, path: &str) -> Option<String> {
    let (_, reader) = guest.read_file(path, 0, Some(MAX_FILE_BYTES)).await.ok()?;
    let mut text = String::new();
    reader.take(MAX_FILE_BYTES).read_to_string(&mut text).await.ok()?;
    Some(text)
}

/// Returns the number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn fields_are_whole_words() {
        let events = "low 0\nmax 41\noom 3\noom_kill 2\noom_group_kill 0\n";
        assert_eq!((field(events, "oom_kill"), field(events, "oom")), (Some(2), Some(3)));
        assert_eq!((field(events, "high"), field("oom_kill x", "oom_kill")), (None, None));
    }
}
