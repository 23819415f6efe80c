//! Tests of the filter of a writable root's root user.

use super::*;

/// Returns the verdict of a filter on a call.
fn verdict_for(purpose: FilterFor, arch: Arch, number: u32, arguments: [u64; 6]) -> u32 {
    interpret(&SeccompFilter::compile(arch, purpose).0, arch.audit_arch(), number, arguments)
}

#[test]
fn the_root_user_has_its_own_rules_and_no_others() {
    let names: Vec<_> = policy::ROOT_RULES.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["chmod", "fchmod", "fchmodat", "setgroups", "socket"]);
    for arch in ARCHES {
        for (name, number) in arch.numbers().iter().filter(|(name, _)| !names.contains(name)) {
            for arguments in [[0; 6], [u64::MAX; 6], [0o4755; 6]] {
                let both = [FilterFor::Init, FilterFor::RootInit]
                    .map(|purpose| verdict_for(purpose, arch, *number, arguments));
                assert_eq!(both[0], both[1], "{name} {arguments:x?}");
            }
        }
    }
}

#[test]
fn the_root_user_may_set_modes_and_groups() {
    let arch = Arch::X86_64;
    let number = |name: &str| arch.numbers().iter().find(|(known, _)| *known == name).unwrap().1;
    let verdict = |name, arguments| verdict_for(FilterFor::RootInit, arch, number(name), arguments);
    for name in ["chmod", "fchmod", "fchmodat"] {
        assert_eq!(verdict(name, [0o4755; 6]), ALLOW, "{name}");
    }
    assert_eq!(verdict("setgroups", [0; 6]), ALLOW);
    let netlink = |family: u64| [libc::AF_NETLINK as u64, libc::SOCK_RAW as u64, family, 0, 0, 0];
    assert_eq!(verdict("socket", netlink(libc::NETLINK_AUDIT as u64)), errno(libc::EPROTONOSUPPORT));
    assert_eq!(verdict("socket", netlink(libc::NETLINK_ROUTE as u64)), ALLOW);
    assert_eq!(verdict("socket", netlink(libc::NETLINK_NETFILTER as u64)), errno(libc::EPERM));
    assert_eq!(verdict("socket", [libc::AF_PACKET as u64, 3, 0, 0, 0, 0]), errno(libc::EAFNOSUPPORT));
    // Files are still created without set-id bits, and none is a device.
    let create = libc::O_CREAT as u64;
    assert_eq!(verdict("open", [0, create, 0o4755, 0, 0, 0]), errno(libc::EPERM));
    assert_eq!(verdict("mknod", [0, u64::from(libc::S_IFBLK), 0, 0, 0, 0]), errno(libc::EPERM));
}
