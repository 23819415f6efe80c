//! `/openapi.json`: the public API description, checked in as `openapi.json` so that every API change shows
//! as a diff.

use axum::http::header;
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Info, OpenApiVersion, Paths, Ref, RefOr, Required, ResponseBuilder};
use utoipa::{Modify, OpenApi};

use super::admin::{audit, keys, profiles, providers, tenants};
use super::sandboxes::watch::ChangeEvent;
use super::sandboxes::{archives, commands, files, network, ports, terminal, watch};
use super::{
    artifacts, batches, docs, executions, health, metrics, sandboxes, schema, snapshots, tools, volumes,
};
use crate::dialects::mcp;
use crate::http::problem::Problem;

/// Examples, by schema name.
const EXAMPLES: &str = include_str!("../../../docs/examples.json");

#[derive(OpenApi)]
#[openapi(
    info(title = "Belljar", description = "Runs untrusted code under glass.", license(name = "Apache-2.0")),
    modifiers(&KeySecurity, &CommonParts),
    security(("key" = [])),
    paths(
        executions::create, executions::list, executions::show, executions::remove,
        executions::cancel, executions::check, artifacts::download, batches::create, tools::call,
        sandboxes::create, sandboxes::list, sandboxes::show, sandboxes::close, sandboxes::extend, sandboxes::pause,
        sandboxes::resume, sandboxes::stats, sandboxes::execute, network::show, network::set,
        commands::start_command, commands::list_commands, commands::show_command, commands::command_output,
        commands::write_stdin, commands::signal_command, commands::resize_terminal, terminal::terminal,
        files::read, files::write, files::remove, files::stat, files::list, files::make_folder, files::rename,
        files::set_permissions, archives::unpack, archives::pack, watch::start,
        ports::redirect, ports::pass_root, ports::pass,
        volumes::create, volumes::list, volumes::show, volumes::remove,
        snapshots::make, snapshots::list, snapshots::show, snapshots::remove,
        tenants::list, tenants::create, tenants::show, tenants::change, tenants::remove, tenants::usage,
        keys::list, keys::create, keys::rotate, keys::revoke,
        profiles::list, profiles::show, profiles::set, profiles::remove, audit::list,
        providers::list, providers::schema, providers::show, providers::set, providers::remove, providers::versions,
        providers::roll_back, providers::activate, providers::test,
        mcp::send, mcp::receive, mcp::end_session,
        health::show, health::ready, metrics::show, show, docs::page, docs::style, docs::script, docs::icon,
    ),
)]
struct ApiDocument;

/// The document as of this build.
pub(crate) const CHECKED_IN: &str = include_str!("../../../openapi.json");

struct KeySecurity;

impl Modify for KeySecurity {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
        document.components.get_or_insert_default().add_security_scheme("key", scheme);
    }
}

/// Makes request bodies required, adds the two generic error responses to every operation, and the error object
/// to every error response. Gives each operation an id of its own, from its method and path.
struct CommonParts;

impl Modify for CommonParts {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let problem = Ref::new(schema::response::<Problem>());
        let content = ContentBuilder::new().schema(Some(problem)).build();
        for (path, item) in &mut document.paths.paths {
            for (method, operation) in operations(item) {
                operation.operation_id = Some(operation_id(method, path));
            }
        }
        for (_, operation) in document.paths.paths.values_mut().flat_map(operations) {
            if let Some(RefOr::T(body)) = &mut operation.request_body {
                body.required = Some(Required::True);
            }
            let responses = &mut operation.responses.responses;
            for (statuses, description) in
                [("4XX", "The request was refused"), ("5XX", "The server could not serve the request")]
            {
                let response = ResponseBuilder::new().description(description).build();
                responses.entry(statuses.to_owned()).or_insert(RefOr::T(response));
            }
            // The errors of MCP are in the format of its protocol.
            let tags = operation.tags.get_or_insert_default();
            let responses = responses.iter_mut().filter(|_| !tags.iter().any(|tag| tag == mcp::TAG));
            for (status, response) in responses {
                if let RefOr::T(response) = response
                    && status.starts_with(['4', '5'])
                {
                    response.content.insert("application/json".to_owned(), RefOr::T(content.clone()));
                }
            }
        }
    }
}

/// Returns the operations of a path, by method.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    let PathItem { get, put, post, patch, delete, .. } = item;
    let all = [("get", get), ("put", put), ("post", post), ("patch", patch), ("delete", delete)];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

