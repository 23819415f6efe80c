//! Each isolation layer has a probe that only this layer stops: with the layer the probe is blocked, and in a
//! binary without it (feature `faults`) the same probe gets through. Layers without which nothing runs are
//! tested by that fact.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, reason = "a skipped case says why")]

mod common;

use std::io::ErrorKind;
use std::net::TcpListener;

use belljar_engine::layer::Layer;
use common::warm::run_warm;
use common::{Answer, run_with_fault};

/// Prints `held` or `through`.
const TELL: &str = "def tell(held): print('held' if held else 'through')\n";

/// A probe that runs with and without its layer.
struct Probe<'a> {
    layer: Layer,
    /// Layers that would also stop the probe, and are disabled in both runs.
    also_without: &'a [Layer],
    code: &'a str,
    flags: &'a [&'a str],
}

impl<'a> Probe<'a> {
    fn new(layer: Layer, code: &'a str) -> Self {
        Self { layer, also_without: &[], code, flags: &[] }
    }

    fn run(&self, without: &[Layer], warm: bool) -> Answer {
        let names: Vec<String> =
            self.also_without.iter().chain(without).map(|layer| format!("{layer:?}")).collect();
        let fault = if names.is_empty() { String::new() } else { format!("without:{}", names.join(",")) };
        let code = format!("{TELL}{}", self.code);
        let arguments = [&["-c", &code], self.flags].concat();
        if warm { run_warm("pool", &fault, arguments) } else { run_with_fault(&fault, &arguments) }
    }

    /// Asserts that the probe is blocked with the layer, and gets through without it.
    fn bites(&self) {
        if self.missing() {
            return;
        }
        // Host folders and networks need cold runs; and a zygote's child cannot enter any namespace but its
        // jail's own.
        let only_cold = self.flags.iter().any(|flag| ["--workspace", "--mount", "--network"].contains(flag))
            || [Layer::IpcNs, Layer::NetNs, Layer::UtsNs].contains(&self.layer);
        for warm in [false, true] {
            if warm && only_cold {
                continue;
            }
            let held = self.run(&[], warm);
            assert_eq!(held.text("stdout"), "held\n", "with {:?}, warm {warm}: {}", self.layer, held.json);
            let through = self.run(&[self.layer], warm);
            let said = through.text("stdout");
            assert_eq!(said, "through\n", "without {:?}, warm {warm}: {}", self.layer, through.json);
        }
    }

    /// Returns whether this host cannot enforce the layer, so that nothing can be tested.
    fn missing(&self) -> bool {
        let usual = run_with_fault("", &["--", "true"]);
        let name = self.layer.name();
        if usual.status() == "succeeded" && usual.has_layer(name) {
            return false;
        }
        assert!(!common::is_root() || name.starts_with("cgroup."), "root has {name}: {}", usual.json);
        println!("skipped: {name} is not available for this user");
        true
    }
}

/// Without these the set-up lacks the privileges to continue: nothing runs, and the error names the step.
#[test]
fn nothing_runs_without_user_pid_and_mount_namespaces() {
    for (layer, steps) in [
        (Layer::UserNs, &["map user ids"][..]),
        (Layer::PidNs, &["mount /proc"][..]),
        (Layer::MountNs, &["build the root"][..]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().to_str().unwrap();
        let arguments = ["--workspace", workspace, "--", "sh", "-c", "echo ran > marker"];
        let answer = run_with_fault(&format!("without:{layer:?}"), &arguments);
        assert_eq!(
            (answer.code, answer.error_code()),
            (Some(125), "setup_failed"),
            "{layer:?}: {}",
            answer.json
        );
        let named = steps.iter().any(|step| answer.error_message().contains(step));
        assert!(named, "{layer:?}: {}", answer.error_message());
        assert!(!folder.path().join("marker").exists(), "{layer:?}: it ran");
        let usual = run_with_fault("", &["--", "true"]);
        assert!(usual.has_layer(layer.name()), "{}", usual.json);
    }
}

#[test]
fn uts_namespace() {
    Probe::new(Layer::UtsNs, "import os; tell(os.uname().nodename == 'sandbox')").bites();
}

#[test]
fn ipc_namespace() {
    let host = std::fs::read_link("/proc/self/ns/ipc").unwrap();
    let code =
        format!("import os; tell(os.readlink('/proc/self/ns/ipc') != {:?})", host.display().to_string());
    Probe::new(Layer::IpcNs, &code).bites();
}

/// A host server on loopback is unreachable, and reachable without the network namespace.
#[test]
fn network_namespace() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let code = format!(
        "import socket\ntry: socket.create_connection(('127.0.0.1', {port}), 5); tell(False)\n\
         except ConnectionRefusedError: tell(True)"
    );
    Probe::new(Layer::NetNs, &code).bites();
    listener.set_nonblocking(true).unwrap();
    if !matches!(listener.accept(), Err(error) if error.kind() == ErrorKind::WouldBlock) {
        return;
    }
    assert!(!common::is_root(), "the host's server was reached");
}

#[test]
fn cgroup_namespace() {
    let code = "tell('belljar' not in open('/proc/self/cgroup').read())";
    let probe = Probe::new(Layer::CgroupNs, code);
    if !run_with_fault("", &["--", "true"]).has_layer("cgroup.pids") {
        println!("skipped: without cgroups there is no path to hide");
        return;
    }
    probe.bites();
}

#[test]
fn read_only_root() {
    let code = "import os; tell(all(os.statvfs(p).f_flag & os.ST_RDONLY for p in ('/', '/usr', '/etc')))";
    Probe::new(Layer::ReadOnlyRoot, code).bites();
}

