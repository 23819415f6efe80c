//! `belljar serve` with TLS: the real binary, curl, and `belljar run --server https://…`.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

const KEY: &str = "a-key-for-tests-that-is-long-enough-to-be-one";
const RUN: &str = r#"{"language":"python","code":"print(6 * 7)"}"#;

/// Creates a self-signed certificate and its key.
fn make_pair(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let (certificate, key) =
        (folder.join(format!("{name}-cert.pem")), folder.join(format!("{name}-key.pem")));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    openssl.args(["-subj", "/CN=belljar", "-days", "2", "-addext", "subjectAltName=IP:127.0.0.1"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    let made = openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (certificate, key)
}

struct Server {
    child: Child,
    url: String,
    log: BufReader<ChildStderr>,
}

impl Server {
    fn start(folder: &Path, certificate: &Path, key: &Path) -> Self {
        let mut command = belljar(folder);
        command.args(["--listen", "127.0.0.1:0", "--allow-degraded"]);
        command.arg("--tls-cert").arg(certificate).env("BELLJAR_TLS_KEY", key);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let log = BufReader::new(child.stderr.take().unwrap());
        let first = lines.next().unwrap().unwrap();
        let url = first.strip_prefix("listening on ").unwrap().to_owned();
        Self { child, url, log }
    }

    /// Sends SIGHUP and waits for the log line about the reload.
    fn hang_up(&mut self) -> String {
        let sent = Command::new("kill").args(["-HUP", &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        loop {
            let mut line = String::new();
            assert_ne!(self.log.read_line(&mut line).unwrap(), 0, "the server exited");
            if line.contains("certificate") {
                return line;
            }
        }
    }

    fn curl(&self, authority: &Path) -> Output {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "30", "-H", &format!("Authorization: Bearer {KEY}"), "--json", RUN]);
        curl.arg("--cacert").arg(authority).arg(format!("{}/v1/executions", self.url)).output().unwrap()
    }

    fn accepts(&self, authority: &Path) -> bool {
        let output = self.curl(authority);
        output.status.success() && String::from_utf8(output.stdout).unwrap().contains(r#""stdout":"42\n""#)
    }

    /// Runs the command line as a client.
    fn run(&self, authority: Option<&Path>) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(["run", "--server", &self.url, "-c", "print(6 * 7)"]).env("BELLJAR_API_KEY", KEY);
        command.env_remove("BELLJAR_CA_CERT");
        if let Some(path) = authority {
            command.env("BELLJAR_CA_CERT", path);
        }
        said(&command.output().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn belljar(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(["serve", "--data-dir"]).arg(folder.join("data")).env("BELLJAR_ADMIN_KEY", KEY);
    command.env_remove("BELLJAR_TLS_CERT").env_remove("BELLJAR_TLS_KEY").env("BELLJAR_LOG", "info");
    command
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn code_runs_over_https_and_the_certificate_can_be_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (certificate, key) = make_pair(folder, "first");
    let (second, second_key) = make_pair(folder, "second");
    let first = folder.join("first.pem");
    fs::copy(&certificate, &first).unwrap();
    let mut server = Server::start(folder, &certificate, &key);
    assert!(server.url.starts_with("https://127.0.0.1:"), "{}", server.url);
    assert!(server.accepts(&first) && !server.accepts(&second));
    assert_eq!(server.run(Some(&first)), (Some(0), "42\n".to_owned()));
    let (status, text) = server.run(None);
    assert!(status == Some(125) && text.contains("set BELLJAR_CA_CERT to a PEM file"), "{text}");
    assert!(server.run(Some(&key)).1.contains("contains no '-----BEGIN CERTIFICATE-----'"));

    fs::copy(&second, &certificate).unwrap();
    let line = server.hang_up();
    assert!(
        line.contains("cannot reload the certificate") && line.contains("does not match the certificate"),
        "{line}"
    );
    assert!(server.accepts(&first));
    fs::copy(&second_key, &key).unwrap();
    let line = server.hang_up();
    assert!(line.contains("certificate reloaded"), "{line}");
    assert!(server.accepts(&second) && !server.accepts(&first));
    fs::remove_file(&key).unwrap();
    let line = server.hang_up();
    assert!(line.contains("cannot reload the certificate") && line.contains("first-key.pem"), "{line}");
    assert!(server.accepts(&second));
}

#[test]
fn unusable_tls_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (certificate, key) = make_pair(folder, "one");
    let (other, _) = make_pair(folder, "other");
    let absent = folder.join("absent.pem");
    let refused = |certificate: &Path, key: &Path| {
        let mut command = belljar(folder);
        let (status, text) =
            said(&command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key).output().unwrap());
        assert_eq!(status, Some(125), "{text}");
        text
    };
    assert!(refused(&absent, &key).contains("--tls-cert: cannot read"));
    assert!(refused(&certificate, &absent).contains("absent.pem': No such file"));
    let text = refused(&other, &key);
    assert!(text.contains("other-cert.pem") && text.contains("does not match the certificate"), "{text}");
    assert!(refused(&key, &key).contains("certificate: has no '-----BEGIN CERTIFICATE-----'"));
    let (_, text) = said(&belljar(folder).arg("--tls-cert").arg(&certificate).output().unwrap());
    assert!(text.contains("--tls-cert also needs --tls-key"), "{text}");
}

#[test]
fn tls_settings_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("belljar.toml");
    let text = "[server]\ntls_cert = \"/c.pem\"\nmetrics_listen = \"127.0.0.1:9117\"\n";
    fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(["config", "show", "--config"]).arg(&file).env("BELLJAR_TLS_KEY", "/k.pem");
    command.env_remove("BELLJAR_TLS_CERT").env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
    let (_, shown) = said(&command.output().unwrap());
    for (name, value, origin) in [
        ("server.tls_cert", "/c.pem", "belljar.toml"),
        ("server.metrics_listen", "127.0.0.1:9117", "belljar.toml"),
        ("server.tls_key", "/k.pem", "BELLJAR_TLS_KEY"),
        ("server.otlp_endpoint", "http://127.0.0.1:4318", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ] {
        let line = shown.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")));
        assert!(line.is_some_and(|line| line.contains(value) && line.contains(origin)), "{name}: {shown}");
    }
}
