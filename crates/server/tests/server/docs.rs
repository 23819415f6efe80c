//! The documentation page.

use serde_json::Value;

use crate::harness::ServerHarness;

#[tokio::test(flavor = "multi_thread")]
async fn the_page_lists_every_operation_and_is_self_contained() {
    let server = ServerHarness::new().await;
    let anybody = server.without_key();
    let page = anybody.get("/docs").await;
    let document: Value = anybody.get("/openapi.json").await.json();
    let text = page.text();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let named = format!("data-method=\"{method}\" data-path=\"{path}\"");
            assert_eq!(text.matches(&named).count(), 1, "{named}");
        }
    }
    let ids: Vec<_> = text.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    for (index, id) in ids.iter().enumerate() {
        assert!(!ids[..index].contains(id), "two are {id}");
    }
    assert!(!text.contains("<!--") && !text.contains("//"), "{text}");
    assert!(text.contains("href=\"openapi.json\""));
    for (path, kind) in [
        ("/docs", "text/html; charset=utf-8"),
        ("/docs/docs.css", "text/css; charset=utf-8"),
        ("/docs/docs.js", "text/javascript; charset=utf-8"),
        ("/docs/icon.svg", "image/svg+xml"),
    ] {
        assert!(path == "/docs" || text.contains(&format!("\"{}\"", &path[1..])), "{path}");
        let answer = anybody.get(path).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
    }
    // The page contains nothing that its content security policy would block.
    assert!(!text.contains("<style") && !text.contains(" style=") && !text.contains(" onclick="));
    assert!(
        text.matches("<script").count() == 1 && text.contains("<script src=\"docs/docs.js\" defer></script>")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_documented_operation_is_served() {
    let server = ServerHarness::new().await;
    let anybody = server.without_key();
    let document: Value = anybody.get("/openapi.json").await.json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let real = path.replace(['{', '}'], "");
        for method in methods.as_object().unwrap().keys() {
            let answer = anybody.send(&method.to_uppercase(), &real, "", b"").await;
            assert!(![404, 405].contains(&answer.status), "{method} {path}: {answer:?}");
        }
        let answer = anybody.send("PROPFIND", &real, "", b"").await;
        assert!(answer.status == 405 || path.contains("/ports/"), "{path}: {answer:?}");
    }
    let unknown = anybody.get("/v1/nothing").await;
    assert_eq!((unknown.status, unknown.code().as_str()), (404, "not_found"));
}
