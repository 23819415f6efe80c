//! Test registries: Debian's `docker-registry`, and a hostile one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::picture::{MANIFEST, Picture, sum};

/// Password file: `user`, `secret`.
const HTPASSWD: &str = "user:$2b$04$lbVCYHcrO6npfloJUApm/Omfo1zmCO/oHb97zaOl0F9uQQ3KTi.xy\n";
const PATIENCE: Duration = Duration::from_secs(30);

/// Debian's `docker-registry` on its own port; stopped on drop.
pub(crate) struct Registry {
    child: Child,
    folder: TempDir,
    pub(crate) address: String,
    guarded: bool,
}

impl Registry {
    /// Returns `None` if it is not installed.
    pub(crate) fn start(guarded: bool) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::write(path("htpasswd"), HTPASSWD).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let auth = format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", path("htpasswd"));
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  \
             addr: {address}\n{}",
            path("data"),
            if guarded { &auth } else { "" }
        );
        fs::write(path("config.yml"), config).unwrap();
        let mut command = Command::new("docker-registry");
        command.args(["serve", &path("config.yml")]).stdout(Stdio::null()).stderr(Stdio::null());
        let registry = Self { child: command.spawn().ok()?, folder, address, guarded };
        let begun = Instant::now();
        while TcpStream::connect(&registry.address).is_err() {
            assert!(begun.elapsed() < PATIENCE, "the registry does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(registry)
    }

    pub(crate) fn push(&self, name: &str, tag: &str, picture: &Picture) {
        for blob in picture.packed.iter().chain([&picture.config]) {
            let begun = self.curl(&["-X", "POST", "-D", "-", "-o", "/dev/null"], name, "blobs/uploads/", b"");
            let place =
                begun.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap().trim().to_owned();
            let url = format!("{place}&digest=sha256:{}", sum(blob));
            self.call(&["-X", "PUT", "-H", "Content-Type: application/octet-stream"], &url, blob);
        }
        self.put(name, tag, MANIFEST, &picture.manifest());
    }

    pub(crate) fn put(&self, name: &str, tag: &str, kind: &str, manifest: &[u8]) {
        let kind = format!("Content-Type: {kind}");
        self.curl(&["-X", "PUT", "-H", &kind], name, &format!("manifests/{tag}"), manifest);
    }

    fn curl(&self, flags: &[&str], name: &str, path: &str, body: &[u8]) -> String {
        self.call(flags, &format!("http://{}/v2/{name}/{path}", self.address), body)
    }

    fn call(&self, flags: &[&str], url: &str, body: &[u8]) -> String {
        let file = self.folder.path().join("body");
        fs::write(&file, body).unwrap();
        let mut command = Command::new("curl");
        command.args(["-sS", "--fail"]).args(flags).arg("--data-binary").arg(format!("@{}", file.display()));
        if self.guarded {
            command.args(["-u", "user:secret"]);
        }
        let output = command.arg(url).output().unwrap();
        assert!(output.status.success(), "{url}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The answers of a hostile registry, by path.
#[derive(Default, Clone)]
pub(crate) struct Answers {
    pub(crate) bodies: BTreeMap<String, Vec<u8>>,
    /// Closes the connection after this many bytes of each answer.
    pub(crate) breaks_after: Option<usize>,
    /// Stalls at that point instead of closing the connection.
    pub(crate) stalls: bool,
}

impl Answers {
    /// Serves a whole image as `liar:1`.
    pub(crate) fn of(picture: &Picture) -> Self {
        let mut answers = Self::default();
        answers.add("manifests/1", picture.manifest());
        for blob in picture.packed.iter().cloned().chain([picture.config.clone()]) {
            answers.add(&format!("blobs/sha256:{}", sum(&blob)), blob);
        }
        answers
    }

    pub(crate) fn add(&mut self, path: &str, body: Vec<u8>) {
        self.bodies.insert(format!("/v2/liar/{path}"), body);
    }
}

/// Serves these answers until the tests end, and returns the address.
pub(crate) fn lie(answers: Answers) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answers = answers.clone();
            std::thread::spawn(move || answer(stream, &answers));
        }
    });
    address
}

fn answer(mut stream: TcpStream, answers: &Answers) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    let (mut first, mut from) = (String::new(), 0);
    lines.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(range) = line.strip_prefix("range: bytes=") {
            from = range.trim_end_matches('-').parse().unwrap_or(0);
        }
        if line.is_empty() {
            break;
        }
    }
    let path = first.split(' ').nth(1).unwrap_or_default();
    let Some(body) = answers.bodies.get(path) else {
        let status = if path == "/v2/" { "200 OK" } else { "404 Not Found" };
        return write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}");
    };
    let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
    let rest = &body[from.min(body.len())..];
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {MANIFEST}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        rest.len()
    )?;
    let sent = if path.contains("/blobs/") { answers.breaks_after } else { None };
    stream.write_all(&rest[..sent.unwrap_or(usize::MAX).min(rest.len())])?;
    stream.flush()?;
    if !(answers.stalls && sent.is_some()) {
        stream.shutdown(std::net::Shutdown::Write)?;
    }
    // Waits until the client has read everything.
    let _ = stream.read(&mut [0; 64]);
    Ok(())
}

/// Counts the entries of a folder in a store.
pub(crate) fn count(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, |entries| entries.count())
}
