//! Privileges, kernel and processes.

use super::super::{Category::*, Rule, Severity::*, When};

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "SH-PRIVILEGE",
        category: Process,
        severity: Medium,
        message: "`{}` tries to gain privileges",
        suggestion: "remove it; it cannot work in a sandbox",
        when: &[When::Command(&["sudo", "su", "doas", "pkexec", "chroot", "nsenter", "unshare", "setpriv"])],
        matches: &["sudo ls", "nsenter -t 1 -a"],
        leaves: &["echo sudo", "visudo_x"],
    },
    Rule {
        id: "SH-KERNEL",
        category: Native,
        severity: High,
        message: "`{}` changes the kernel or its mounts",
        suggestion: "remove it; it cannot work in a sandbox",
        when: &[When::Command(&[
            "insmod", "modprobe", "rmmod", "mount", "umount", "sysctl", "kexec", "iptables", "nft",
            "swapoff", "swapon",
        ])],
        matches: &["modprobe x", "mount /dev/sda1 /mnt"],
        leaves: &["mountpoint /", "echo mount"],
    },
    Rule {
        id: "SH-BACKGROUND",
        category: Process,
        severity: Info,
        message: "`{}` keeps a program running after the script",
        suggestion: "wait for the program; it ends with the run",
        when: &[When::Command(&["nohup", "setsid", "disown", "at", "crontab", "screen", "tmux"])],
        matches: &["nohup ./a", "crontab -l"],
        leaves: &["echo nohup", "cat a"],
    },
    Rule {
        id: "SH-KILL-BY-NAME",
        category: Process,
        severity: Low,
        message: "`{}` kills processes by name",
        suggestion: "kill only processes that you started, by their ids",
        when: &[When::Command(&["killall", "pkill"])],
        matches: &["pkill node"],
        leaves: &["pgrep node", "kill $pid"],
    },
    Rule {
        id: "SH-CONTAINER",
        category: Process,
        severity: Medium,
        message: "`{}` manages containers, which cannot work in a sandbox",
        suggestion: "run the program directly",
        when: &[When::Command(&["docker", "podman", "kubectl", "runc", "ctr"])],
        matches: &["docker run a"],
        leaves: &["cat docker-compose.yml"],
    },
    Rule {
        id: "SH-STRESS",
        category: Resource,
        severity: Medium,
        message: "`{}` uses up CPU time, memory or disk space",
        suggestion: "remove it; nothing in a sandbox needs it",
        when: &[When::Command(&["stress", "stress-ng", "yes", "fallocate"])],
        matches: &["stress --cpu 8", "yes > /dev/null"],
        leaves: &["echo yes"],
    },
];
