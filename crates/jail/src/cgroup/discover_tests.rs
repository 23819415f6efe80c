//! Tests of the v2 part of discovery with ordinary directories in place of cgroups.

use std::fs;
use std::path::PathBuf;

use super::*;

/// A directory with the given files, removed on drop.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, files: &[(&str, &str)]) -> Tree {
        let root = std::env::temp_dir().join(format!("cgroup-{name}-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        for (file, text) in files {
            fs::write(root.join(file), text).unwrap();
        }
        Tree(root)
    }

    fn candidate(&self, move_processes: bool) -> BaseCandidate {
        let folder = self.0.to_str().unwrap().to_owned();
        BaseCandidate {
            base: files::open_dir(CWD, &folder).unwrap(),
            folder,
            move_processes,
            child_group: None,
        }
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn nothing_is_created_if_no_requested_controller_is_available() {
    let tree = Tree::new("none", &[("cgroup.controllers", "hugetlb io\n"), ("cgroup.subtree_control", "")]);
    let refused =
        create_in_candidate(LauncherIdentity::current().unwrap(), tree.candidate(true), &Controller::ALL)
            .unwrap_err();
    assert!(matches!(refused, Obstacle::NotOffered { .. }));
    assert_eq!(fs::read_dir(&tree.0).unwrap().count(), 2);
}

#[test]
fn available_controllers_are_enabled_and_others_reported() {
    let tree = Tree::new("one", &[("cgroup.controllers", "cpu memory\n"), ("cgroup.subtree_control", "")]);
    let wanted = [Controller::Memory, Controller::Pids];
    let (launcher_dir, lacking) =
        create_in_candidate(LauncherIdentity::current().unwrap(), tree.candidate(false), &wanted).unwrap();
    assert_eq!(tree.text("cgroup.subtree_control"), "+memory");
    // The new directory has no `cgroup.subtree_control`, which the kernel would have created: reported, not
    // ignored.
    assert!(launcher_dir.controllers.is_empty());
    assert!(matches!(lacking[0], (Controller::Memory, Obstacle::Failed { errno: Errno::NOENT, .. })));
    assert!(matches!(lacking[1], (Controller::Pids, Obstacle::NotOffered { .. })));
    let name = launcher_dir.name.clone();
    assert!(tree.0.join(&name).exists());
    drop(launcher_dir);
    assert!(!tree.0.join(name).exists());
}

#[test]
fn foreign_processes_are_never_moved() {
    let procs = format!("{}\n1\n", std::process::id());
    let tree = Tree::new("busy", &[("cgroup.controllers", "memory"), ("cgroup.procs", &procs)]);
    let refused = create_in_candidate(
        LauncherIdentity::current().unwrap(),
        tree.candidate(true),
        &[Controller::Memory],
    )
    .unwrap_err();
    assert!(matches!(refused, Obstacle::Occupied { pids, .. } if pids == [1]));
    assert_eq!(fs::read_dir(&tree.0).unwrap().count(), 2, "nothing is left behind");
}

#[test]
fn other_file_systems_are_rejected() {
    let tree = Tree::new("magic", &[]);
    let refused = open_group(tree.0.to_str().unwrap(), CgroupVersion::V2).unwrap_err();
    assert_eq!(refused, Obstacle::NotVisible);
}
