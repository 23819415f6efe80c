//! E2B: its API creates and deletes sandboxes; the daemon in each transfers files over HTTP and runs commands
//! over Connect.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_engine::outcome::{Ending, ServiceInfo};
use belljar_engine::provider::{ProviderError, SinkControl, Stream};
use reqwest::{Method, RequestBuilder, Url};
use serde_json::{Value, json};

use super::connect::{ConnectFrame, FrameDecoder, encode_frame};
use super::http::{HttpClient, HttpError, RetryPolicy, host_of, parse_url, sanitize};
use super::service_errors::ServiceErrors;
use super::task::output_limit_ending;
use super::{
    InternetAccess, MachineSpec, OutputHandler, RemoteCommand, RemoteMachine, RemoteService, ServiceFuture,
    random_name,
};
use crate::settings::{E2bSettings, Secret};

/// Name in requests and receipts.
pub(crate) const NAME: &str = "e2b";
/// The daemon's port in each sandbox.
const DAEMON_PORT: &str = "49983";
/// How much longer than its program a sandbox lives if it is not deleted. Covers the time for transferring
/// files.
const LIFETIME_MARGIN: Duration = Duration::from_secs(120);
/// More than any response except a file.
const MAX_RESPONSE_BYTES: u64 = 1 << 20;

/// A client for the service.
#[derive(Debug)]
pub(super) struct E2b {
    http: HttpClient,
    api: Url,
    key: Secret,
    settings: E2bSettings,
    errors: ServiceErrors,
}

impl E2b {
    pub(super) fn new(settings: &E2bSettings) -> Result<Self, ProviderError> {
        let wrong = |cause: String| ProviderError::setup("use provider 'e2b'", cause);
        let missing = || wrong("no API key; set providers.e2b.api_key or E2B_API_KEY".to_owned());
        let key = settings.api_key.clone().ok_or_else(missing)?;
        if !key.reveal().bytes().all(|byte| byte.is_ascii_graphic()) || key.reveal().is_empty() {
            return Err(wrong("providers.e2b.api_key (or E2B_API_KEY) is not a valid key".to_owned()));
        }
        let usual = || format!("https://api.{}", settings.domain);
        let api = settings.api_url.clone().unwrap_or_else(usual);
        let api = parse_url("providers.e2b.api_url", &api).map_err(wrong)?;
        if let Some(url) = &settings.sandbox_url {
            parse_url("providers.e2b.sandbox_url", url).map_err(wrong)?;
        }
        if settings.longest_seconds <= LIFETIME_MARGIN.as_secs() {
            return Err(wrong(format!(
                "providers.e2b.longest_seconds: must be above {}, the time reserved for set-up and files",
                LIFETIME_MARGIN.as_secs()
            )));
        }
        if settings.sandboxes == 0 || settings.answer_seconds == 0 {
            return Err(wrong("providers.e2b: sandboxes and answer_seconds must be above zero".to_owned()));
        }
        let http = HttpClient::new(Duration::from_secs(settings.answer_seconds), &api).map_err(wrong)?;
        let errors = ServiceErrors {
            service: "E2B",
            provider: NAME,
            credentials: "providers.e2b.api_key or E2B_API_KEY",
            address: "providers.e2b.domain and api_url",
            template: format!("'{}' exists", settings.template),
        };
        Ok(Self { http, api, key, settings: settings.clone(), errors })
    }

    /// Builds a request to the API.
    fn api_request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("{}{path}", self.api.as_str().trim_end_matches('/'));
        self.http.client.request(method, url).header("X-API-KEY", self.key.reveal())
    }

    /// Builds a request to the daemon in a sandbox.
    fn daemon_request(&self, machine: &RemoteMachine, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.client.request(method, format!("{}{path}", machine.url));
        let request = request.header("E2b-Sandbox-Id", &machine.id).header("E2b-Sandbox-Port", DAEMON_PORT);
        match &machine.token {
            Some(token) => request.header("X-Access-Token", token),
            None => request,
        }
    }

    /// Parses the response to a creation request.
    fn parse_machine(&self, answer: &Value) -> Option<RemoteMachine> {
        let is_plain = |text: &&str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        let id = answer["sandboxID"].as_str().filter(is_plain)?.to_owned();
        let domain = answer["domain"].as_str().filter(is_plain).unwrap_or(&self.settings.domain);
        let url = match &self.settings.sandbox_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!("https://{DAEMON_PORT}-{id}.{domain}"),
        };
        let token = answer["envdAccessToken"].as_str().map(str::to_owned);
        Some(RemoteMachine { id, url, token })
    }

    /// Handles a frame of a running command. Returns how the command ended, if it did.
    fn handle_frame(
        &self,
        frame: ConnectFrame,
        on_output: OutputHandler<'_>,
    ) -> Result<Option<Ending>, ProviderError> {
        let event = match frame {
            ConnectFrame::Message(message) => message["event"].clone(),
            ConnectFrame::End(error) => return self.ending_of_stream(&error.unwrap_or_default()).map(Some),
        };
        for (name, stream) in [("stdout", Stream::Stdout), ("stderr", Stream::Stderr)] {
            let Some(text) = event["data"][name].as_str() else { continue };
            let bytes =
                STANDARD.decode(text).map_err(|_| self.errors.lost("sent output that is not base64"))?;
            if on_output(stream, &bytes) == SinkControl::Kill {
                return Ok(Some(output_limit_ending()));
            }
        }
        Ok(event.get("end").map(parse_ending))
    }

    /// Returns how a command ended whose stream ended before it, with this error or null.
    fn ending_of_stream(&self, error: &Value) -> Result<Ending, ProviderError> {
        let code = error["code"].as_str();
        let message = error["message"].as_str().or(code).map(sanitize);
        let message = message.unwrap_or_else(|| "the stream ended before the program".to_owned());
        match code {
            Some("deadline_exceeded") => Ok(Ending::TimedOut),
            Some("invalid_argument" | "not_found" | "unauthenticated" | "permission_denied") => {
                Err(self.errors.failed("start the program", message))
            }
            _ => Err(self.errors.lost(format_args!("reported: {message}"))),
        }
    }
}

