//! Privileges, kernel and processes.

use super::super::{Category::*, Matcher, PolicyRule, Severity::*};

pub(super) static RULES: &[PolicyRule] = &[
    PolicyRule {
        id: "SH-PRIVILEGE",
        category: Process,
        severity: Medium,
        message: "`{}` tries to gain privileges",
        suggestion: "remove it; it cannot work in a sandbox",
        matchers: &[Matcher::Command(&[
            "sudo", "su", "doas", "pkexec", "chroot", "nsenter", "unshare", "setpriv",
        ])],
        matches: &["sudo ls", "nsenter -t 1 -a"],
        non_matches: &["echo sudo", "visudo_x"],
    },
    PolicyRule {
        id: "SH-KERNEL",
        category: Native,
        severity: High,
        message: "`{}` changes the kernel or its mounts",
        suggestion: "remove it; it cannot work in a sandbox",
        matchers: &[Matcher::Command(&[
            "insmod", "modprobe", "rmmod", "mount", "umount", "sysctl", "kexec", "iptables", "nft",
            "swapoff", "swapon",
        ])],
        matches: &["modprobe x", "mount /dev/sda1 /mnt"],
        non_matches: &["mountpoint /", "echo mount"],
    },
    PolicyRule {
        id: "SH-BACKGROUND",
        category: Process,
        severity: Info,
        message: "`{}` keeps a program running after the script",
        suggestion: "wait for the program; it ends with the run",
        matchers: &[Matcher::Command(&["nohup", "setsid", "disown", "at", "crontab", "screen", "tmux"])],
        matches: &["nohup ./a", "crontab -l"],
        non_matches: &["echo nohup", "cat a"],
    },
    PolicyRule {
        id: "SH-KILL-BY-NAME",
        category: Process,
        severity: Low,
        message: "`{}` kills processes by name",
        suggestion: "kill only processes that you started, by their ids",
        matchers: &[Matcher::Command(&["killall", "pkill"])],
        matches: &["pkill node"],
        non_matches: &["pgrep node", "kill $pid"],
    },
    PolicyRule {
        id: "SH-CONTAINER",
        category: Process,
        severity: Medium,
        message: "`{}` manages containers, which cannot work in a sandbox",
        suggestion: "run the program directly",
        matchers: &[Matcher::Command(&["docker", "podman", "kubectl", "runc", "ctr"])],
        matches: &["docker run a"],
        non_matches: &["cat docker-compose.yml"],
    },
    PolicyRule {
        id: "SH-STRESS",
        category: Resource,
        severity: Medium,
        message: "`{}` uses up CPU time, memory or disk space",
        suggestion: "remove it; nothing in a sandbox needs it",
        matchers: &[Matcher::Command(&["stress", "stress-ng", "yes", "fallocate"])],
        matches: &["stress --cpu 8", "yes > /dev/null"],
        non_matches: &["echo yes"],
    },
];
