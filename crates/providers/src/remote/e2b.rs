//! E2B: its API creates and deletes sandboxes; the daemon in each transfers files over HTTP and runs commands
//! over Connect.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_engine::outcome::{Ending, Service};
use belljar_engine::provider::{Flow, ProviderError, Stream};
use reqwest::{Method, RequestBuilder, Url};
use serde_json::{Value, json};

use super::connect::{Frame, Frames, framed};
use super::http::{Again, Http, Trouble, address, host_of, shown};
use super::task::heard_enough;
use super::{Asked, Command, Ear, Lender, Lent, Outside, Terms, unique};
use crate::settings::{E2bSettings, Secret};

/// Name in requests and receipts.
pub(crate) const NAME: &str = "e2b";
/// The daemon's port in each sandbox.
const DAEMON: &str = "49983";
/// How much longer than its program a sandbox lives if it is not deleted. Covers the time for transferring
/// files.
const GRACE: Duration = Duration::from_secs(120);
/// More than any response except a file.
const MAX_ANSWER: u64 = 1 << 20;

/// A client for the service.
#[derive(Debug)]
pub(super) struct E2b {
    http: Http,
    api: Url,
    key: Secret,
    settings: E2bSettings,
}

impl E2b {
    pub(super) fn new(settings: &E2bSettings) -> Result<Self, ProviderError> {
        let wrong = |cause: String| ProviderError::Setup { step: "use provider 'e2b'".to_owned(), cause };
        let missing = || wrong("no API key; set providers.e2b.api_key or E2B_API_KEY".to_owned());
        let key = settings.api_key.clone().ok_or_else(missing)?;
        if !key.reveal().bytes().all(|byte| byte.is_ascii_graphic()) || key.reveal().is_empty() {
            return Err(wrong("providers.e2b.api_key (or E2B_API_KEY) is not a valid key".to_owned()));
        }
        let usual = || format!("https://api.{}", settings.domain);
        let api = settings.api_url.clone().unwrap_or_else(usual);
        let api = address("providers.e2b.api_url", &api).map_err(wrong)?;
        if let Some(url) = &settings.sandbox_url {
            address("providers.e2b.sandbox_url", url).map_err(wrong)?;
        }
        if settings.longest_seconds <= GRACE.as_secs() {
            return Err(wrong(format!(
                "providers.e2b.longest_seconds: must be above {}, the time reserved for set-up and files",
                GRACE.as_secs()
            )));
        }
        if settings.sandboxes == 0 || settings.answer_seconds == 0 {
            return Err(wrong("providers.e2b: sandboxes and answer_seconds must be above zero".to_owned()));
        }
        let http = Http::new(Duration::from_secs(settings.answer_seconds), &api).map_err(wrong)?;
        Ok(Self { http, api, key, settings: settings.clone() })
    }

    /// Builds a request to the API.
    fn api(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("{}{path}", self.api.as_str().trim_end_matches('/'));
        self.http.client.request(method, url).header("X-API-KEY", self.key.reveal())
    }

    /// Builds a request to the daemon in a sandbox.
    fn daemon(&self, lent: &Lent, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.client.request(method, format!("{}{path}", lent.url));
        let request = request.header("E2b-Sandbox-Id", &lent.id).header("E2b-Sandbox-Port", DAEMON);
        match &lent.token {
            Some(token) => request.header("X-Access-Token", token),
            None => request,
        }
    }

    /// Parses the response to a creation request.
    fn lent(&self, answer: &Value) -> Option<Lent> {
        let is_plain = |text: &&str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        let id = answer["sandboxID"].as_str().filter(is_plain)?.to_owned();
        let domain = answer["domain"].as_str().filter(is_plain).unwrap_or(&self.settings.domain);
        let url = match &self.settings.sandbox_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!("https://{DAEMON}-{id}.{domain}"),
        };
        let token = answer["envdAccessToken"].as_str().map(str::to_owned);
        Some(Lent { id, url, token })
    }

    /// Explains an error in terms of the settings.
    fn refusal(&self, step: &str, trouble: &Trouble) -> ProviderError {
        let cause = match trouble.status() {
            Some(401 | 403) => format!("{trouble}; check providers.e2b.api_key or E2B_API_KEY"),
            Some(402) => format!("{trouble}; the E2B account has no credit left"),
            Some(404) => format!(
                "{trouble}; check that template '{}' exists, or set providers.e2b.template",
                self.settings.template
            ),
            Some(429) => {
                format!(
                    "{trouble}; raise the quota at E2B, or lower providers.e2b.sandboxes{}",
                    trouble.when()
                )
            }
            _ => match trouble {
                Trouble::Unreachable { .. } => {
                    format!("{trouble}; check the network, and providers.e2b.domain and api_url")
                }
                _ => trouble.to_string(),
            },
        };
        ProviderError::Setup { step: format!("{step} at E2B"), cause }
    }
}