impl RemoteService for E2b {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> ServiceInfo {
        ServiceInfo { host: host_of(&self.api), template: self.settings.template.clone(), region: None }
    }

    fn max_run_time(&self) -> Duration {
        Duration::from_secs(self.settings.longest_seconds).saturating_sub(LIFETIME_MARGIN)
    }

    /// Zero, because the daemon reports the ending at once.
    fn report_grace(&self) -> Duration {
        Duration::ZERO
    }

    fn internet_access(&self) -> InternetAccess {
        InternetAccess::OnRequest
    }

    fn file_owner(&self) -> &'static str {
        "user"
    }

    fn check(&self) -> ServiceFuture<'_, ()> {
        Box::pin(async {
            let asked = self
                .http
                .send(self.api_request(Method::GET, "/v2/sandboxes?limit=1"), RetryPolicy::Always)
                .await;
            asked.map(drop).map_err(|error| self.errors.explain("list sandboxes", &error))
        })
    }

    fn create(&self, spec: MachineSpec) -> ServiceFuture<'_, RemoteMachine> {
        Box::pin(async move {
            let body = json!({
                "templateID": self.settings.template,
                "timeout": (spec.timeout + LIFETIME_MARGIN).as_secs() + 1,
                "autoPause": false,
                "allow_internet_access": spec.internet,
                "metadata": {"made-by": "belljar"},
            });
            let step = "create a sandbox";
            let key = random_name()?;
            // Repeating the key returns the same sandbox.
            let request = self.api_request(Method::POST, "/v2/sandboxes").header("Idempotency-Key", key);
            let request = request.header("Content-Type", "application/json").body(body.to_string());
            let refusal = |error: HttpError| self.errors.explain(step, &error);
            let answer = self.http.send(request, RetryPolicy::Always).await.map_err(refusal)?;
            let answer = self.http.json(answer, MAX_RESPONSE_BYTES).await.map_err(refusal)?;
            self.parse_machine(&answer)
                .ok_or_else(|| self.errors.failed(step, "the response names no sandbox"))
        })
    }

    fn write_file<'a>(
        &'a self,
        machine: &'a RemoteMachine,
        path: &'a str,
        content: Vec<u8>,
    ) -> ServiceFuture<'a, ()> {
        Box::pin(async move {
            let request =
                self.daemon_request(machine, Method::POST, &format!("/files?username=root&path={path}"));
            let timeout = self.http.timeout_for(content.len());
            let request = request.header("Content-Type", "application/octet-stream").body(content);
            // Writing a file twice is harmless.
            self.http
                .send_with_timeout(request, RetryPolicy::Always, timeout)
                .await
                .map(drop)
                .map_err(|error| self.errors.sandbox_failed(&error))
        })
    }

    fn read_file<'a>(
        &'a self,
        machine: &'a RemoteMachine,
        path: &'a str,
        bound: u64,
    ) -> ServiceFuture<'a, Vec<u8>> {
        Box::pin(async move {
            let request =
                self.daemon_request(machine, Method::GET, &format!("/files?username=user&path={path}"));
            self.http.fetch(request, bound).await.map_err(|error| self.errors.sandbox_failed(&error))
        })
    }

    fn run<'a>(
        &'a self,
        machine: &'a RemoteMachine,
        command: RemoteCommand,
        on_output: OutputHandler<'a>,
    ) -> ServiceFuture<'a, Ending> {
        Box::pin(async move {
            let RemoteCommand { words, env, workdir, privileged: ours, timeout, keep_bytes: _ } = command;
            let env: serde_json::Map<_, _> =
                env.into_iter().map(|(name, value)| (name, value.into())).collect();
            let process = json!({"cmd": words[0], "args": words[1..], "envs": env, "cwd": workdir});
            let start = encode_frame(&json!({"process": process, "stdin": false}));
            let user = STANDARD.encode(if ours { "root:" } else { "user:" });
            // The daemon ends the command too, in case this process cannot.
            let deadline = (timeout + Duration::from_secs(10)).as_millis().to_string();
            let request = self
                .daemon_request(machine, Method::POST, "/process.Process/Start")
                .header("Authorization", format!("Basic {user}"))
                .header("Content-Type", "application/connect+json")
                .header("Connect-Protocol-Version", "1")
                .header("Connect-Timeout-Ms", deadline)
                .header("Keepalive-Ping-Interval", "50")
                .body(start);
            let answer = self.http.send(request, RetryPolicy::IfUnprocessed).await;
            let mut answer = answer.map_err(|error| self.errors.sandbox_failed(&error))?;
            let broken = |why: String| self.errors.lost(format_args!("failed: {why}"));
            let mut frames = FrameDecoder::default();
            loop {
                while let Some(frame) = frames.next().map_err(broken)? {
                    if let Some(ending) = self.handle_frame(frame, on_output)? {
                        return Ok(ending);
                    }
                }
                match answer.chunk().await {
                    Ok(Some(bytes)) => frames.push(&bytes),
                    Ok(None) => return Err(broken("the stream ended before the program".to_owned())),
                    Err(error) => {
                        let message = format!("the connection to the sandbox at E2B broke: {error}");
                        return Err(ProviderError::Lost { message: sanitize(&message) });
                    }
                }
            }
        })
    }

    fn delete<'a>(&'a self, machine: &'a RemoteMachine) -> ServiceFuture<'a, ()> {
        Box::pin(async move {
            let request = self.api_request(Method::DELETE, &format!("/sandboxes/{}", machine.id));
            match self.http.send(request, RetryPolicy::Always).await {
                Err(error) if error.status() != Some(404) => {
                    Err(self.errors.explain("delete a sandbox", &error))
                }
                _ => Ok(()),
            }
        })
    }
}

