//! The guest in a complete jail: namespaces, Landlock, seccomp, limits. Here it is not PID 1, but a
//! subreaper.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::time::Duration;

use belljar_guest::Guest;
use belljar_guest::protocol::{
    ArchiveFormat, ArchiveLimits, CommandEnding, FailureKind, GuestSettings, StartCommand, TerminalSize,
    WriteMode, WriteOptions,
};
use belljar_jail::launcher::Launcher;
use belljar_jail::spec::{HOME, INBOX, Jail, JailLimits, JailNetwork, RootEntry, WORKSPACE};
use belljar_jail::wire::{self, LauncherEvent, LauncherRequest};
use libtest_mimic::Trial;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::fixture::{bare_trial, run, shell, until};

const GUEST: &str = "/opt/belljar-guest";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        bare_trial("jailed_processes_run", jailed_processes_run),
        bare_trial("jailed_files_are_kept", jailed_files_are_kept),
        bare_trial("jailed_ports_are_its_own", jailed_ports_are_its_own),
        bare_trial("jailed_forks_run_out", jailed_forks_run_out),
    ]
}

/// A guest in a jail; dropping it ends both.
struct Jailed {
    guest: Guest,
    _launcher: OwnedFd,
}

fn tree() -> Vec<RootEntry> {
    let folders = ["/proc", "/sys", "/tmp", "/dev/pts", "/dev/shm", WORKSPACE, HOME, INBOX];
    let mut tree: Vec<_> = folders.iter().map(|path| RootEntry::Dir { path: (*path).into() }).collect();
    for (name, minor) in [("null", 3), ("zero", 5)] {
        let path = format!("/dev/{name}");
        tree.push(RootEntry::Device { source: path.clone(), path, number: (1, minor) });
    }
    tree.push(RootEntry::Link { path: "/dev/ptmx".into(), target: "pts/ptmx".into() });
    for name in ["usr", "bin", "sbin", "lib", "lib64"] {
        let path = Path::new("/").join(name);
        let inside = format!("/{name}");
        if let Ok(target) = std::fs::read_link(&path) {
            tree.push(RootEntry::Link { path: inside, target: target.to_str().unwrap().into() });
        } else if path.is_dir() {
            tree.push(RootEntry::Bind { source: inside.clone(), path: inside });
        }
    }
    let own = std::env::current_exe().unwrap().canonicalize().unwrap();
    tree.push(RootEntry::Bind { source: own.to_str().unwrap().into(), path: GUEST.into() });
    tree
}

fn jail() -> Jail {
    Jail {
        root: 1,
        is_sandbox: false,
        tenant: String::new(),
        commands: vec![vec![GUEST.into()]],
        env: Vec::new(),
        workdir: WORKSPACE.into(),
        timeout: Some(Duration::from_secs(100)),
        limits: JailLimits {
            memory_bytes: 256 << 20,
            cpu_millis: 1000,
            processes: 16,
            disk_bytes: 64 << 20,
            open_files: 1024,
        },
        writable_root: false,
        has_disk_file: false,
        network: JailNetwork::Own,
        host_workspace: None,
        binds: Vec::new(),
        result_pipe: true,
        artifacts: None,
        require_separate_uid: false,
        interpreter: None,
    }
}

impl Jailed {
    async fn start() -> Self {
        let (control, child) = Launcher::start().unwrap().into_parts();
        rustix::io::ioctl_fionbio(&control, false).unwrap();
        let mut buffer = Vec::new();
        let (ready, _) = wire::receive::<LauncherEvent>(control.as_fd(), &mut buffer).unwrap().unwrap();
        assert!(matches!(ready, LauncherEvent::Ready { .. }), "{ready:?}");
        wire::send(control.as_fd(), &LauncherRequest::RegisterRoot { number: 1, tree: tree() }, &[]).unwrap();
        let payload = belljar_jail::payload::pack(b"", &[]).unwrap();
        // Stdio are pipes, which a guest does not use.
        let pipes = [(); 3].map(|()| rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap());
        let (ours, theirs) = StdUnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let [(stdin, _), (_, stdout), (_, stderr)] = &pipes;
        let fds = [payload.as_fd(), stdin.as_fd(), stdout.as_fd(), stderr.as_fd(), theirs.as_fd()];
        wire::send(control.as_fd(), &LauncherRequest::Start { run: 1, jail: Box::new(jail()) }, &fds)
            .unwrap();
        drop((theirs, child));
        let guest = Guest::connect(UnixStream::from_std(ours).unwrap(), GuestSettings::default()).await;
        let guest = guest.unwrap_or_else(|error| {
            let notice = wire::receive::<LauncherEvent>(control.as_fd(), &mut buffer);
            panic!("{error}: {notice:?}")
        });
        Self { guest, _launcher: control }
    }

    async fn shell(&self, line: &str) -> String {
        run(&self.guest, shell(line)).await.unwrap().text().to_owned()
    }
}