/// The error for a sandbox that failed during a run.
fn lost(trouble: &Trouble) -> ProviderError {
    let message = match trouble {
        Trouble::Refused { status: 502, .. } => format!("the sandbox at E2B is gone ({trouble})"),
        _ => format!("the sandbox at E2B failed: {trouble}"),
    };
    ProviderError::Lost { message }
}

impl Lender for E2b {
    fn name(&self) -> &'static str {
        NAME
    }

    fn service(&self) -> Service {
        Service { host: host_of(&self.api), template: self.settings.template.clone(), region: None }
    }

    fn longest(&self) -> Duration {
        Duration::from_secs(self.settings.longest_seconds).saturating_sub(GRACE)
    }

    /// Zero, because the daemon reports the ending at once.
    fn grace(&self) -> Duration {
        Duration::ZERO
    }

    fn outside(&self) -> Outside {
        Outside::AsAsked
    }

    fn user(&self) -> &'static str {
        "user"
    }

    fn check(&self) -> Asked<'_, ()> {
        Box::pin(async {
            let asked = self.http.send(self.api(Method::GET, "/v2/sandboxes?limit=1"), Again::Always).await;
            asked.map(drop).map_err(|trouble| self.refusal("list sandboxes", &trouble))
        })
    }

    fn borrow(&self, terms: Terms) -> Asked<'_, Lent> {
        Box::pin(async move {
            let body = json!({
                "templateID": self.settings.template,
                "timeout": (terms.timeout + GRACE).as_secs() + 1,
                "autoPause": false,
                "allow_internet_access": terms.internet,
                "metadata": {"made-by": "belljar"},
            });
            let step = "create a sandbox";
            let key = unique()?;
            // Repeating the key returns the same sandbox.
            let request = self.api(Method::POST, "/v2/sandboxes").header("Idempotency-Key", key);
            let request = request.header("Content-Type", "application/json").body(body.to_string());
            let refusal = |trouble: Trouble| self.refusal(step, &trouble);
            let answer = self.http.send(request, Again::Always).await.map_err(refusal)?;
            let answer = self.http.json(answer, MAX_ANSWER).await.map_err(refusal)?;
            self.lent(&answer).ok_or_else(|| ProviderError::Setup {
                step: format!("{step} at E2B"),
                cause: "the response names no sandbox".to_owned(),
            })
        })
    }

    fn put<'a>(&'a self, lent: &'a Lent, path: &'a str, content: Vec<u8>) -> Asked<'a, ()> {
        Box::pin(async move {
            let request = self.daemon(lent, Method::POST, &format!("/files?username=root&path={path}"));
            let patience = self.http.patience(content.len());
            let request = request.header("Content-Type", "application/octet-stream").body(content);
            // Writing a file twice is harmless.
            self.http
                .send_for(request, Again::Always, patience)
                .await
                .map(drop)
                .map_err(|trouble| lost(&trouble))
        })
    }

    fn get<'a>(&'a self, lent: &'a Lent, path: &'a str, bound: u64) -> Asked<'a, Vec<u8>> {
        Box::pin(async move {
            let request = self.daemon(lent, Method::GET, &format!("/files?username=user&path={path}"));
            let answer = self.http.send(request, Again::Always).await.map_err(|trouble| lost(&trouble))?;
            self.http.body(answer, bound).await.map_err(|trouble| lost(&trouble))
        })
    }

    fn run<'a>(&'a self, lent: &'a Lent, command: Command, ear: Ear<'a>) -> Asked<'a, Ending> {
        Box::pin(async move {
            let Command { words, env, workdir, ours, timeout, keep: _ } = command;
            let env: serde_json::Map<_, _> =
                env.into_iter().map(|(name, value)| (name, value.into())).collect();
            let process = json!({"cmd": words[0], "args": words[1..], "envs": env, "cwd": workdir});
            let start = framed(&json!({"process": process, "stdin": false}));
            let user = STANDARD.encode(if ours { "root:" } else { "user:" });
            // The daemon ends the command too, in case this process cannot.
            let deadline = (timeout + Duration::from_secs(10)).as_millis().to_string();
            let request = self
                .daemon(lent, Method::POST, "/process.Process/Start")
                .header("Authorization", format!("Basic {user}"))
                .header("Content-Type", "application/connect+json")
                .header("Connect-Protocol-Version", "1")
                .header("Connect-Timeout-Ms", deadline)
                .header("Keepalive-Ping-Interval", "50")
                .body(start);
            let answer = self.http.send(request, Again::IfNothingHappened).await;
            let mut answer = answer.map_err(|trouble| lost(&trouble))?;
            let broken =
                |why: String| ProviderError::Lost { message: format!("the sandbox at E2B failed: {why}") };
            let mut frames = Frames::default();
            loop {
                while let Some(frame) = frames.next().map_err(broken)? {
                    if let Some(ending) = hear(frame, ear)? {
                        return Ok(ending);
                    }
                }
                match answer.chunk().await {
                    Ok(Some(bytes)) => frames.push(&bytes),
                    Ok(None) => return Err(broken("the stream ended before the program".to_owned())),
                    Err(error) => {
                        let message = format!("the connection to the sandbox at E2B broke: {error}");
                        return Err(ProviderError::Lost { message: shown(&message) });
                    }
                }
            }
        })
    }

    fn give_back<'a>(&'a self, lent: &'a Lent) -> Asked<'a, ()> {
        Box::pin(async move {
            let request = self.api(Method::DELETE, &format!("/sandboxes/{}", lent.id));
            match self.http.send(request, Again::Always).await {
                Err(trouble) if trouble.status() != Some(404) => {
                    Err(self.refusal("delete a sandbox", &trouble))
                }
                _ => Ok(()),
            }
        })
    }
}

