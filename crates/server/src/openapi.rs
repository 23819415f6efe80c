//! `/openapi.json`: the service described, public, and checked in as `openapi.json` so that a change of it is a diff.

use axum::http::header;
use axum::response::IntoResponse;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

use crate::admin::{audit, keys, profiles, tenants};
use crate::places::{snapshots, volumes};
use crate::{batches, executions, health, metrics, sandboxes};

#[derive(OpenApi)]
#[openapi(
    info(title = "Belljar", description = "Runs untrusted code under glass.", license(name = "Apache-2.0")),
    modifiers(&Keys),
    security(("key" = [])),
    paths(
        executions::create, executions::list, executions::show, executions::cancel, batches::create,
        sandboxes::create, sandboxes::list, sandboxes::show, sandboxes::close, sandboxes::extend, sandboxes::pause,
        sandboxes::resume, sandboxes::stats, sandboxes::execute,
        volumes::create, volumes::list, volumes::show, volumes::remove,
        snapshots::make, snapshots::list, snapshots::show, snapshots::remove,
        tenants::list, tenants::create, tenants::show, tenants::change, tenants::remove,
        keys::list, keys::create, keys::rotate, keys::revoke,
        profiles::list, profiles::show, profiles::set, profiles::remove, audit::list,
        health::show, health::ready, metrics::show, show,
    )
)]
struct Document;

struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
        document.components.get_or_insert_default().add_security_scheme("key", scheme);
    }
}

/// The document, as it is served.
pub fn document() -> String {
    let mut text = Document::openapi().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "service", security(()),
    responses((status = 200, description = "OpenAPI", body = serde_json::Value)))]
pub(crate) async fn show() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("../openapi.json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn the_document_that_is_checked_in_is_current() {
        if std::env::var_os("BELLJAR_WRITE_OPENAPI").is_some() {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json"), document()).unwrap();
        }
        assert!(
            document() == include_str!("../openapi.json"),
            "openapi.json is old: BELLJAR_WRITE_OPENAPI=1 cargo test -p belljar-server writes it anew"
        );
    }

    fn names(schema: &str) -> Vec<String> {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let properties = &document["components"]["schemas"][schema]["properties"];
        properties.as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn a_request_has_the_names_that_are_really_read() {
        let refused = belljar_engine::request::Request::parse(br#"{"?":1}"#).unwrap_err().to_string();
        let (_, list) = refused.split_once("expected one of ").unwrap();
        let mut read: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
        read.sort_unstable();
        let mut shown = names("Request");
        shown.sort_unstable();
        assert_eq!(shown, read);
    }

    #[test]
    fn a_result_has_the_names_that_are_really_written() {
        let id = belljar_store::ExecutionId::generate().unwrap();
        let blank = crate::object::blank(
            &id,
            belljar_store::executions::Status::Queued,
            None,
            &serde_json::Map::new(),
        );
        let shown = names("Result");
        for name in blank.as_object().unwrap().keys() {
            assert!(shown.contains(name), "{name}");
        }
    }
}
