//! Sandboxes with a writable root, on an unpacked Debian.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::common::beside;
use crate::common::server::Server;
use crate::wait_for;

/// The server, the folder of its data, the folder that sandboxes may mount, and the image.
struct Debian {
    server: Server,
    folder: tempfile::TempDir,
    shared: tempfile::TempDir,
    image: PathBuf,
}

/// Returns an unpacked root or another folder that `./test --all` prepares.
fn prepared(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("BELLJAR_TEST_PACKAGES")
        .map_or_else(|| beside("../../../target/test-packages"), PathBuf::from);
    folder.join(name).canonicalize().ok()
}

impl Debian {
    /// Starts a server, or returns why there can be no writable root.
    fn start() -> Result<Self, String> {
        let Some(image) = prepared("root").filter(|root| root.join("usr/bin/apt-get").exists()) else {
            return Err("no debootstrap root exists: ./test --all creates it".to_owned());
        };
        let (folder, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = shared.path();
        let mut settings = format!(
            "writable_root = true\n[server.host_folders.files]\npath = {files:?}\n[profiles.debian]\nimage = {image:?}\n\
             limits = {{ memory_bytes = 536870912, disk_bytes = 536870912 }}\n"
        );
        if let Some(venv) = prepared("venv") {
            settings.push_str(&format!("[server.host_folders.venv]\npath = {venv:?}\n"));
        }
        let server = Server::configured(folder.path(), &settings);
        let opened = server.post("/v1/sandboxes", &json!({"profile": "debian", "root": "writable"}));
        if opened.status == 422 && opened.code() == "unsupported" {
            return Err(opened.text());
        }
        assert_eq!(opened.status, 201, "{}", opened.text());
        Ok(Self { server, folder, shared, image })
    }

    fn sandbox(&self, more: Value) -> String {
        let mut request = json!({"profile": "debian", "root": "writable"});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.server.sandbox(&request)
    }

    fn shell(&self, url: &str, line: &str) -> Value {
        let code = json!({"language": "bash", "code": line, "limits": {"timeout_ms": 120_000}});
        self.server.post(&format!("{url}/executions"), &code).json()
    }

    /// Runs a line of shell, which must succeed, and returns its output without the final newline.
    fn says(&self, url: &str, line: &str) -> String {
        let ran = self.shell(url, line);
        assert_eq!(ran["status"], "succeeded", "{line}: {ran}");
        ran["stdout"].as_str().unwrap().trim_end().to_owned()
    }

    /// Makes a package with a service user, a set-uid program and a script that runs when it is installed.
    fn make_package(&self) {
        let root = self.folder.path().join("package");
        let script = "#!/bin/sh\nset -e\nuseradd --system --home-dir /var/lib/hello hello\nmkdir -p /var/lib/hello\n\
                      chown hello:hello /var/lib/hello\nldconfig\n";
        let control = "Package: hello-local\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@example.org>\n\
                       Depends: passwd, libc-bin\nDescription: a test\n";
        for (path, text, mode) in [
            ("DEBIAN/control", control, 0o644),
            ("DEBIAN/postinst", script, 0o755),
            ("usr/bin/hello-local", "#!/bin/sh\necho hello from a package\n", 0o755),
            ("usr/bin/hello-setuid", "#!/bin/sh\nid -u\n", 0o4755),
            ("etc/hello/config", "answer = 42\n", 0o600),
        ] {
            use std::os::unix::fs::PermissionsExt;
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let archive = self.shared.path().join("hello-local.deb");
        let mut command = Command::new("dpkg-deb");
        let built = command.args(["--build", "--root-owner-group"]).arg(&root).arg(archive).output().unwrap();
        assert!(built.status.success(), "{built:?}");
    }
}

macro_rules! debian_or_skip {
    () => {
        match Debian::start() {
            Ok(debian) => debian,
            Err(why) => return eprintln!("skipped: {why}"),
        }
    };
}

fn files() -> Value {
    json!({"volumes": [{"host": "files", "path": "/mnt/files", "read_only": true}]})
}

#[test]
fn package_managers_and_user_tools_work() {
    let debian = debian_or_skip!();
    debian.make_package();
    let url = debian.sandbox(files());
    assert_eq!(debian.says(&url, "id -u; id -un; id -G"), "0\nroot\n0");
    debian.says(&url, "apt-get install --yes --no-install-recommends /mnt/files/hello-local.deb");
    assert_eq!(
        debian.says(&url, "hello-local; dpkg -s hello-local | grep Status"),
        "hello from a package\nStatus: install ok installed"
    );
    assert_eq!(
        debian.says(&url, "stat -c '%U %G' /var/lib/hello; stat -c '%a %U' /usr/bin/hello-setuid"),
        "hello hello\n4755 root"
    );
    debian
        .says(&url, "useradd --create-home ada && echo 'x=1' > /home/ada/file && chown -R ada:ada /home/ada");
    assert_eq!(
        debian.says(&url, "su ada -c 'id -un; cat ~/file; cat /etc/hello/config 2>&1 || true'"),
        "ada\nx=1\ncat: /etc/hello/config: Permission denied"
    );
    debian.says(&url, "mkdir /data /app && echo 1 > /data/x && ln -s /data/x /app/x && mv /app /srv/app && rm -r /usr/share/doc");
    debian.says(&url, "dpkg --remove hello-local && ! test -e /usr/bin/hello-local && dpkg --configure -a");
    // An installed file replaces one of the image, and the dynamic linker's cache can be written.
    debian.says(
        &url,
        "cp /usr/bin/env /usr/bin/env.new && mv /usr/bin/env.new /usr/bin/env && ldconfig && env true",
    );
}

#[test]
fn pip_installs_into_the_system() {
    let debian = debian_or_skip!();
    if prepared("venv").is_none() {
        return eprintln!("skipped: no virtual environment: ./test creates it");
    }
    let wheel = r#"
import sys, zipfile
with zipfile.ZipFile("/workspace/onlyhere-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("onlyhere.py", "def main(): print('installed into', __file__)\n")
    wheel.writestr("onlyhere-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: onlyhere\nVersion: 1.0\n")
    wheel.writestr("onlyhere-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("onlyhere-1.0.dist-info/entry_points.txt", "[console_scripts]\nonlyhere = onlyhere:main\n")
    wheel.writestr("onlyhere-1.0.dist-info/RECORD", "")
"#;
    let url = debian.sandbox(json!({"volumes": [{"host": "venv", "path": "/mnt/venv", "read_only": true}]}));
    let made = debian
        .server
        .post(&format!("{url}/executions"), &json!({"language": "python", "code": wheel}))
        .json();
    assert_eq!(made["status"], "succeeded", "{made}");
    debian.says(&url, "export PYTHONPATH=$(echo /mnt/venv/lib/python3*/site-packages); mkdir /tmp/pip; cp -r $PYTHONPATH/pip /tmp/pip; \
                       PYTHONPATH=/tmp/pip python3 -m pip install --no-index ./onlyhere-1.0-py3-none-any.whl");
    let said = debian.says(&url, "cd / && onlyhere");
    assert!(said.starts_with("installed into /usr/local/lib/python3"), "{said}");
}

#[test]
fn changes_stay_in_their_sandbox_and_within_its_disk() {
    let debian = debian_or_skip!();
    let (one, two) = (debian.sandbox(json!({})), debian.sandbox(json!({})));
    let version = std::fs::read_to_string(debian.image.join("etc/debian_version")).unwrap();
    debian.says(&one, "echo changed > /etc/debian_version; rm -rf /usr/share/perl5 /var/lib/dpkg; mkdir /only-here; echo x > /root/x");
    assert_eq!(
        debian.says(
            &two,
            "cat /etc/debian_version; ls -d /var/lib/dpkg; ls -d /only-here /root/x 2>&1 | grep -c 'No such'"
        ),
        format!("{}\n/var/lib/dpkg\n2", version.trim())
    );
    assert_eq!(std::fs::read_to_string(debian.image.join("etc/debian_version")).unwrap(), version);
    assert!(debian.image.join("var/lib/dpkg/status").exists() && !debian.image.join("only-here").exists());

    let full = "cat /dev/zero > /var/fill 2>/tmp/why; grep -o 'No space left on device' /tmp/why; rm /var/fill; echo alive > /var/x && cat /var/x";
    assert_eq!(debian.says(&one, full), "No space left on device\nalive");
    let before = debian.server.get(&format!("{one}/stats")).json()["disk_bytes"].as_u64().unwrap();
    debian.says(&one, "head -c 32M /dev/zero > /opt/large");
    let after = debian.server.get(&format!("{one}/stats")).json()["disk_bytes"].as_u64().unwrap();
    assert!(after >= before + (32 << 20), "the root is on the disk: {before} {after}");
    // A snapshot has the workspace only.
    debian.says(&one, "echo kept > /workspace/kept");
    let snapshot = debian.server.post(&format!("{one}/snapshots"), &json!({})).json();
    let third = debian.sandbox(json!({"snapshot": snapshot["id"]}));
    assert_eq!(
        debian.says(&third, "cat kept; stat -c %u kept; cat /etc/debian_version"),
        format!("kept\n0\n{}", version.trim())
    );
}

/// What the root user tries in vain.
const REFUSED: &[&str] = &[
    "mount -t tmpfs none /mnt",
    "mount -o remount,rw /proc",
    "umount /proc/sys",
    "unshare --user true",
    "unshare --mount true",
    "chroot / true",
    "mknod /dev/x c 1 1",
    "mknod /x c 1 1",
    "mknod /x b 7 0",
    "echo x > /proc/sys/kernel/core_pattern",
    "echo b > /proc/sysrq-trigger",
    "echo -1000 > /proc/self/oom_score_adj",
    "echo 0 > /proc/1/oom_score_adj",
    "cat /proc/1/environ",
    "ls /proc/1/root/",
    "ls /proc/1/fd",
    "touch /dev/x",
    "touch /sys/x",
    "touch /proc/x",
    "rm /dev/null",
    "mv /dev /dev2",
    "mv /proc /proc2",
    "rmdir /sys",
    "rm -r /tmp",
    "mv /tmp /tmp2",
    "nsenter -t 1 -m true",
    "setpriv --reuid 1000 --clear-groups --bounding-set +all true",
    "sysctl -w kernel.hostname=x",
    "hostname x",
    "date -s 2001-01-01",
    "nice -n -5 true && test $(nice -n -5 nice) -lt 0",
    "prlimit --nofile=unlimited true",
    "ip link add x type dummy",
    "losetup -f",
    "dmesg",
    "swapon /x",
    "setcap cap_sys_admin+ep /usr/bin/env",
];

#[test]
fn the_receipt_says_what_the_root_user_may_do() {
    let debian = debian_or_skip!();
    let url = debian.sandbox(json!({}));
    let shown = debian.server.get(&url).json();
    let layers: Vec<_> = shown["receipt"]["isolation"]
        .as_array()
        .unwrap()
        .iter()
        .map(|layer| layer.as_str().unwrap())
        .collect();
    assert!(!layers.contains(&"read_only_root") && !layers.contains(&"no_capabilities"), "{layers:?}");
    for layer in
        ["user_ns", "no_new_privs", "seccomp", "landlock", "disk_quota", "separate_uid", "cgroup.pids"]
    {
        assert!(layers.contains(&layer), "{layer}: {layers:?}");
    }
    let root = &shown["receipt"]["root"];
    let capabilities = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"];
    assert_eq!((&root["access"], &root["capabilities"]), (&json!("writable"), &json!(capabilities)));

    let required = json!({"profile": "debian", "root": "writable", "require": ["no_capabilities"]});
    assert_eq!(debian.server.post("/v1/sandboxes", &required).status, 422);
}

#[test]
fn the_root_user_has_no_rights_outside() {
    let debian = debian_or_skip!();
    let url = debian.sandbox(json!({}));
    let map = debian.says(&url, "cat /proc/self/uid_map");
    let numbers: Vec<u64> = map.split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert!(numbers[0] == 0 && numbers[1] >= 0x7100_0000 && numbers[2] == 65_536, "{map}");
    let sets = debian
        .says(&url, "grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp:' /proc/self/status | cut -f2");
    let known = "00000000000000fb";
    assert_eq!(sets, format!("0000000000000000\n{known}\n{known}\n{known}\n0000000000000000\n1\n2"));
    for refused in REFUSED {
        let ran = debian.shell(&url, refused);
        assert_ne!(ran["status"], "succeeded", "{refused}: {ran}");
    }
    let signals = "for signal in $(seq 1 64); do kill -$signal 1; done; echo still here";
    assert_eq!(debian.says(&url, signals), "still here");
    // A set-uid program gives an ordinary user nothing.
    let bits = "useradd eve; cp /usr/bin/id /usr/bin/own-id; chmod 6755 /usr/bin/own-id; su eve -c 'own-id -u' | grep -qx \"$(id -u eve)\"";
    debian.says(&url, bits);
    let mounts = debian.says(&url, "awk '{print $5, $6, $0}' /proc/self/mountinfo");
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (path, options) = (words.next().unwrap(), words.next().unwrap());
        assert!(options.contains("nosuid"), "{line}");
        let writable = options.split(',').any(|option| option == "rw");
        assert!(!writable || options.contains("nodev") || path == "/dev/pts", "{line}");
        assert!(!writable || !["/proc", "/sys"].iter().any(|kernel| path.starts_with(kernel)), "{line}");
    }
    assert!(
        !mounts.contains(debian.image.to_str().unwrap()),
        "the image's place on the host is hidden: {mounts}"
    );
}

#[test]
fn host_ids_are_the_sandboxes_own() {
    let debian = debian_or_skip!();
    let base = |url: &str| debian.says(url, "awk '{print $2}' /proc/self/uid_map").parse::<u64>().unwrap();
    let (one, two) = (debian.sandbox(json!({})), debian.sandbox(json!({})));
    let (first, second) = (base(&one), base(&two));
    assert!(first.abs_diff(second) >= 65_536, "{first} {second}");
    assert_eq!(debian.server.delete(&one).status, 200);
    let third = base(&debian.sandbox(json!({})));
    assert!(third.abs_diff(second) >= 65_536, "{second} {third}");
}

#[test]
fn what_leaves_the_sandbox_has_no_rights() {
    let debian = debian_or_skip!();
    let url = debian.sandbox(json!({}));
    debian.says(&url, "cp /usr/bin/id id; chown 33:33 id; chmod 6755 id; mkdir folder; chmod 3777 folder");
    let archive = debian.server.get(&format!("{url}/files/archive?path=.&format=tar"));
    assert_eq!(archive.status, 200, "{}", archive.text());
    let folder = debian.folder.path().join("unpacked");
    std::fs::create_dir(&folder).unwrap();
    let tar = folder.join("a.tar");
    std::fs::write(&tar, &archive.body).unwrap();
    let listed = Command::new("tar").args(["--numeric-owner", "-tvf"]).arg(&tar).output().unwrap().stdout;
    let listed = String::from_utf8(listed).unwrap();
    let entry = |name: &str| listed.lines().find(|line| line.trim_end_matches('/').ends_with(name)).unwrap();
    assert!(entry(" id").starts_with("-rwxr-xr-x 0/0 "), "{listed}");
    assert!(entry(" folder").starts_with("drwxrwxrwx 0/0 "), "{listed}");
    // The files API acts within the sandbox, where `/dev`, `/proc` and `/sys` are read-only.
    for path in ["/proc/sys/kernel/core_pattern", "/proc/1/environ", "/sys/x", "/dev/x", "/run/belljar/x"] {
        let wrote = debian.server.call("PUT", &format!("{url}/files?path={path}"), "", b"x");
        assert!((400..500).contains(&wrote.status), "{path}: {}", wrote.text());
    }
}

#[test]
fn only_a_root_of_its_own_is_writable() {
    let debian = debian_or_skip!();
    let made = debian.server.post("/v1/volumes", &json!({"name": "kept", "size_bytes": 1 << 20}));
    assert_eq!(made.status, 201, "{}", made.text());
    let refused = |more: Value, why: &str| {
        let mut request = json!({"profile": "debian", "root": "writable"});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let refused = debian.server.post("/v1/sandboxes", &request);
        assert_eq!((refused.status, refused.code().as_str()), (422, "unsupported"), "{}", refused.text());
        assert!(refused.text().contains(why), "{}", refused.text());
    };
    refused(json!({"volumes": [{"name": "kept", "path": "/data"}]}), "read_only");
    refused(json!({"image": "host"}), "name an image");
    refused(json!({"disk_storage": "memory"}), "disk_storage 'file'");
    let url = debian.sandbox(json!({"volumes": [{"name": "kept", "path": "/data", "read_only": true}]}));
    debian.says(&url, "! touch /data/x && ! chmod 4755 /data && ! mv /data /data2");
    let code = json!({"language": "python", "code": "import six", "dependencies": {"packages": ["six"]}});
    let refused = debian.server.post(&format!("{url}/executions"), &code);
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert!(refused.text().contains("install them in it"), "{}", refused.text());
}

#[test]
fn only_what_the_operator_allows_is_writable() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let refused = server.post("/v1/sandboxes", &json!({"root": "writable"}));
    assert_eq!((refused.status, refused.code().as_str()), (422, "unsupported"), "{}", refused.text());
    assert!(refused.text().contains("writable_root"), "{}", refused.text());
    let ordinary = server.sandbox(&json!({"root": "read_only"}));
    assert!(server.get(&ordinary).json()["receipt"]["root"].is_null());
}

#[test]
fn a_killed_server_leaves_nothing_of_a_writable_root() {
    let mut debian = debian_or_skip!();
    let url = debian.sandbox(json!({}));
    debian.says(&url, "echo x > /etc/x");
    debian.server.child.kill().unwrap();
    debian.server.child.wait().unwrap();
    let is_of = |file: String| Path::new(&file).starts_with(debian.folder.path());
    wait_for("the kernel removed the disks", || {
        let devices = std::fs::read_dir("/sys/block").unwrap().flatten();
        let files = devices
            .filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok());
        files.filter(|file| is_of(file.clone())).count() == 0
    });
}
