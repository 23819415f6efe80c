//! Exports spans in batches, one HTTP call each. Spans that cannot be sent are dropped and counted, never
//! retried.

use std::io;
use std::pin::pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::{Request, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::json::{TraceSpan, body};
use crate::error::Error;

/// Maximum number of spans in one call.
const MAX_BATCH_SPANS: usize = 512;
/// How long the first span of a batch waits for more.
const BATCH_DELAY: Duration = Duration::from_millis(500);
/// Timeout of one call.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// An OpenTelemetry collector that accepts OTLP over plain HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceCollector {
    authority: String,
    path: String,
}

impl FromStr for TraceCollector {
    type Err = Error;

    /// Parses `http://HOST:PORT`, with an optional path, as in `OTEL_EXPORTER_OTLP_ENDPOINT`.
    fn from_str(url: &str) -> Result<Self, Error> {
        let refused = |why: &str| Error::Invalid { field: "otlp_endpoint", message: why.to_owned() };
        let rest = url.strip_prefix("http://").ok_or_else(|| {
            refused("must be http://HOST:PORT, such as http://127.0.0.1:4318; for TLS, use a local collector")
        })?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
        let in_path = |byte: u8| plain(byte) || b"/~%".contains(&byte);
        if authority.is_empty() || !authority.bytes().all(plain) || !path.bytes().all(in_path) {
            return Err(refused("must be http://HOST:PORT, for example http://127.0.0.1:4318"));
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:4318") };
        let path = path.trim_end_matches('/');
        let path = if path.is_empty() { "/v1/traces".to_owned() } else { format!("/{path}/v1/traces") };
        Ok(Self { authority, path })
    }
}

/// Exports spans until asked to stop, then exports the rest.
pub(super) async fn run(
    collector: TraceCollector,
    mut spans: mpsc::Receiver<TraceSpan>,
    mut stop: oneshot::Receiver<()>,
    dropped: Arc<AtomicU64>,
) {
    let mut sender = SpanSender { collector, dropped, failing: false };
    let (mut batch, mut open) = (Vec::new(), true);
    while open {
        tokio::select! {
            // An error means the tracer is gone, which also means stop.
            _ = &mut stop => open = false,
            count = spans.recv_many(&mut batch, MAX_BATCH_SPANS) => open = count > 0,
        }
        if open {
            tokio::select! {
                _ = &mut stop => open = false,
                () = fill(&mut spans, &mut batch) => {}
            }
        }
        sender.send(&mut batch).await;
    }
    spans.close();
    while spans.recv_many(&mut batch, MAX_BATCH_SPANS).await > 0 {
        sender.send(&mut batch).await;
    }
}

/// Waits briefly for the batch to fill up.
async fn fill(spans: &mut mpsc::Receiver<TraceSpan>, batch: &mut Vec<TraceSpan>) {
    let full = async {
        while batch.len() < MAX_BATCH_SPANS && spans.recv_many(batch, MAX_BATCH_SPANS - batch.len()).await > 0
        {
        }
    };
    tokio::select! {
        () = full => {}
        () = sleep(BATCH_DELAY) => {}
    }
}

struct SpanSender {
    collector: TraceCollector,
    dropped: Arc<AtomicU64>,
    /// Whether the last call failed, so that a lasting failure is logged once.
    failing: bool,
}

impl SpanSender {
    async fn send(&mut self, batch: &mut Vec<TraceSpan>) {
        let spans = std::mem::take(batch);
        if spans.is_empty() {
            return;
        }
        let sent = timeout(EXPORT_TIMEOUT, self.collector.post(body(&spans))).await;
        let failed = match sent {
            Ok(Ok(status)) if status.is_success() => None,
            Ok(Ok(status)) => Some(format!("the collector answered {status}")),
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("no answer".to_owned()),
        };
        if let Some(why) = &failed {
            self.dropped.fetch_add(spans.len() as u64, Ordering::Relaxed);
            if !self.failing {
                tracing::warn!(
                    collector = self.collector.authority,
                    why,
                    "cannot send traces; dropping them"
                );
            }
        }
        self.failing = failed.is_some();
    }
}

impl TraceCollector {
    async fn post(&self, body: String) -> io::Result<StatusCode> {
        let stream = TcpStream::connect(&self.authority).await?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let request = Request::post(&self.path)
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(io::Error::other)?;
        // Both run in this task, so that dropping it leaves nothing behind.
        let (mut answer, connection) = (pin!(sender.send_request(request)), pin!(connection));
        let answer = tokio::select! {
            biased;
            answer = &mut answer => answer,
            // The connection may end together with the answer.
            _ = connection => answer.await,
        };
        Ok(answer.map_err(io::Error::other)?.status())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collector_urls_are_parsed() {
        let at =
            |url: &str| url.parse::<TraceCollector>().map(|collector| (collector.authority, collector.path));
        let usual = |authority: &str| (authority.to_owned(), "/v1/traces".to_owned());
        assert_eq!(at("http://127.0.0.1:4318").unwrap(), usual("127.0.0.1:4318"));
        assert_eq!(at("http://collector/").unwrap(), usual("collector:4318"));
        assert_eq!(at("http://[::1]").unwrap(), usual("[::1]:4318"));
        assert_eq!(at("http://c:1/a/b/").unwrap(), ("c:1".to_owned(), "/a/b/v1/traces".to_owned()));
        for bad in
            ["", "127.0.0.1:4318", "https://x", "http://", "http://u@h", "http://h/a b", "http://h/\r\n"]
        {
            assert!(at(bad).unwrap_err().to_string().starts_with("otlp_endpoint: must be"), "{bad}");
        }
    }
}
