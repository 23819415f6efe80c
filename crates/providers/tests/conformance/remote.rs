//! The conformance cases over remote services, played by test servers, plus cases for services alone:
//! deleting sandboxes, retries, and error messages.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use belljar_engine::outcome::Kernel;
use belljar_engine::report::Status;
use belljar_providers::remote::RemoteProvider;
use belljar_providers::settings::{AgentRunSettings, E2bSettings};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::fixture::{Fixture, Quiet, Verdict, check};
use crate::{cases, endings};

/// Cases that no service can pass, because Belljar does not enforce anything there.
const DIFFERS: [(&str, &str); 7] = [
    ("receipt_has_the_floor", "isolation is provided by the service, and the receipt has no layers"),
    ("usage_is_measured", "usage is not measured"),
    ("processes_run_out", "the machine's own limits apply"),
    ("the_disk_is_full", "the machine's own limits apply"),
    ("inodes_run_out", "the machine's own limits apply"),
    ("surviving_a_full_disk_is_not_an_ending", "the machine's own limits apply"),
    ("the_open_file_limit_is_enforced", "the machine's own limits apply"),
];
const E2B_DIFFERS: [(&str, &str); 1] = [(
    "surviving_processes_are_not_awaited",
    "its daemon waits for processes that keep a stream open, until the timeout",
)];
const AGENTRUN_DIFFERS: [(&str, &str); 2] = [
    ("output_streams_as_it_comes", "output arrives after the program has ended"),
    ("output_can_end_a_run", "output arrives after the program has ended, so a flood ends by timeout"),
];

/// A test server that plays a service.
pub(crate) struct TestService {
    child: Child,
    /// Closing it ends the server.
    _stdin: ChildStdin,
    port: u16,
}

impl Drop for TestService {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/remote")
}