/// Parses an ending as Go formats it.
fn parse_ending(end: &Value) -> Ending {
    let status = end["status"].as_str().unwrap_or_default();
    let signal = status.strip_prefix("signal: ").map(|name| name.trim_end_matches(" (core dumped)"));
    match signal {
        Some(name) => Ending::Signalled(
            SIGNALS.iter().find(|(_, known)| *known == name).map_or(9, |(number, _)| *number),
        ),
        // Zero is omitted.
        None => Ending::Exited(end["exitCode"].as_i64().unwrap_or(0) as u8),
    }
}

/// Go's names of Linux signals.
const SIGNALS: [(i32, &str); 15] = [
    (1, "hangup"),
    (2, "interrupt"),
    (3, "quit"),
    (4, "illegal instruction"),
    (5, "trace/breakpoint trap"),
    (6, "aborted"),
    (7, "bus error"),
    (8, "floating point exception"),
    (9, "killed"),
    (10, "user defined signal 1"),
    (11, "segmentation fault"),
    (12, "user defined signal 2"),
    (13, "broken pipe"),
    (14, "alarm clock"),
    (15, "terminated"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_parsed_from_go_format() {
        assert_eq!(parse_ending(&json!({"exited": true, "status": "exit status 0"})), Ending::Exited(0));
        assert_eq!(
            parse_ending(&json!({"exited": true, "exitCode": 7, "status": "exit status 7"})),
            Ending::Exited(7)
        );
        let dumped = json!({"exitCode": -1, "status": "signal: segmentation fault (core dumped)"});
        assert_eq!(parse_ending(&dumped), Ending::Signalled(11));
        assert_eq!(parse_ending(&json!({"exitCode": -1, "status": "signal: killed"})), Ending::Signalled(9));
    }

    #[test]
    fn invalid_settings_are_named() {
        let usual = || E2bSettings { api_key: Some("e2b_0".to_owned().into()), ..E2bSettings::default() };
        let wrong = |settings| E2b::new(&settings).unwrap_err().to_string();
        assert!(E2b::new(&usual()).is_ok());
        assert!(
            wrong(E2bSettings { api_key: None, ..usual() })
                .contains("set providers.e2b.api_key or E2B_API_KEY")
        );
        let split = E2bSettings { api_key: Some("a\r\nHost: x".to_owned().into()), ..usual() };
        assert!(wrong(split).contains("is not a valid key"));
        let plain = E2bSettings { api_url: Some("http://e2b.example".to_owned()), ..usual() };
        assert!(wrong(plain).contains("providers.e2b.api_url: must begin with https://"));
        assert!(wrong(E2bSettings { longest_seconds: 60, ..usual() }).contains("must be above 120"));
    }

    #[test]
    fn a_sandbox_id_cannot_name_another_host() {
        let settings = E2bSettings { api_key: Some("e2b_0".to_owned().into()), ..E2bSettings::default() };
        let e2b = E2b::new(&settings).unwrap();
        let machine = e2b.parse_machine(&json!({"sandboxID": "ab1", "domain": null})).unwrap();
        assert_eq!(machine.url, "https://49983-ab1.e2b.app");
        assert_eq!(e2b.parse_machine(&json!({"sandboxID": "a@evil/"})), None);
    }
}
