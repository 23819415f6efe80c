//! Test harness: an egress with listening sockets on this machine, a fake resolver, and servers to reach.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdTcpListener, UdpSocket as StdUdpSocket};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use belljar_egress::{Egress, EgressLimits, EgressSockets, GateEntry, Resolve};
use belljar_engine::network::{GateKind, HostRules};
use belljar_engine::provider::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Resolves names from a table. Most names resolve to this machine, in different notations.
#[derive(Debug, Default)]
pub(crate) struct FakeResolver(AtomicUsize);

impl FakeResolver {
    /// Returns how often it was asked.
    pub(crate) fn lookup_count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Resolve for FakeResolver {
    fn resolve(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let before = self.0.fetch_add(1, Ordering::SeqCst);
        let address = match (name.as_str(), before) {
            ("rebinding.test", 0) => "127.0.0.2",
            ("mapped.b.test", _) => "::ffff:127.0.0.1",
            ("v6.b.test", _) => "::1",
            ("public.b.test", _) => "203.0.113.9",
            ("private.b.test", _) => "10.0.0.5",
            ("metadata.b.test", _) => "169.254.169.254",
            ("nat64.b.test", _) => "64:ff9b::7f00:1",
            ("6to4.b.test", _) => "2002:7f00:1::",
            ("unique-local.b.test", _) => "fd00:ec2::254",
            ("own.b.test", _) => return Box::pin(async { own_address().map(|own| vec![own]) }),
            ("nowhere.b.test", _) => return Box::pin(async { Err(io::ErrorKind::NotFound.into()) }),
            _ => "127.0.0.1",
        };
        Box::pin(async move { Ok(vec![address.parse().unwrap()]) })
    }
}

/// Returns this machine's source address for outgoing traffic.
pub(crate) fn own_address() -> io::Result<IpAddr> {
    let socket = StdUdpSocket::bind("0.0.0.0:0")?;
    socket.connect("203.0.113.1:9")?;
    Ok(socket.local_addr()?.ip())
}

pub(crate) struct TestEgress {
    pub(crate) egress: Egress,
    pub(crate) names: Arc<FakeResolver>,
    pub(crate) proxy: SocketAddr,
    pub(crate) names_tcp: SocketAddr,
    pub(crate) names_udp: SocketAddr,
}

impl TestEgress {
    pub(crate) fn open(rules: &[&str]) -> Self {
        Self::open_with_limits(rules, EgressLimits::default())
    }

    pub(crate) fn open_with_limits(rules: &[&str], limits: EgressLimits) -> Self {
        Self::open_with_rules(HostRules::parse(rules).unwrap(), limits)
    }

    pub(crate) fn open_with_rules(rules: HostRules, limits: EgressLimits) -> Self {
        let listener = || StdTcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let datagrams = StdUdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (proxy, dns_tcp) = (listener(), listener());
        let (proxy_address, names_tcp) = (proxy.local_addr().unwrap(), dns_tcp.local_addr().unwrap());
        let sockets = EgressSockets { entry: GateEntry::Proxy(proxy), dns_tcp, dns_udp: datagrams };
        let names_udp = sockets.dns_udp.local_addr().unwrap();
        let names = Arc::new(FakeResolver::default());
        let resolver: Arc<dyn Resolve> = Arc::<FakeResolver>::clone(&names);
        let egress = Egress::new(GateKind::Proxy, rules, limits, resolver);
        egress.serve(async move { Ok(sockets) });
        Self { egress, names, proxy: proxy_address, names_tcp, names_udp }
    }

    pub(crate) fn set_rules(&self, rules: &[&str]) {
        self.egress.set_rules(HostRules::parse(rules).unwrap());
    }

    /// Sends bytes and returns everything that comes back.
    pub(crate) async fn ask(&self, bytes: &[u8]) -> String {
        let mut client = connect(self.proxy).await;
        // The proxy may stop reading after an early refusal.
        let _sent = client.write_all(bytes).await;
        read_all(&mut client).await
    }
}

pub(crate) async fn connect(to: SocketAddr) -> TcpStream {
    TcpStream::connect(to).await.unwrap()
}

/// Reads until the end of the stream or a reset, which must come.
pub(crate) async fn read_all(client: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let reading = tokio::time::timeout(Duration::from_secs(60), client.read_to_end(&mut bytes)).await;
    let _end = reading.expect("the connection ends");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A server to reach.
pub(crate) struct TestServer {
    address: SocketAddr,
    seen: Arc<ServerLog>,
}

#[derive(Default)]
struct ServerLog {
    connections: AtomicUsize,
    open: AtomicUsize,
    received: Mutex<Vec<u8>>,
    closed: tokio::sync::Notify,
}

#[derive(Clone, Copy)]
enum ServerKind {
    Echo,
    Web,
    UntilEnd,
}

impl TestServer {
    pub(crate) async fn echo() -> Self {
        Self::at(ServerKind::Echo, [127, 0, 0, 1], 0).await
    }

    pub(crate) async fn web() -> Self {
        Self::web_at([127, 0, 0, 1], 0).await
    }

    pub(crate) async fn web_at(address: [u8; 4], port: u16) -> Self {
        Self::at(ServerKind::Web, address, port).await
    }

    pub(crate) async fn until_end() -> Self {
        Self::at(ServerKind::UntilEnd, [127, 0, 0, 1], 0).await
    }

    async fn at(manner: ServerKind, address: [u8; 4], port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::from(address), port)).await.unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::new(ServerLog::default()));
        let served = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                served.connections.fetch_add(1, Ordering::SeqCst);
                served.open.fetch_add(1, Ordering::SeqCst);
                let seen = Arc::clone(&served);
                tokio::spawn(async move {
                    let _served = serve(manner, stream, &seen).await;
                    seen.open.fetch_sub(1, Ordering::SeqCst);
                    seen.closed.notify_waiters();
                });
            }
        });
        Self { address, seen }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    /// Returns what the latest connection received.
    pub(crate) fn received(&self) -> String {
        String::from_utf8(self.seen.received.lock().unwrap().clone()).unwrap()
    }

    /// Waits until no connection is open.
    pub(crate) async fn all_closed(&self) {
        let waiting = async {
            loop {
                let closed = self.seen.closed.notified();
                if self.seen.open.load(Ordering::SeqCst) == 0 {
                    return;
                }
                closed.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("all connections close");
    }
}

async fn serve(manner: ServerKind, mut stream: TcpStream, seen: &ServerLog) -> io::Result<()> {
    let mut buffer = [0; 4_096];
    let mut received = Vec::new();
    loop {
        let read = stream.read(&mut buffer).await?;
        received.extend_from_slice(&buffer[..read]);
        match manner {
            ServerKind::Echo if read > 0 => stream.write_all(&buffer[..read]).await?,
            // A body of a few bytes arrives soon after its head; nothing may follow it.
            ServerKind::Web if read > 0 && is_complete(&received) => {
                let quiet = tokio::time::timeout(Duration::from_millis(100), stream.read(&mut buffer)).await;
                if let Ok(Ok(more)) = quiet {
                    received.extend_from_slice(&buffer[..more]);
                }
                seen.received.lock().unwrap().clone_from(&received);
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await?;
                return Ok(());
            }
            ServerKind::UntilEnd if read == 0 => return stream.write_all(&received).await,
            _ if read == 0 => return Ok(()),
            _ => {}
        }
    }
}

fn is_complete(received: &[u8]) -> bool {
    let text = String::from_utf8_lossy(received);
    text.split_once("\r\n\r\n")
        .is_some_and(|(head, body)| !head.contains("Content-Length: 3") || body.len() >= 3)
}
