//! Tests with the mount tables of various hosts.

use super::*;

/// Returns the own directory of `controller` (`""` for v2).
fn folder(mountinfo: &str, cgroup: &str, controller: &str) -> Option<String> {
    let memberships = memberships(cgroup);
    let own = memberships.iter().find(|own| match controller {
        "" => own.version == CgroupVersion::V2,
        name => own.has(name),
    })?;
    own_folder(&mounts(mountinfo), own)
}

#[test]
fn pure_v2_under_systemd() {
    let mountinfo = "\
24 30 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
30 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
";
    let cgroup = "0::/user.slice/user-1000.slice/session-3.scope\n";
    assert_eq!(
        folder(mountinfo, cgroup, "").as_deref(),
        Some("/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope")
    );
    assert_eq!(folder(mountinfo, cgroup, "memory"), None);
}

#[test]
fn hybrid_keeps_controllers_on_v1() {
    let mountinfo = "\
25 24 0:22 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:8 - tmpfs tmpfs ro,mode=755
26 25 0:23 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
27 25 0:24 / /sys/fs/cgroup/systemd rw,nosuid shared:10 - cgroup cgroup rw,xattr,name=systemd
30 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:14 - cgroup cgroup rw,cpu,cpuacct
31 25 0:28 / /sys/fs/cgroup/memory rw,nosuid shared:15 - cgroup cgroup rw,memory
32 25 0:29 / /sys/fs/cgroup/pids rw,nosuid shared:16 - cgroup cgroup rw,pids
";
    let cgroup = "\
8:pids:/user.slice/user-1000.slice
5:memory:/user.slice
4:cpu,cpuacct:/user.slice
1:name=systemd:/user.slice/user-1000.slice/session-1.scope
0::/user.slice/user-1000.slice/session-1.scope
";
    assert_eq!(folder(mountinfo, cgroup, "memory").as_deref(), Some("/sys/fs/cgroup/memory/user.slice"));
    let shared = Some("/sys/fs/cgroup/cpu,cpuacct/user.slice");
    assert_eq!(folder(mountinfo, cgroup, "cpu").as_deref(), shared);
    assert_eq!(folder(mountinfo, cgroup, "cpuacct").as_deref(), shared);
    assert!(
        folder(mountinfo, cgroup, "").is_some_and(|path| path.starts_with("/sys/fs/cgroup/unified/user"))
    );
}

#[test]
fn pure_v1_with_one_mount_per_controller() {
    let mountinfo = "\
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
";
    let cgroup = "8:pids:/\n4:memory:/jobs/a:b\n2:cpuacct:/\n1:cpu:/\n";
    assert_eq!(folder(mountinfo, cgroup, "cpu").as_deref(), Some("/sys/fs/cgroup/cpu"));
    assert_eq!(folder(mountinfo, cgroup, "cpuacct").as_deref(), Some("/sys/fs/cgroup/cpuacct"));
    assert_eq!(folder(mountinfo, cgroup, "memory").as_deref(), Some("/sys/fs/cgroup/memory/jobs/a:b"));
    assert_eq!(folder(mountinfo, cgroup, "pids"), None, "a controller that is not mounted");
}

#[test]
fn docker_v2_in_its_own_namespace() {
    let mountinfo = "\
1120 1119 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate\n";
    assert_eq!(folder(mountinfo, "0::/\n", "").as_deref(), Some("/sys/fs/cgroup"));
    assert!(mounts(mountinfo)[0].read_only);
}

#[test]
fn docker_v1_shows_only_its_own_part() {
    let mountinfo = "\
812 811 0:28 /docker/4f2a /sys/fs/cgroup/memory ro,nosuid master:15 - cgroup cgroup rw,memory
813 811 0:29 /docker/4f2a /sys/fs/cgroup/pids ro,nosuid master:16 - cgroup cgroup rw,pids
";
    let cgroup = "5:memory:/docker/4f2a\n8:pids:/docker/4f2a/inner\n";
    assert_eq!(folder(mountinfo, cgroup, "memory").as_deref(), Some("/sys/fs/cgroup/memory"));
    assert_eq!(folder(mountinfo, cgroup, "pids").as_deref(), Some("/sys/fs/cgroup/pids/inner"));
    assert_eq!(folder(mountinfo, "5:memory:/docker/4f2ab\n", "memory"), None, "a name with the same prefix");
}

#[test]
fn groups_outside_the_namespace_are_not_resolved_by_name() {
    let host_tree = "30 24 0:26 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    assert_eq!(folder(host_tree, "0::/\n", ""), None);
    assert!(mount_of(&mounts(host_tree), &memberships("0::/\n")[0]).is_some());
    let own_tree = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    assert_eq!(folder(own_tree, "0::/../other\n", ""), None);
}

#[test]
fn a_writable_mount_is_preferred_and_spaces_are_decoded() {
    let mountinfo = "\
40 1 0:28 / /mnt/my\\040groups rw shared:1 - cgroup cgroup rw,memory
41 1 0:28 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
";
    assert_eq!(folder(mountinfo, "5:memory:/a\n", "memory").as_deref(), Some("/mnt/my groups/a"));
}

#[test]
fn malformed_lines_are_skipped() {
    assert!(mounts("nonsense\n1 2 3 - cgroup\n\n").is_empty());
    assert!(memberships("nonsense\n\n7:memory\n").is_empty());
    assert_eq!(unescape("a\\04"), "a\\04");
}
