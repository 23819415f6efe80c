//! Aliyun AgentRun: sandboxes of a code interpreter template, over signed requests. Its commands are shell
//! text and block until they end, so a launch script runs the program there and writes its output to files.

use std::time::{Duration, Instant, SystemTime};

use belljar_engine::outcome::{Ending, ServiceInfo};
use belljar_engine::provider::{ProviderError, SinkControl, Stream};
use reqwest::{Method, RequestBuilder, Url};
use serde_json::{Value, json};

use super::http::{HttpClient, HttpError, RetryPolicy, host_of, parse_url, sanitize};
use super::service_errors::ServiceErrors;
use super::signature::{Signer, percent_encode};
use super::task::{RUN_FOLDER, output_limit_ending};
use super::{
    InternetAccess, MachineSpec, OutputHandler, RemoteCommand, RemoteMachine, RemoteService, ServiceFuture,
    random_name,
};
use crate::settings::{AgentRunSettings, Secret};

/// Name in requests and receipts.
pub(crate) const NAME: &str = "agentrun";
const DEFAULT_REGION: &str = "cn-hangzhou";
/// The service ends every command after this time.
const MAX_COMMAND_TIME: Duration = Duration::from_secs(30);
/// Idle time after which the service deletes a sandbox.
const IDLE_SECONDS: u64 = 120;
/// Time allowed for a sandbox to become ready.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// How much longer than its program the launch script may take to report the ending.
const REPORT_GRACE: Duration = Duration::from_secs(3);
/// More than any response except a file.
const MAX_RESPONSE_BYTES: u64 = 1 << 20;
const LAUNCH_SCRIPT: &str = include_str!("launch.py");

/// A client for the service.
#[derive(Debug)]
pub(super) struct AgentRun {
    http: HttpClient,
    data: Url,
    key_id: String,
    secret: Secret,
    token: Option<Secret>,
    region: String,
    template: String,
    internet: bool,
    errors: ServiceErrors,
}

impl AgentRun {
    pub(super) fn new(settings: &AgentRunSettings) -> Result<Self, ProviderError> {
        let wrong = |cause: String| ProviderError::setup("use provider 'agentrun'", cause);
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
        let region = settings.region.clone().unwrap_or_else(|| DEFAULT_REGION.to_owned());
        let data = match &settings.data_url {
            Some(url) => url.clone(),
            None => {
                let account = given(&settings.account_id, "account_id", "AGENTRUN_ACCOUNT_ID")?;
                format!("https://{account}-ram.agentrun-data.{region}.aliyuncs.com")
            }
        };
        let data = parse_url("providers.agentrun.data_url", &data).map_err(wrong)?;
        if settings.sandboxes == 0 || settings.answer_seconds == 0 {
            return Err(wrong(
                "providers.agentrun: sandboxes and answer_seconds must be above zero".to_owned(),
            ));
        }
        let http = HttpClient::new(Duration::from_secs(settings.answer_seconds), &data).map_err(wrong)?;
        let (token, internet) = (settings.security_token.clone(), settings.internet);
        let errors = ServiceErrors {
            service: "AgentRun",
            provider: NAME,
            credentials: "providers.agentrun.access_key_id and access_key_secret, or AGENTRUN_ACCESS_KEY_ID and \
                          AGENTRUN_ACCESS_KEY_SECRET",
            address: "providers.agentrun.account_id, region and data_url",
            template: format!("'{template}' exists in {region}"),
        };
        Ok(Self { http, data, key_id, secret, token, region, template, internet, errors })
    }

