use crate::{ConfigError, RackConfig};

const HOSTS: &str = r#"
version = 1
servers = 3
[hosts]
meta = "10.0.0.1:21079"
switch = "10.0.0.2:21079"
servers = ["10.0.0.3:21079", "10.0.0.4:21079", "10.0.0.5:21079"]
gateways = ["10.0.0.6:21079"]
key_file = "cluster.key"
[switch]
data_plane = "tc"
"#;
const PORTS: &str = r#"
[[switch.ports]]
nodes = ["server-0", "meta"]
interfaces = ["p2"]
[[switch.ports]]
nodes = ["server-1", "server-2", "gateway-0"]
interfaces = ["u0", "u1"]
macs = ["02:00:00:00:01:00", "02:00:00:00:01:01"]
"#;

fn problems(text: &str) -> String {
    match RackConfig::parse(text) {
        Err(e @ ConfigError::Rules(_)) => e.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ports_are_planned_and_read_back() {
    let cfg = RackConfig::parse(&format!("{HOSTS}{PORTS}")).expect("right");
    assert_eq!(RackConfig::parse(&cfg.to_toml()), Ok(cfg.clone()));
    let plan = cfg.switch.plan(cfg.hosts.as_ref().expect("there"), 0, &mut Vec::new());
    assert_eq!(plan[0].ways, [("p2".to_string(), [2, 0, 10, 0, 0, 3])]);
    assert_eq!(plan[1].ways[1], ("u1".to_string(), [2, 0, 0, 0, 1, 1]));
    assert_eq!(plan[1].nodes.iter().map(|n| n.0).collect::<Vec<_>>(), [3, 4, 5]);
}

const TWO_RACKS: &str = r#"
version = 1
servers = 4
[racks]
count = 2
[hosts]
meta = "10.0.0.1:21079"
switch = ["10.0.0.2:21079", "10.0.0.7:21079"]
servers = ["10.0.0.3:21079", "10.0.0.4:21079", "10.0.0.5:21079", "10.0.0.6:21079"]
gateways = ["10.0.0.8:21079"]
key_file = "cluster.key"
[switch]
data_plane = "tc"
[[switch.ports]]
nodes = ["server-0", "server-1", "gateway-0", "meta"]
interfaces = ["p0"]
[[switch.ports]]
nodes = ["server-2", "server-3", "switch-1"]
interfaces = ["u0", "u1"]
[[switch.ports]]
rack = 1
nodes = ["server-2", "server-3"]
interfaces = ["p0"]
[[switch.ports]]
rack = 1
nodes = ["server-0", "server-1", "gateway-0", "switch"]
interfaces = ["u0", "u1"]
"#;

#[test]
fn each_racks_switch_has_ports_of_its_own() {
    let cfg = RackConfig::parse(TWO_RACKS).expect("right");
    assert_eq!(RackConfig::parse(&cfg.to_toml()), Ok(cfg.clone()));
    let plan = |rack| cfg.switch.plan(cfg.hosts.as_ref().expect("there"), rack, &mut Vec::new());
    let nodes = |rack| plan(rack).into_iter().map(|p| p.nodes.iter().map(|n| n.0).collect()).collect::<Vec<Vec<_>>>();
    assert_eq!(nodes(0), [vec![2, 3, 7, 0], vec![4, 5, 6]]);
    assert_eq!(nodes(1), [vec![4, 5], vec![2, 3, 7, 1]]);
    for (from, to, says) in [
        (", \"switch-1\"]", "]", "switch.ports = 4 ports: a port of rack 0 with switch-1 behind it"),
        (", \"switch\"]", "]", "switch.ports = 4 ports: a port of rack 1 with switch behind it"),
        ("\"server-1\", \"gateway-0\", \"switch\"]", "\"switch\"]", "a port of rack 1 with gateway-0 behind it"),
        ("\"switch\"]", "\"switch-1\"]", "\"switch-1\": meta, server-N, gateway-N or the other rack's switch"),
        (
            "rack = 1\nnodes = [\"server-2\"",
            "rack = 2\nnodes = [\"server-2\"",
            "switch.ports[2].rack = 2: below racks.count (2)",
        ),
        (
            "\"10.0.0.6:21079\"]",
            "\"10.0.0.6:21079\", \"10.0.0.9:21079\", \"10.0.0.10:21079\"]",
            "hosts.servers = 6 addresses: servers (4) with racks.count = 2",
        ),
        ("\"10.0.0.7:21079\"", "\"10.0.0.9:21079\"", "hosts.switch[1] = \"10.0.0.9:21079\": 10.0.0.7:21079 with"),
    ] {
        let text = TWO_RACKS.replace(from, to);
        assert_ne!(text, TWO_RACKS, "{from}");
        assert!(problems(&text).contains(says), "{to}: {}", problems(&text));
    }
}

#[test]
fn a_data_plane_in_the_kernel_wants_native_addresses_and_a_port_for_each() {
    let said = problems(HOSTS);
    for name in ["server-0", "server-2", "gateway-0"] {
        assert!(said.contains(&format!("a port with {name} behind it")), "{said}");
    }
    let whole = format!("{HOSTS}{PORTS}");
    for (from, to, says) in [
        ("10.0.0.4:21079", "10.0.0.14:21079", "hosts.servers[1] = \"10.0.0.14:21079\": 10.0.0.4:21079 with"),
        ("10.0.0.6:21079", "10.0.0.6:7400", "10.0.0.6:21079 with switch.data_plane = tc"),
        ("\"meta\"", "\"server-7\"", "\"server-7\": meta, server-N or gateway-N"),
        ("\"meta\"", "\"switch\"", "\"switch\": meta, server-N or gateway-N"),
        ("\"meta\"", "\"server-2\"", "\"server-2\": each node behind one port only"),
        ("[\"p2\"]", "[]", "switch.ports[0].interfaces = 0 entries: 1 to 8"),
        ("\"p2\"", "\"a-name-far-too-long\"", "1 to 15 bytes"),
        (", \"02:00:00:00:01:01\"", "", "macs = 1 entries: one for each"),
        ("02:00:00:00:01:01", "02:00:00:00:01", "\"02:00:00:00:01\": an Ethernet address"),
    ] {
        let text = whole.replace(from, to);
        assert_ne!(text, whole, "{from}");
        assert!(problems(&text).contains(says), "{to}: {}", problems(&text));
    }
    let alone = "[switch]\ndata_plane = \"xdp\"\n";
    assert!(problems(alone).contains("only with [hosts]"), "{}", problems(alone));
    assert!(RackConfig::parse("[switch]\ndata_plane = \"p4\"\n").unwrap_err().to_string().contains("p4"));
}

const RINGS: &str = r#"
[[switch.rings]]
prefix = "10.11.0.0/24"
members = ["server-0", "server-2"]
quorum = 1
[[switch.rings]]
prefix = "10.10.0.0/24"
reach = "share"
members = ["server-1"]
"#;

#[test]
fn rings_are_planned_and_read_back() {
    // Rings work without hosts: every driver has them.
    let cfg = RackConfig::parse(&format!("version = 1\nservers = 3\n{RINGS}")).expect("right");
    assert_eq!(RackConfig::parse(&cfg.to_toml()), Ok(cfg.clone()));
    let plans = cfg.switch.ring_plans(&crate::racks::layout(&cfg, 1), &mut Vec::new());
    assert_eq!((plans.len(), plans[0].quorum, plans[1].quorum), (2, 1, 1));
    assert_eq!(plans[0].ring.members.iter().map(|n| n.0).collect::<Vec<_>>(), [2, 4]);
    let whole = format!("{HOSTS}{PORTS}{RINGS}");
    RackConfig::parse(&whole).expect("right");
    for (from, to, says) in [
        ("\"server-2\"]\nquorum", "\"server-3\"]\nquorum", "\"server-3\": server-N of the rack, each once"),
        ("\"server-2\"]\nquorum", "\"server-0\"]\nquorum", "\"server-0\": server-N of the rack, each once"),
        ("\"server-2\"]\nquorum", "\"meta\"]\nquorum", "\"meta\": server-N of the rack"),
        ("quorum = 1", "quorum = 3", "switch.rings[0].quorum = 3: 1 to the 2 members"),
        ("quorum = 1", "quorum = 0", "switch.rings[0].quorum = 0: 1 to the 2 members"),
        ("10.11.0.0/24", "10.12.0.0/24", "switch.rings[0].prefix = \"10.12.0.0/24\": a prefix of addresses within"),
        ("10.11.0.0/24", "10.11.0.0", "a prefix of addresses within"),
        ("10.11.0.0/24", "10.0.0.0/8", "a prefix of addresses within"),
        ("10.11.0.0/24", "10.11.0.1/24", "10.11.0.1/24 has bits beyond its prefix"),
        ("10.11.0.0/24", "10.10.0.0/24", "10.10.0.0/24: a prefix that no other ring has"),
        ("data_plane = \"tc\"", "data_plane = \"xdp\"", "switch.rings = 2 rings: none with data_plane"),
    ] {
        let said = problems(&whole.replace(from, to));
        assert!(said.contains(says), "{to}: {said}");
    }
}

#[test]
fn a_ring_does_not_take_the_address_of_a_pair_of_servers_of_a_cloud_disk() {
    for (channels, prefix, refused) in [
        (2, "10.11.0.17/32", true),
        (2, "10.11.0.0/24", true),
        (2, "10.11.0.18/32", false),
        (0, "10.11.0.17/32", false),
        (0, "10.11.0.0/24", false),
    ] {
        let rings = RINGS.replace("10.11.0.0/24", prefix);
        let cfg = RackConfig::parse(&format!("version = 1\nservers = 3\n[cloud]\nchannels = {channels}\n{rings}"));
        let said = cfg.err().map(|e| e.to_string()).unwrap_or_default();
        let rule = format!("switch.rings = {prefix}: no addresses whose last four bits are 1");
        assert_eq!(said.contains(&rule), refused, "{channels} {prefix}: {said}");
        assert_eq!(said.is_empty(), !refused, "{channels} {prefix}: {said}");
    }
}
