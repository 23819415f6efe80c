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

    fn candidate(&self, evacuate: bool) -> Candidate {
        let folder = self.0.to_str().unwrap().to_owned();
        Candidate { base: files::open_dir(CWD, &folder).unwrap(), folder, evacuate, refuge: None }
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
fn nothing_is_made_where_no_wanted_controller_is_offered() {
    let tree = Tree::new("none", &[("cgroup.controllers", "hugetlb io\n"), ("cgroup.subtree_control", "")]);
    let refused = furnish(Owner::me().unwrap(), tree.candidate(true), &Controller::ALL).unwrap_err();
    assert!(matches!(refused, Obstacle::NotOffered { .. }));
    assert_eq!(fs::read_dir(&tree.0).unwrap().count(), 2);
}

#[test]
fn a_controller_is_switched_on_where_it_is_off_and_the_others_are_reported() {
    let tree = Tree::new("one", &[("cgroup.controllers", "cpu memory\n"), ("cgroup.subtree_control", "")]);
    let wanted = [Controller::Memory, Controller::Pids];
    let (place, lacking) = furnish(Owner::me().unwrap(), tree.candidate(false), &wanted).unwrap();
    assert_eq!(tree.text("cgroup.subtree_control"), "+memory");
    // The new directory has no `cgroup.subtree_control`, which the kernel would have created: reported, not
    // ignored.
    assert!(place.controllers.is_empty());
    assert!(matches!(lacking[0], (Controller::Memory, Obstacle::Failed { errno: Errno::NOENT, .. })));
    assert!(matches!(lacking[1], (Controller::Pids, Obstacle::NotOffered { .. })));
    let name = place.name.clone();
    assert!(tree.0.join(&name).exists());
    drop(place);
    assert!(!tree.0.join(name).exists());
}

#[test]
fn strangers_are_never_moved() {
    let procs = format!("{}\n1\n", std::process::id());
    let tree = Tree::new("busy", &[("cgroup.controllers", "memory"), ("cgroup.procs", &procs)]);
    let refused = furnish(Owner::me().unwrap(), tree.candidate(true), &[Controller::Memory]).unwrap_err();
    assert!(matches!(refused, Obstacle::Occupied { pids, .. } if pids == [1]));
    assert_eq!(fs::read_dir(&tree.0).unwrap().count(), 2, "nothing is left behind");
}

#[test]
fn another_file_system_is_not_taken_for_a_group() {
    let tree = Tree::new("magic", &[]);
    let refused = open_group(tree.0.to_str().unwrap(), Version::V2).unwrap_err();
    assert_eq!(refused, Obstacle::OutOfSight);
}