/// Handles a frame of a running command. Returns how the command ended, if it did.
fn hear(frame: Frame, ear: Ear<'_>) -> Result<Option<Ending>, ProviderError> {
    let event = match frame {
        Frame::Message(message) => message["event"].clone(),
        Frame::End(error) => {
            let said = |error: &Value| error["message"].as_str().or(error["code"].as_str()).map(shown);
            let said = error
                .as_ref()
                .and_then(said)
                .unwrap_or_else(|| "the stream ended before the program".to_owned());
            let step = "start the program at E2B".to_owned();
            return match error.as_ref().and_then(|error| error["code"].as_str()) {
                Some("deadline_exceeded") => Ok(Some(Ending::TimedOut)),
                Some("invalid_argument" | "not_found" | "unauthenticated" | "permission_denied") => {
                    Err(ProviderError::Setup { step, cause: said })
                }
                _ => Err(ProviderError::Lost { message: format!("the sandbox at E2B reported: {said}") }),
            };
        }
    };
    for (name, stream) in [("stdout", Stream::Stdout), ("stderr", Stream::Stderr)] {
        let Some(text) = event["data"][name].as_str() else { continue };
        let bytes = STANDARD.decode(text).map_err(|_| ProviderError::Lost {
            message: "the sandbox at E2B sent output that is not base64".to_owned(),
        })?;
        if ear(stream, &bytes) == Flow::Kill {
            return Ok(Some(heard_enough()));
        }
    }
    Ok(event.get("end").map(ending))
}

/// Parses an ending as Go formats it.
fn ending(end: &Value) -> Ending {
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
    fn ends_are_read_as_go_writes_them() {
        assert_eq!(ending(&json!({"exited": true, "status": "exit status 0"})), Ending::Exited(0));
        assert_eq!(
            ending(&json!({"exited": true, "exitCode": 7, "status": "exit status 7"})),
            Ending::Exited(7)
        );
        let dumped = json!({"exitCode": -1, "status": "signal: segmentation fault (core dumped)"});
        assert_eq!(ending(&dumped), Ending::Signalled(11));
        assert_eq!(ending(&json!({"exitCode": -1, "status": "signal: killed"})), Ending::Signalled(9));
    }

    #[test]
    fn settings_that_cannot_work_are_named() {
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
    fn what_names_a_machine_names_no_other_host() {
        let settings = E2bSettings { api_key: Some("e2b_0".to_owned().into()), ..E2bSettings::default() };
        let e2b = E2b::new(&settings).unwrap();
        let lent = e2b.lent(&json!({"sandboxID": "ab1", "domain": null})).unwrap();
        assert_eq!(lent.url, "https://49983-ab1.e2b.app");
        assert_eq!(e2b.lent(&json!({"sandboxID": "a@evil/"})), None);
    }
}
