//! Compares the router with the OpenAPI document, in both directions.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::*;
use crate::dialects::DIALECTS;

/// Methods by path. A path that takes any method has none.
type Operations = BTreeMap<String, BTreeSet<String>>;

/// Returns the routes of a router, from its `Debug` form: a router does not list them otherwise.
fn registered(router: &Router<Arc<AppState>>) -> Operations {
    let text = format!("{router:?}");
    let (routes, rest) = text.split_once("node: Node").unwrap();
    let (paths, _) = rest.split_once("fallback_router").unwrap();
    let paths: BTreeMap<&str, &str> =
        by_route(paths).map(|(route, text)| (route, text.split('"').nth(1).unwrap())).collect();
    let methods = |text: &str| {
        let (_, allowed) = text.split_once("allow_header: ").unwrap();
        let listed = allowed.strip_prefix("Bytes(b\"").map(|list| list.split('"').next().unwrap());
        let listed = listed.into_iter().flat_map(|list| list.split(','));
        // A GET route also answers HEAD.
        listed.map(str::to_lowercase).filter(|method| method != "head").collect()
    };
    by_route(routes).map(|(route, text)| (paths[route].replace("{*", "{"), methods(text))).collect()
}

/// Splits at each `RouteId(N): `.
fn by_route(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("RouteId(").skip(1).filter_map(|entry| entry.split_once("): "))
}

fn documented() -> Operations {
    let document: Value = serde_json::from_str(&document()).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let methods = |operations: &Value| operations.as_object().unwrap().keys().cloned().collect();
    paths.iter().map(|(path, operations)| (path.clone(), methods(operations))).collect()
}

#[test]
fn the_document_has_exactly_the_routes_of_the_router() {
    let (routes, mut document) = (registered(&routes()), documented());
    assert!(routes["/v1/executions"].contains("post") && routes.len() > 50, "{routes:?}");
    for (path, methods) in &routes {
        let known = document.remove(path).unwrap_or_else(|| panic!("{path} is not in the OpenAPI document"));
        assert!(*methods == known || methods.is_empty(), "{path} has {methods:?}, documented are {known:?}");
    }
    for dialect in DIALECTS.iter().filter(|dialect| dialect.name != DIALECT.name) {
        let prefix = dialect.prefix.unwrap_or(dialect.name);
        assert!(document.remove(prefix).is_some(), "{prefix} is not in the OpenAPI document");
    }
    assert!(document.is_empty(), "not in the router: {document:?}");
}

#[test]
fn operation_ids_are_unique() {
    let document: Value = serde_json::from_str(&document()).unwrap();
    let mut known = BTreeSet::new();
    for operations in document["paths"].as_object().unwrap().values() {
        for operation in operations.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(known.insert(id.to_owned()), "two operations are {id}");
        }
    }
}
