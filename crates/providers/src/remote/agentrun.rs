//! Aliyun AgentRun: sandboxes of a code interpreter template, over signed requests. Its commands are shell
//! text and block until they end, so a launch script runs the program there and writes its output to files.

use std::time::{Duration, Instant, SystemTime};

use belljar_engine::outcome::{Ending, Service};
use belljar_engine::provider::{Flow, ProviderError, Stream};
use reqwest::{Method, RequestBuilder, Url};
use serde_json::{Value, json};

use super::http::{Again, Http, Trouble, address, host_of, shown};
use super::signature::{Signer, encoded};
use super::task::{FOLDER, heard_enough};
use super::{Asked, Command, Ear, Lender, Lent, Outside, Terms, unique};
use crate::settings::{AgentRunSettings, Secret};

/// Name in requests and receipts.
pub(crate) const NAME: &str = "agentrun";
const REGION: &str = "cn-hangzhou";
/// The service ends every command after this time.
const LONGEST: Duration = Duration::from_secs(30);
/// Idle time after which the service deletes a sandbox.
const IDLE_SECONDS: u64 = 120;
/// Time allowed for a sandbox to become ready.
const STARTING: Duration = Duration::from_secs(60);
const ASKING_AGAIN: Duration = Duration::from_millis(300);
/// How much longer than its program the launch script may take to report the ending.
const GRACE: Duration = Duration::from_secs(3);
/// More than any response except a file.
const MAX_ANSWER: u64 = 1 << 20;
const LAUNCH: &str = include_str!("launch.py");

/// A client for the service.
#[derive(Debug)]
pub(super) struct AgentRun {
    http: Http,
    data: Url,
    key_id: String,
    secret: Secret,
    token: Option<Secret>,
    region: String,
    template: String,
    internet: bool,
}

impl AgentRun {
    pub(super) fn new(settings: &AgentRunSettings) -> Result<Self, ProviderError> {
        let wrong =
            |cause: String| ProviderError::Setup { step: "use provider 'agentrun'".to_owned(), cause };
        let missing =
            |what: &str, variable: &str| wrong(format!("set providers.agentrun.{what} or {variable}"));
        let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        let given = |value: &Option<String>, what: &str, variable: &str| match value {
            Some(text) if is_plain(text) => Ok(text.clone()),
            _ => Err(missing(what, variable)),
        };
        let key_id = given(&settings.access_key_id, "access_key_id", "AGENTRUN_ACCESS_KEY_ID")?;
        let secret = settings.access_key_secret.clone();
        let secret = secret.ok_or_else(|| missing("access_key_secret", "AGENTRUN_ACCESS_KEY_SECRET"))?;
        let template = given(&settings.template, "template", "AGENTRUN_TEMPLATE")?;
        let region = settings.region.clone().unwrap_or_else(|| REGION.to_owned());
        let data = match &settings.data_url {
            Some(url) => url.clone(),
            None => {
                let account = given(&settings.account_id, "account_id", "AGENTRUN_ACCOUNT_ID")?;
                format!("https://{account}-ram.agentrun-data.{region}.aliyuncs.com")
            }
        };
        let data = address("providers.agentrun.data_url", &data).map_err(wrong)?;
        if settings.sandboxes == 0 || settings.answer_seconds == 0 {
            return Err(wrong(
                "providers.agentrun: sandboxes and answer_seconds must be above zero".to_owned(),
            ));
        }
        let http = Http::new(Duration::from_secs(settings.answer_seconds), &data).map_err(wrong)?;
        let (token, internet) = (settings.security_token.clone(), settings.internet);
        Ok(Self { http, data, key_id, secret, token, region, template, internet })
    }

    /// Builds a signed request. `path` includes the query.
    fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, Trouble> {
        let text = format!("{}{path}", self.data.as_str().trim_end_matches('/'));
        let url: Url = text.parse().map_err(|error| Trouble::Unreachable {
            host: host_of(&self.data),
            why: format!("invalid path '{path}': {error}"),
        })?;
        let token = self.token.as_ref().map(Secret::reveal);
        let signer =
            Signer { key_id: &self.key_id, secret: self.secret.reveal(), token, region: &self.region };
        let headers = signer.headers(method.as_str(), &url, SystemTime::now());
        let request = self.http.client.request(method, url);
        Ok(headers.into_iter().fold(request, |request, (name, value)| request.header(name, value)))
    }

