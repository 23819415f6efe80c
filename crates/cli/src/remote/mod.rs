//! Commands that call a server: executions, sandboxes, tenants, keys, profiles, and `run --server`, including
//! batches.

mod args;
mod batch;
mod early_response;
mod events;
mod http;
mod run;
mod sandbox;
mod show;
mod tls;

use belljar_engine::quantity::parse_millis;
use hyper::Method;
use serde_json::{Map, Value, json};

use crate::env::Environment;
use crate::error::CliError;
use crate::{input, os};

pub(crate) use args::{ExecutionsArgs, KeyArgs, ProfileArgs, ServerArgs, TenantArgs};
use args::{ExecutionsCommand, KeyCommand, ProfileCommand, TenantCommand};
pub(crate) use batch::RemoteRunner;
pub(crate) use http::{Server, encode_part as url_part};
pub(crate) use run::{refuse_local_paths, run};
pub(crate) use sandbox::{SandboxArgs, sandbox};
use show::Columns;
pub(crate) use show::print_object as show_one;

const EXECUTIONS: Columns = &["id", "status", "language", "exit_code", "cpu_ms", "created"];
const TENANTS: Columns = &["name", "disabled", "stored_bytes", "quotas"];
const KEYS: Columns = &["id", "label", "scopes", "expires", "last_used", "revoked"];
const PROFILES: Columns = &["name", "profile"];

/// Runs `belljar executions`.
pub(crate) fn executions(args: ExecutionsArgs, environment: &Environment) -> Result<u8, CliError> {
    let server = server(&args.server, environment)?;
    match args.command {
        ExecutionsCommand::List { status, language, metadata, limit, cursor } => {
            let mut query = vec![("limit".to_owned(), limit.to_string())];
            query.extend(status.map(|status| ("status".to_owned(), status)));
            query.extend(language.map(|language| ("language".to_owned(), language)));
            query.extend(cursor.map(|cursor| ("cursor".to_owned(), cursor)));
            query.extend(metadata.into_iter().map(|(key, value)| (format!("metadata.{key}"), value)));
            let page = call(&server, Method::GET, &format!("/v1/executions?{}", http::query(&query)), None)?;
            show::print_list(&page, "executions", EXECUTIONS, args.server.json)
        }
        ExecutionsCommand::Show { id } => show::print_object(&call(
            &server,
            Method::GET,
            &format!("/v1/executions/{}", http::encode_part(&id)),
            None,
        )?),
        ExecutionsCommand::Cancel { id } => show::print_object(&call(
            &server,
            Method::DELETE,
            &format!("/v1/executions/{}", http::encode_part(&id)),
            None,
        )?),
    }
}

/// Runs `belljar tenant`.
pub(crate) fn tenant(args: TenantArgs, environment: &Environment) -> Result<u8, CliError> {
    let server = server(&args.server, environment)?;
    let place = |name: &str| format!("/v1/tenants/{}", http::encode_part(name));
    match args.command {
        TenantCommand::List => {
            let list = call(&server, Method::GET, "/v1/tenants", None)?;
            show::print_list(&list, "tenants", TENANTS, args.server.json)
        }
        TenantCommand::Create { name, quotas } => {
            let new = json!({"name": name, "quotas": quotas.object()});
            show::print_object(&call(&server, Method::POST, "/v1/tenants", Some(&new))?)
        }
        TenantCommand::Quotas { name, quotas } => {
            let change = json!({"quotas": quotas.object()});
            show::print_object(&call(&server, Method::PATCH, &place(&name), Some(&change))?)
        }
        TenantCommand::Policy { name, policy } => show::print_object(&call(
            &server,
            Method::PATCH,
            &place(&name),
            Some(&json!({"policy": policy})),
        )?),
        TenantCommand::Provider { name, provider } => show::print_object(&call(
            &server,
            Method::PATCH,
            &place(&name),
            Some(&json!({"provider": provider})),
        )?),
        TenantCommand::Disable { name } => show::print_object(&call(
            &server,
            Method::PATCH,
            &place(&name),
            Some(&json!({"disabled": true})),
        )?),
        TenantCommand::Enable { name } => show::print_object(&call(
            &server,
            Method::PATCH,
            &place(&name),
            Some(&json!({"disabled": false})),
        )?),
        TenantCommand::Remove { name } => call(&server, Method::DELETE, &place(&name), None).map(|_| 0),
    }
}

/// Runs `belljar key`.
pub(crate) fn key(args: KeyArgs, environment: &Environment) -> Result<u8, CliError> {
    let server = server(&args.server, environment)?;
    let place = format!("/v1/tenants/{}/keys", http::encode_part(&args.tenant));
    match args.command {
        KeyCommand::List => {
            show::print_list(&call(&server, Method::GET, &place, None)?, "keys", KEYS, args.server.json)
        }
        KeyCommand::Create { label, scopes, expires } => {
            let mut new = Map::from_iter([("label".to_owned(), json!(label))]);
            if !scopes.is_empty() {
                new.insert("scopes".to_owned(), json!(scopes));
            }
            if let Some(seconds) = seconds(expires.as_deref())? {
                new.insert("expires_in_seconds".to_owned(), json!(seconds));
            }
            show::print_object(&call(&server, Method::POST, &place, Some(&new.into()))?)
        }
        KeyCommand::Rotate { id, grace } => {
            let rotation = json!({"old_valid_seconds": seconds(grace.as_deref())?.unwrap_or(0)});
            let path = format!("{place}/{}/rotate", http::encode_part(&id));
            show::print_object(&call(&server, Method::POST, &path, Some(&rotation))?)
        }
        KeyCommand::Revoke { id } => {
            call(&server, Method::DELETE, &format!("{place}/{}", http::encode_part(&id)), None).map(|_| 0)
        }
    }
}

/// Runs `belljar profile`.
pub(crate) fn profile(args: ProfileArgs, environment: &Environment) -> Result<u8, CliError> {
    let server = server(&args.server, environment)?;
    let place = |name: &str| format!("/v1/profiles/{}", http::encode_part(name));
    match args.command {
        ProfileCommand::List => {
            let list = call(&server, Method::GET, "/v1/profiles", None)?;
            show::print_list(&list, "profiles", PROFILES, args.server.json)
        }
        ProfileCommand::Show { name } => {
            show::print_object(&call(&server, Method::GET, &place(&name), None)?)
        }
        ProfileCommand::Set { name, file } => {
            let profile: Value = serde_json::from_slice(&input::code(&file)?)
                .map_err(|error| CliError::invalid(format!("the profile file is not JSON: {error}")))?;
            show::print_object(&call(&server, Method::PUT, &place(&name), Some(&profile))?)
        }
        ProfileCommand::Remove { name } => call(&server, Method::DELETE, &place(&name), None).map(|_| 0),
    }
}

fn server(args: &ServerArgs, environment: &Environment) -> Result<Server, CliError> {
    Server::new(args.server.as_deref(), environment)
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
