//! A private Docker daemon for tests: a plain process with its socket and all data in one folder, removed at
//! the end.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The image built from the unpacked root.
pub(crate) const IMAGE: &str = "belljar/test";
/// gVisor with the flags for a nested virtual machine, without and with cgroups.
const GVISOR_RUNTIMES: [(&str, &str); 2] = [
    ("runsc", "--platform=ptrace --network=none --ignore-cgroups"),
    (GVISOR_IN_CGROUP, "--platform=ptrace --network=none"),
];
pub(crate) const GVISOR_IN_CGROUP: &str = "runsc-grouped";
/// Time allowed for a daemon to answer or to exit.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(60);

/// The daemon.
pub(crate) struct Dockerd {
    folder: tempfile::TempDir,
    child: Option<Child>,
}

impl Dockerd {
    /// Starts a daemon with an image that has Python. Returns the reason on failure.
    pub(crate) fn start() -> Result<Self, String> {
        let packages = std::env::var("BELLJAR_TEST_PACKAGES").unwrap_or_default();
        let root = Path::new(&packages).join("root");
        if !root.join("usr/bin/python3").exists() {
            return Err(format!("no unpacked root in {}", root.display()));
        }
        Self::with_image(|_| Ok(root))
    }

    /// Starts a daemon with a minimal image, which is fast.
    pub(crate) fn start_minimal() -> Result<Self, String> {
        Self::with_image(|folder| {
            let bin = folder.join("root/bin");
            std::fs::create_dir_all(&bin).map_err(text)?;
            std::fs::copy("/bin/busybox", bin.join("busybox")).map_err(text)?;
            let names = ["sh", "echo", "sleep", "true", "cat", "mkdir"];
            names
                .iter()
                .try_for_each(|name| std::os::unix::fs::symlink("busybox", bin.join(name)))
                .map_err(text)?;
            Ok(folder.join("root"))
        })
    }

