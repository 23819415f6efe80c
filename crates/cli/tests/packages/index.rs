//! Local registries with unpublished packages.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Answer, finish};
use crate::fixture::PackageFixture;

/// A registry of each kind, which serves until the test program ends.
#[derive(Debug)]
pub(crate) struct Index {
    address: String,
    pub(crate) config: PathBuf,
}

impl Index {
    pub(crate) fn new(fixture: &PackageFixture) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let folder = fixture.folder().join("served");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages/make_packages.py");
        let made =
            Command::new("python3").arg(script).arg(&folder).arg(&address).arg(fixture.folder()).status();
        assert!(made.is_ok_and(|status| status.success()));
        std::fs::write(fixture.folder().join("secret"), "the host's").expect("a file");
        let config = fixture.folder().join("builds.toml");
        std::fs::write(&config, "[profiles.builds]\nbuild_packages = true\n").expect("a file");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let folder = folder.clone();
                std::thread::spawn(move || serve(&stream, &folder));
            }
        });
        Self { address, config }
    }

    /// Returns a command that uses only these registries, with secrets in the environment.
    pub(crate) fn command(&self, fixture: &PackageFixture) -> Command {
        let mut command = fixture.command();
        for name in ["PIP_FIND_LINKS", "UV_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "UV_INDEX"] {
            command.env_remove(name);
        }
        let python = self.address.replace("://", "://ann:secret@");
        command
            .env("BELLJAR_CONFIG", &self.config)
            .env("BELL_SECRET_TOKEN", "secret")
            .env("PIP_INDEX_URL", format!("{python}/simple"))
            .env("UV_DEFAULT_INDEX", format!("{python}/simple"))
            .env("NPM_CONFIG_REGISTRY", format!("{}/npm/", self.address));
        command
    }

    pub(crate) fn run(&self, fixture: &PackageFixture, arguments: &[&str]) -> Answer {
        finish(self.command(fixture).args(["run", "--json"]).args(arguments))
    }

    /// Runs code with a profile that may build packages.
    pub(crate) fn building(&self, fixture: &PackageFixture, arguments: &[&str]) -> Answer {
        finish(self.command(fixture).args(["run", "--json", "--profile", "builds"]).args(arguments))
    }
}

/// Serves files, one request per connection.
fn serve(stream: &TcpStream, folder: &Path) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let mut headers = lines.take_while(|line| !line.is_empty());
    // Python packages require the password.
    let known = headers.by_ref().any(|line| line.to_lowercase().starts_with("authorization: basic "));
    headers.for_each(drop);
    let path = first.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
    let is_page = path.starts_with("simple/");
    let file = folder.join(path);
    let file = if is_page { file.join("index.html") } else { file };
    let content = std::fs::read(file).ok().filter(|_| !path.contains("..") && (known || !is_page));
    let kind = if is_page { "text/html" } else { "application/json" };
    let (status, content) = content.map_or(("404 Not Found", Vec::new()), |content| ("200 OK", content));
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        content.len()
    );
    let mut stream = stream;
    // The client may have disconnected.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&content));
}
