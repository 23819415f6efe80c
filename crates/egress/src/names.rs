//! DNS server for a sandbox: answers for names that a rule covers. Any other name is refused without a
//! lookup, because a lookup is a message to the name's authoritative server.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::dns;
use crate::egress::PAUSE;
use crate::guard::Guard;
use crate::refusals::Refusal;

/// Concurrent UDP queries. Further ones are dropped; clients retry.
const AT_ONCE: usize = 32;

/// Answers UDP queries until dropped.
pub(crate) async fn datagrams(socket: UdpSocket, guard: &Arc<Guard>) {
    let socket = Arc::new(socket);
    let mut answering = JoinSet::new();
    let mut buffer = [0; 512];
    loop {
        let Ok((len, from)) = socket.recv_from(&mut buffer).await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        while answering.try_join_next().is_some() {}
        if answering.len() < AT_ONCE {
            let (guard, socket, message) = (Arc::clone(guard), Arc::clone(&socket), buffer[..len].to_vec());
            answering.spawn(async move {
                if let Some(answer) = answer(&guard, &message).await {
                    // The client may be gone.
                    let _sent = socket.send_to(&answer, from).await;
                }
            });
        }
    }
}

/// Answers the queries of one TCP connection, one at a time.
pub(crate) async fn attend(guard: Arc<Guard>, mut client: TcpStream) {
    let mut message = Vec::new();
    loop {
        let read = timeout(guard.bounds.head_time, async {
            let len = client.read_u16().await?;
            message.clear();
            message.resize(usize::from(len), 0);
            client.read_exact(&mut message).await
        });
        if !matches!(read.await, Ok(Ok(_))) {
            return;
        }
        let Some(answer) = answer(&guard, &message).await else { return };
        let framed = [&(answer.len() as u16).to_be_bytes(), answer.as_slice()].concat();
        if !matches!(timeout(guard.bounds.head_time, client.write_all(&framed)).await, Ok(Ok(()))) {
            return;
        }
    }
}

async fn answer(guard: &Guard, message: &[u8]) -> Option<Vec<u8>> {
    let question = match dns::parse(message) {
        Ok(question) => question,
        Err(answer) => return answer,
    };
    if !guard.rules.borrow().allow_lookup(&question.target) {
        guard.refuse(Refusal::Lookup(question.target.clone()));
        return Some(question.answer(dns::REFUSED, &[]));
    }
    if question.kind == dns::Kind::Other {
        return Some(question.answer(dns::OK, &[]));
    }
    if !guard.count(&guard.counts.lookups, guard.bounds.lookups, "lookups by DNS") {
        return Some(question.answer(dns::REFUSED, &[]));
    }
    let mut addresses = guard.addresses(&question.target).await.unwrap_or_default();
    let rules = guard.rules.borrow().clone();
    addresses.retain(|address| rules.allow_answer(&question.target, *address));
    if addresses.is_empty() {
        // The same answer for private addresses, failed lookups and names that do not exist.
        return Some(question.answer(dns::NO_SUCH_NAME, &[]));
    }
    addresses.retain(|address| question.kind.is(*address));
    Some(question.answer(dns::OK, &addresses))
}
