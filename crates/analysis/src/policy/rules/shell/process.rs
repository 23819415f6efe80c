//! Rights, kernel and processes.

use super::super::{Category::*, Rule, Severity::*, When};

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "SH-PRIVILEGE",
        category: Process,
        severity: Medium,
        message: "`{}` asks for the rights of another user",
        suggestion: "nothing here needs that, and it cannot work",
        when: &[When::Command(&["sudo", "su", "doas", "pkexec", "chroot", "nsenter", "unshare", "setpriv"])],
        matches: &["sudo ls", "nsenter -t 1 -a"],
        leaves: &["echo sudo", "visudo_x"],
    },
    Rule {
        id: "SH-KERNEL",
        category: Native,
        severity: High,
        message: "`{}` changes the kernel or its mounts",
        suggestion: "nothing here needs that, and it cannot work",
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
        message: "`{}` lets a program go on after the script",
        suggestion: "wait for what you start; it ends with the run",
        when: &[When::Command(&["nohup", "setsid", "disown", "at", "crontab", "screen", "tmux"])],
        matches: &["nohup ./a", "crontab -l"],
        leaves: &["echo nohup", "cat a"],
    },
    Rule {
        id: "SH-KILL-BY-NAME",
        category: Process,
        severity: Low,
        message: "`{}` ends processes by name",
        suggestion: "end what you started by its own id",
        when: &[When::Command(&["killall", "pkill"])],
        matches: &["pkill node"],
        leaves: &["pgrep node", "kill $pid"],
    },
    Rule {
        id: "SH-CONTAINER",
        category: Process,
        severity: Medium,
        message: "`{}` starts containers, which cannot work here",
        suggestion: "run the program itself",
        when: &[When::Command(&["docker", "podman", "kubectl", "runc", "ctr"])],
        matches: &["docker run a"],
        leaves: &["cat docker-compose.yml"],
    },
    Rule {
        id: "SH-STRESS",
        category: Resource,
        severity: Medium,
        message: "`{}` uses up processor, memory or disk",
        suggestion: "nothing here needs that",
        when: &[When::Command(&["stress", "stress-ng", "yes", "fallocate"])],
        matches: &["stress --cpu 8", "yes > /dev/null"],
        leaves: &["echo yes"],
    },
];