    /// Sends a request with an optional JSON body, and reads a JSON response.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        again: Again,
    ) -> Result<Value, Trouble> {
        let mut request = self.request(method, path)?;
        if let Some(body) = body {
            request = request.header("Content-Type", "application/json").body(body.to_string());
        }
        let answer = self.http.send(request, again).await?;
        let answer = self.http.body(answer, MAX_ANSWER).await?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        // An error may arrive with status 200, named in the body.
        match answer["code"].as_str() {
            None | Some("SUCCESS") => Ok(answer),
            Some(code) => {
                let message = shown(answer["message"].as_str().unwrap_or(code));
                let status = if message.to_lowercase().contains("not found") { 404 } else { 400 };
                Err(Trouble::Refused { host: host_of(&self.data), status, message, later: None })
            }
        }
    }

    async fn ready(&self, id: &str) -> Result<(), Trouble> {
        let deadline = Instant::now() + STARTING;
        loop {
            let health = self.ask(Method::GET, &format!("/sandboxes/{id}/health"), None, Again::Always).await;
            let health = match health {
                Ok(health) if health["status"] == "ok" => return Ok(()),
                other => other,
            };
            if Instant::now() > deadline {
                let why = format!("the sandbox is not ready after {} s", STARTING.as_secs());
                return Err(health.err().unwrap_or(Trouble::Broken { host: host_of(&self.data), why }));
            }
            tokio::time::sleep(ASKING_AGAIN).await;
        }
    }

    /// Explains an error in terms of the settings.
    fn refusal(&self, step: &str, trouble: &Trouble) -> ProviderError {
        let cause = match trouble.status() {
            Some(401 | 403) => format!(
                "{trouble}; check providers.agentrun.access_key_id and access_key_secret, or \
                 AGENTRUN_ACCESS_KEY_ID and AGENTRUN_ACCESS_KEY_SECRET"
            ),
            Some(404) => format!(
                "{trouble}; check that template '{}' exists in {}, or set providers.agentrun.template",
                self.template, self.region
            ),
            Some(429) => {
                format!(
                    "{trouble}; raise the quota at AgentRun, or lower providers.agentrun.sandboxes{}",
                    trouble.when()
                )
            }
            _ => match trouble {
                Trouble::Unreachable { .. } => format!(
                    "{trouble}; check the network, and providers.agentrun.account_id, region and data_url"
                ),
                _ => trouble.to_string(),
            },
        };
        ProviderError::Setup { step: format!("{step} at AgentRun"), cause }
    }

    async fn command(
        &self,
        lent: &Lent,
        text: String,
        cwd: &str,
        patience: Duration,
    ) -> Result<Value, Trouble> {
        let path = format!("/sandboxes/{}/processes/cmd", lent.id);
        let body = json!({"command": text, "cwd": cwd, "timeout": LONGEST.as_secs()});
        let request = self.request(Method::POST, &path)?;
        let request = request.header("Content-Type", "application/json").body(body.to_string());
        let answer = self.http.send_for(request, Again::IfNothingHappened, patience).await?;
        self.http.json(answer, MAX_ANSWER).await
    }

    /// Runs a tenant's program and forwards its output.
    async fn launch(&self, lent: &Lent, command: &Command, ear: Ear<'_>) -> Result<Ending, ProviderError> {
        let started = Instant::now();
        let seconds = command.timeout.as_secs_f64().to_string();
        let launch =
            ["python3", "-c", LAUNCH, &seconds, &command.keep.to_string(), FOLDER].map(str::to_owned);
        let text = shell_text(&command.env, launch.iter().chain(&command.words));
        let patience = command.timeout + GRACE;
        let answer = match self.command(lent, text, &command.workdir, patience).await {
            Ok(answer) => answer,
            // The service ended it before the launch script could report.
            Err(_) if started.elapsed() >= command.timeout => return Ok(Ending::TimedOut),
            Err(trouble) => return Err(lost(&trouble)),
        };
        let said: Value =
            serde_json::from_str(answer["stdout"].as_str().unwrap_or_default()).unwrap_or_default();
        for (name, stream) in [("stdout", Stream::Stdout), ("stderr", Stream::Stderr)] {
            if said[name].as_u64().unwrap_or(0) > 0 {
                let bytes = self.get(lent, &format!("{FOLDER}/{name}"), 2 * command.keep + (1 << 20)).await?;
                if ear(stream, &bytes) == Flow::Kill {
                    return Ok(heard_enough());
                }
            }
        }
        match (&said["exit"], &said["signal"]) {
            (Value::Number(code), _) => Ok(Ending::Exited(code.as_u64().unwrap_or(255) as u8)),
            (_, Value::Number(signal)) => Ok(Ending::Signalled(signal.as_i64().unwrap_or(9) as i32)),
            _ if said["late"] == true || started.elapsed() >= command.timeout => Ok(Ending::TimedOut),
            _ => {
                let why = shown(answer["stderr"].as_str().unwrap_or_default());
                Err(ProviderError::Lost {
                    message: format!("the sandbox at AgentRun did not report how the program ended: {why}"),
                })
            }
        }
    }
}