/// Two files, each below the file size limit, but together above the disk limit.
#[test]
fn disk_quota() {
    let code = "try:\n    for n in range(3): open(f'/tmp/{n}', 'wb').write(b'x' * (4 << 20))\n    tell(False)\n\
        except OSError as e: tell(e.errno == 28)";
    Probe { flags: &["--disk", "8M"], ..Probe::new(Layer::DiskQuota, code) }.bites();
}

#[test]
fn separate_uid() {
    if !common::is_root() {
        println!("skipped: only root can run without its own range of ids");
        return;
    }
    let code = "tell(int(open('/proc/self/uid_map').read().split()[1]) >= 0x70000000)";
    Probe::new(Layer::SeparateUid, code).bites();
    let answer = run_with_fault("without:SeparateUid", &["--require", "separate_uid", "--", "true"]);
    assert_eq!(answer.code, Some(125), "the layer can be required: {}", answer.json);
}

/// PID 1 of a warm sandbox shares memory with the zygote. Even if it has the program's own user id, and
/// landlock does not separate them, it reveals nothing.
#[test]
fn the_first_process_of_a_warm_sandbox() {
    if !common::is_root() {
        println!("skipped: only root can run without its own range of ids");
        return;
    }
    let code = format!("{TELL}import os; tell(not os.path.exists('/proc/1/environ'))");
    let held = run_warm("pool", "without:SeparateUid,Landlock", vec!["-c", &code]);
    assert_eq!(held.text("stdout"), "held\n", "{}", held.json);
}

/// A program executed by an ordinary user starts without capabilities; the bounding set limits what it could
/// regain.
#[test]
fn no_capabilities() {
    let code = "caps = [l for l in open('/proc/self/status') if l.startswith('Cap')]\n\
        tell(len(caps) == 5 and all(int(l.split()[1], 16) == 0 for l in caps))";
    Probe::new(Layer::NoCapabilities, code).bites();
}

/// Landlock and seccomp require no_new_privs, so they are disabled in both runs.
#[test]
fn no_new_privileges() {
    let code = "tell('NoNewPrivs:\\t1' in open('/proc/self/status').read())";
    let also_without = &[Layer::Seccomp, Layer::Landlock];
    Probe { also_without, ..Probe::new(Layer::NoNewPrivs, code) }.bites();
    let alone = run_with_fault("without:NoNewPrivs", &["--", "true"]);
    assert_eq!((alone.code, alone.error_code()), (Some(125), "setup_failed"), "{}", alone.json);
}

#[test]
fn rlimits() {
    let code = "import os, resource\nhard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n\
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n\
        try:\n    for n in range(1100): os.dup(0)\n    tell(False)\nexcept OSError: tell(True)";
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    if hard.is_some_and(|hard| hard <= 1_200) {
        println!("skipped: this host itself allows no more open files");
        return;
    }
    Probe::new(Layer::Rlimits, code).bites();
}

/// Mounts and file modes allow the access: only landlock makes `/proc` read-only.
#[test]
fn landlock() {
    let code = "try: open('/proc/self/oom_score_adj', 'w').write('500'); tell(False)\nexcept PermissionError: tell(True)";
    Probe::new(Layer::Landlock, code).bites();
}

/// Disabling address randomization for oneself needs no privilege, only the system call.
#[test]
fn seccomp() {
    let code = "import ctypes; tell(ctypes.CDLL(None).personality(0x40000) == -1)";
    Probe::new(Layer::Seccomp, code).bites();
}

#[test]
fn cgroup_memory() {
    let code =
        "hoard = bytearray(200 << 20)\nfor at in range(0, len(hoard), 4096): hoard[at] = 1\ntell(False)";
    let probe = Probe { flags: &["--memory", "64M"], ..Probe::new(Layer::CgroupMemory, code) };
    if probe.missing() {
        return;
    }
    let held = probe.run(&[], false);
    assert_eq!((held.status(), held.text("limit")), ("limit_exceeded", "memory"), "{}", held.json);
    let through = probe.run(&[Layer::CgroupMemory], false);
    assert_eq!(through.text("stdout"), "through\n", "{}", through.json);
}

/// A twentieth of a core is too slow for the probe; a whole core is ten times more than it needs.
#[test]
fn cgroup_cpu() {
    let code = "import time\nwhile time.process_time() < 0.5: pass\ntell(False)";
    let probe = Probe { flags: &["--cpus", "0.05", "--timeout", "5s"], ..Probe::new(Layer::CgroupCpu, code) };
    if probe.missing() {
        return;
    }
    let held = probe.run(&[], false);
    assert_eq!(held.status(), "timed_out", "{}", held.json);
    let through = probe.run(&[Layer::CgroupCpu], false);
    assert_eq!(through.text("stdout"), "through\n", "{}", through.json);
}

/// Process rlimits count per user and not per sandbox, so they are disabled in both runs.
#[test]
fn cgroup_pids() {
    let code = "import os, signal\nchildren = []\n\
        try:\n    for n in range(40):\n        pid = os.fork()\n        if pid == 0: signal.pause()\n        children.append(pid)\n\
        \x20   held = False\nexcept OSError: held = True\n\
        for pid in children: os.kill(pid, 9)\n\
        tell(held)";
    let probe = Probe::new(Layer::CgroupPids, code);
    Probe { also_without: &[Layer::Rlimits], flags: &["--processes", "16"], ..probe }.bites();
}
