//! `--network internet` and programs behind the gate, over the real binary, with a small internet of its own:
//! `internet/world.sh` makes a network namespace with real servers at public and private addresses.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, reason = "a skipped test says why")]

mod common;

use std::path::Path;
use std::process::Command;

use common::{Answer, beside};
use serde_json::json;

/// How programs reach the gate: setting `network.gate`.
const BY_PROXY: &str = "proxy";
const BY_TUN: &str = "auto";

/// Runs `belljar run` with each list of arguments in the same new world. `None` without the rights to make
/// one, or without TUN devices where they are needed.
fn run_in_world(gate: &str, runs: &[&[&str]]) -> Option<Vec<Answer>> {
    if !common::is_root() {
        println!("skipped: only root can make a network with an internet");
        return None;
    }
    if gate == BY_TUN && std::fs::File::open("/dev/net/tun").is_err() {
        println!("skipped: this machine has no /dev/net/tun");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    make_certificate(folder.path());
    make_files(folder.path());
    std::fs::write(folder.path().join("gate.toml"), format!("[network]\ngate = \"{gate}\"\n"))
        .expect("a configuration");
    let quote = |word: &&str| format!("'{}'", word.replace('\'', r"'\''"));
    let lines: Vec<String> = runs
        .iter()
        .map(|run| {
            format!(
                "\"$BELLJAR\" --config gate.toml run --json {} || true",
                run.iter().map(quote).collect::<Vec<_>>().join(" ")
            )
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

/// Creates what the web server serves: a Git repository and a Python package.
fn make_files(folder: &Path) {
    let script = "mkdir files && cd files && git init -q source && cd source && echo content > file && git add file \
        && git -c user.name=a -c user.email=a@b.test commit -q -m one && cd .. && git clone -q --bare source repo.git \
        && git -C repo.git update-server-info && python3 -c \"import zipfile; z = zipfile.ZipFile('tiny-1.0-py3-none-any.whl', 'w'); \
        z.writestr('tiny.py', 'answer = 42'); z.writestr('tiny-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n'); \
        z.writestr('tiny-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'); \
        z.writestr('tiny-1.0.dist-info/RECORD', ''); z.close()\"";
    let made = Command::new("sh").args(["-c", script]).current_dir(folder).status().expect("sh starts");
    assert!(made.success(), "git and python3 make the files");
}

#[test]
fn the_internet_is_every_public_address() {
    let python = "import urllib.request as u\nfor host in ('public.test', 'two.test', '203.0.113.1'):\n    \
        print(u.urlopen(f'http://{host}:8080/').read().decode(), end='')";
    let tunnels = "for host in public.test 203.0.113.1; do\n  curl -sS --proxytunnel http://$host:8080/\n  \
        curl -sS --noproxy '' -x socks5h://127.0.0.1:3128 http://$host:8080/\ndone\ngetent hosts public.test";
    let Some(answers) = run_in_world(
        BY_PROXY,
        &[
            &["--network", "internet", "-c", python],
            &["--network", "internet", "--language", "bash", "-c", tunnels],
            &[
                "--network",
                "full",
                "-c",
                "import urllib.request as u; print(u.urlopen('http://10.0.0.5:8080/').status)",
            ],
        ],
    ) else {
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
    let Some(answers) = run_in_world(
        BY_PROXY,
        &[
            &["--network", "internet", "-c", code],
            &["--network", "internet", "-c", rebinding],
            &["--network", "internet", "-c", direct],
            &["--network", "internet", "--policy", "strict", "-c", code],
        ],
    ) else {
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
    let Some(answers) = run_in_world(BY_PROXY, &borrowed.iter().map(Vec::as_slice).collect::<Vec<_>>())
    else {
        return;
    };
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
    let Some(answers) = run_in_world(
        BY_PROXY,
        &[
            &["--network", "internet", "--language", "javascript", "-c", node],
            &["--network", "public.test:8080", "-c", python],
        ],
    ) else {
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

/// What `direct.py` prints, in order.
const DIRECT: &[(&str, &str)] = &[
    ("environment", "[]"),
    ("http public.test", "hello from ::ffff:203.0.113.1"),
    ("http two.test", "hello from ::ffff:203.0.113.1"),
    ("http 203.0.113.1", "hello from ::ffff:203.0.113.1"),
    ("refused 10.0.0.5", "ConnectionRefusedError"),
    ("refused 169.254.169.254", "ConnectionRefusedError"),
    ("refused fd00::5", "ConnectionRefusedError"),
    ("refused 203.0.113.2", "ConnectionRefusedError"),
    ("refused ::ffff:10.0.0.5", "ConnectionRefusedError"),
    ("refused 64:ff9b::a00:5", "ConnectionRefusedError"),
    ("refused 198.18.77.7", "ConnectionRefusedError"),
    ("name private.test", "gaierror"),
    ("name metadata.test", "gaierror"),
    ("name loopback.test", "gaierror"),
    ("name missing.test", "gaierror"),
    // The name has a public address, which is this machine's own.
    ("name host.test", "ConnectionRefusedError"),
    // The name is public when it is looked up, and private when the gate connects.
    ("name rebinding.test", "ConnectionRefusedError"),
    ("closed port", "ConnectionRefusedError"),
    ("datagram", "ConnectionRefusedError"),
    ("datagram by IPv6", "ConnectionRefusedError"),
    ("any name server", "(0, '198.18.1.0')"),
    ("any name server, private name", "(3, '')"),
    ("half close", "True"),
    ("reset", "ConnectionResetError"),
    ("peer close", "b''"),
    ("own reset", "True"),
    ("download", "True"),
    ("upload", "True"),
    ("sequential", "True"),
    ("parallel", "True"),
    ("backpressure", "True"),
];

#[test]
fn programs_need_not_know_of_the_gate() {
    let direct = beside("internet/direct.py").display().to_string();
    let Some(answers) =
        run_in_world(BY_TUN, &[&["--network", "internet", "--timeout", "300s", "--policy", "off", &direct]])
    else {
        return;
    };
    let answer = &answers[0];
    assert_eq!(answer.status(), "succeeded", "{answer:?}");
    for ((what, result), line) in DIRECT.iter().zip(answer.lines()) {
        assert_eq!(line, format!("{what}: {result}"));
    }
    assert_eq!(answer.lines().len(), DIRECT.len(), "{answer:?}");
    let expected =
        json!({"mode": "internet", "enforced_by": ["net_ns", "gate", "tun"], "reaches": "public addresses"});
    assert_eq!(answer.json["receipt"]["network"], expected);
    let findings = answer.json["findings"].as_array().expect("a list");
    let messages: Vec<_> = findings.iter().filter_map(|each| each["message"].as_str()).collect();
    for refused in [
        "connection to 10.0.0.5:8080 was refused: network 'internet' reaches public addresses only",
        "connection to [fd00::5]:8080 was refused: network 'internet' reaches public addresses only",
        "connection to rebinding.test:8080 was refused: the name does not resolve to a public address, and \
         network 'internet' reaches no others",
        "looking up missing.test was refused: the name does not resolve to a public address",
        "a UDP datagram to 203.0.113.1:9999 was refused: only TCP and DNS lead out",
    ] {
        assert!(messages.iter().any(|message| message.starts_with(refused)), "{refused}: {messages:#?}");
    }
}

#[test]
fn listed_hosts_are_reached_without_a_proxy() {
    let code = "import socket, urllib.request as u\n\
        print(u.urlopen('http://public.test:8080/').read().decode(), end='')\n\
        for host, port in (('public.test', 8443), ('two.test', 8080), ('203.0.113.1', 8080), ('10.0.0.5', 8080)):\n    \
        try: socket.create_connection((host, port), 60)\n    \
        except OSError as error: print(host, port, type(error).__name__)\n    \
        else: print(host, port, 'connected')";
    let Some(answers) = run_in_world(BY_TUN, &[&["--network", "public.test:8080,10.0.0.5:8080", "-c", code]])
    else {
        return;
    };
    let expected = "hello from ::ffff:203.0.113.1\npublic.test 8443 ConnectionRefusedError\n\
        two.test 8080 gaierror\n203.0.113.1 8080 ConnectionRefusedError\n10.0.0.5 8080 connected\n";
    assert_eq!(answers[0].text("stdout"), expected, "{:?}", answers[0]);
    let findings = answers[0].json["findings"].as_array().expect("a list");
    let messages: Vec<_> = findings.iter().filter_map(|each| each["message"].as_str()).collect();
    for refused in [
        "connection to public.test:8443 was refused: not in network.hosts",
        "looking up two.test was refused: not in network.hosts",
        "connection to 203.0.113.1:8080 was refused: not in network.hosts",
    ] {
        assert!(messages.iter().any(|message| message.starts_with(refused)), "{refused}: {messages:#?}");
    }
}

#[test]
fn tools_and_node_need_no_proxy() {
    let tools = "curl -sS http://public.test:8080/\ncurl -sS --cacert ca.pem https://public.test:8443/\n\
        git -c http.sslCAInfo=ca.pem clone -q https://public.test:8443/files/repo.git && cat repo/file\n\
        python3 -m venv env && env/bin/pip install -q --disable-pip-version-check \
        http://public.test:8080/files/tiny-1.0-py3-none-any.whl && env/bin/python -c 'import tiny; print(tiny.answer)'";
    let node = "const http = require('http'), https = require('https'), net = require('net'), dns = require('dns');\n\
        const get = (from, url) => new Promise((done, fail) => from.get(url, (r) => r.on('data', (d) => done(`${d}`))).on('error', fail));\n\
        const show = (what, text) => process.stdout.write(`${what}: ${text}`);\n\
        (async () => {\n  \
        show('fetch', await (await fetch('https://public.test:8443/')).text());\n  \
        show('http', await get(http, 'http://public.test:8080/'));\n  \
        show('https', await get(https, 'https://public.test:8443/'));\n  \
        const found = await dns.promises.lookup('public.test');\n  \
        console.log('lookup:', found.family, found.address.startsWith('198.18.'));\n  \
        const socket = net.connect(9000, 'public.test', () => socket.end('echo\\nnet\\n'));\n  \
        show('net', await new Promise((done, fail) => socket.on('data', (d) => done(`${d}`)).on('error', fail)));\n  \
        for (const host of ['10.0.0.5', 'private.test'])\n    \
        await fetch(`http://${host}:8080/`).catch((e) => console.log('refused:', e.cause.code));\n\
        })();";
    let shared = ["--network", "internet", "--policy", "off", "--no-deps", "--file", "ca.pem"];
    let tools = [&shared[..], &["--timeout", "300s", "--language", "bash", "-c", tools]].concat();
    let trusted = ["--env", "NODE_EXTRA_CA_CERTS=/workspace/ca.pem"];
    let node = [&shared[..], &trusted, &["--language", "javascript", "-c", node]].concat();
    let Some(answers) = run_in_world(BY_TUN, &[&tools, &node]) else { return };
    let hello = "hello from ::ffff:203.0.113.1\n";
    assert_eq!(answers[0].text("stdout"), format!("{hello}{hello}content\n42\n"), "{:?}", answers[0]);
    let expected = format!(
        "fetch: {hello}http: {hello}https: {hello}lookup: 4 true\nnet: net\nrefused: ECONNREFUSED\nrefused: ENOTFOUND\n"
    );
    assert_eq!(answers[1].text("stdout"), expected, "{:?}", answers[1]);
}

#[test]
fn the_device_is_the_sandboxs_own() {
    let interfaces = "import socket; print(sorted(name for _, name in socket.if_nameindex()))";
    let change = "for line in 'link set tun0 down' 'addr add 10.0.0.9/8 dev tun0' 'route add 10.0.0.0/8 dev tun0' \
        'link del tun0' 'tuntap add tun1 mode tun'; do ip $line 2>/dev/null && echo $line; done; true";
    let Some(answers) = run_in_world(
        BY_TUN,
        &[
            &["--network", "internet", "-c", interfaces],
            &["--network", "full", "-c", interfaces],
            &["--network", "internet", "--policy", "off", "--language", "bash", "-c", change],
        ],
    ) else {
        return;
    };
    assert_eq!(answers[0].text("stdout"), "['lo', 'tun0']\n", "{:?}", answers[0]);
    assert_eq!(answers[1].text("stdout"), "['here', 'lo']\n", "{:?}", answers[1]);
    assert_eq!((answers[2].status(), answers[2].text("stdout")), ("succeeded", ""), "{:?}", answers[2]);
}
