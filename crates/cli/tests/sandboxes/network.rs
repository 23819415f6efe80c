//! The network access of a sandbox over HTTP: reading and changing it, isolation between tenants, and that a
//! sandbox cannot reach the server itself.

use serde_json::{Value, json};

use crate::common::server::{Reply, Server};

/// Makes programs use the proxy, which they can ask for any host. Follows settings of `[server]`.
const BY_PROXY: &str = "\n[network]\ngate = \"proxy\"";

fn hosts(hosts: &[&str]) -> Value {
    json!({"network": {"mode": "hosts", "hosts": hosts}})
}

fn put_hosts(server: &Server, url: &str, hosts: &Value) -> Reply {
    let body = json!({"hosts": hosts}).to_string();
    server.call("PUT", url, "Content-Type: application/json\r\n", body.as_bytes())
}

/// Returns curl's status for a URL, through the sandbox's proxy.
fn status_of(url: &str) -> Value {
    let curl = format!("curl -sS -o /dev/null -w '%{{http_code}}' --noproxy '' {url}");
    json!({"language": "bash", "code": curl})
}

#[test]
fn allowed_hosts_can_be_changed_at_run_time() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), &format!("network = \"hosts\"{BY_PROXY}"));
    let port = server.url.rsplit_once(':').unwrap().1.to_owned();
    let sandbox = server.post("/v1/sandboxes", &hosts(&["PyPI.org", "*.example.com:8443"])).json();
    let url = format!("/v1/sandboxes/{}", sandbox["id"].as_str().unwrap());
    let listed = json!({"mode": "hosts", "hosts": ["pypi.org", "*.example.com:8443"]});
    assert_eq!((&sandbox["network"], &server.get(&url).json()["network"]), (&listed, &listed));

    // The sandbox's own server is unreachable from inside, by any name.
    let run = |request: &Value| server.post(&format!("{url}/executions"), request).json();
    let health = |host: &str| format!("http://{host}:{port}/healthz");
    for host in ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"] {
        let refused = run(&status_of(&health(host)));
        assert_eq!(refused["stdout"], "403", "{refused}");
        let message = format!("connection to {host}:{port} was refused: not in network.hosts");
        assert_eq!(refused["findings"][0]["message"], message, "{refused}");
        assert_eq!(refused["findings"].as_array().unwrap().len(), 1);
    }
    let network = server.get(&format!("{url}/network")).json();
    assert_eq!((&network["connections"], network["refused"].as_array().unwrap().len()), (&json!(4), 4));

    // Unless the owner of the sandbox allows it.
    let put = |hosts: Value| put_hosts(&server, &format!("{url}/network"), &hosts);
    let refused = put(json!(["https://pypi.org"]));
    assert_eq!((refused.status, refused.code().as_str()), (422, "invalid_request"));
    let changed = put(json!([format!("localhost:{port}")]));
    assert_eq!((changed.status, &changed.json()["hosts"]), (200, &json!([format!("localhost:{port}")])));
    assert_eq!(run(&status_of(&health("localhost")))["stdout"], "200");
    assert_eq!(server.get(&url).json()["network"]["hosts"], json!([format!("localhost:{port}")]));
    assert_eq!(run(&status_of("http://pypi.org/"))["stdout"], "403");
    server.delete(&url);
    // The last network settings are still visible after the sandbox has ended.
    let gone = server.get(&url).json();
    assert_eq!(
        (&gone["state"], &gone["network"]["hosts"]),
        (&json!("ended"), &json!([format!("localhost:{port}")]))
    );
    assert_eq!(put(json!(["pypi.org"])).code(), "sandbox_ended");
}

#[test]
fn only_sandboxes_in_hosts_mode_accept_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let sandbox = server.post("/v1/sandboxes", &json!({})).json();
    let url = format!("/v1/sandboxes/{}/network", sandbox["id"].as_str().unwrap());
    assert_eq!(server.get(&url).json(), json!({"mode": "none", "refused": []}));
    let refused = put_hosts(&server, &url, &json!(["pypi.org"]));
    assert_eq!(refused.status, 422);
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("mode 'hosts'"), "{refused:?}");
    let other = put_hosts(&server, "/v1/sandboxes/sbx_00000000000000000000000000/network", &json!(["a.com"]));
    assert_eq!(other.status, 404);
}

