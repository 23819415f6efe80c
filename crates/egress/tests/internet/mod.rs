//! Network mode `internet`: every public address and nothing else. Servers of a test are never public, so a
//! test that needs one allows private addresses, as only an administrator can.

use std::net::Ipv6Addr;

use belljar_egress::EgressLimits;
use belljar_engine::network::{HostRules, PrivateRanges};

use crate::dns::{A, by_datagram};
use crate::harness::{TestEgress, TestServer};
use crate::{by_name, echoes, socks, tunnel};

fn open(rules: HostRules) -> TestEgress {
    TestEgress::open_with_rules(rules, EgressLimits::default())
}

fn internet() -> TestEgress {
    open(HostRules::internet())
}

#[tokio::test]
async fn every_name_and_port_is_reached_in_every_way() {
    let echo = TestServer::echo().await;
    let port = echo.port();
    let sandbox = open(HostRules::internet().allowing_private_addresses());
    let (mut client, head) = tunnel(&sandbox, &format!("any.test:{port}")).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    echoes(&mut client).await;
    let (mut client, code) = socks(&sandbox, &by_name("other.test"), port).await;
    assert_eq!(code, 0);
    echoes(&mut client).await;
    let (mut client, code) = socks(&sandbox, &[1, 127, 0, 0, 1], port).await;
    assert_eq!(code, 0);
    echoes(&mut client).await;
    assert!(sandbox.egress.findings().is_empty());
}

#[tokio::test]
async fn private_addresses_are_refused_with_a_finding() {
    let web = TestServer::web_at([0, 0, 0, 0], 0).await;
    let port = web.port();
    let sandbox = internet();
    let addresses = [
        "127.0.0.1",
        "127.0.0.2",
        "0.0.0.0",
        "10.0.0.5",
        "100.64.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.168.1.1",
        "224.0.0.1",
        "255.255.255.255",
        "168.63.129.16",
        "[::1]",
        "[::]",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "[ff02::1]",
        "[::7f00:1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::1]",
        "[2002:7f00:1::]",
        "[2001:0:1:2:3:4:80ff:fffe]",
    ];
    for address in addresses {
        let answer = sandbox.ask(format!("GET http://{address}:{port}/ HTTP/1.1\r\n\r\n").as_bytes()).await;
        let message = format!(
            "connection to {address}:{port} was refused: network 'internet' reaches public addresses only"
        );
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains(&message), "{answer}");
        let findings = sandbox.egress.findings();
        let finding = findings.iter().find(|finding| finding.message.starts_with(&message)).unwrap();
        assert_eq!(
            (finding.rule.as_str(), finding.decided_by.as_str()),
            ("network-address", "network.mode = internet")
        );
        assert!(finding.suggestion.contains("--network ADDRESS:"), "{}", finding.suggestion);
    }
    let mapped = [&[4_u8][..], &Ipv6Addr::from([0, 0, 0, 0, 0, 0xffff, 0x7f00, 1]).octets()].concat();
    assert_eq!(socks(&sandbox, &mapped, port).await.1, 2);
    for name in ["localhost", "a.localhost"] {
        assert_eq!(socks(&sandbox, &by_name(name), port).await.1, 2, "{name}");
    }
    // This machine's own address, even if it is public.
    if let Ok(own) = crate::harness::own_address() {
        let answer = sandbox.ask(format!("GET http://{own}:{port}/ HTTP/1.1\r\n\r\n").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
    assert_eq!((web.connections(), sandbox.names.lookup_count()), (0, 0));
}

#[tokio::test]
async fn names_of_private_addresses_are_refused_like_names_that_do_not_exist() {
    let web = TestServer::web().await;
    let port = web.port();
    let sandbox = internet();
    let names =
        ["private", "metadata", "mapped", "v6", "nat64", "6to4", "unique-local", "nowhere", "loopback"];
    for name in names.map(|name| format!("{name}.b.test")) {
        let (_, head) = tunnel(&sandbox, &format!("{name}:{port}")).await;
        assert!(head.starts_with("HTTP/1.1 403 "), "{name}: {head}");
        assert_eq!(by_datagram(&sandbox, &name, A).await, (3, Vec::new()), "{name}");
        let findings = sandbox.egress.findings();
        let finding = findings.iter().find(|finding| finding.message.contains(&name)).unwrap();
        assert!(
            finding.message.ends_with(
                "the name does not resolve to a public address, and network 'internet' reaches no others"
            ),
            "{finding:?}"
        );
    }
    assert_eq!(web.connections(), 0);
    assert_eq!(by_datagram(&sandbox, "public.b.test", A).await, (0, vec![vec![203, 0, 113, 9]]));
    assert_eq!(by_datagram(&sandbox, "localhost", A).await, (5, Vec::new()));
}

#[tokio::test]
async fn the_operators_private_ranges_are_not_the_internet() {
    let ranges = PrivateRanges::parse(&["203.0.113.0/24"]).unwrap();
    let sandbox = open(HostRules::internet().with_private_ranges(&ranges));
    for host in ["203.0.113.9", "public.b.test"] {
        let (_, head) = tunnel(&sandbox, &format!("{host}:80")).await;
        assert!(head.starts_with("HTTP/1.1 403 "), "{host}: {head}");
    }
}

#[tokio::test]
async fn a_narrower_network_closes_open_connections() {
    let echo = TestServer::echo().await;
    let sandbox = open(HostRules::internet().allowing_private_addresses());
    let (mut client, _) = tunnel(&sandbox, &format!("any.test:{}", echo.port())).await;
    echoes(&mut client).await;
    sandbox.egress.set_rules(HostRules::internet());
    echo.all_closed().await;
    assert_eq!(crate::harness::read_all(&mut client).await, "");
}
