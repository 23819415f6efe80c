//! Host settings that may explain why no sandbox starts. One function reads them; the rest judges their text.

use std::fs;
use std::path::Path;

use crate::env;

/// Host settings that can forbid sandboxes, as read from their files.
#[derive(Debug, Default)]
pub(super) struct HostSettings {
    euid: Option<u32>,
    apparmor_restrict_userns: Option<String>,
    max_user_namespaces: Option<String>,
    unprivileged_userns_clone: Option<String>,
    container: bool,
}

impl HostSettings {
    pub(super) fn read(euid: Option<u32>) -> Self {
        let setting = |name: &str| fs::read_to_string(Path::new("/proc/sys").join(name)).ok();
        Self {
            euid,
            apparmor_restrict_userns: setting("kernel/apparmor_restrict_unprivileged_userns"),
            max_user_namespaces: setting("user/max_user_namespaces"),
            unprivileged_userns_clone: setting("kernel/unprivileged_userns_clone"),
            container: Path::new("/.dockerenv").exists()
                || Path::new("/run/.containerenv").exists()
                || std::env::var_os(env::CONTAINER).is_some(),
        }
    }

    /// Returns hints, most likely first. Root needs no user namespace, so the user-namespace settings do not
    /// concern it.
    pub(super) fn hints(&self) -> Vec<String> {
        let mut hints = Vec::new();
        if self.container {
            hints.push(CONTAINER.to_owned());
        }
        if self.euid == Some(0) {
            return hints;
        }
        let user_namespaces = [
            (&self.apparmor_restrict_userns, "1", APPARMOR),
            (&self.unprivileged_userns_clone, "0", CLONE),
            (&self.max_user_namespaces, "0", MAX),
        ];
        for (setting, forbids, hint) in user_namespaces {
            if setting.as_deref().is_some_and(|text| text.trim() == forbids) {
                hints.push(hint.to_owned());
            }
        }
        hints.push(ROOT.to_owned());
        hints
    }
}

const CONTAINER: &str = "this is a container, which by default may not create sandboxes; start it with: \
    docker run --cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
    --security-opt systempaths=unconfined … (SYS_ADMIN is needed only if belljar runs as root)";
const APPARMOR: &str = "AppArmor forbids user namespaces to ordinary users (Ubuntu's default); allow them \
    with: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0 \
    (or only for belljar, with an AppArmor profile that contains 'userns,')";
const CLONE: &str = "ordinary users may not create user namespaces; allow them with: \
    sudo sysctl kernel.unprivileged_userns_clone=1";
const MAX: &str = "the number of user namespaces is limited to 0; raise it with: \
    sudo sysctl user.max_user_namespaces=15000";
const ROOT: &str = "root needs no user namespace; check whether that helps with: sudo belljar doctor";

/// Returns the release of the running kernel.
pub(super) fn kernel_release() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn each_restriction_has_a_hint() {
        let ubuntu = HostSettings {
            euid: Some(1000),
            apparmor_restrict_userns: some("1\n"),
            ..HostSettings::default()
        };
        assert!(ubuntu.hints()[0].contains("kernel.apparmor_restrict_unprivileged_userns=0"));
        let debian = HostSettings {
            euid: Some(1000),
            unprivileged_userns_clone: some("0\n"),
            ..HostSettings::default()
        };
        assert!(debian.hints()[0].contains("kernel.unprivileged_userns_clone=1"));
        let none =
            HostSettings { euid: Some(1000), max_user_namespaces: some("0\n"), ..HostSettings::default() };
        assert!(none.hints()[0].contains("user.max_user_namespaces"));
    }

    #[test]
    fn permissive_settings_give_no_hint() {
        let fine = HostSettings {
            euid: Some(1000),
            apparmor_restrict_userns: some("0\n"),
            max_user_namespaces: some("10\n"),
            unprivileged_userns_clone: some("1\n"),
            container: false,
        };
        assert_eq!(fine.hints(), [ROOT]);
    }

    #[test]
    fn root_only_gets_the_container_hint() {
        let settings = || HostSettings {
            euid: Some(0),
            apparmor_restrict_userns: some("1\n"),
            ..HostSettings::default()
        };
        assert!(settings().hints().is_empty());
        let hints = HostSettings { container: true, ..settings() }.hints();
        assert!(hints.len() == 1 && hints[0].contains("--security-opt systempaths=unconfined"));
    }
}
