//! Commands that call a server: executions, sandboxes, tenants, keys, profiles, and `run --server`, including
//! batches.

mod args;
mod artifacts;
mod batch;
mod confirm;
mod early_response;
mod events;
mod http;
mod inputs;
mod quotas;
mod result_lines;
mod run;
mod sandbox;
mod show;
mod tls;
mod usage;

use belljar_engine::quantity::parse_millis;
use hyper::Method;
use serde_json::{Map, Value, json};

use crate::env::Environment;
use crate::error::CliError;
use crate::{input, os, say};

pub(crate) use args::{ExecutionsArgs, KeyArgs, ProfileArgs, ServerArgs, TenantArgs};
use args::{ExecutionsCommand, KeyCommand, ProfileCommand, TenantCommand};
pub(crate) use batch::RemoteRunner;
pub(crate) use http::{Server, encode_part as url_part};
pub(crate) use inputs::RemoteInputs;
pub(crate) use run::{refuse_local_paths, run};
pub(crate) use sandbox::{SandboxArgs, sandbox};
use show::Columns;
pub(crate) use show::print_object as show_one;

const EXECUTIONS: Columns = &["id", "status", "language", "exit_code", "cpu_ms", "created", "metadata"];
const TENANTS: Columns = &["name", "disabled", "stored_bytes", "policy_floor", "provider", "quotas"];
const KEYS: Columns = &["id", "label", "scopes", "expires", "last_used", "revoked"];
const PROFILES: Columns = &["name", "profile"];

/// A server and the form in which its answers are printed.
struct Client {
    server: Server,
    json: bool,
}

impl Client {
    fn new(args: &ServerArgs, environment: &Environment) -> Result<Self, CliError> {
        Ok(Self { server: Server::new(args.server.as_deref(), environment)?, json: args.json })
    }

    /// Gets a list and prints it.
    fn list(&self, path: &str, name: &str, columns: Columns) -> Result<u8, CliError> {
        show::print_list(&call(&self.server, Method::GET, path, None)?, name, columns, self.json)
    }

    /// Calls the server and prints the object that it answers with.
    fn show(&self, method: Method, path: &str, body: Option<Value>) -> Result<u8, CliError> {
        show::print_object(&call(&self.server, method, path, body.as_ref())?)
    }

    /// Calls the server and prints the result object that it answers with.
    fn show_result(&self, method: Method, path: &str) -> Result<u8, CliError> {
        let called = async {
            let response = self.server.send(method, path, http::JSON, None).await?;
            http::read_text(response).await
        };
        say::answer(&show::indent(&os::runtime()?.block_on(called)?));
        Ok(0)
    }

    /// Prints all tenants. In the table, their policy is called what it is.
    fn list_tenants(&self) -> Result<u8, CliError> {
        let mut list = call(&self.server, Method::GET, "/v1/tenants", None)?;
        if !self.json {
            for tenant in list["tenants"].as_array_mut().into_iter().flatten() {
                tenant["policy_floor"] = tenant["policy"].take();
            }
        }
        show::print_list(&list, "tenants", TENANTS, self.json)
    }

    /// Prints what a tenant uses; `path` is the tenant's.
    fn tenant_usage(&self, path: &str, days: u32) -> Result<u8, CliError> {
        let usage = call(&self.server, Method::GET, &format!("{path}/usage?days={days}"), None)?;
        if self.json {
            return show::print_object(&usage);
        }
        usage::print_usage(&usage);
        Ok(0)
    }

    fn delete(&self, path: &str) -> Result<u8, CliError> {
        call(&self.server, Method::DELETE, path, None).map(|_| 0)
    }
}

/// Runs `belljar executions`.
pub(crate) fn executions(args: ExecutionsArgs, environment: &Environment) -> Result<u8, CliError> {
    let client = Client::new(&args.server, environment)?;
    let url = |id: &str| format!("/v1/executions/{}", url_part(id));
    match args.command {
        ExecutionsCommand::List { status, language, metadata, limit, cursor } => {
            let filters = [("status", status), ("language", language), ("cursor", cursor)];
            let query = list_query(limit, filters, metadata);
            client.list(&format!("/v1/executions?{query}"), "executions", EXECUTIONS)
        }
        ExecutionsCommand::Show { id } => client.show_result(Method::GET, &url(&id)),
        ExecutionsCommand::Cancel { id } => client.show_result(Method::POST, &format!("{}/cancel", url(&id))),
        ExecutionsCommand::Remove { ids, yes } => {
            if !yes {
                confirm::confirm_removal(&format!("{} executions with their results", ids.len()))?;
            }
            for_each_name(&ids, |id| call(&client.server, Method::DELETE, &url(id), None).map(drop))
        }
    }
}

