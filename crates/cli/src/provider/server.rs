//! `belljar provider` on a server.

use belljar_engine::catalog::ProviderSettings;
use hyper::Method;
use serde_json::{Value, json};

use super::{ProviderCommand, TypedSetting, show_list, show_test};
use crate::env::Environment;
use crate::error::CliError;
use crate::remote::{Server, ServerArgs, call, show_one, url_part};
use crate::{input, say};

pub(super) fn run(
    args: &ServerArgs,
    command: ProviderCommand,
    environment: &Environment,
) -> Result<u8, CliError> {
    let server = Server::new(args.server.as_deref(), environment)?;
    let url = |name: &str, what: &str| format!("/v1/providers/{}/{what}", url_part(name));
    let get = |path: &str| call(&server, Method::GET, path, None);
    let post = |path: &str, body: Value| call(&server, Method::POST, path, Some(&body));
    match command {
        ProviderCommand::List => get("/v1/providers").map(|list| show_list(&list, args.json)),
        ProviderCommand::Schema { name } => show_one(&get(&url(&name, "schema"))?),
        ProviderCommand::Show { name } => show_one(&get(&url(&name, "configuration"))?),
        ProviderCommand::Set { name, settings, instead, file } => {
            let whole = file.map(|file| input::code(&file)).transpose()?;
            let body = match whole {
                Some(bytes) => json!({"settings": object(&bytes)?, "instead": instead}),
                None => merged_settings(&server, &name, settings, instead)?,
            };
            show_one(&call(&server, Method::PUT, &url(&name, "configuration"), Some(&body))?)
        }
        ProviderCommand::Test { name } => {
            post(&url(&name, "test"), json!({})).map(|tested| show_test(&tested, args.json))
        }
        ProviderCommand::Use { name } => show_one(&post(&url(&name, "activate"), json!({}))?),
        ProviderCommand::Versions { name } => show_one(&get(&url(&name, "versions"))?),
        ProviderCommand::Rollback { name, version } => {
            show_one(&post(&url(&name, "rollback"), json!({"version": version}))?)
        }
        ProviderCommand::Remove { name } => {
            call(&server, Method::DELETE, &url(&name, "configuration"), None)?;
            say::note(&format!("deleted the settings of provider '{}'", name.escape_debug()));
            Ok(0)
        }
    }
}

/// Returns the current settings with the typed ones applied.
fn merged_settings(
    server: &Server,
    name: &str,
    given: Vec<TypedSetting>,
    instead: Vec<String>,
) -> Result<Value, CliError> {
    let url = |what: &str| format!("/v1/providers/{}/{what}", url_part(name));
    let schema = call(server, Method::GET, &url("schema"), None)?;
    let now = crate::os::runtime()?.block_on(server.find(&url("configuration")))?.unwrap_or_default();
    let mut settings = now["settings"].as_object().cloned().unwrap_or_default();
    for one in given {
        one.apply_to(&mut settings, &schema)?;
    }
    let instead = match (instead.is_empty(), &now["instead"]) {
        (true, Value::Null) => json!([]),
        (true, known) => known.clone(),
        (false, _) => instead.into_iter().filter(|name| !name.is_empty()).collect(),
    };
    Ok(json!({"settings": settings, "instead": instead}))
}

fn object(bytes: &[u8]) -> Result<ProviderSettings, CliError> {
    serde_json::from_slice(bytes).map_err(|_| CliError::invalid("--file: the settings must be a JSON object"))
}