    /// Builds a signed request. `path` includes the query.
    fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, HttpError> {
        let text = format!("{}{path}", self.data.as_str().trim_end_matches('/'));
        let url: Url = text.parse().map_err(|error| HttpError::Unreachable {
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
    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        again: RetryPolicy,
    ) -> Result<Value, HttpError> {
        let mut request = self.request(method, path)?;
        if let Some(body) = body {
            request = request.header("Content-Type", "application/json").body(body.to_string());
        }
        let answer = self.http.send(request, again).await?;
        let answer = self.http.body(answer, MAX_RESPONSE_BYTES).await?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        // An error may arrive with status 200, named in the body.
        match answer["code"].as_str() {
            None | Some("SUCCESS") => Ok(answer),
            Some(code) => {
                let message = sanitize(answer["message"].as_str().unwrap_or(code));
                let status = if message.to_lowercase().contains("not found") { 404 } else { 400 };
                Err(HttpError::Refused { host: host_of(&self.data), status, message, later: None })
            }
        }
    }

    async fn wait_until_ready(&self, id: &str) -> Result<(), HttpError> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let health =
                self.call(Method::GET, &format!("/sandboxes/{id}/health"), None, RetryPolicy::Always).await;
            let health = match health {
                Ok(health) if health["status"] == "ok" => return Ok(()),
                other => other,
            };
            if Instant::now() > deadline {
                let why = format!("the sandbox is not ready after {} s", START_TIMEOUT.as_secs());
                return Err(health.err().unwrap_or(HttpError::Broken { host: host_of(&self.data), why }));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn command(
        &self,
        machine: &RemoteMachine,
        text: String,
        cwd: &str,
        timeout: Duration,
    ) -> Result<Value, HttpError> {
        let path = format!("/sandboxes/{}/processes/cmd", machine.id);
        let body = json!({"command": text, "cwd": cwd, "timeout": MAX_COMMAND_TIME.as_secs()});
        let request = self.request(Method::POST, &path)?;
        let request = request.header("Content-Type", "application/json").body(body.to_string());
        let answer = self.http.send_with_timeout(request, RetryPolicy::IfUnprocessed, timeout).await?;
        self.http.json(answer, MAX_RESPONSE_BYTES).await
    }

    /// Runs a tenant's program and forwards its output.
    async fn launch(
        &self,
        machine: &RemoteMachine,
        command: &RemoteCommand,
        on_output: OutputHandler<'_>,
    ) -> Result<Ending, ProviderError> {
        let started = Instant::now();
        let seconds = command.timeout.as_secs_f64().to_string();
        let launch = ["python3", "-c", LAUNCH_SCRIPT, &seconds, &command.keep_bytes.to_string(), RUN_FOLDER]
            .map(str::to_owned);
        let text = shell_command(&command.env, launch.iter().chain(&command.words));
        let timeout = command.timeout + REPORT_GRACE;
        let answer = match self.command(machine, text, &command.workdir, timeout).await {
            Ok(answer) => answer,
            // The service ended it before the launch script could report.
            Err(_) if started.elapsed() >= command.timeout => return Ok(Ending::TimedOut),
            Err(error) => return Err(self.errors.sandbox_failed(&error)),
        };
        let report: Value =
            serde_json::from_str(answer["stdout"].as_str().unwrap_or_default()).unwrap_or_default();
        for (name, stream) in [("stdout", Stream::Stdout), ("stderr", Stream::Stderr)] {
            if report[name].as_u64().unwrap_or(0) > 0 {
                let bytes = self
                    .read_file(machine, &format!("{RUN_FOLDER}/{name}"), 2 * command.keep_bytes + (1 << 20))
                    .await?;
                if on_output(stream, &bytes) == SinkControl::Kill {
                    return Ok(output_limit_ending());
                }
            }
        }
        match (&report["exit"], &report["signal"]) {
            (Value::Number(code), _) => Ok(Ending::Exited(code.as_u64().unwrap_or(255) as u8)),
            (_, Value::Number(signal)) => Ok(Ending::Signalled(signal.as_i64().unwrap_or(9) as i32)),
            _ if report["late"] == true || started.elapsed() >= command.timeout => Ok(Ending::TimedOut),
            _ => {
                let why = sanitize(answer["stderr"].as_str().unwrap_or_default());
                Err(self.errors.lost(format_args!("did not report how the program ended: {why}")))
            }
        }
    }
}

/// Quotes words for a shell.
fn shell_command<'a>(env: &[(String, String)], words: impl Iterator<Item = &'a String>) -> String {
    let quoted = |word: &str| format!("'{}'", word.replace('\'', "'\\''"));
    let env = env.iter().map(|(name, value)| quoted(&format!("{name}={value}")));
    let words = words.map(|word| quoted(word));
    ["exec env --".to_owned()].into_iter().chain(env).chain(words).collect::<Vec<_>>().join(" ")
}

impl RemoteService for AgentRun {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> ServiceInfo {
        let (host, template) = (host_of(&self.data), self.template.clone());
        ServiceInfo { host, template, region: Some(self.region.clone()) }
    }

    fn max_run_time(&self) -> Duration {
        MAX_COMMAND_TIME
    }

    fn report_grace(&self) -> Duration {
        REPORT_GRACE
    }

    fn internet_access(&self) -> InternetAccess {
        if self.internet { InternetAccess::Always } else { InternetAccess::Never }
    }

    fn file_owner(&self) -> &'static str {
        ""
    }

    /// Queries a sandbox that does not exist, which fails differently for invalid credentials.
    fn check(&self) -> ServiceFuture<'_, ()> {
        Box::pin(async {
            let asked = self.call(Method::GET, "/sandboxes/belljar-check", None, RetryPolicy::Always).await;
            match asked {
                Err(error) if error.status() != Some(404) => {
                    Err(self.errors.explain("query a sandbox", &error))
                }
                _ => Ok(()),
            }
        })
    }