    fn with_image(root: impl FnOnce(&Path) -> Result<PathBuf, String>) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("belljar-docker-").tempdir().map_err(text)?;
        let root = root(folder.path())?;
        let mut daemon = Self { folder, child: None };
        daemon.restart()?;
        daemon.import(&root)?;
        Ok(daemon)
    }

    /// Returns the address in the format of `DOCKER_HOST`.
    pub(crate) fn host(&self) -> String {
        format!("unix://{}", self.file("docker.sock").display())
    }

    /// Kills the daemon, as a crash would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _killed = child.kill();
            let _reaped = child.wait();
        }
        // Its containerd dies with it, but stays a zombie on machines whose init does not reap.
        let _stale = std::fs::remove_file(self.file("exec/containerd/containerd.pid"));
    }

    /// Starts the daemon if it is not running.
    pub(crate) fn restart(&mut self) -> Result<(), String> {
        self.restart_with(&[])
    }

    /// Starts the daemon, if it is not running, with more flags.
    pub(crate) fn restart_with(&mut self, flags: &[&str]) -> Result<(), String> {
        let _stale = std::fs::remove_file(self.file("docker.pid"));
        let log = std::fs::File::create(self.file("log")).map_err(text)?;
        let mut command = Command::new("dockerd");
        command.args(["--bridge=none", "--iptables=false"]).args(flags);
        // Blocks access to registries on other machines.
        command.env("HTTPS_PROXY", "http://127.0.0.1:1");
        for (name, flags) in GVISOR_RUNTIMES {
            command.arg(format!("--add-runtime={name}={}", self.gvisor(name, flags)?.display()));
        }
        for (flag, name) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "docker.pid")] {
            command.arg(flag).arg(self.file(name));
        }
        command.arg("--host").arg(self.host()).stdin(Stdio::null());
        command.stdout(log.try_clone().map_err(text)?).stderr(log);
        self.child = Some(command.spawn().map_err(|error| format!("dockerd: {error}"))?);
        let deadline = Instant::now() + DAEMON_TIMEOUT;
        while self.docker(&["version"]).is_err() {
            let ended =
                self.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|end| end.is_some()));
            if ended || Instant::now() > deadline {
                return Err(format!("dockerd does not start: {}", self.log()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Runs the `docker` command against this daemon.
    pub(crate) fn docker(&self, words: &[&str]) -> Result<String, String> {
        let output =
            Command::new("docker").arg("--host").arg(self.host()).args(words).output().map_err(text)?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    fn import(&self, root: &Path) -> Result<(), String> {
        // Cases list processes, and some images have no `pgrep`.
        let programs = self.file("more/usr/local/bin");
        std::fs::create_dir_all(&programs).map_err(text)?;
        write_program(&programs.join("pgrep"), PGREP)?;
        self.add_curl(&programs)?;
        let mut tar = Command::new("tar");
        let mut tar = tar
            .args(["-c", "-C"])
            .arg(root)
            .arg(".")
            .arg("-C")
            .arg(self.file("more"))
            .args(["usr/local/bin/pgrep", "usr/local/bin/curl", "usr/local/curl"])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(text)?;
        let packed = tar.stdout.take().ok_or("tar has no output")?;
        let mut import = Command::new("docker");
        import.arg("--host").arg(self.host()).args(["import", "-", IMAGE]).stdin(packed);
        let imported = import.stdout(Stdio::null()).status().map_err(text)?;
        // Closes our end of the pipe, or tar could block forever.
        drop(import);
        let packed = tar.wait().map_err(text)?;
        if imported.success() && packed.success() {
            Ok(())
        } else {
            Err("the image cannot be imported".to_owned())
        }
    }

    /// Adds this machine's `curl` with its libraries, whatever the image has.
    fn add_curl(&self, programs: &Path) -> Result<(), String> {
        let needs = Command::new("ldd").arg("/usr/bin/curl").output().map_err(text)?;
        let needs = String::from_utf8_lossy(&needs.stdout).into_owned();
        let folder = self.file("more/usr/local/curl");
        std::fs::create_dir_all(&folder).map_err(text)?;
        for library in needs.split_whitespace().filter(|word| word.starts_with('/')).chain(["/usr/bin/curl"])
        {
            let name = Path::new(library).file_name().unwrap_or_default();
            std::fs::copy(library, folder.join(name)).map_err(text)?;
        }
        let start = "cd /usr/local/curl >/dev/null; exec ./ld-* --library-path /usr/local/curl ./curl \"$@\"";
        write_program(&programs.join("curl"), &format!("#!/bin/sh\n{start}\n"))
    }

    /// Lets every user reach the socket.
    pub(crate) fn open_folder(&self) {
        let _open =
            std::fs::set_permissions(self.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755));
    }

    fn gvisor(&self, name: &str, flags: &str) -> Result<PathBuf, String> {
        let script = self.file(name);
        write_program(&script, &format!("#!/bin/sh\nexec runsc {flags} \"$@\"\n"))?;
        Ok(script)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> String {
        let log = std::fs::read_to_string(self.file("log")).unwrap_or_default();
        log.lines().rev().take(5).collect::<Vec<_>>().join("\n")
    }

    /// Stops the daemon and waits for its exit, which removing its folder requires.
    fn end(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let pid = rustix::process::Pid::from_child(&child);
        let _asked = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let deadline = Instant::now() + DAEMON_TIMEOUT;
        while child.try_wait().is_ok_and(|ended| ended.is_none()) {
            if Instant::now() > deadline {
                let _killed = child.kill();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        if self.child.is_none() {
            // A crashed daemon leaves a containerd behind, which only another daemon ends.
            let _up = self.restart();
        }
        self.end();
        // Shims of containers of a crashed daemon wait forever. Their command lines contain this folder.
        let folder = self.file("exec");
        let _ended = Command::new("pkill").args(["-KILL", "-f"]).arg(folder).status();
        // A daemon turns its folder into a mount point, which a crashed one leaves behind.
        let unmount = || Command::new("umount").arg(self.file("data")).stderr(Stdio::null()).status();
        while unmount().is_ok_and(|status| status.success()) {}
    }
}

/// Finds or counts processes by name: `pgrep [-c] NAME`.
const PGREP: &str = "#!/bin/sh\n\
    for name; do :; done\n\
    count=0\n\
    for file in /proc/[0-9]*/comm; do\n\
    \x20   read -r found <$file 2>/dev/null && [ \"$found\" = \"$name\" ] || continue\n\
    \x20   count=$((count + 1))\n\
    \x20   [ \"$1\" = -c ] || echo $file\n\
    done\n\
    [ \"$1\" = -c ] && echo $count\n\
    [ $count -gt 0 ]\n";

fn write_program(path: &Path, code: &str) -> Result<(), String> {
    std::fs::write(path, code).map_err(text)?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).map_err(text)
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}

/// Debian's `docker-registry` on a local port, which Docker trusts without a certificate. Stopped on drop.
pub(crate) struct Registry {
    child: Child,
    _folder: tempfile::TempDir,
    pub(crate) address: String,
}

impl Registry {
    /// Starts the registry. Returns `None` if it is not installed.
    pub(crate) fn start() -> Result<Option<Self>, String> {
        let folder = tempfile::tempdir().map_err(text)?;
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|found| found.local_addr());
        let address = free.map_err(text)?.to_string();
        let (data, file) = (folder.path().join("data"), folder.path().join("config.yml"));
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {address}\n",
            data.display()
        );
        std::fs::write(&file, config).map_err(text)?;
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(file).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(child) = command.spawn() else { return Ok(None) };
        let registry = Self { child, _folder: folder, address };
        let deadline = Instant::now() + DAEMON_TIMEOUT;
        while std::net::TcpStream::connect(&registry.address).is_err() {
            if Instant::now() > deadline {
                return Err("the registry does not start".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Some(registry))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
