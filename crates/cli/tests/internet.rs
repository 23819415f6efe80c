//! `--network internet` and programs behind the gate, over the real binary, with a small internet of its own:
//! `internet/world.sh` makes a network namespace with real servers at public and private addresses.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, reason = "a skipped test says why")]

mod common;

use std::path::Path;
use std::process::Command;

use common::{Answer, beside};
use serde_json::json;

/// Runs `belljar run` with each list of arguments in the same new world. `None` without the rights to make
/// one.
fn run_in_world(runs: &[&[&str]]) -> Option<Vec<Answer>> {
    if !common::is_root() {
        println!("skipped: only root can make a network with an internet");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    make_certificate(folder.path());
    let quote = |word: &&str| format!("'{}'", word.replace('\'', r"'\''"));
    let lines: Vec<String> = runs
        .iter()
        .map(|run| {
            format!("\"$BELLJAR\" run --json {} || true", run.iter().map(quote).collect::<Vec<_>>().join(" "))
        })
        .collect();
    // Servers of the host itself, at the port of the public one, and a check that everything private is
    // reachable from outside the sandbox.
    let script = format!(
        "python3 -m http.server --bind 0.0.0.0 8080 >/dev/null 2>&1 &\nserver=$!\ncd {}\n\
         for host in 127.0.0.1 203.0.113.1 203.0.113.2 10.0.0.5 169.254.169.254 '[fd00::5]' private.test; do\n\
         curl -sS -o /dev/null --retry 20 --retry-connrefused --retry-delay 1 http://$host:8080/ || exit 9\ndone\n\
         {}\nkill $server",
        folder.path().display(),
        lines.join("\n")
    );
    let mut world = Command::new("unshare");
    world.args(["--net", "--mount", "--propagation", "private", "--", "sh"]).arg(beside("internet/world.sh"));
    world.arg(folder.path()).args(["sh", "-c", &script]);
    world.env("BELLJAR", env!("CARGO_BIN_EXE_belljar")).env("XDG_CONFIG_HOME", "/nonexistent");
    let output = world.output().expect("unshare starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let answers: Vec<_> = stdout
        .lines()
        .map(|line| Answer {
            code: None,
            json: serde_json::from_str(line).expect("the answer is JSON"),
            stderr: stderr.clone().into_owned(),
        })
        .collect();
    assert_eq!(answers.len(), runs.len(), "{stdout}{stderr}");
    Some(answers)
}

/// Creates `ca.pem`, a certificate for `public.test`, and `both.pem` with its key.
fn make_certificate(folder: &Path) {
    let script = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test \
        -addext subjectAltName=DNS:public.test -keyout key.pem -out ca.pem 2>/dev/null && cat key.pem ca.pem > both.pem";
    let made = Command::new("sh").args(["-c", script]).current_dir(folder).status().expect("sh starts");
    assert!(made.success(), "openssl makes a certificate");
}

#[test]
fn the_internet_is_every_public_address() {
    let python = "import urllib.request as u\nfor host in ('public.test', 'two.test', '203.0.113.1'):\n    \
        print(u.urlopen(f'http://{host}:8080/').read().decode(), end='')";
    let tunnels = "for host in public.test 203.0.113.1; do\n  curl -sS --proxytunnel http://$host:8080/\n  \
        curl -sS --noproxy '' -x socks5h://127.0.0.1:3128 http://$host:8080/\ndone\ngetent hosts public.test";
    let Some(answers) = run_in_world(&[
        &["--network", "internet", "-c", python],
        &["--network", "internet", "--language", "bash", "-c", tunnels],
        &[
            "--network",
            "full",
            "-c",
            "import urllib.request as u; print(u.urlopen('http://10.0.0.5:8080/').status)",
        ],
    ]) else {
        return;
    };
    let hello = "hello from ::ffff:203.0.113.1\n";
    assert_eq!(answers[0].text("stdout"), hello.repeat(3), "{:?}", answers[0]);
    let stdout = answers[1].text("stdout");
    assert!(
        stdout.starts_with(&hello.repeat(4)) && stdout.contains("203.0.113.1     public.test"),
        "{:?}",
        answers[1]
    );
    for answer in &answers[..2] {
        assert_eq!(answer.json["findings"], json!([]), "{answer:?}");
        let expected =
            json!({"mode": "internet", "enforced_by": ["net_ns", "gate"], "reaches": "public addresses"});
        assert_eq!(answer.json["receipt"]["network"], expected);
        assert!(answer.has_layer("net_ns"));
    }
    assert_eq!(answers[2].text("stdout"), "200\n", "{:?}", answers[2]);
    let full = &answers[2].json["receipt"]["network"];
    assert_eq!((&full["mode"], &full["enforced_by"]), (&json!("full"), &json!([])));
    assert!(
        full["reaches"].as_str().is_some_and(|text| text.starts_with("the host's own network")),
        "{full}"
    );
}

#[test]
fn the_internet_is_nothing_private() {
    let code = "import urllib.request as u, urllib.error\n\
        for host in ('10.0.0.5', '169.254.169.254', '[fd00::5]', '203.0.113.2', '[::ffff:10.0.0.5]', \
                     '[64:ff9b::a00:5]', '[2002:a00:5::]', 'private.test', 'metadata.test', 'host.test', 'loopback.test', \
                     'missing.test'):\n    \
        try: print(host, u.urlopen(f'http://{host}:8080/').status)\n    \
        except urllib.error.HTTPError as error: print(host, error.code)";
    // The name is public when it is checked, and private at each later lookup.
    let rebinding = "import urllib.request as u\nprint(u.urlopen('http://rebinding.test:8080/').read().decode(), end='')\n\
        for _ in range(5):\n    \
        try: print(u.urlopen('http://rebinding.test:8080/').read())\n    \
        except OSError as error: print(error.code)";
    let direct = "import socket\nsocket.create_connection(('203.0.113.1', 8080), 5)";
    let Some(answers) = run_in_world(&[
        &["--network", "internet", "-c", code],
        &["--network", "internet", "-c", rebinding],
        &["--network", "internet", "-c", direct],
        &["--network", "internet", "--policy", "strict", "-c", code],
    ]) else {
        return;
    };
    assert!(answers[0].lines().iter().all(|line| line.ends_with(" 403")), "{:?}", answers[0]);
    assert_eq!(answers[0].lines().len(), 12);
    let findings = answers[0].json["findings"].as_array().expect("a list");
    assert!(
        findings.len() >= 11 && findings.iter().all(|each| each["rule"] == "network-address"),
        "{findings:?}"
    );
    assert_eq!(answers[1].text("stdout"), format!("hello from ::ffff:203.0.113.1\n{}", "403\n".repeat(5)));
    assert_eq!(answers[2].status(), "failed");
    assert_eq!(answers[3].status(), "refused", "{:?}", answers[3]);
}

/// What the clients print, in order, and the last word of each answer.
const CLIENTS: [(&str, &str); 15] = [
    ("http", "203.0.113.1"),
    ("https", "203.0.113.1"),
    ("http post", "posted"),
    ("https post", "posted"),
    ("https as axios does", "203.0.113.1"),
    ("agent", "203.0.113.1"),
    ("agent again", "203.0.113.1"),
    ("fetch", "203.0.113.1"),
    ("fetch https", "203.0.113.1"),
    ("fetch post", "posted"),
    ("many", "203.0.113.1"),
    ("own server", "own server"),
    ("own server by fetch", "own server"),
    ("child", "203.0.113.1"),
    ("worker", "203.0.113.1"),
];

#[test]
fn node_uses_the_gate() {
    let clients = beside("internet/clients.mjs").display().to_string();
    let hosts = "public.test:8080,public.test:8443";
    let shell = ["--file", &format!("{clients}:clients.mjs"), "--language", "bash", "-c", "node clients.mjs"];
    let with = |network: &'static str, rest: &[&str]| -> Vec<String> {
        let flags =
            ["--network", network, "--file", "ca.pem", "--env", "NODE_EXTRA_CA_CERTS=/workspace/ca.pem"];
        flags.iter().chain(rest).map(|word| (*word).to_owned()).collect()
    };
    let runs = [
        with("internet", &[&clients]),
        with(hosts, &[&clients]),
        // Options of the request's own, and a shell that starts Node.js.
        with("internet", &["--env", "NODE_OPTIONS=--max-old-space-size=128", &clients]),
        with(hosts, &shell),
    ];
    let borrowed: Vec<Vec<&str>> = runs.iter().map(|run| run.iter().map(String::as_str).collect()).collect();
    let Some(answers) = run_in_world(&borrowed.iter().map(Vec::as_slice).collect::<Vec<_>>()) else { return };
    for answer in &answers {
        assert_eq!(answer.status(), "succeeded", "{answer:?}");
        let lines = answer.lines();
        assert_eq!(lines.len(), CLIENTS.len() + 2, "{answer:?}");
        for ((name, end), line) in CLIENTS.iter().zip(&lines) {
            assert!(line.starts_with(&format!("{name}: ")) && line.ends_with(end), "{name}: {line}");
        }
        for (refused, port) in lines[CLIENTS.len()..].iter().zip([8080, 8443]) {
            let to =
                format!("refused: connect private.test:{port} through the proxy: belljar: connection to ");
            assert!(refused.starts_with(&to), "{refused}");
        }
    }
}

#[test]
fn a_direct_connection_is_explained() {
    let node = "require('net').connect(8080, '203.0.113.1')";
    let python = "import socket\nsocket.create_connection(('203.0.113.1', 8080), 5)";
    let Some(answers) = run_in_world(&[
        &["--network", "internet", "--language", "javascript", "-c", node],
        &["--network", "public.test:8080", "-c", python],
    ]) else {
        return;
    };
    let finding = |answer: &Answer| answer.json["findings"][0].clone();
    let message = |to: &str, mode: &str| {
        format!(
            "this program opened a connection{to} directly; with network '{mode}' only the proxy in HTTP_PROXY, \
             HTTPS_PROXY and ALL_PROXY leads out"
        )
    };
    assert_eq!(
        finding(&answers[0])["message"],
        message(" to '203.0.113.1:8080'", "internet"),
        "{:?}",
        answers[0]
    );
    assert_eq!(finding(&answers[0])["rule"], "sandbox-direct-connection");
    assert_eq!(finding(&answers[1])["message"], message("", "hosts"), "{:?}", answers[1]);
}
