//! What programs inside must not be able to do: to the sandbox's PID 1, and outside the sandbox.

use belljar_engine::layer::Layer;
use belljar_engine::sandbox_handle::{CommandEnding, SandboxPhase};
use serde_json::json;

use super::{Case, cases};
use crate::fixture::{Fixture, Verdict, check};

pub(super) fn all() -> Vec<(&'static str, Case)> {
    cases![
        killing_all_processes_keeps_the_sandbox,
        pid_1_cannot_be_inspected,
        every_process_is_confined,
        no_host_descriptor_is_inherited,
        network_is_absent_or_the_hosts,
    ]
}

async fn killing_all_processes_keeps_the_sandbox(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    open.shell_output("echo kept > file").await?;
    for line in [
        "kill -9 -1",
        "kill -9 1",
        "kill -STOP 1",
        "kill -SEGV 1",
        "kill -XCPU 1; kill -ABRT 1; kill -QUIT 1",
    ] {
        let ran = open.shell(line).await?;
        check!(ran.ending.is_some(), (line, ran));
        check!(open.handle.state() == SandboxPhase::Running, line);
        check!(open.shell_output("cat file").await? == "kept", line);
    }
    let all =
        "python3 -c 'import os\nfor s in range(1, 65):\n    try: os.kill(1, s)\n    except OSError: pass'";
    open.shell_output(all).await?;
    check!(open.shell_output("cat file").await? == "kept", "every signal");
    open.close().await
}

async fn pid_1_cannot_be_inspected(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    for file in
        ["environ", "mem", "maps", "exe", "fd/3", "root/etc/passwd", "cwd/x", "auxv", "stack", "pagemap"]
    {
        let ran = open.shell(&format!("cat /proc/1/{file}")).await?;
        check!(ran.ending == Some(CommandEnding::Exited(1)) && ran.stdout.is_empty(), (file, ran));
    }
    check!(open.shell("ls /proc/1/fd").await?.stdout.is_empty(), "its descriptors");
    check!(open.shell("readlink /proc/1/exe").await?.stdout.is_empty(), "its program");
    // The guest's program file is not reachable by any other path, either.
    check!(open.shell_output("ls -A /run/belljar").await?.is_empty(), "a path to it");
    let attach = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))";
    check!(open.shell(&format!("python3 -c '{attach}'")).await?.stdout != "0\n", "PID 1 can be traced");
    if fixture.has(Layer::SeparateUid) {
        let user = open.shell_output("awk '$1 == 1000 { print $2 }' /proc/self/uid_map").await?;
        let status = status_of_guest(&user)?;
        for line in ["CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "Threads:\t1", "NSpid:"] {
            check!(status.contains(line), (line, status));
        }
    }
    open.close().await
}

/// Returns the host's `/proc/PID/status` of the guest that runs as this user.
fn status_of_guest(user: &str) -> Result<String, String> {
    let guests = super::host_processes("belljar-guest").into_iter();
    let mut statuses = guests.filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/status")).ok());
    let own = format!("Uid:\t{user}\t{user}\t{user}\t{user}");
    statuses.find(|status| status.contains(&own)).ok_or_else(|| format!("no guest of user {user}"))
}

async fn every_process_is_confined(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let status =
        open.shell_output("grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp:' /proc/self/status").await?;
    let zero = "0000000000000000";
    let expected = format!(
        "CapInh:\t{zero}\nCapPrm:\t{zero}\nCapEff:\t{zero}\nCapBnd:\t{zero}\nCapAmb:\t{zero}\nNoNewPrivs:\t1\nSeccomp:\t2"
    );
    check!(status == expected, status);
    for line in [
        "unshare -r true",
        "mount -t tmpfs x /tmp",
        "touch /usr/x",
        "echo x > /proc/sys/kernel/hostname",
        "echo 0 > /proc/self/oom_score_adj",
        "dmesg",
        "chroot / true",
    ] {
        let ran = open.shell(line).await?;
        check!(ran.ending != Some(CommandEnding::Exited(0)), (line, ran));
    }
    open.close().await
}

async fn no_host_descriptor_is_inherited(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    check!(
        open.shell_output("ls /proc/self/fd | tr '\\n' ' '").await? == "0 1 2 3",
        "3 is the directory being listed"
    );
    // Programs have a higher OOM score than the guest, so they are killed first.
    let score: i32 = open.shell_output("cat /proc/self/oom_score_adj").await?.parse().map_err(super::text)?;
    let ours = std::fs::read_to_string("/proc/self/oom_score_adj").map_err(super::text)?;
    check!(ours.trim().parse().is_ok_and(|ours: i32| score >= (ours + 300).min(1000)), (score, ours));
    open.close().await
}

async fn network_is_absent_or_the_hosts(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let code = "import socket\nprint([name for _, name in socket.if_nameindex()])\n\
        try: socket.create_connection((\"192.0.2.1\", 80), 1)\nexcept OSError as e: print(e.errno)";
    check!(open.shell_output(&format!("python3 -c '{code}'")).await? == "['lo']\n101", "network");
    let full = fixture.open(json!({"network": {"mode": "full"}})).await?;
    let inside = full.shell_output("readlink /proc/self/ns/net").await?;
    let outside = std::fs::read_link("/proc/self/ns/net").map_err(super::text)?;
    check!(outside.to_str() == Some(inside.as_str()), (inside, outside));
    full.close().await?;
    open.close().await
}