/// Runs `belljar tenant`.
pub(crate) fn tenant(args: TenantArgs, environment: &Environment) -> Result<u8, CliError> {
    let client = Client::new(&args.server, environment)?;
    let url = |name: &str| format!("/v1/tenants/{}", url_part(name));
    let (name, change) = match args.command {
        TenantCommand::List => return client.list_tenants(),
        TenantCommand::Create { name, quotas } => {
            let new = json!({"name": name, "quotas": quotas.changes()});
            return client.show(Method::POST, "/v1/tenants", Some(new));
        }
        TenantCommand::Usage { name, days } => return client.tenant_usage(&url(&name), days),
        TenantCommand::Remove { name, yes } => {
            if !yes {
                let usage = call(&client.server, Method::GET, &format!("{}/usage", url(&name)), None)?;
                confirm::confirm_removal(&usage::describe_tenant(&name, &usage))?;
            }
            return client.delete(&url(&name));
        }
        TenantCommand::Quotas { name, quotas } => (name, json!({"quotas": quotas.changes()})),
        TenantCommand::Policy { name, policy } => {
            client.show(Method::PATCH, &url(&name), Some(json!({"policy": policy})))?;
            say::note(&describe_policy_floor(&name, &policy));
            return Ok(0);
        }
        TenantCommand::Provider { name, provider } => (name, json!({"provider": provider})),
        TenantCommand::Disable { name } => (name, json!({"disabled": true})),
        TenantCommand::Enable { name } => (name, json!({"disabled": false})),
    };
    client.show(Method::PATCH, &url(&name), Some(change))
}

fn describe_policy_floor(name: &str, policy: &str) -> String {
    let (name, policy) = (name.escape_debug(), policy.escape_debug());
    match policy.to_string().as_str() {
        "off" => format!("'{name}' has no policy floor; its requests choose their policy"),
        _ => {
            format!("policy floor of '{name}': '{policy}'; its requests can be stricter, never more lenient")
        }
    }
}

/// Runs `belljar key`.
pub(crate) fn key(args: KeyArgs, environment: &Environment) -> Result<u8, CliError> {
    let client = Client::new(&args.server, environment)?;
    let url = format!("/v1/tenants/{}/keys", url_part(&args.tenant));
    match args.command {
        KeyCommand::List => client.list(&url, "keys", KEYS),
        KeyCommand::Create { label, scopes, expires } => {
            let mut new = Map::from_iter([("label".to_owned(), json!(label))]);
            if !scopes.is_empty() {
                new.insert("scopes".to_owned(), json!(scopes));
            }
            if let Some(seconds) = seconds(expires.as_deref())? {
                new.insert("expires_in_seconds".to_owned(), json!(seconds));
            }
            client.show(Method::POST, &url, Some(new.into()))
        }
        KeyCommand::Rotate { id, grace } => {
            let rotation = json!({"old_valid_seconds": seconds(grace.as_deref())?.unwrap_or(0)});
            client.show(Method::POST, &format!("{url}/{}/rotate", url_part(&id)), Some(rotation))
        }
        KeyCommand::Revoke { id } => client.delete(&format!("{url}/{}", url_part(&id))),
    }
}

/// Runs `belljar profile`.
pub(crate) fn profile(args: ProfileArgs, environment: &Environment) -> Result<u8, CliError> {
    let client = Client::new(&args.server, environment)?;
    let url = |name: &str| format!("/v1/profiles/{}", url_part(name));
    match args.command {
        ProfileCommand::List => client.list("/v1/profiles", "profiles", PROFILES),
        ProfileCommand::Show { name } => client.show(Method::GET, &url(&name), None),
        ProfileCommand::Set { name, file } => {
            let profile: Value = serde_json::from_slice(&input::code(&file)?)
                .map_err(|error| CliError::invalid(format!("the profile file is not JSON: {error}")))?;
            client.show(Method::PUT, &url(&name), Some(profile))
        }
        ProfileCommand::Remove { name } => client.delete(&url(&name)),
    }
}

/// Builds the query of a list from the filters that are set.
fn list_query<const N: usize>(
    limit: u32,
    filters: [(&str, Option<String>); N],
    metadata: Vec<(String, String)>,
) -> String {
    let mut query = vec![("limit".to_owned(), limit.to_string())];
    query.extend(filters.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    query.extend(metadata.into_iter().map(|(key, value)| (format!("metadata.{key}"), value)));
    http::query(&query)
}

/// Tries all names; returns the last failure, and prints the earlier ones as warnings.
fn for_each_name(names: &[String], act: impl Fn(&str) -> Result<(), CliError>) -> Result<u8, CliError> {
    let mut failed = None;
    for name in names {
        if let Err(CliError { code, message }) = act(name) {
            let failure = CliError { code, message: format!("{}: {message}", say::printable(name)) };
            if let Some(before) = failed.replace(failure) {
                say::warning(&before.message);
            }
        }
    }
    failed.map_or(Ok(0), Err)
}

pub(crate) fn call(
    server: &Server,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, CliError> {
    os::runtime()?.block_on(server.call(method, path, body))
}

fn seconds(text: Option<&str>) -> Result<Option<u64>, CliError> {
    let Some(text) = text else { return Ok(None) };
    let millis = parse_millis(text).map_err(CliError::invalid)?;
    u64::try_from(millis)
        .map(|ms| Some(ms / 1_000))
        .map_err(|_| CliError::invalid("a time cannot be negative"))
}
