//! HTTPS, with certificates that are made here.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use belljar_server::{Doors, Settings, Tls};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::place::{Place, world};

const PATIENCE: Duration = Duration::from_secs(60);

/// A certificate that vouches for itself, and its key.
struct Pair {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Pair {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("c"), folder.path().join("k"));
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
        openssl.args(["-subj", "/CN=belljar", "-days", "2", "-addext", "subjectAltName=IP:127.0.0.1"]);
        openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        let made = openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let read = |path: &Path| std::fs::read(path).unwrap();
        Self { certificate: read(&certificate), key: read(&key) }
    }

    fn tls(&self) -> Tls {
        Tls::new(&self.certificate, &self.key).unwrap()
    }

    /// A client that trusts this one only.
    fn client(&self, protocol: &[u8]) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&self.certificate).unwrap()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config).into()
    }

    async fn connect(&self, place: &Place) -> std::io::Result<TlsStream<TcpStream>> {
        self.connect_for(place, b"http/1.1").await
    }

    async fn connect_for(&self, place: &Place, protocol: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(place.address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        timeout(PATIENCE, self.client(protocol).connect(name, stream)).await.expect("a handshake in time")
    }
}

async fn place(tls: Arc<Tls>, settings: Settings) -> Place {
    let folder: TempDir = tempfile::tempdir().unwrap();
    let world = world(folder.path(), settings).await;
    let api = TcpListener::bind("127.0.0.1:0").await.unwrap();
    Place::behind(Doors { api, tls: Some(tls), metrics: None }, world, folder)
}

/// What comes until the end.
async fn rest(stream: &mut (impl AsyncReadExt + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("an end in time");
    bytes
}

async fn healthz(stream: &mut TlsStream<TcpStream>) -> String {
    let request = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    String::from_utf8(rest(stream).await).unwrap()
}

#[tokio::test]
async fn http_1_is_spoken_inside_and_nothing_else() {
    let pair = Pair::new();
    let place = place(Arc::new(pair.tls()), Settings::default()).await;
    let mut stream = pair.connect(&place).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let answer = healthz(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(r#"{"status":"live"}"#), "{answer}");
    assert!(pair.connect_for(&place, b"h2").await.is_err());
    assert!(Pair::new().connect(&place).await.is_err());
}

#[tokio::test]
async fn plain_http_is_not_answered() {
    let place = place(Arc::new(Pair::new().tls()), Settings::default()).await;
    let mut stream = TcpStream::connect(place.address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(!answer.windows(4).any(|four| four == b"HTTP"), "{answer:?}");
}

#[tokio::test]
async fn whoever_is_slow_to_shake_hands_is_let_go() {
    let settings = Settings { head_timeout: Duration::from_millis(300), ..Settings::default() };
    let place = place(Arc::new(Pair::new().tls()), settings).await;
    let mut silent = TcpStream::connect(place.address).await.unwrap();
    assert!(rest(&mut silent).await.is_empty());
    // The beginning of a greeting, and no more of it.
    let mut slow = TcpStream::connect(place.address).await.unwrap();
    slow.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
    assert!(rest(&mut slow).await.is_empty());
}

#[tokio::test]
async fn a_handshake_takes_the_place_of_a_connection() {
    let pair = Pair::new();
    let settings = Settings { connections: 1, head_timeout: PATIENCE, ..Settings::default() };
    let place = place(Arc::new(pair.tls()), settings).await;
    let mut silent = TcpStream::connect(place.address).await.unwrap();
    // The only place: the one that says nothing gives way.
    let answer = healthz(&mut pair.connect(&place).await.unwrap()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(rest(&mut silent).await.is_empty());
}

#[tokio::test]
async fn a_certificate_is_replaced_for_those_who_come_later() {
    let (old, new) = (Pair::new(), Pair::new());
    let tls = Arc::new(old.tls());
    let place = place(Arc::clone(&tls), Settings::default()).await;
    let mut early = old.connect(&place).await.unwrap();
    tls.replace(&new.certificate, &new.key).unwrap();
    assert!(healthz(&mut early).await.starts_with("HTTP/1.1 200"));
    assert!(old.connect(&place).await.is_err());
    assert!(tls.replace(&old.certificate, &new.key).is_err());
    assert!(tls.replace(b"", b"").is_err());
    assert!(healthz(&mut new.connect(&place).await.unwrap()).await.starts_with("HTTP/1.1 200"));
}

#[test]
fn what_cannot_be_used_is_named() {
    let (one, other) = (Pair::new(), Pair::new());
    let refused = |certificate: &[u8], key: &[u8]| Tls::new(certificate, key).unwrap_err().to_string();
    let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let torn = &one.certificate[..one.certificate.len() / 2];
    for (certificate, key, said) in [
        (&other.certificate[..], &one.key[..], "key: belongs to another certificate"),
        (b"", &one.key, "certificate: has no '-----BEGIN CERTIFICATE-----'"),
        (&one.key, &one.key, "certificate: has no '-----BEGIN CERTIFICATE-----'"),
        (broken, &one.key, "certificate: cannot be used"),
        (torn, &one.key, "certificate: cannot be read"),
        (&one.certificate, b"", "key: has no '-----BEGIN PRIVATE KEY-----'"),
        (&one.certificate, &one.certificate, "key: has no '-----BEGIN PRIVATE KEY-----'"),
    ] {
        let message = refused(certificate, key);
        assert!(message.starts_with(said), "{message}");
    }
}