async fn jailed_processes_run() {
    let world = Jailed::start().await;
    assert_eq!(
        world.shell("id -u; pwd; grep Seccomp: /proc/self/status").await,
        "1000\n/workspace\nSeccomp:\t2"
    );
    for (line, ending) in
        [("exit 7", CommandEnding::Exited(7)), ("kill -11 $$", CommandEnding::Signalled(11))]
    {
        assert_eq!(run(&world.guest, shell(line)).await.unwrap().ending, Some(ending));
    }
    let size = TerminalSize { rows: 30, columns: 90 };
    let command =
        StartCommand { terminal: Some(size), ..shell("stty size; exec cat <&- /dev/tty & wait; tty") };
    let ran = run(&world.guest, command).await.unwrap();
    assert!(ran.text().starts_with("30 90\r\n"), "{:?}", ran.text());
    let command = StartCommand { timeout_ms: Some(100), ..shell("sleep 100") };
    assert_eq!(run(&world.guest, command).await.unwrap().ending, Some(CommandEnding::TimedOut));
    world.shell("i=0; while [ $i -lt 100 ]; do (true &); i=$((i+1)); done").await;
    let zombies = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '";
    until("no zombie is left", async || world.shell(zombies).await == "0").await;
    // The guest's own process is not readable.
    let guest = world.shell("cut -d' ' -f4 /proc/$$/stat").await;
    for file in ["environ", "mem", "fd/3", "exe"] {
        let ran = run(&world.guest, shell(&format!("cat /proc/{guest}/{file}"))).await.unwrap();
        assert_eq!(ran.ending, Some(CommandEnding::Exited(1)), "{file}");
    }
}

async fn jailed_files_are_kept() {
    let world = Jailed::start().await;
    let guest = &world.guest;
    let mut watch = guest.watch("", true).await.unwrap();
    let bytes = vec![7; 5_000_000];
    for atomic in [false, true] {
        let options = WriteOptions { atomic, permissions: Some(0o700), ..WriteOptions::default() };
        guest.write_file("a/b", options, bytes.as_slice()).await.unwrap();
    }
    assert!(watch.next().await.unwrap().is_some());
    let mut back = Vec::new();
    guest.read_file("a/b", 0, None).await.unwrap().1.read_to_end(&mut back).await.unwrap();
    assert!(back == bytes);
    guest.set_mode("a/b", 0o640).await.unwrap();
    guest.rename("a/b", "a/c", false).await.unwrap();
    guest.make_folder("a/d/e", true, Some(0o755)).await.unwrap();
    world.shell("ln -s c a/link").await;
    for format in [ArchiveFormat::Tar, ArchiveFormat::TarGz, ArchiveFormat::Zip] {
        let mut packed = Vec::new();
        guest.download_archive("a", format).await.unwrap().read_to_end(&mut packed).await.unwrap();
        // Five megabytes of one byte look like an archive bomb.
        let limits = ArchiveLimits { ratio: 10_000, ..ArchiveLimits::default() };
        let unpacked = guest.upload_archive("copy", format, limits, packed.as_slice()).await.unwrap();
        assert_eq!(unpacked.bytes, 5_000_000);
        assert_eq!(world.shell("cmp a/c copy/c && readlink copy/link").await, "c");
        guest.remove("copy", true).await.unwrap();
    }
    assert_eq!(guest.list("a", None, 9).await.unwrap().entries.len(), 3);
    let denied = guest.write_file("/usr/x", WriteOptions::default(), b"x".as_slice()).await.unwrap_err();
    assert_eq!(denied.kind(), std::io::ErrorKind::PermissionDenied);
    // Beyond the maximum file size, where programs are killed by a signal.
    let far = WriteOptions { mode: WriteMode::At(1 << 40), ..WriteOptions::default() };
    let mut writer = guest.create_file("far", far).await.unwrap();
    writer.write(b"x").await.unwrap();
    assert_eq!(writer.finish().await.unwrap_err().kind(), Some(FailureKind::TooLarge));
    let ran = run(guest, shell("exec truncate -s 1T far")).await.unwrap();
    assert_eq!(ran.ending, Some(CommandEnding::Signalled(25)));
    let full = guest.write_file("full", WriteOptions::default(), tokio::io::repeat(1)).await.unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
}

async fn jailed_ports_are_its_own() {
    let world = Jailed::start().await;
    assert_eq!(world.guest.open_port(1).await.unwrap_err().kind(), Some(FailureKind::Refused));
    let serve = "import socket\ns = socket.create_server(('127.0.0.1', 8000))\nc, _ = s.accept()\n\
                 d = b''\nwhile (x := c.recv(9999)): d += x\nc.sendall(d[::-1])";
    let command = StartCommand::program(["/usr/bin/python3", "-c", serve]);
    match world.guest.start(command).await {
        Ok(_) => {}
        Err(error) if error.kind() == Some(FailureKind::NotFound) => return,
        Err(error) => panic!("{error}"),
    }
    let mut port = loop {
        match world.guest.open_port(8000).await {
            Ok(port) => break port,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    port.write_all(b"abc").await.unwrap();
    port.shutdown().await.unwrap();
    let mut answer = String::new();
    port.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "cba");
}

async fn jailed_forks_run_out() {
    let world = Jailed::start().await;
    let bomb =
        world.guest.start(shell("exec bash -c 'while :; do sleep 100 & done 2>/dev/null'")).await.unwrap();
    // No process can be started, but requests that need none still work.
    let refused = async || {
        let started = world.guest.start(shell("true")).await;
        started.is_err_and(|error| error.kind() == Some(FailureKind::Busy))
    };
    until("forks have run out", refused).await;
    world.guest.write_file("f", WriteOptions::default(), b"x".as_slice()).await.unwrap();
    world.guest.signal(bomb, 9).await.unwrap();
    until("processes can be started again", async || world.guest.start(shell("true")).await.is_ok()).await;
}
