use crate::hosts::HostsSection;
use crate::{ConfigError, RackConfig};

fn config(hosts: &str) -> Result<RackConfig, ConfigError> {
    RackConfig::parse(&format!("servers = 3\n[hosts]\n{hosts}"))
}

const GOOD: &str = r#"
    meta = "127.0.0.1:7400"
    switch = "127.0.0.1:7401"
    servers = ["127.0.0.1:7410", "127.0.0.1:7411", "localhost:7412"]
    gateways = ["127.0.0.1:7402"]
"#;

fn hosts(text: &str) -> HostsSection {
    config(text).expect("sound").hosts.expect("hosts")
}

#[test]
fn addresses_are_by_node_id() {
    let h = hosts(GOOD);
    let ports: Vec<u16> = h.resolve().expect("resolves").iter().map(|a| a.port()).collect();
    assert_eq!(ports, [7400, 7401, 7410, 7411, 7412, 7402]);
    let again = RackConfig::parse(&config(GOOD).expect("sound").to_toml()).expect("reads back");
    assert_eq!(again.hosts, Some(h));
}

#[test]
fn each_rack_has_a_switch() {
    let both = r#"switch = ["127.0.0.1:7401", "127.0.0.1:7403"]"#;
    let one = r#"switch = "127.0.0.1:7401""#;
    let two_racks = |hosts: &str| RackConfig::parse(&format!("servers = 4\n[racks]\ncount = 2\n[hosts]\n{hosts}"));
    let four = GOOD.replace("\"localhost:7412\"", "\"127.0.0.1:7412\", \"127.0.0.1:7413\"");
    let cfg = two_racks(&four.replace(one, both)).expect("sound");
    let hosts = cfg.hosts.as_ref().expect("hosts");
    let ports: Vec<u16> = hosts.resolve().expect("resolves").iter().map(|a| a.port()).collect();
    assert_eq!(ports, [7400, 7401, 7410, 7411, 7412, 7413, 7403, 7402]);
    assert_eq!(hosts.layout(), rackweave_core::Layout::of_racks(2, 4, 1));
    assert_eq!(RackConfig::parse(&cfg.to_toml()).expect("its own text"), cfg);
    let e = two_racks(&four).expect_err("one switch").to_string();
    assert!(e.contains("hosts.switch = 1 addresses: a list with one for each rack (racks.count = 2)"), "{e}");
    let e = config(&GOOD.replace(one, both)).expect_err("two switches").to_string();
    assert!(e.contains("hosts.switch = 2 addresses: one: a list of two only with racks.count = 2"), "{e}");
    let e = config(&GOOD.replace(one, "switch = 7")).expect_err("a number").to_string();
    assert!(e.contains("an address, or a list with one for each rack"), "{e}");
    let taken = four.replace(one, &both.replace("7403", "7402"));
    let e = two_racks(&taken).expect_err("taken").to_string();
    assert!(
        e.contains("hosts.gateways[0] = \"127.0.0.1:7402\": an address of its own; hosts.switch[1] has this one"),
        "{e}"
    );
}

#[test]
fn every_broken_rule_is_named_with_its_value() {
    let cases = [
        (
            GOOD.replace("7411", "7401"),
            vec!["hosts.servers[1] = \"127.0.0.1:7401\": an address of its own; hosts.switch has this one"],
        ),
        (GOOD.replace(", \"localhost:7412\"", ""), vec!["hosts.servers = 2 addresses: one for each of servers (3)"]),
        (GOOD.replace("[\"127.0.0.1:7402\"]", "[]"), vec!["hosts.gateways = 0 addresses: 1 to 64"]),
        (GOOD.replace(":7400", ""), vec!["hosts.meta = \"127.0.0.1\": HOST:PORT"]),
        (GOOD.replace(":7402", ":0"), vec!["hosts.gateways[0] = \"127.0.0.1:0\": HOST:PORT"]),
        (GOOD.replace("7410", "99999").replace("7411", "-1"), vec!["hosts.servers[0]", "99999", "hosts.servers[1]"]),
        (GOOD.replace("meta", "mete"), vec!["mete"]),
        (GOOD.replace("switch = \"127.0.0.1:7401\"", ""), vec!["missing field `switch`"]),
    ];
    for (text, wanted) in cases {
        let e = config(&text).expect_err(&text).to_string();
        wanted.iter().for_each(|w| assert!(e.contains(w), "{w}: {e}"));
    }
}

#[test]
fn hosts_that_do_not_fit_together_are_named() {
    let cases = [
        (
            GOOD.replace("localhost:7412", "no.such.host.invalid:7412"),
            "hosts.servers[2] = \"no.such.host.invalid:7412\"",
        ),
        (GOOD.replace("127.0.0.1:7411", "localhost:7401"), "hosts.switch has this one"),
        (GOOD.replace("127.0.0.1:7400", "0.0.0.0:7400"), "other nodes can send to"),
        (GOOD.replace("127.0.0.1:7411", "[::1]:7411"), "all IPv6"),
        (
            GOOD.replace("127.0.0.1:7411", "10.1.2.3:7411"),
            "hosts.key_file = nothing: required when a node is not on loopback",
        ),
    ];
    for (text, wanted) in cases {
        let problems = hosts(&text).resolve().expect_err(&text);
        assert!(problems.iter().any(|p| p.to_string().contains(wanted)), "{wanted}: {problems:?}");
    }
    let key = GOOD.replace("127.0.0.1:7411", "10.1.2.3:7411") + "key_file = \"k\"\n";
    assert!(hosts(&key).resolve().is_ok());
}
