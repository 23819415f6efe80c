//! Tests of the files and their content, with an ordinary directory in place of a cgroup.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use super::*;
use crate::cgroup::files::OpenFiles;

/// A launcher directory with one group, numbered 7, that has all files of a v2 group.
struct Fake {
    root: PathBuf,
    parent: OwnedFd,
    open_files: OpenFiles,
}

const FILES: [&str; 6] =
    ["memory.max", "memory.swap.max", "memory.oom.group", "cpu.max", "pids.max", "cgroup.procs"];

impl Fake {
    fn new(name: &str) -> Fake {
        let root = std::env::temp_dir().join(format!("cgroup2-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("7")).unwrap();
        for file in FILES {
            fs::write(root.join("7").join(file), "").unwrap();
        }
        let parent = files::open_dir(rustix::fs::CWD, root.to_str().unwrap()).unwrap();
        Fake { root, parent, open_files: OpenFiles::default() }
    }

    fn group(&self) -> GroupDir<'_> {
        GroupDir { parent: self.parent.as_fd(), number: "7", open_files: &self.open_files }
    }

    fn put(&self, file: &str, text: &str) {
        fs::write(self.root.join("7").join(file), text).unwrap();
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.root.join("7").join(file)).unwrap()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.root).unwrap();
    }
}

const LIMITS: GroupLimits = GroupLimits { memory_bytes: 33_554_432, cpu_millis: 1500, pids: 64 };

#[test]
fn each_limit_is_written_to_its_file() {
    let fake = Fake::new("limits");
    for controller in Controller::ALL {
        apply_defaults(fake.group(), controller).unwrap();
        set_limit(fake.group(), controller, &LIMITS).unwrap();
    }
    assert_eq!(fake.text("memory.max"), "33554432");
    assert_eq!(fake.text("memory.swap.max"), "0");
    assert_eq!(fake.text("memory.oom.group"), "1");
    assert_eq!(fake.text("cpu.max"), "150000 100000");
    assert_eq!(fake.text("pids.max"), "64");
}

#[test]
fn missing_swap_file_is_ignored_and_missing_limit_is_an_error() {
    let fake = Fake::new("absent");
    fs::remove_file(fake.root.join("7/memory.swap.max")).unwrap();
    fs::remove_file(fake.root.join("7/pids.max")).unwrap();
    apply_defaults(fake.group(), Controller::Memory).unwrap();
    let refused = set_limit(fake.group(), Controller::Pids, &LIMITS).unwrap_err();
    assert_eq!(refused, Error::Write { file: "pids.max", errno: Errno::NOENT });
    assert!(refused.to_string().contains("pids.max"));
}

#[test]
fn absent_counters_are_none() {
    let fake = Fake::new("figures");
    assert_eq!(
        (cpu_time(fake.group()), peak_memory(fake.group()), oom_kills(fake.group())),
        (None, None, None)
    );
    fake.put("cpu.stat", "usage_usec 1234\nuser_usec 1000\nsystem_usec 234\n");
    fake.put("memory.peak", "9437184\n");
    fake.put("memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 3\noom_group_kill 1\n");
    assert_eq!(cpu_time(fake.group()), Some(Duration::from_micros(1234)));
    assert_eq!(peak_memory(fake.group()), Some(9_437_184));
    assert_eq!(oom_kills(fake.group()), Some(3));
}

#[test]
fn processes_outside_our_pid_namespace_are_foreign() {
    let (me, parent) = (std::process::id(), std::os::unix::process::parent_id());
    assert!(foreign_processes(&[me, parent.max(1)]).is_empty() || parent == 0);
    assert_eq!(foreign_processes(&[me, 0]), [0]);
    assert_eq!(foreign_processes(&[u32::MAX]), [u32::MAX]);
}
