//! DNS server for a sandbox: answers for names that the rules cover. Any other name is refused without a
//! lookup, because a lookup is a message to the name's authoritative server.

use std::sync::Arc;

use belljar_engine::network::TargetHost;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::access::AccessControl;
use crate::dns;
use crate::egress::RETRY_DELAY;
use crate::refusals::EgressRefusal;
use crate::tun::SyntheticNames;

/// Concurrent UDP queries. Further ones are dropped; clients retry.
const MAX_CONCURRENT_QUERIES: usize = 32;

/// Answers UDP queries until dropped.
pub(crate) async fn serve_udp(socket: UdpSocket, access: &Arc<AccessControl>) {
    let socket = Arc::new(socket);
    let mut answering = JoinSet::new();
    let mut buffer = [0; 512];
    loop {
        let Ok((len, from)) = socket.recv_from(&mut buffer).await else {
            tokio::time::sleep(RETRY_DELAY).await;
            continue;
        };
        while answering.try_join_next().is_some() {}
        if answering.len() < MAX_CONCURRENT_QUERIES {
            let (access, socket, message) = (Arc::clone(access), Arc::clone(&socket), buffer[..len].to_vec());
            answering.spawn(async move {
                if let Some(answer) = answer_query(&access, &message).await {
                    // The client may be gone.
                    let _sent = socket.send_to(&answer, from).await;
                }
            });
        }
    }
}

/// Answers the queries of one TCP connection, one at a time.
pub(crate) async fn serve_tcp(access: Arc<AccessControl>, mut client: TcpStream) {
    let mut message = Vec::new();
    loop {
        let read = timeout(access.limits.head_timeout, async {
            let len = client.read_u16().await?;
            message.clear();
            message.resize(usize::from(len), 0);
            client.read_exact(&mut message).await
        });
        if !matches!(read.await, Ok(Ok(_))) {
            return;
        }
        let Some(answer) = answer_query(&access, &message).await else { return };
        let framed = [&(answer.len() as u16).to_be_bytes(), answer.as_slice()].concat();
        if !matches!(timeout(access.limits.head_timeout, client.write_all(&framed)).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Answers a query. `None` if none is due.
pub(crate) async fn answer_query(access: &AccessControl, message: &[u8]) -> Option<Vec<u8>> {
    let question = match dns::parse(message) {
        Ok(question) => question,
        Err(answer) => return answer,
    };
    let rules = access.rules.borrow().clone();
    if !rules.allows_lookup(&question.target) {
        // In mode `internet` only `localhost` is refused, which needs no explanation: programs know its
        // address.
        if !rules.is_internet() {
            access.record_refusal(EgressRefusal::Lookup(question.target.clone()));
        }
        return Some(question.answer(dns::REFUSED, &[]));
    }
    // An address that stands for a name is an IPv4 one, which is enough to reach it.
    if question.kind == dns::RecordType::Other
        || access.names.is_some() && question.kind == dns::RecordType::Aaaa
    {
        return Some(question.answer(dns::NO_ERROR, &[]));
    }
    if !access.try_count(&access.counts.lookups, access.limits.total_lookups, "lookups by DNS") {
        return Some(question.answer(dns::REFUSED, &[]));
    }
    if let Some(names) = &access.names {
        return Some(answer_by_name(access, names, &question).await);
    }
    let mut addresses = access.resolve(&question.target).await.unwrap_or_default();
    let rules = access.rules.borrow().clone();
    addresses.retain(|address| rules.allows_answer(&question.target, *address));
    if addresses.is_empty() {
        // The same answer for private addresses, failed lookups and names that do not exist.
        return Some(question.answer(dns::NAME_ERROR, &[]));
    }
    addresses.retain(|address| question.kind.matches(*address));
    Some(question.answer(dns::NO_ERROR, &addresses))
}

/// Answers with the address that stands for a name. The name is resolved to learn whether it exists, and once
/// more for each connection, which goes to an address that was checked.
async fn answer_by_name(
    access: &AccessControl,
    names: &SyntheticNames,
    question: &dns::DnsQuestion<'_>,
) -> Vec<u8> {
    let TargetHost::Name(name) = &question.target else { return question.answer(dns::REFUSED, &[]) };
    // The operator's proxy resolves what is reached through it.
    if access.rules.borrow().proxy_for(&question.target).is_none() {
        let found = access.resolve(&question.target).await;
        let rules = access.rules.borrow().clone();
        let mut addresses = found.iter().flatten();
        if !addresses.any(|address| rules.allows_answer(&question.target, *address)) {
            access.record_private_lookup(&question.target, &found);
            return question.answer(dns::NAME_ERROR, &[]);
        }
    }
    match names.address_of(name) {
        Some(address) => question.answer(dns::NO_ERROR, &[address.into()]),
        None => {
            access.record_refusal(EgressRefusal::LimitReached("different names"));
            question.answer(dns::REFUSED, &[])
        }
    }
}
