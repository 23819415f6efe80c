//! Hundreds of idle sandboxes: each of them responds, all together take little memory, and nothing of them is
//! left.

use std::time::Duration;

use serde_json::json;

use crate::common::host::{Snapshot, left_after, memory_below};
use crate::common::server::Server;
use crate::sized;

/// Maximum memory of 500 sandboxes. Each has its own copy of the binary's relocations, which are three times as large in
/// a debug build.
const MEMORY: u64 = if cfg!(debug_assertions) { 3 << 30 } else { 2 << 30 };

pub(crate) fn idle_sandboxes_stay_cheap() {
    let many = sized(40, 500, 500);
    let folder = tempfile::tempdir().unwrap();
    let before = Snapshot::take();
    let mut server = Server::configured(folder.path(), &format!("sandboxes = {many}"));
    let first = memory_below(server.child.id());
    let places: Vec<_> = (0..many).map(|_| server.sandbox(&json!({}))).collect();
    let taken = memory_below(server.child.id()).saturating_sub(first);
    println!("{many} sandboxes take {} MB, {} kB each", taken >> 20, (taken / many) >> 10);
    assert!(taken < MEMORY / 500 * many, "{many} sandboxes take {taken} bytes");
    for place in places.iter().step_by(7) {
        let ran = server.post(&format!("{place}/executions"), &json!({"command": ["echo", "here"]})).json();
        assert_eq!(ran["stdout"], "here\n", "{ran}");
    }
    assert_eq!(server.post("/v1/sandboxes", &json!({})).code(), "too_many_sandboxes");
    for place in &places {
        assert_eq!(server.delete(place).status, 200);
    }
    server.signal("-TERM");
    server.child.wait().unwrap();
    assert_eq!(left_after(&before, Duration::from_secs(60)), Vec::<String>::new());
}