/// Without the administrator's permission, no key gives access to addresses near the server.
#[test]
fn requests_reach_public_names_and_no_near_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let profile = "[profiles.near.network]\nmode = \"hosts\"\nhosts = [\"127.0.0.1:9\"]\n";
    let server = Server::configured(folder.path(), profile);
    let full = json!({"network": {"mode": "full"}});
    let near = ["127.0.0.1:80", "localhost:80", "10.0.0.0/8", "[::1]:80", "8.8.8.8"];
    let internet = json!({"network": "internet"});
    for asked in near.iter().map(|host| hosts(&["pypi.org", host])).chain([full, internet]) {
        for route in ["/v1/sandboxes", "/v1/executions"] {
            let mut request = asked.clone();
            if route == "/v1/executions" {
                request["command"] = json!(["true"]);
            }
            let refused = server.post(route, &request);
            assert_eq!(
                (refused.status, refused.code().as_str()),
                (422, "unsupported"),
                "{request} {refused:?}"
            );
        }
    }
    let named = server.sandbox(&hosts(&["pypi.org", "*.example.com"]));
    let changed = put_hosts(&server, &format!("{named}/network"), &json!(["localhost:80"]));
    assert_eq!(changed.code(), "unsupported");
    // Profiles are set by the administrator, so they are trusted.
    let ran = server.post("/v1/executions", &json!({"command": ["true"], "profile": "near"}));
    assert_eq!(ran.json()["status"], "succeeded", "{ran:?}");
}

/// An administrator can allow the internet without allowing addresses near the server.
#[test]
fn a_ceiling_of_internet_allows_no_near_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), &format!("network = \"internet\"{BY_PROXY}"));
    let port = server.url.rsplit_once(':').unwrap().1;
    for asked in [hosts(&["127.0.0.1:80"]), json!({"network": "full"})] {
        assert_eq!(server.post("/v1/sandboxes", &asked).code(), "unsupported", "{asked}");
    }
    let sandbox = server.post("/v1/sandboxes", &json!({"network": "internet"})).json();
    assert_eq!(sandbox["network"], json!({"mode": "internet"}), "{sandbox}");
    assert_eq!(sandbox["receipt"]["network"]["enforced_by"], json!(["net_ns", "gate"]), "{sandbox}");
    let url = format!("/v1/sandboxes/{}", sandbox["id"].as_str().unwrap());
    let ran = server
        .post(&format!("{url}/executions"), &status_of(&format!("http://127.0.0.1:{port}/healthz")))
        .json();
    assert_eq!(
        (&ran["stdout"], &ran["receipt"]["network"]["mode"]),
        (&json!("403"), &json!("internet")),
        "{ran}"
    );
    let message = format!(
        "connection to 127.0.0.1:{port} was refused: network 'internet' reaches public addresses only"
    );
    assert_eq!(ran["findings"][0]["message"], message, "{ran}");
    let change = |body: Value| {
        server.call(
            "PUT",
            &format!("{url}/network"),
            "Content-Type: application/json\r\n",
            body.to_string().as_bytes(),
        )
    };
    assert_eq!(change(json!({"hosts": ["pypi.org"]})).json()["hosts"], json!(["pypi.org"]));
    assert_eq!(change(json!({"mode": "internet"})).json()["mode"], "internet");
    assert_eq!(server.get(&url).json()["network"], json!({"mode": "internet"}));
    assert_eq!(change(json!({"mode": "full"})).code(), "unsupported");
    assert_eq!(change(json!({"hosts": ["127.0.0.1:80"]})).code(), "unsupported");
}

/// Without a proxy, programs connect by themselves: each connection is decided about like one through the proxy.
#[test]
fn a_device_leads_to_the_gate() {
    if std::fs::File::open("/dev/net/tun").is_err() {
        return println!("skipped: this machine has no /dev/net/tun");
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), "network = \"hosts\"");
    let url = server.sandbox(&hosts(&["*.example.com", "192.0.2.7:80"]));
    let receipt = server.get(&url).json()["receipt"]["network"].clone();
    assert_eq!(receipt["enforced_by"], json!(["net_ns", "gate", "tun"]), "{receipt}");
    let code = "import os, socket\n\
        print([name for name in os.environ if 'proxy' in name.lower()])\n\
        for address in ('203.0.113.9', '2001:db8::9', '169.254.169.254'):\n    \
        try: socket.create_connection((address, 80), 60)\n    \
        except ConnectionRefusedError: print('refused')";
    let ran = server.post(&format!("{url}/executions"), &json!({"language": "python", "code": code})).json();
    assert_eq!(ran["stdout"], "[]\nrefused\nrefused\nrefused\n", "{ran}");
    let findings = ran["findings"].as_array().unwrap();
    assert!(findings.len() == 3 && findings.iter().all(|each| each["rule"] == "network-host"), "{ran}");
    // Another list of hosts applies at once.
    let changed = put_hosts(&server, &format!("{url}/network"), &json!(["10.0.0.0/8"]));
    assert_eq!(changed.status, 200, "{changed:?}");
    // The sandbox's own loopback is not the host's.
    let refused = put_hosts(&server, &format!("{url}/network"), &json!(["localhost:80"]));
    assert!(
        refused.status == 422 && refused.json()["error"]["message"].as_str().unwrap().contains("'localhost'"),
        "{refused:?}"
    );
}
