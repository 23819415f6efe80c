//! The real server against those who mean it ill, and on a host that fails it.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;
mod expect;
#[path = "abuse"]
mod suite {
    mod crowd;
    mod degraded;
    mod disk;
    mod json;

    use crate::common::server::Server;

    /// What the system says of the server's memory: `VmRSS` now, `VmHWM` at its most.
    fn memory(server: &Server, field: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim_matches([':', ' ', '\t', 'k', 'B']).parse::<usize>().unwrap() << 10
    }
}