/// Returns `get_v1_executions_id` for `GET /v1/executions/{id}`. A slash at the end becomes `_root`.
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let root = path.ends_with('/').then_some("root");
    [method].into_iter().chain(words).chain(root).collect::<Vec<_>>().join("_")
}

/// The document with schemas that are plain JSON.
#[derive(Serialize)]
struct Document {
    openapi: OpenApiVersion,
    info: Info,
    paths: Paths,
    components: Value,
    security: Option<Vec<SecurityRequirement>>,
}

/// Returns the OpenAPI document as JSON.
pub fn document() -> String {
    drop(schema::take_schemas());
    let utoipa::openapi::OpenApi { openapi, info, paths, components, security, .. } = ApiDocument::openapi();
    // Sent as an event, which no operation refers to.
    schema::response::<ChangeEvent>();
    let mut schemas = schema::take_schemas();
    // Embedded and covered by tests, so parsing cannot fail.
    let examples: Map<String, Value> = serde_json::from_str(EXAMPLES).unwrap_or_default();
    for (name, example) in examples {
        schemas[&name]["examples"] = json!([example]);
    }
    let schemes = components.map(|components| components.security_schemes);
    let components = json!({"schemas": schemas, "securitySchemes": schemes});
    let document = Document { openapi, info, paths, components, security };
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

/// Returns this OpenAPI document.
#[utoipa::path(get, path = "/openapi.json", tag = "service", security(()),
    responses((status = 200, description = "The OpenAPI document", body = serde_json::Value)))]
pub(crate) async fn show() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], CHECKED_IN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checked_in_document_is_current() {
        if std::env::var_os("BELLJAR_WRITE_OPENAPI").is_some() {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json"), document()).unwrap();
        }
        assert!(
            document() == CHECKED_IN,
            "openapi.json is outdated; regenerate: BELLJAR_WRITE_OPENAPI=1 cargo test -p belljar-server"
        );
    }

    fn names(schema: &str) -> Vec<String> {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let properties = &document["components"]["schemas"][schema]["properties"];
        properties.as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn examples_match_their_schemas() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let schemas = &document["components"]["schemas"];
        for (name, example) in serde_json::from_str::<Map<String, Value>>(EXAMPLES).unwrap() {
            let schema = &schemas[&name];
            assert_eq!(schema["examples"][0], example, "{name}");
            for field in example.as_object().unwrap().keys() {
                assert!(schema["properties"].get(field).is_some(), "{name} has no {field}");
            }
            for field in schema["required"].as_array().into_iter().flatten() {
                assert!(example.get(field.as_str().unwrap()).is_some(), "{name} lacks {field}");
            }
        }
    }

    #[test]
    fn the_request_schema_matches_the_parsed_fields() {
        let request = belljar_engine::request::parse(br#"{"?":1}"#).unwrap_err().to_string();
        let command = serde_json::from_str::<belljar_engine::sandbox::CommandRequest>(r#"{"?":1}"#);
        let file = belljar_engine::request::parse(br#"{"files":[{"?":1}]}"#);
        for (schema, refused) in [
            ("Request", request),
            ("File", file.unwrap_err().to_string()),
            ("NewCommand", command.unwrap_err().to_string()),
        ] {
            let (_, list) = refused.split_once("expected one of ").unwrap();
            let mut read: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
            read.sort_unstable();
            let mut shown = names(schema);
            shown.sort_unstable();
            assert_eq!(shown, read);
        }
    }

    #[test]
    fn the_command_schema_matches_the_serialized_fields() {
        let info = belljar_engine::sandbox_handle::ProcessInfo {
            id: belljar_engine::sandbox_handle::ProcessId(1),
            pid: 2,
            command: String::new(),
            terminal: false,
            ending: None,
            output_bytes: 0,
        };
        let written = serde_json::to_value(belljar_engine::report::command_report(info)).unwrap();
        let mut shown = names("Command");
        shown.sort_unstable();
        let mut written: Vec<_> = written.as_object().unwrap().keys().cloned().collect();
        written.sort_unstable();
        assert_eq!(shown, written);
    }

    #[test]
    fn the_result_schema_matches_the_serialized_fields() {
        let id = belljar_store::ExecutionId::generate().unwrap();
        let blank = crate::executions::blank_result(
            &id,
            belljar_engine::report::Status::Queued,
            None,
            &serde_json::Map::new(),
        );
        let shown = names("Result");
        for name in blank.as_object().unwrap().keys() {
            assert!(shown.contains(name), "{name}");
        }
    }
}
