//! Runs a workload over HTTP: a temporary server from this binary, and clients with keep-alive connections.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use belljar_engine::outcome::Warmth;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::error::BenchError;
use crate::sample::Sample;
use crate::workload::{CodeSample, Workload};

/// Admin key of the temporary server. It is valid only for this server and only while the benchmark runs.
const KEY: &str = "belljar-bench-only-on-this-machine-and-only-now";

/// Age at which an idle connection is not reused; well below the server's own idle timeout.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(5);

/// A temporary server and its idle connections.
#[derive(Debug)]
pub(crate) struct BenchServer {
    server: Child,
    address: SocketAddr,
    pub(crate) expected: Warmth,
    idle: Mutex<Vec<IdleConnection>>,
}

/// An idle connection and the time of its last use.
type IdleConnection = (Instant, SendRequest<Full<Bytes>>);

/// The server's response.
#[derive(Debug)]
pub(crate) struct BenchResponse {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

impl BenchResponse {
    /// Parses the JSON body of a successful response.
    pub(crate) fn json(&self) -> Result<Value, BenchError> {
        let object: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        if self.status < 300 {
            return Ok(object);
        }
        Err(failed(object["error"]["message"].as_str().unwrap_or("no message")))
    }
}

impl BenchServer {
    /// Starts a server with default settings, except for a higher sandbox limit.
    pub(crate) fn start(folder: &Path, workload: &Workload) -> Result<Self, BenchError> {
        let cannot = |what: &str, error: &dyn std::fmt::Display| failed(&format!("cannot {what}: {error}"));
        let data = folder.join(format!("data-{}", workload.name));
        let config = folder.join("belljar.toml");
        let modules: Vec<_> = workload.modules.iter().map(|name| format!("{name:?}")).collect();
        let settings =
            format!("[server]\nsandboxes = 1000\n[profiles.bench]\npreimports = [{}]\n", modules.join(", "));
        std::fs::write(&config, settings).map_err(|error| cannot("write its configuration", &error))?;
        let program =
            std::env::current_exe().map_err(|error| cannot("find the path of this binary", &error))?;
        let mut command = Command::new(program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--allow-degraded", "--data-dir"]).arg(data);
        command.env("BELLJAR_ADMIN_KEY", KEY).env("BELLJAR_CONFIG", config).env("BELLJAR_LOG", "error");
        let mut server = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| cannot("start it", &error))?;
        let mut lines =
            BufReader::new(server.stdout.take().ok_or_else(|| failed("no standard output"))?).lines();
        let address = lines.find_map(|line| line.ok()?.strip_prefix("listening on http://")?.parse().ok());
        // Built before the address is checked, so that a server without an address is killed on drop as well.
        let wanted = if workload.can_be_warm { Warmth::Pool } else { Warmth::Cold };
        let mut served =
            Self { server, address: ([127, 0, 0, 1], 0).into(), expected: wanted, idle: Mutex::default() };
        served.address = address.ok_or_else(|| failed("the server did not start"))?;
        Ok(served)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.server.id()
    }

    /// Runs a code sample. Measures from the request's first byte to the response's last.
    pub(crate) async fn run_once(
        &self,
        workload: &Workload,
        piece: &CodeSample,
    ) -> Result<Sample, BenchError> {
        let request =
            json!({"language": workload.language, "code": piece.code, "profile": "bench"}).to_string();
        let started = Instant::now();
        let answer = self.call(Method::POST, "/v1/executions", request.into()).await?;
        let took = started.elapsed();
        let result = answer.json()?;
        if result["stdout"] != piece.answer.as_str() {
            return Err(failed(result["error"].as_str().unwrap_or("unexpected output")));
        }
        let warmth = match result["receipt"]["warm"].as_str() {
            Some("pool") => Warmth::Pool,
            Some("fork") => Warmth::Fork,
            _ => Warmth::Cold,
        };
        Ok(Sample { took, warmth: Some(warmth) })
    }

    /// Sends a request over an idle connection, or over a new one.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<BenchResponse, BenchError> {
        let lost = |error: hyper::Error| failed(&error.to_string());
        let mut connection = self.connection().await?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.address.to_string())
            .header(header::AUTHORIZATION, format!("Bearer {KEY}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| failed(&error.to_string()))?;
        let response = connection.send_request(request).await.map_err(lost)?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(lost)?.to_bytes();
        self.connections().push((Instant::now(), connection));
        Ok(BenchResponse { status, body })
    }

    /// Returns an idle connection, unless the server may have closed it meanwhile; else a new one.
    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>, BenchError> {
        loop {
            let kept = self.connections().pop();
            let Some((used, mut connection)) = kept else { return self.connect().await };
            if used.elapsed() < MAX_CONNECTION_AGE && connection.ready().await.is_ok() {
                return Ok(connection);
            }
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, BenchError> {
        let stream = TcpStream::connect(self.address).await.map_err(|error| failed(&error.to_string()))?;
        stream.set_nodelay(true).map_err(|error| failed(&error.to_string()))?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error.to_string()))?;
        tokio::spawn(connection);
        Ok(sender)
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, Vec<IdleConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        // The server's sandboxes die with it; it holds no data to save.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn failed(why: &str) -> BenchError {
    BenchError::machine(format!("benchmark server: {why}"))
}
