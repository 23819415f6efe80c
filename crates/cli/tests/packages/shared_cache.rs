//! Two machines, simulated by two home folders, with a shared cache.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Answer, finish};
use crate::expect::skip;
use crate::fixture::{Kit, PackageFixture, all_tests};

const CODE: &str = "import six; print(six.__name__)";

/// Runs on a machine that uses a shared cache.
fn run(fixture: &PackageFixture, settings: &str, with: impl Fn(&mut Command)) -> Answer {
    let config = fixture.folder().join("sharing.toml");
    std::fs::write(&config, format!("[dependencies]\n{settings}\n")).expect("a file of the test's own");
    let mut command = fixture.command();
    with(&mut command);
    let answer = finish(command.arg("--config").arg(config).args(["run", "--json", "-c", CODE]));
    assert_eq!(answer.lines(), ["six"], "{} {}", answer.json, answer.stderr);
    answer
}

fn cache(answer: &Answer) -> &str {
    answer.json["dependencies"]["cache"].as_str().unwrap_or_default()
}

fn archives(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let layers = entries.flat_map(|layer| std::fs::read_dir(layer.path()).into_iter().flatten().flatten());
    layers.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "tar")).collect()
}

#[test]
fn machines_share_layers_through_a_folder() {
    let (here, there) = (fixture!(Kit::Fast), fixture!(Kit::Fast));
    let shared = here.folder().join("shared");
    let settings = format!("shared_cache = \"file://{}\"", shared.display());
    assert_eq!(cache(&run(&here, &settings, |_| {})), "miss");
    let taken = run(&there, &settings, |_| {});
    assert_eq!((cache(&taken), taken.stderr.as_str(), there.staged()), ("hit", "", 0));
    if !all_tests() {
        return skip("a cache that was changed", "only with ./test --all");
    }
    // Modify one byte of a module in the cache.
    let third = fixture!(Kit::Fast);
    let archive = archives(&shared).pop().expect("one layer");
    let mut bytes = std::fs::read(&archive).expect("an archive");
    let at = bytes.windows(9).position(|window| window == b"__author_").expect("six names its author");
    bytes[at] = b'X';
    std::fs::write(&archive, bytes).expect("a file of the test's own");
    let built = run(&third, &settings, |_| {});
    assert_eq!((cache(&built), third.staged()), ("miss", 0));
    assert!(built.stderr.contains("of the shared cache is invalid"), "{}", built.stderr);
}

#[test]
fn an_unresponsive_cache_times_out() {
    if !all_tests() {
        return skip("a silent cache", "only with ./test --all");
    }
    let fixture = fixture!(Kit::Fast);
    // The kernel accepts connections, but no process reads them.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", silent.local_addr().expect("an address"));
    let settings = "shared_cache = \"s3://layers/here\"\nshared_cache_wait = \"300ms\"";
    let built = run(&fixture, settings, |command| bucket(command, &endpoint));
    assert_eq!(cache(&built), "miss");
    let why = "the shared cache of layers failed and is not used: timed out after 300 ms";
    assert_eq!(built.stderr.matches(why).count(), 1, "{}", built.stderr);
    assert!(!built.stderr.contains("not-a-secret"), "{}", built.stderr);
}

fn bucket(command: &mut Command, endpoint: &str) {
    command
        .env("AWS_ENDPOINT", endpoint)
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "tests")
        .env("AWS_SECRET_ACCESS_KEY", "not-a-secret");
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        command.env_remove(name);
    }
}

/// An S3 server; stopped on drop.
struct Bucket(Child, String);

impl Bucket {
    fn start() -> Result<Self, String> {
        let packages = std::env::var_os("BELLJAR_TEST_PACKAGES").ok_or("./test installs a server of S3")?;
        let program = Path::new(&packages).join("s3/bin/moto_server");
        if !program.is_file() {
            return Err("a server of S3 is not installed; ./test --all installs it".to_owned());
        }
        let free = TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr());
        let address = free.map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &address.port().to_string()]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let bucket = Self(child.map_err(|error| error.to_string())?, address.to_string());
        let started = Instant::now();
        while bucket.ask("PUT /layers").is_none_or(|answer| !answer.starts_with("HTTP/1.1 200")) {
            assert!(started.elapsed() < Duration::from_secs(60), "the S3 server does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(bucket)
    }

    fn ask(&self, what: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.1).ok()?;
        let head =
            format!("{what} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", self.1);
        stream.write_all(head.as_bytes()).ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        Some(String::from_utf8_lossy(&answer).into_owned())
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _waited = self.0.wait();
    }
}

#[test]
fn machines_share_layers_through_s3() {
    if !all_tests() {
        return skip("a bucket", "an S3 server takes long to start; only with ./test --all");
    }
    let server = match Bucket::start() {
        Ok(server) => server,
        Err(why) => return skip("a bucket", &why),
    };
    let endpoint = format!("http://{}", server.1);
    let (here, there) = (fixture!(Kit::Fast), fixture!(Kit::Fast));
    let settings = "shared_cache = \"s3://layers/here\"";
    let with = |command: &mut Command| bucket(command, &endpoint);
    let built = run(&here, settings, with);
    assert_eq!((cache(&built), built.stderr.as_str()), ("miss", ""));
    let listed = server.ask("GET /layers?list-type=2").expect("it lists");
    assert!(listed.contains("<Key>here/") && listed.contains("/layer.json</Key>"), "{listed}");
    let taken = run(&there, settings, with);
    assert_eq!((cache(&taken), taken.stderr.as_str()), ("hit", ""));
}
