//! DNS over UDP to any name server: the gate answers in its place.

use std::sync::Arc;

use super::packet::Flow;
use super::reply;
use super::stack::Stack;
use crate::access::AccessControl;
use crate::dns_server::answer_query;

/// Tasks of one sandbox above which queries are dropped; clients retry.
pub(super) const MAX_TASKS: usize = 256;

/// Answers a query.
pub(super) async fn answer(access: Arc<AccessControl>, stack: Arc<Stack>, flow: Flow, query: Vec<u8>) {
    if let Some(answer) = answer_query(&access, &query).await {
        stack.send(reply::datagram(&flow, &answer));
    }
}
