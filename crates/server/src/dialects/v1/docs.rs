//! `/docs`: the API documentation for people. Its files are embedded in the binary; nothing is fetched from
//! elsewhere.
//!
//! The page lists every operation even without its script. The script adds parameters, schemas and examples
//! from `/openapi.json`.
//!
//! There is no inline script, and the content security policy allows none.

use std::sync::LazyLock;

use axum::http::{HeaderName, header};
use axum::response::IntoResponse;
use serde_json::Value;

const TEMPLATE: &str = include_str!("../../../docs/index.html");
const STYLE: &str = include_str!("../../../docs/docs.css");
const SCRIPT: &str = include_str!("../../../docs/docs.js");
const ICON: &str = include_str!("../../../docs/icon.svg");
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The first and the last groups of operations. The others keep the order of the document.
const FIRST_GROUP: &str = "executions";
const LAST_GROUPS: [&str; 2] = ["administration", "service"];

/// Methods in display order: creating comes before reading, changing and removing.
const METHODS: [&str; 7] = ["post", "get", "head", "put", "patch", "delete", "options"];

static PAGE: LazyLock<String> =
    LazyLock::new(|| render(&serde_json::from_str(super::openapi::CHECKED_IN).unwrap_or_default()));

/// Returns the API documentation for people.
#[utoipa::path(get, path = "/docs", tag = "service", security(()),
    responses((status = 200, description = "The documentation page",
        body = String, content_type = "text/html")))]
pub(crate) async fn page() -> impl IntoResponse {
    file("text/html; charset=utf-8", PAGE.as_str())
}

/// Returns the style sheet of the documentation page.
#[utoipa::path(get, path = "/docs/docs.css", tag = "service", security(()),
    responses((status = 200, description = "The style sheet", body = String, content_type = "text/css")))]
pub(crate) async fn style() -> impl IntoResponse {
    file("text/css; charset=utf-8", STYLE)
}

/// Returns the script of the documentation page.
#[utoipa::path(get, path = "/docs/docs.js", tag = "service", security(()),
    responses((status = 200, description = "The script", body = String, content_type = "text/javascript")))]
pub(crate) async fn script() -> impl IntoResponse {
    file("text/javascript; charset=utf-8", SCRIPT)
}

/// Returns the icon of the documentation page.
#[utoipa::path(get, path = "/docs/icon.svg", tag = "service", security(()),
    responses((status = 200, description = "The icon", body = String, content_type = "image/svg+xml")))]
pub(crate) async fn icon() -> impl IntoResponse {
    file("image/svg+xml", ICON)
}

fn file(kind: &'static str, text: &'static str) -> ([(HeaderName, &'static str); 4], &'static str) {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        // Another version of the server has another page.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text)
}

fn render(document: &Value) -> String {
    let (mut nav, mut operations) = (String::new(), String::new());
    for (tag, group) in groups(document) {
        let title = escaped(tag);
        nav += &format!("<section><h2>{title}</h2><ul>");
        operations += &format!("<section class=\"group\"><h2>{title}</h2>");
        for operation in group {
            nav += &operation.link();
            operations += &operation.article();
        }
        nav += "</ul></section>";
        operations += "</section>";
    }
    let version = document["info"]["version"].as_str().unwrap_or_default();
    TEMPLATE
        .replace("<!--nav-->", &nav)
        .replace("<!--version-->", &escaped(version))
        .replace("<!--operations-->", &operations)
}

struct DocOperation<'a> {
    method: &'a str,
    path: &'a str,
    summary: &'a str,
}

fn groups(document: &Value) -> Vec<(&str, Vec<DocOperation<'_>>)> {
    let mut groups: Vec<(&str, Vec<DocOperation<'_>>)> = Vec::new();
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in METHODS.iter().filter_map(|method| Some((*method, methods.get(*method)?)))
        {
            let tag = operation["tags"][0].as_str().unwrap_or_default();
            let operation =
                DocOperation { method, path, summary: operation["summary"].as_str().unwrap_or_default() };
            match groups.iter_mut().find(|(name, _)| *name == tag) {
                Some((_, group)) => group.push(operation),
                None => groups.push((tag, vec![operation])),
            }
        }
    }
    for (tag, group) in &mut groups {
        // Paths that start with the group's name come first.
        group.sort_by_key(|operation| !operation.path.starts_with(&format!("/v1/{tag}")));
    }
    groups.sort_by_key(|(tag, _)| match LAST_GROUPS.iter().position(|last| last == tag) {
        Some(position) => 2 + position,
        None => usize::from(*tag != FIRST_GROUP),
    });
    groups
}

impl DocOperation<'_> {
    fn id(&self) -> String {
        let plain = |byte: char| if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { '-' };
        format!("{}{}", self.method, self.path.chars().map(plain).collect::<String>())
    }

    fn link(&self) -> String {
        let (id, method, path) = (self.id(), escaped(self.method), escaped(self.path));
        format!("<li><a href=\"#{id}\"><span class=\"method {method}\">{method}</span>{path}</a></li>")
    }

    fn article(&self) -> String {
        let (id, method, path) = (self.id(), escaped(self.method), escaped(self.path));
        let summary = escaped(self.summary);
        format!(
            "<article class=\"op\" id=\"{id}\" data-method=\"{method}\" data-path=\"{path}\"><h3>\
             <span class=\"method {method}\">{method}</span><a href=\"#{id}\"><code>{path}</code></a></h3>\
             <p class=\"summary\">{summary}</p></article>\n"
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn groups_are_ordered_and_text_is_escaped() {
        let operation = |tag: &str| json!({"tags": [tag], "summary": "a <b> & \"c\""});
        let paths = json!({"/a": {"get": operation("service")}, "/b": {"get": operation("sandboxes")},
            "/c": {"get": operation("executions"), "post": operation("administration")}});
        let document = json!({"paths": paths});
        let tags: Vec<_> = groups(&document).into_iter().map(|(tag, _)| tag).collect();
        assert_eq!(tags, ["executions", "sandboxes", "administration", "service"]);
        let page = render(&document);
        assert!(page.contains("a &lt;b&gt; &amp; &quot;c&quot;") && !page.contains("a <b>"));
    }
}
