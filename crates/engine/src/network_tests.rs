use super::*;

fn rules(hosts: &[&str]) -> HostRules {
    HostRules::parse(hosts).unwrap()
}

fn target(text: &str) -> TargetHost {
    text.parse().unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn rules_have_a_canonical_form() {
    let written = [
        ("PyPI.org.", "pypi.org"),
        ("*.Example.com:443", "*.example.com:443"),
        ("10.0.0.5:8080", "10.0.0.5:8080"),
        ("[::1]:80", "[::1]:80"),
        ("::1", "::1"),
        ("::ffff:10.0.0.5", "10.0.0.5"),
        ("10.0.0.0/8:80", "10.0.0.0/8:80"),
        ("[fd00::/8]:443", "[fd00::/8]:443"),
        ("fd00::/8", "fd00::/8"),
        ("localhost:8080", "localhost:8080"),
        ("under_score.xn--p1ai", "under_score.xn--p1ai"),
    ];
    for (given, meant) in written {
        assert_eq!(rules(&[given]).hosts(), [meant], "{given}");
        assert_eq!(rules(&[meant]).hosts(), [meant], "{meant}");
    }
}

#[test]
fn invalid_rules_are_refused_with_a_reason() {
    let refused = [
        ("https://pypi.org", "is a URL"),
        ("user@pypi.org", "contains a user"),
        ("pypi.org/simple", "contains a path"),
        ("*", "mode 'internet'"),
        ("*:443", "mode 'internet'"),
        ("0.0.0.0/0", "mode 'internet'"),
        ("::/0", "mode 'internet'"),
        ("internet", "is a network mode"),
        ("none", "is a network mode"),
        ("full", "is a network mode"),
        ("*example.com", "whole labels"),
        ("a.*.com", "whole labels"),
        ("a..com", "labels"),
        (".com", "labels"),
        ("*..com", "labels"),
        ("", "empty"),
        (".", "empty"),
        ("a b.com", "labels"),
        ("a\r\nb.com", "labels"),
        ("münchen.de", "xn--"),
        ("pypi.org:0", "not a port"),
        ("pypi.org:65536", "not a port"),
        ("pypi.org:+80", "not a port"),
        ("pypi.org:", "not a port"),
        ("[::1", "without its ']'"),
        ("[::1]80", "after its ']'"),
        ("[127.0.0.1]:80", "brackets"),
        ("10.0.0.1/8", "beyond its prefix"),
        ("10.0.0.0/33", "from 1 to 32"),
        ("::ffff:10.0.0.0/104", "write it as IPv4"),
        ("2130706433", "neither a name nor an address"),
        ("127.1", "neither a name nor an address"),
        ("0x7f.0.0.0x1", "neither a name nor an address"),
        ("017700000001", "neither a name nor an address"),
    ];
    for (given, why) in refused {
        let message = HostRules::parse(&[given]).unwrap_err();
        assert!(message.contains(why), "{given}: {message}");
    }
    assert!(HostRules::parse::<&str>(&[]).unwrap_err().contains("mode 'none'"));
    assert!(HostRules::parse(&["a.com"; MAX_RULES + 1]).unwrap_err().contains("more than 100"));
}

#[test]
fn a_rule_allows_its_host_and_ports_only() {
    let open = rules(&["pypi.org", "*.example.com:8443", "10.0.0.0/8"]);
    let allowed = [("pypi.org", 443), ("PYPI.ORG.", 80), ("a.b.example.com", 8443), ("10.1.2.3", 80)];
    for (host, port) in allowed {
        assert!(open.allows(&target(host), port), "{host}:{port}");
    }
    let refused = [
        ("pypi.org", 22),
        ("a.pypi.org", 443),
        ("evilpypi.org", 443),
        ("example.com", 8443),
        ("badexample.com", 8443),
        ("a.example.com", 443),
        ("11.0.0.1", 80),
        ("10.0.0.1", 22),
        ("::1", 80),
    ];
    for (host, port) in refused {
        assert!(!open.allows(&target(host), port), "{host}:{port}");
    }
    assert!(open.allows(&target("[::ffff:10.0.0.1]"), 80));
}

#[test]
fn numeric_address_forms_are_not_names() {
    for odd in
        ["2130706433", "127.1", "0x7f000001", "0177.0.0.1", "1.2.3.4.5", "[127.0.0.1]", "::1%lo", "a:b"]
    {
        assert!(odd.parse::<TargetHost>().is_err(), "{odd}");
    }
}

#[test]
fn names_do_not_reach_private_addresses() {
    let open = rules(&["a.com"]);
    let near = [
        "127.0.0.1",
        "0.0.0.0",
        "10.0.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "172.31.0.1",
        "192.168.1.1",
        "192.0.0.8",
        "198.19.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fec0::1",
        "fd12::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "2001:0:1:2:3:4:80ff:fffe",
        // Cloud-internal services: Azure, IBM, Alibaba, Oracle, AWS and Google by IPv6, Azure through NAT64
        // and 6to4.
        "168.63.129.16",
        "161.26.0.10",
        "166.8.0.1",
        "166.11.255.255",
        "100.100.100.200",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd20:ce::254",
        "64:ff9b::a83f:8110",
        "2002:a83f:8110::1",
    ];
    for near in near {
        assert!(!open.allows_address(&target("a.com"), 80, address(near), false), "{near}");
        assert!(!open.allows_answer(&target("a.com"), address(near)), "{near}");
        assert!(
            open.clone().allowing_private_addresses().allows_address(
                &target("a.com"),
                80,
                address(near),
                false
            ),
            "{near}"
        );
    }
    for public in [
        "203.0.113.80",
        "198.51.100.1",
        "192.0.2.1",
        "8.8.8.8",
        "2606:4700::1",
        "64:ff9b::808:808",
        "168.63.129.17",
        "166.12.0.1",
    ] {
        assert!(open.allows_address(&target("a.com"), 80, address(public), false), "{public}");
        assert!(
            !open.allows_address(&target("a.com"), 80, address(public), true),
            "{public} is this machine"
        );
    }
}

#[test]
fn private_addresses_can_be_listed() {
    let open = rules(&["a.com:80", "10.0.0.5:80", "localhost:8080", "203.0.113.9:80"]);
    assert!(open.allows_address(&target("a.com"), 80, address("10.0.0.5"), false));
    assert!(open.allows_address(&target("a.com"), 80, address("::ffff:10.0.0.5"), false));
    assert!(!open.allows_address(&target("a.com"), 80, address("10.0.0.6"), false));
    assert!(open.allows_address(&target("localhost"), 8080, address("127.0.0.1"), true));
    assert!(!open.allows_address(&target("localhost"), 8080, address("10.0.0.9"), false));
    assert!(!open.allows_address(&target("a.com"), 80, address("127.0.0.1"), false));
    assert!(!open.allows(&target("127.0.0.1"), 8080));
    assert!(open.allows_address(&target("203.0.113.9"), 80, address("203.0.113.9"), true));
    let other_port = rules(&["a.com:80", "10.0.0.5:81"]);
    assert!(!other_port.allows_address(&target("a.com"), 80, address("10.0.0.5"), false));
    assert!(open.allows_host_loopback() && !other_port.allows_host_loopback());
}

#[test]
fn names_do_not_reach_the_operators_private_ranges() {
    let ranges = PrivateRanges::parse(&["203.0.113.0/24", " 198.51.100.7 ", "2606:4700::/32"]).unwrap();
    let open = rules(&["a.com", "203.0.113.80:80"]).with_private_ranges(&ranges);
    let reaches = |text| open.allows_address(&target("a.com"), 80, address(text), false);
    for private in ["203.0.113.9", "198.51.100.7", "2606:4700::1", "64:ff9b::cb00:7109", "::ffff:203.0.113.9"]
    {
        assert!(!reaches(private), "{private}");
        assert!(!open.allows_answer(&target("a.com"), address(private)), "{private}");
    }
    for public in ["198.51.100.8", "192.0.2.1", "2606:4701::1", "203.0.113.80"] {
        assert!(reaches(public), "{public}");
    }
    for (wrong, why) in
        [("db.corp", "not an address range"), ("203.0.113.9/24", "beyond"), ("0.0.0.0/0", "is every")]
    {
        let message = PrivateRanges::parse(&[wrong]).unwrap_err();
        assert!(message.contains(wrong) && message.contains(why), "{message}");
    }
    assert!(PrivateRanges::parse(&["192.0.2.1"; 1_001]).unwrap_err().contains("more than 1000"));
}

#[test]
fn the_internet_is_every_public_address_and_nothing_else() {
    let open = HostRules::internet();
    for (host, port) in [("a.com", 22), ("a.b.example", 65535), ("8.8.8.8", 53), ("2606:4700::1", 443)] {
        assert!(open.allows(&target(host), port), "{host}:{port}");
    }
    for host in
        ["localhost", "a.localhost", "10.0.0.1", "::1", "169.254.169.254", "[::ffff:10.0.0.1]", "fd00::1"]
    {
        assert!(!open.allows(&target(host), 80), "{host}");
    }
    let reaches = |text| open.allows_address(&target("a.com"), 8080, address(text), false);
    assert!(reaches("8.8.8.8") && reaches("2606:4700::1"));
    assert!(!reaches("10.0.0.1") && !reaches("127.0.0.1") && !reaches("64:ff9b::a00:1"));
    assert!(!open.allows_address(&target("a.com"), 8080, address("8.8.8.8"), true), "this machine");
    assert!(!open.allows_host_loopback() && open.hosts().is_empty());
}

#[test]
fn a_ceiling_allows_the_internet_only_if_it_says_so() {
    use NetworkCeiling as Ceiling;
    let networks = [
        ("none", Network::None),
        ("names", Network::Hosts(rules(&["pypi.org"]))),
        ("addresses", Network::Hosts(rules(&["10.0.0.5"]))),
        ("internet", Network::Internet(HostRules::internet())),
        ("full", Network::Full),
    ];
    let ceilings = [
        (Ceiling::None, "none"),
        (Ceiling::Names, "none names"),
        (Ceiling::Hosts, "none names addresses"),
        (Ceiling::Internet, "none names internet"),
        (Ceiling::Full, "none names addresses internet full"),
    ];
    for (ceiling, expected) in ceilings {
        let allowed = networks.iter().filter(|(_, network)| ceiling.check(network.clone()).is_ok());
        assert_eq!(allowed.map(|(name, _)| *name).collect::<Vec<_>>().join(" "), expected, "{ceiling:?}");
    }
}