/// The error for a sandbox that failed during a run.
fn lost(trouble: &Trouble) -> ProviderError {
    ProviderError::Lost { message: format!("the sandbox at AgentRun failed: {trouble}") }
}

/// Quotes words for a shell.
fn shell_text<'a>(env: &[(String, String)], words: impl Iterator<Item = &'a String>) -> String {
    let quoted = |word: &str| format!("'{}'", word.replace('\'', "'\\''"));
    let env = env.iter().map(|(name, value)| quoted(&format!("{name}={value}")));
    let words = words.map(|word| quoted(word));
    ["exec env --".to_owned()].into_iter().chain(env).chain(words).collect::<Vec<_>>().join(" ")
}

impl Lender for AgentRun {
    fn name(&self) -> &'static str {
        NAME
    }

    fn service(&self) -> Service {
        let (host, template) = (host_of(&self.data), self.template.clone());
        Service { host, template, region: Some(self.region.clone()) }
    }

    fn longest(&self) -> Duration {
        LONGEST
    }

    fn grace(&self) -> Duration {
        GRACE
    }

    fn outside(&self) -> Outside {
        if self.internet { Outside::Always } else { Outside::Never }
    }

    fn user(&self) -> &'static str {
        ""
    }

    /// Queries a sandbox that does not exist, which fails differently for invalid credentials.
    fn check(&self) -> Asked<'_, ()> {
        Box::pin(async {
            let asked = self.ask(Method::GET, "/sandboxes/belljar-check", None, Again::Always).await;
            match asked {
                Err(trouble) if trouble.status() != Some(404) => {
                    Err(self.refusal("query a sandbox", &trouble))
                }
                _ => Ok(()),
            }
        })
    }

    fn borrow(&self, _terms: Terms) -> Asked<'_, Lent> {
        Box::pin(async move {
            let step = "create a sandbox";
            // The name is ours, so that a retry creates no second sandbox and a failed one can be deleted.
            let lent = Lent { id: format!("belljar-{}", unique()?), url: String::new(), token: None };
            let body = json!({"templateName": self.template, "sandboxIdleTimeoutSeconds": IDLE_SECONDS, "sandboxId": lent.id});
            let made = match self.ask(Method::POST, "/sandboxes", Some(body), Again::Always).await {
                // An earlier attempt succeeded after all.
                Err(trouble) if trouble.status() == Some(409) => Ok(()),
                made => made.map(drop),
            };
            let certainly_none =
                matches!(&made, Err(trouble) if trouble.status().is_some_and(|status| status < 500));
            let ready = match made {
                Ok(()) => self.ready(&lent.id).await,
                Err(trouble) => Err(trouble),
            };
            if ready.is_err() && !certainly_none {
                let _given_back = self.give_back(&lent).await;
            }
            ready.map(|()| lent).map_err(|trouble| self.refusal(step, &trouble))
        })
    }

    fn put<'a>(&'a self, lent: &'a Lent, path: &'a str, content: Vec<u8>) -> Asked<'a, ()> {
        Box::pin(async move {
            let mark = unique()?;
            let patience = self.http.patience(content.len());
            let field = |name: &str| format!("--{mark}\r\nContent-Disposition: form-data; name=\"{name}\"");
            let mut body = format!("{}\r\n\r\n{path}\r\n", field("path")).into_bytes();
            body.extend(
                format!(
                    "{}; filename=\"files\"\r\nContent-Type: application/octet-stream\r\n\r\n",
                    field("file")
                )
                .bytes(),
            );
            body.extend(content);
            body.extend(format!("\r\n--{mark}--\r\n").bytes());
            let request = self.request(Method::POST, &format!("/sandboxes/{}/filesystem/upload", lent.id));
            let request = request.map_err(|trouble| lost(&trouble))?;
            let request =
                request.header("Content-Type", format!("multipart/form-data; boundary={mark}")).body(body);
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
            let path = format!("/sandboxes/{}/filesystem/download?path={}", lent.id, encoded(path));
            let request = self.request(Method::GET, &path).map_err(|trouble| lost(&trouble))?;
            let answer = self.http.send(request, Again::Always).await.map_err(|trouble| lost(&trouble))?;
            self.http.body(answer, bound).await.map_err(|trouble| lost(&trouble))
        })
    }

    fn run<'a>(&'a self, lent: &'a Lent, command: Command, ear: Ear<'a>) -> Asked<'a, Ending> {
        Box::pin(async move {
            if !command.ours {
                return self.launch(lent, &command, ear).await;
            }
            let text = shell_text(&command.env, command.words.iter());
            let answer = self.command(lent, text, &command.workdir, command.timeout).await;
            let answer = answer.map_err(|trouble| lost(&trouble))?;
            ear(Stream::Stdout, answer["stdout"].as_str().unwrap_or_default().as_bytes());
            ear(Stream::Stderr, answer["stderr"].as_str().unwrap_or_default().as_bytes());
            Ok(Ending::Exited(answer["exitCode"].as_u64().unwrap_or(255) as u8))
        })
    }

    fn give_back<'a>(&'a self, lent: &'a Lent) -> Asked<'a, ()> {
        Box::pin(async move {
            let asked =
                self.ask(Method::DELETE, &format!("/sandboxes/{}", lent.id), None, Again::Always).await;
            match asked {
                Err(trouble) if trouble.status() != Some(404) => {
                    Err(self.refusal("delete a sandbox", &trouble))
                }
                _ => Ok(()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_a_shell_as_they_are() {
        let words = ["echo".to_owned(), "it's $(HOME) `x`\n".to_owned()];
        let env = [("A".to_owned(), "b c".to_owned())];
        assert_eq!(shell_text(&env, words.iter()), "exec env -- 'A=b c' 'echo' 'it'\\''s $(HOME) `x`\n'");
    }

    #[test]
    fn settings_that_are_missing_are_named() {
        let some = |text: &str| Some(text.to_owned());
        let usual = || AgentRunSettings {
            access_key_id: some("id"),
            access_key_secret: Some("secret".to_owned().into()),
            account_id: some("123"),
            template: some("python"),
            ..AgentRunSettings::default()
        };
        let wrong = |settings| AgentRun::new(&settings).unwrap_err().to_string();
        let made = AgentRun::new(&usual()).unwrap();
        assert_eq!(made.data.as_str(), "https://123-ram.agentrun-data.cn-hangzhou.aliyuncs.com/");
        let named = |settings, variable: &str| assert!(wrong(settings).ends_with(&format!("or {variable}")));
        named(AgentRunSettings { access_key_id: None, ..usual() }, "AGENTRUN_ACCESS_KEY_ID");
        named(AgentRunSettings { access_key_secret: None, ..usual() }, "AGENTRUN_ACCESS_KEY_SECRET");
        named(AgentRunSettings { account_id: some("a\nb"), ..usual() }, "AGENTRUN_ACCOUNT_ID");
        named(AgentRunSettings { template: None, ..usual() }, "AGENTRUN_TEMPLATE");
        assert!(!format!("{made:?}").contains("\"secret\""));
    }
}