impl TestService {
    fn start(script: &str) -> Result<Self, String> {
        let started = Command::new("python3")
            .arg(folder().join(script))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = started.map_err(|error| format!("start python3: {error}"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut line = String::new();
        BufReader::new(stdout.ok_or("no stdout")?).read_line(&mut line).map_err(|error| error.to_string())?;
        let port = line.trim().parse().map_err(|_| format!("{script} did not start"))?;
        Ok(Self { child, _stdin: stdin.ok_or("no stdin")?, port })
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the server's state, optionally after adding a fault for the next matching request.
    fn state(&self, fault: Option<Value>) -> Result<Value, String> {
        let asked = || -> std::io::Result<String> {
            let mut line = TcpStream::connect(("127.0.0.1", self.port))?;
            let (method, body) = match &fault {
                Some(fault) => ("POST", fault.to_string()),
                None => ("GET", String::new()),
            };
            let length = body.len();
            write!(line, "{method} /test HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}")?;
            let mut answer = String::new();
            line.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = asked().map_err(|error| error.to_string())?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        serde_json::from_str(body).map_err(|error| error.to_string())
    }

    /// Waits until every machine is deleted.
    fn wait_until_no_machines(&self) -> Verdict {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let state = self.state(None)?;
            if state["machines"] == json!([]) {
                return Ok(());
            }
            check!(Instant::now() < deadline, state);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn request_count(&self, what: &str) -> Result<usize, String> {
        let state = self.state(None)?;
        let seen = state["seen"].as_array().ok_or("nothing seen")?;
        Ok(seen.iter().filter(|line| line.as_str().is_some_and(|line| line.starts_with(what))).count())
    }
}

/// A case with its own service.
type ServiceCase = fn(&TestService) -> Verdict;

pub(crate) fn trials() -> Vec<Trial> {
    let all = std::env::var_os("BELLJAR_TEST_ALL").is_some_and(|value| value != "0");
    let quick: [(&str, &str, ServiceCase); 6] = [
        ("e2b", "a_run_succeeds", e2b_run),
        ("e2b", "a_canceled_run_deletes_its_machine", e2b_canceled_runs),
        ("e2b", "a_lost_response_is_retried_only_if_safe", e2b_lost_response),
        ("e2b", "refusals_name_the_setting", e2b_refusals),
        ("agentrun", "a_run_succeeds", agentrun_run),
        ("agentrun", "refusals_name_the_setting", agentrun_refusals),
    ];
    let slow: [(&str, &str, ServiceCase); 4] = [
        ("e2b", "conforms", e2b_conforms),
        ("e2b", "the_sdk_works_with_the_test_server", e2b_sdk),
        ("agentrun", "conforms", agentrun_conforms),
        ("agentrun", "the_sdk_works_with_the_test_server", agentrun_sdk),
    ];
    let quick = quick.into_iter().map(|case| (case, false));
    let slow = slow.into_iter().map(|case| (case, !all));
    let trial = |((service, name, case), ignored): ((&'static str, &str, ServiceCase), bool)| {
        let alone =
            move || TestService::start(&format!("{service}_server.py")).and_then(|played| case(&played));
        let alone = move || alone().map_err(Into::into);
        Trial::test(format!("{service}::{name}"), alone).with_ignored_flag(ignored)
    };
    quick.chain(slow).map(trial).collect()
}

fn e2b_settings(played: &TestService) -> E2bSettings {
    E2bSettings {
        api_key: Some(format!("e2b_{}", "0".repeat(40)).into()),
        api_url: Some(played.url()),
        sandbox_url: Some(played.url()),
        answer_seconds: 20,
        ..E2bSettings::default()
    }
}

fn e2b(settings: &E2bSettings) -> Result<Fixture, String> {
    Ok(Fixture::remote(RemoteProvider::e2b(settings).map_err(|error| error.to_string())?))
}

fn e2b_run(played: &TestService) -> Verdict {
    let fixture = e2b(&e2b_settings(played))?;
    let code = "import os, sys\n\
        def main(a, b):\n    print(open('in.txt').read(), sys.stdin.read(), os.getcwd())\n\
        \x20   open('artifacts/o.csv', 'w').write('1')\n    return a + b";
    let request = json!({"language": "python", "code": code, "arguments": {"a": 40, "b": 2}, "stdin": "typed",
        "files": [{"path": "in.txt", "content": "sent"}]});
    let report = fixture.run(request)?;
    check!(report.stdout == "sent typed /workspace\n" && report.result.value == json!(42), report);
    check!(report.artifacts.len() == 1 && report.artifacts[0].name == "o.csv", report);
    let receipt = report.receipt.as_ref().ok_or("no receipt")?;
    check!(receipt.kernel == Kernel::Remote && receipt.isolation.is_empty() && !receipt.simulated, receipt);
    let service = receipt.service.as_ref().ok_or("no service")?;
    check!(service.host == format!("127.0.0.1:{}", played.port) && service.template == "base", service);
    let refused = fixture.run(json!({"command": ["true"], "require": ["seccomp"]})).err().unwrap_or_default();
    check!(
        refused.contains("layer 'seccomp' is not enforced here: isolation is provided by the service"),
        refused
    );
    for network in [json!({"mode": "hosts", "hosts": ["pypi.org"]}), json!("internet")] {
        let refused = fixture.run(json!({"command": ["true"], "network": network})).err().unwrap_or_default();
        check!(refused.contains("network: provider 'e2b' cannot limit the network to listed hosts"), refused);
        check!(refused.contains("use network 'none' or 'full' with it"), refused);
    }
    let long = json!({"command": ["true"], "limits": {"timeout_ms": 3_600_000}});
    let refused = fixture.run(long).err().unwrap_or_default();
    check!(refused.contains("limits.timeout_ms: provider 'e2b' limits runs to 3480 s"), refused);
    fixture.shut_down();
    check!(played.state(None)?["machines"] == json!([]), "shutting down waits for the last machine");
    Ok(())
}

/// However a run ends, no machine is left running, and billed, at the service.
fn e2b_canceled_runs(played: &TestService) -> Verdict {
    let fixture = e2b(&e2b_settings(played))?;
    let sleeping = json!({"command": ["sleep", "600"]});
    let cancel = async { tokio::time::sleep(Duration::from_millis(300)).await };
    let report = fixture.run_until(sleeping.clone(), cancel, &mut Quiet)?;
    check!(report.status == Status::Cancelled, report);
    played.wait_until_no_machines()?;
    // Abandon the run before its machine exists.
    fixture.abandon(sleeping.clone(), Duration::from_millis(1))?;
    fixture.abandon(sleeping, Duration::from_millis(250))?;
    let report = fixture.run(json!({"command": ["sleep", "600"], "limits": {"timeout_ms": 200}}))?;
    check!(report.status == Status::TimedOut, report);
    fixture.shut_down();
    played.wait_until_no_machines()
}

fn e2b_lost_response(played: &TestService) -> Verdict {
    let fixture = e2b(&e2b_settings(played))?;
    // The machine is created but the response is lost: the retry returns the same machine.
    played.state(Some(json!({"at": "POST /v2/sandboxes"})))?;
    played.state(Some(json!({"at": "DELETE /sandboxes", "status": 503})))?;
    let report = fixture.run(json!({"command": ["echo", "hi"]}))?;
    check!(report.stdout == "hi\n", report);
    fixture.shut_down();
    check!(
        played.request_count("POST /v2/sandboxes")? == 2 && played.request_count("DELETE /")? == 2,
        played.state(None)
    );
    // A command whose response is lost may have run, so it is not retried.
    let fixture = e2b(&e2b_settings(played))?;
    played.state(Some(json!({"at": "/process.Process/Start"})))?;
    let before = played.request_count("POST /process.Process/Start")?;
    let lost = fixture.run(json!({"command": ["echo", "hi"]})).err().unwrap_or_default();
    check!(lost.contains("the sandbox was lost: the sandbox at E2B"), lost);
    check!(played.request_count("POST /process.Process/Start")? == before + 1, "sent once");
    fixture.shut_down();
    played.wait_until_no_machines()
}

fn e2b_refusals(played: &TestService) -> Verdict {
    let usual = e2b_settings(played);
    let said = |settings: E2bSettings| -> Result<String, String> {
        let fixture = e2b(&settings)?;
        let said = fixture.run(json!({"command": ["true"]})).err().unwrap_or_default();
        fixture.shut_down();
        Ok(said)
    };
    let wrong_key = said(E2bSettings { api_key: Some("e2b_1".to_owned().into()), ..usual.clone() })?;
    check!(
        wrong_key.contains("responded with 401: Invalid API key") && wrong_key.contains("E2B_API_KEY"),
        wrong_key
    );
    check!(!wrong_key.contains("e2b_1"), wrong_key);
    let template = said(E2bSettings { template: "nope".to_owned(), ..usual.clone() })?;
    check!(
        template.contains("template 'nope' not found; check that template")
            && template.contains("providers.e2b.template"),
        template
    );
    let fault = |status: u16, message: &str, headers: Value| {
        played.state(Some(
            json!({"at": "POST /v2/sandboxes", "status": status, "message": message, "headers": headers}),
        ))
    };
    fault(429, "too many sandboxes", json!({"Retry-After": "3600"}))?;
    let quota = said(usual.clone())?;
    check!(
        quota.contains("responded with 429: too many sandboxes") && quota.contains("retry in 3600 s"),
        quota
    );
    // With a short Retry-After the request is retried.
    fault(429, "slow down", json!({"Retry-After": "0"}))?;
    check!(said(usual.clone())?.is_empty(), "a second try");
    // Redirects are not followed, because requests carry a key.
    fault(307, "", json!({"Location": "http://127.0.0.1:1/v2/sandboxes"}))?;
    let elsewhere = said(usual)?;
    check!(elsewhere.contains("responded with 307"), elsewhere);
    played.wait_until_no_machines()
}

fn agentrun_settings(played: &TestService) -> AgentRunSettings {
    AgentRunSettings {
        access_key_id: Some("test-id".to_owned()),
        access_key_secret: Some("test-secret".to_owned().into()),
        template: Some("python".to_owned()),
        internet: false,
        data_url: Some(played.url()),
        answer_seconds: 20,
        ..AgentRunSettings::default()
    }
}

fn agentrun(settings: &AgentRunSettings) -> Result<Fixture, String> {
    Ok(Fixture::remote(RemoteProvider::agentrun(settings).map_err(|error| error.to_string())?))
}

fn agentrun_run(played: &TestService) -> Verdict {
    let fixture = agentrun(&agentrun_settings(played))?;
    let code =
        "import sys\ndef main(a):\n    print(open('in.txt').read(), sys.stdin.read())\n    return a * 2";
    let request = json!({"language": "python", "code": code, "arguments": {"a": 21}, "stdin": "it's $HOME",
        "files": [{"path": "in.txt", "content": "sent"}]});
    // If the response to a creation is lost, the retry uses the same name.
    played.state(Some(json!({"at": "POST /sandboxes"})))?;
    let report = fixture.run(request)?;
    check!(report.stdout == "sent it's $HOME\n" && report.result.value == json!(42), report);
    let service = report.receipt.and_then(|receipt| receipt.service).ok_or("no service")?;
    check!(service.region.as_deref() == Some("cn-hangzhou") && service.template == "python", service);
    let sleeping = json!({"command": ["sleep", "600"]});
    fixture.abandon(sleeping.clone(), Duration::from_millis(1))?;
    let cancel = async { tokio::time::sleep(Duration::from_millis(300)).await };
    check!(fixture.run_until(sleeping, cancel, &mut Quiet)?.status == Status::Cancelled, "status");
    let long = json!({"command": ["true"], "limits": {"timeout_ms": 31_000}});
    let refused = fixture.run(long).err().unwrap_or_default();
    check!(refused.contains("limits.timeout_ms: provider 'agentrun' limits runs to 30 s"), refused);
    fixture.shut_down();
    check!(played.state(None)?["machines"] == json!([]), "shutting down waits for the last machine");
    Ok(())
}

fn agentrun_refusals(played: &TestService) -> Verdict {
    let usual = agentrun_settings(played);
    let said = |settings: AgentRunSettings| -> Result<String, String> {
        let fixture = agentrun(&settings)?;
        let said = fixture.run(json!({"command": ["true"]})).err().unwrap_or_default();
        fixture.shut_down();
        Ok(said)
    };
    let key = said(AgentRunSettings { access_key_secret: Some("wrong".to_owned().into()), ..usual.clone() })?;
    check!(
        key.contains("responded with 403: The request signature does not match")
            && key.contains("access_key_secret"),
        key
    );
    let template = said(AgentRunSettings { template: Some("nope".to_owned()), ..usual.clone() })?;
    check!(
        template.contains("providers.agentrun.template") && template.contains("'nope' exists in cn-hangzhou"),
        template
    );
    let open = said(AgentRunSettings { internet: true, ..usual })?;
    check!(open.contains("network: provider 'agentrun' cannot block the internet"), open);
    played.wait_until_no_machines()
}

fn agentrun_conforms(played: &TestService) -> Verdict {
    conforms(&agentrun(&agentrun_settings(played))?, &AGENTRUN_DIFFERS)?;
    played.wait_until_no_machines()
}

fn e2b_conforms(played: &TestService) -> Verdict {
    let fixture =
        e2b(&E2bSettings { api_url: Some("http://127.0.0.1:1".to_owned()), ..e2b_settings(played) })?;
    let nobody = fixture.run(json!({"command": ["true"]})).err().unwrap_or_default();
    check!(
        nobody.contains("cannot connect to 127.0.0.1:1") && nobody.contains("providers.e2b.domain"),
        nobody
    );
    conforms(&e2b(&e2b_settings(played))?, &E2B_DIFFERS)?;
    played.wait_until_no_machines()
}

/// Runs every case that applies to the service, one after another.
fn conforms(fixture: &Fixture, more: &[(&str, &str)]) -> Verdict {
    let differs = |name: &str| DIFFERS.iter().chain(more).any(|(other, _)| *other == name);
    let mut failed = Vec::new();
    for (name, case) in cases::all().into_iter().chain(endings::all()).filter(|(name, _)| !differs(name)) {
        failed.extend(case(fixture).err().map(|why| format!("{name}: {why}")));
    }
    fixture.shut_down();
    check!(failed.is_empty(), failed);
    Ok(())
}

fn e2b_sdk(played: &TestService) -> Verdict {
    let key = format!("e2b_{}", "0".repeat(40));
    let at = played.url();
    let variables = [("E2B_API_KEY", key.as_str()), ("E2B_API_URL", &at), ("E2B_SANDBOX_URL", &at)];
    sdk("e2b_client.py", &variables, &[("E2B_HTTP_VERSION", "1.1")])
}

fn agentrun_sdk(played: &TestService) -> Verdict {
    let key = [("AGENTRUN_ACCESS_KEY_ID", "test-id"), ("AGENTRUN_ACCESS_KEY_SECRET", "test-secret")];
    let at = played.url();
    sdk("agentrun_client.py", &key, &[("AGENTRUN_ACCOUNT_ID", "1"), ("AGENTRUN_DATA_ENDPOINT", &at)])
}

/// Runs a script with the service's own SDK.
#[expect(clippy::print_stdout, reason = "a skipped test says why")]
fn sdk(script: &str, key: &[(&str, &str)], more: &[(&str, &str)]) -> Verdict {
    let packages = std::env::var_os("BELLJAR_TEST_PACKAGES").unwrap_or_default();
    let python = Path::new(&packages).join("remote/bin/python3");
    if !python.exists() {
        println!("skipped: the SDKs of services are not installed; ./test --all installs them");
        return Ok(());
    }
    let output = Command::new(python)
        .arg(folder().join(script))
        .envs(key.iter().chain(more).copied())
        .output()
        .map_err(|error| error.to_string())?;
    check!(output.status.success(), String::from_utf8_lossy(&output.stderr));
    Ok(())
}