    fn create(&self, _terms: MachineSpec) -> ServiceFuture<'_, RemoteMachine> {
        Box::pin(async move {
            let step = "create a sandbox";
            // The name is ours, so that a retry creates no second sandbox and a failed one can be deleted.
            let machine =
                RemoteMachine { id: format!("belljar-{}", random_name()?), url: String::new(), token: None };
            let body = json!({"templateName": self.template, "sandboxIdleTimeoutSeconds": IDLE_SECONDS, "sandboxId": machine.id});
            let created = match self.call(Method::POST, "/sandboxes", Some(body), RetryPolicy::Always).await {
                // An earlier attempt succeeded after all.
                Err(error) if error.status() == Some(409) => Ok(()),
                created => created.map(drop),
            };
            let certainly_none =
                matches!(&created, Err(error) if error.status().is_some_and(|status| status < 500));
            let ready = match created {
                Ok(()) => self.wait_until_ready(&machine.id).await,
                Err(error) => Err(error),
            };
            if ready.is_err() && !certainly_none {
                let _given_back = self.delete(&machine).await;
            }
            ready.map(|()| machine).map_err(|error| self.errors.explain(step, &error))
        })
    }

    fn write_file<'a>(
        &'a self,
        machine: &'a RemoteMachine,
        path: &'a str,
        content: Vec<u8>,
    ) -> ServiceFuture<'a, ()> {
        Box::pin(async move {
            let mark = random_name()?;
            let timeout = self.http.timeout_for(content.len());
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
            let request = self.request(Method::POST, &format!("/sandboxes/{}/filesystem/upload", machine.id));
            let request = request.map_err(|error| self.errors.sandbox_failed(&error))?;
            let request =
                request.header("Content-Type", format!("multipart/form-data; boundary={mark}")).body(body);
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
            let path = format!("/sandboxes/{}/filesystem/download?path={}", machine.id, percent_encode(path));
            let request =
                self.request(Method::GET, &path).map_err(|error| self.errors.sandbox_failed(&error))?;
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
            if !command.privileged {
                return self.launch(machine, &command, on_output).await;
            }
            let text = shell_command(&command.env, command.words.iter());
            let answer = self.command(machine, text, &command.workdir, command.timeout).await;
            let answer = answer.map_err(|error| self.errors.sandbox_failed(&error))?;
            on_output(Stream::Stdout, answer["stdout"].as_str().unwrap_or_default().as_bytes());
            on_output(Stream::Stderr, answer["stderr"].as_str().unwrap_or_default().as_bytes());
            Ok(Ending::Exited(answer["exitCode"].as_u64().unwrap_or(255) as u8))
        })
    }

    fn delete<'a>(&'a self, machine: &'a RemoteMachine) -> ServiceFuture<'a, ()> {
        Box::pin(async move {
            let asked = self
                .call(Method::DELETE, &format!("/sandboxes/{}", machine.id), None, RetryPolicy::Always)
                .await;
            match asked {
                Err(error) if error.status() != Some(404) => {
                    Err(self.errors.explain("delete a sandbox", &error))
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
    fn words_are_quoted_for_the_shell() {
        let words = ["echo".to_owned(), "it's $(HOME) `x`\n".to_owned()];
        let env = [("A".to_owned(), "b c".to_owned())];
        assert_eq!(shell_command(&env, words.iter()), "exec env -- 'A=b c' 'echo' 'it'\\''s $(HOME) `x`\n'");
    }

    #[test]
    fn missing_settings_are_named() {
        let some = |text: &str| Some(text.to_owned());
        let usual = || AgentRunSettings {
            access_key_id: some("id"),
            access_key_secret: Some("secret".to_owned().into()),
            account_id: some("123"),
            template: some("python"),
            ..AgentRunSettings::default()
        };
        let wrong = |settings| AgentRun::new(&settings).unwrap_err().to_string();
        let created = AgentRun::new(&usual()).unwrap();
        assert_eq!(created.data.as_str(), "https://123-ram.agentrun-data.cn-hangzhou.aliyuncs.com/");
        let named = |settings, variable: &str| assert!(wrong(settings).ends_with(&format!("or {variable}")));
        named(AgentRunSettings { access_key_id: None, ..usual() }, "AGENTRUN_ACCESS_KEY_ID");
        named(AgentRunSettings { access_key_secret: None, ..usual() }, "AGENTRUN_ACCESS_KEY_SECRET");
        named(AgentRunSettings { account_id: some("a\nb"), ..usual() }, "AGENTRUN_ACCOUNT_ID");
        named(AgentRunSettings { template: None, ..usual() }, "AGENTRUN_TEMPLATE");
        assert!(!format!("{created:?}").contains("\"secret\""));
    }
}
