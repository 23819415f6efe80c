//! Network mode `internet`, Node.js behind the gate, and the network in the receipt. The servers are on this
//! machine, which is never the internet.

use serde_json::json;

use super::network::{HostServer, hosts, once, own_address, shell};
use super::{Case, cases};
use crate::fixture::{Fixture, Verdict, check};

pub(super) fn all() -> Vec<(&'static str, Case)> {
    cases![
        the_internet_is_nothing_near,
        the_network_is_in_the_receipt,
        node_uses_the_gate,
        node_in_a_sandbox_uses_the_gate,
    ]
}

async fn the_internet_is_nothing_near(fixture: Fixture) -> Verdict {
    let web = HostServer::open()?;
    let own = own_address().unwrap_or([127, 0, 0, 1].into()).to_string();
    let near = [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "169.254.169.254",
        "10.0.0.1",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[fd00:ec2::254]",
        &own,
    ];
    let mut code = String::new();
    for host in near {
        code += &format!(
            "curl -sS -o /dev/null -w '%{{http_connect}} ' --noproxy '' -p http://{host}:{}/\n",
            web.port
        );
    }
    // Programs that ignore the proxy have no route, and the gate's name server gives them no address near the
    // host.
    code += &format!("curl -sS --noproxy '*' http://{own}:{}/ 2>/dev/null || echo $?", web.port);
    let report = once(&fixture, json!({"language": "bash", "code": code, "network": "internet"})).await?;
    check!(report.stdout == format!("{}7\n", "403 ".repeat(near.len())) && web.connections() == 0, report);
    let refused = |finding: &belljar_engine::finding::Finding| {
        finding.decided_by == "network.mode = internet" && finding.rule == "network-address"
    };
    check!(!report.findings.is_empty() && report.findings.iter().all(refused), report.findings);
    Ok(())
}

async fn the_network_is_in_the_receipt(fixture: Fixture) -> Verdict {
    let gated: &[&str] = &["net_ns", "gate"];
    let listed = hosts(&["pypi.org".to_owned()]);
    let networks = [
        ("none", json!("none"), &gated[..1]),
        ("hosts", listed, gated),
        ("internet", json!("internet"), gated),
    ];
    for (mode, network, enforced_by) in networks {
        let report = once(&fixture, json!({"command": ["true"], "network": network})).await?;
        let receipt = report.receipt.as_ref().and_then(|receipt| receipt.network.as_ref());
        check!(receipt.is_some_and(|net| net.mode == mode && net.enforced_by == enforced_by), report);
    }
    Ok(())
}

/// A program that reaches a server by every client that Node.js has, as itself and as a child.
fn node_clients(web: &HostServer) -> String {
    let url = web.url("/");
    let get = format!("require('http').get('{url}', (r) => r.pipe(process.stdout))");
    let fetch = format!("fetch('{url}').then((r) => r.text()).then((t) => process.stdout.write(t))");
    format!(
        "require('child_process').execFileSync(process.execPath, ['-e', `{fetch}`], {{ stdio: 'inherit' }});\n\
         {fetch}.then(() => {get})"
    )
}

async fn node_uses_the_gate(fixture: Fixture) -> Verdict {
    let web = HostServer::open()?;
    let code = node_clients(&web);
    // Twice, and with options of the request's own.
    for options in ["", "--max-old-space-size=128", ""] {
        let env = if options.is_empty() { json!({}) } else { json!({"NODE_OPTIONS": options}) };
        let request =
            json!({"language": "javascript", "code": code, "network": hosts(&[web.rule()]), "env": env});
        let report = once(&fixture, request).await?;
        check!(report.stdout == "hello\n".repeat(3), report);
    }
    let refused = "fetch('http://evil.test/').catch((e) => console.log(e.cause.message))";
    let request = json!({"language": "javascript", "code": refused, "network": hosts(&[web.rule()])});
    let report = once(&fixture, request).await?;
    check!(report.stdout.contains("connection to evil.test:80 was refused: not in network.hosts"), report);
    let report =
        shell(&fixture, &format!("node -e \"{}\"", node_clients(&web).replace('`', "\\`")), &[web.rule()])
            .await?;
    check!(report.stdout == "hello\n".repeat(3), report);
    Ok(())
}

async fn node_in_a_sandbox_uses_the_gate(fixture: Fixture) -> Verdict {
    let web = HostServer::open()?;
    let open = fixture.open(json!({"network": hosts(&[web.rule()])})).await?;
    let code =
        format!("NODE_OPTIONS=\"$NODE_OPTIONS --no-warnings\" node <<'END'\n{}\nEND", node_clients(&web));
    check!(open.shell_output(&code).await? == "hello\nhello\nhello", "every client");
    open.close().await
}
