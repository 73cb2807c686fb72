use super::*;
use crate::switching::RedirectKind;

fn problems(text: &str) -> Vec<(&'static str, String)> {
    match RackConfig::parse(text) {
        Err(ConfigError::Rules(p)) => p.into_iter().map(|p| (&*p.key.into_owned().leak(), p.value)).collect(),
        other => panic!("expected broken rules, got {other:?}"),
    }
}

#[test]
fn the_default_is_valid_and_survives_a_round_trip() {
    let d = RackConfig::default();
    d.validate().unwrap();
    assert_eq!(RackConfig::parse(&d.to_toml()).unwrap(), d);
    assert_eq!((d.servers, d.replicas, d.ssd.size), (4, 3, Size::gib(16)));
    assert_eq!(RackConfig::parse("").unwrap(), d, "every key may be left out");
}

#[test]
fn every_broken_rule_is_named_at_once() {
    let got = problems("version = 2\nservers = 2\nmin_copies = 0\n[ssd]\nsize = 1\n[gc]\nregular_percent = 40\n");
    let want =
        [("version", "2"), ("servers", "2"), ("min_copies", "0"), ("ssd.size", "1"), ("gc.regular_percent", "40")];
    assert_eq!(got, want.map(|(k, v)| (k, v.to_string())));
}

/// Names of keys under this heading, `[a]` or `[[a]]`, from the error for an unknown one.
fn known(heading: &str) -> Vec<String> {
    let e = RackConfig::parse(&format!("{heading}\nnobody = 1\n")).unwrap_err().to_string();
    // A value of the wrong type lists its alternatives.
    let Some((_, list)) = e.split_once("expected ").filter(|_| e.contains("unknown field")) else { return Vec::new() };
    list.split('`').skip(1).step_by(2).map(String::from).collect()
}

/// Every key of the schema, with its sections.
fn every_key(section: &str, keys: Vec<String>) -> Vec<String> {
    let within = |key: String| {
        let path = if section.is_empty() { key } else { format!("{section}.{key}") };
        let keys = [format!("[{path}]"), format!("[[{path}]]")].iter().map(|h| known(h)).find(|k| !k.is_empty());
        keys.map_or(vec![path.clone()], |keys| every_key(&path, keys))
    };
    keys.into_iter().flat_map(within).collect()
}

/// Rows of the reference: key and default.
fn documented() -> Vec<(&'static str, &'static str)> {
    let rows = include_str!("../../../docs/configuration.md").lines().filter_map(|l| l.strip_prefix("| `"));
    rows.filter_map(|row| {
        let cells: Vec<_> = row.trim_end_matches(" |").split(" | ").collect();
        (cells.len() == 4).then(|| (cells[0].trim_end_matches('`'), cells[2].trim()))
    })
    .collect()
}

#[test]
fn the_reference_has_every_key_and_its_default() {
    let (mut rows, mut keys) = (documented(), every_key("", known("")));
    assert!(keys.len() > 80 && keys.contains(&"switch.egress.flows.burst_kib".into()), "{keys:?}");
    let default = RackConfig::default().table();
    let of_policies = ["gc.policy", "switch.redirect", "sched.coordinated", "ssd.timing"];
    for (key, written) in &rows {
        let value = key.split('.').try_fold(None::<&Value>, |at, part| match at {
            None => default.get(part).map(Some),
            Some(v) => v.get(part).map(Some),
        });
        match value.flatten() {
            _ if of_policies.contains(key) => assert_eq!(*written, "by policy", "{key}"),
            Some(v) => assert_eq!(*written, format!("`{v}`"), "{key}"),
            None => {}
        }
    }
    rows.sort_unstable();
    keys.sort_unstable();
    assert_eq!(rows.iter().map(|(key, _)| *key).collect::<Vec<_>>(), keys);
}

#[test]
fn keys_that_would_do_nothing_beside_each_other_are_refused() {
    let refused = |text: &str| RackConfig::parse(text).unwrap_err().to_string();
    let e = refused("policy = \"rackblox\"\n[gc]\npolicy = \"uncoordinated\"\n");
    assert!(e.contains("gc.policy") && e.contains("switch.redirect"), "{e}");
    let e = refused("policy = \"baseline\"\n[switch]\nredirect = \"gc\"\n");
    assert!(e.contains("gc.policy") && e.contains("switch.redirect"), "{e}");
    for text in ["idle_alpha = 0.7", "idle_over_ms = 7"] {
        let e = refused(&format!("[gc]\n{text}\n"));
        assert!(e.contains(&text.replace(" =", "")[..8]) && e.contains("gc.background"), "{e}");
        let cfg = RackConfig::parse(&format!("[gc]\nbackground = true\n{text}\n")).expect("it is used");
        // Another policy also disables background collection, so that the next start accepts the configuration.
        let other = Policy::Baseline.apply(&cfg);
        assert_eq!(RackConfig::parse(&other.to_toml()), Ok(other), "{text}");
    }
}

#[test]
fn an_error_names_key_value_and_rule() {
    let e = RackConfig::parse("servers = 100").unwrap_err().to_string();
    assert!(e.contains("servers = 100") && e.contains("at most 64"), "{e}");
}

#[test]
fn unknown_keys_and_wrong_types_are_refused_with_their_line() {
    for text in [
        "[gc]\nvictims = \"oldest\"",
        "[ssd]\nisolation = \"plane\"",
        "[gc]\nseparation = \"hot\"",
        "sevrers = 4",
        "servers = -1",
        "servers = \"4\"",
        "[ssd]\nsize = \"16Q\"",
        "[ssd]\nsize = -4",
        "x",
    ] {
        let e = RackConfig::parse(text).unwrap_err();
        assert!(matches!(e, ConfigError::Syntax(_)), "{text}: {e}");
        assert!(e.to_string().contains("line"), "{e}");
    }
}

#[test]
fn a_policy_sets_what_is_not_written() {
    for policy in Policy::ALL {
        let cfg = RackConfig::parse(&format!("policy = \"{policy}\"\n")).expect("a policy is a configuration");
        assert_eq!(cfg, policy.apply(&RackConfig::default()), "{policy}");
        assert_eq!(RackConfig::parse(&cfg.to_toml()).as_ref(), Ok(&cfg), "{policy}");
        assert_eq!(policy.apply(&cfg), cfg, "{policy}");
        for other in Policy::ALL.into_iter().filter(|&o| o != policy) {
            let changed = other.apply(&cfg);
            assert_ne!((&changed.gc, &changed.switch, &changed.ssd), (&cfg.gc, &cfg.switch, &cfg.ssd), "{other}");
            assert_eq!(changed, other.apply(&RackConfig::default()), "nothing of {policy} is left in {other}");
            // The stored form omits the policy's keys, so that one word changes all of them.
            let kept = cfg.to_toml().replacen(policy.name(), other.name(), 1);
            assert_eq!(RackConfig::parse(&kept).as_ref(), Ok(&changed), "{kept}");
        }
    }
    let e = RackConfig::parse("servers = 4\npolicy = \"fastest\"").unwrap_err().to_string();
    assert!(e.contains("line 2") && e.contains("fastest") && e.contains("rackblox"), "{e}");
}

#[test]
fn what_is_written_wins_over_the_policy() {
    let cfg = RackConfig::parse("policy = \"baseline\"\n[switch]\nredirect = \"load\"\n").expect("no contradiction");
    assert_eq!((cfg.gc.policy, cfg.switch.redirect), (GcConfigPolicy::Uncoordinated, RedirectKind::Load));
    assert_eq!(RackConfig::parse(&cfg.to_toml()), Ok(cfg));
    // As in data directories of earlier versions.
    let older = RackConfig::parse("[gc]\nredirect = false\nsoft_percent = 40\n").expect("an earlier form");
    assert_eq!((older.switch.redirect, older.gc.soft_percent), (RedirectKind::Off, 40));
    assert!(!older.to_toml().contains("redirect = false"), "{}", older.to_toml());
    assert!(RackConfig::parse("[gc]\nredirect = 1\n").is_err());
}

#[test]
fn sizes_are_read_and_printed_with_binary_suffixes() {
    for (text, n) in
        [("0", 0), ("4096", 4096), ("64M", 64 << 20), ("16GiB", 16 << 30), ("2t", 2 << 40), ("7k", 7 << 10)]
    {
        assert_eq!(Size::parse(text), Ok(Size(n)), "{text}");
        assert_eq!(Size::parse(&Size(n).to_string()), Ok(Size(n)));
    }
    for text in ["", "G", "-1", "1.5G", "99999999999999999999", "20000000T", "1 X"] {
        assert!(Size::parse(text).is_err(), "{text}");
    }
}

#[test]
fn what_security_needs_is_checked_whole() {
    let hosts = "[hosts]\nmeta = \"127.0.0.1:7400\"\nswitch = \"127.0.0.1:7401\"\n\
                 servers = [\"127.0.0.1:7402\", \"127.0.0.1:7403\", \"127.0.0.1:7404\"]\ngateways = [\"127.0.0.1:7405\"]\n";
    let control = |port: u32| format!("servers = 3\n{hosts}[control]\nport = {port}\ncertificates = \"keys\"\n");
    for (text, key) in [
        ("[nbd]\ntls = \"require\"\nkey = \"k\"\n".to_string(), "nbd.certificate"),
        ("[nbd]\ntls = \"allow\"\ncertificate = \"c\"\n".to_string(), "nbd.key"),
        ("[nbd]\ncertificate = \"c\"\n".to_string(), "nbd.certificate"),
        ("[nbd]\ntls = \"allow\"\ncertificate = \"c\"\nkey = \"k\"\nclient_ca = \"a\"\n".to_string(), "nbd.client_ca"),
        ("[control]\nport = 7500\ncertificates = \"keys\"\n".to_string(), "control.port"),
        (control(0), "control.port"),
        (control(65_531), "control.port"),
        (control(7405), "control.port"),
        (control(7395), "control.port"),
        ("protocol_version = 4\n".to_string(), "protocol_version"),
        (format!("protocol_version = 9\nservers = 3\n{hosts}"), "protocol_version"),
    ] {
        let keys: Vec<String> = problems(&text).into_iter().map(|(key, _)| key.to_string()).collect();
        assert!(!keys.is_empty() && keys.iter().all(|k| k == key), "{text}: {keys:?}");
    }
    for port in [7500, 65_530, 7394] {
        assert!(RackConfig::parse(&control(port)).is_ok(), "{port}");
    }
    let mut cfg = RackConfig::parse(&control(7500)).expect("good");
    cfg.paths_from(std::path::Path::new("/etc/rack"));
    let control = cfg.control.clone().expect("there");
    assert_eq!(control.certificates, std::path::Path::new("/etc/rack/keys"));
    assert_eq!(RackConfig::parse(&cfg.to_toml()).expect("reads back"), cfg);
}

#[test]
fn packets_are_as_large_as_the_network_takes_and_the_program_sees() {
    for (mtu, plane, fits) in [
        (1280, "tc", true),
        (9000, "tc", true),
        (1279, "tc", false),
        (9217, "tc", false),
        (1500, "xdp", true),
        (9000, "xdp", false),
    ] {
        let text = format!("version = 1\nmtu = {mtu}\n[switch]\ndata_plane = \"{plane}\"\n");
        let said = RackConfig::parse(&text).err().map(|e| e.to_string()).unwrap_or_default();
        assert_eq!(!said.contains("mtu"), fits, "{mtu} {plane}: {said}");
    }
}

#[test]
fn schedulers_have_the_papers_targets_and_refuse_what_they_cannot_keep() {
    let of = |text: &str| RackConfig::parse(text).map(|c| c.sched.config());
    let us = |text: &str| of(text).map(|c| (c.read_target.0 / 1000, c.write_target.0 / 1000)).expect("good");
    assert_eq!(us(""), (1_750, 4_000));
    assert_eq!(us("policy = \"baseline\""), (750, 3_000));
    assert_eq!(us("[sched]\nkind = \"deadline\"\ncoordinated = false"), (500, 1_750));
    assert_eq!(us("[sched]\nread_target_us = 20"), (20, 4_000));
    for (text, key) in [
        ("[sched]\nread_target_us = 0", "sched.read_target_us = 0: 1 to"),
        ("[sched]\nwrite_target_us = 0", "sched.write_target_us = 0: 1 to"),
        ("[sched]\nwrite_target_us = -5", "write_target_us"),
        ("[sched]\nkind = \"fifo\"\nread_target_us = 5", "a FIFO has no target"),
        ("[sched]\nreads_per_die = 0", "sched.reads_per_die = 0: 1 to 256"),
        ("[sched]\nkind = \"noop\"", "noop"),
    ] {
        let refused = of(text).expect_err(text).to_string();
        assert!(refused.contains(key), "{text}: {refused}");
    }
}

/// Every new key belongs in one of the lists: a simulated rack refuses those for processes by name.
#[test]
fn every_key_is_of_every_rack_or_of_processes() {
    use super::written::{OF_EVERY_RACK, OF_PROCESSES};
    let mut listed: Vec<_> = OF_EVERY_RACK.iter().chain(OF_PROCESSES).map(ToString::to_string).collect();
    let mut all = known("");
    listed.sort();
    all.sort();
    assert_eq!(listed, all);
}

#[test]
fn what_is_written_and_not_used_is_named() {
    let text = "servers = 5\npolicy = \"rackblox\"\n[gc]\nredirect = true\n[sched]\ncoordinated = true\n[ssd]\nsize = \"8G\"\n";
    let (cfg, written) = Written::parse(text).expect("sound");
    assert_eq!(written.keys(), ["policy", "sched.coordinated", "servers", "ssd.size", "switch.redirect"]);
    assert_eq!(written.overridden(&cfg), []);
    assert_eq!(written.overridden(&Policy::Rackblox.apply(&cfg)), []);
    let named = |cfg: &RackConfig| written.overridden(cfg).iter().map(ToString::to_string).collect::<Vec<_>>();
    let other = named(&Policy::Baseline.apply(&cfg));
    assert!(other.iter().any(|o| o == "sched.coordinated = true has no effect: the value is false"), "{other:?}");
    assert!(other.len() == 3 && other[2].starts_with("switch.redirect"), "{other:?}");
    let other = named(&RackConfig { servers: 6, ..cfg });
    assert_eq!(other, ["servers = 5 has no effect: the value is 6"]);
    assert_eq!(written.of_processes(), None);
    let (_, of_a_gateway) = Written::parse("[nbd]\ntls = \"off\"\n").expect("sound");
    assert_eq!(of_a_gateway.of_processes().as_deref(), Some("nbd.tls"));
}

#[test]
fn channels_for_later_keyspaces_need_the_first_one() {
    let kv = |text: &str| format!("[kv]\n{text}\n");
    assert_eq!(problems(&kv("own_channels = 2")), [("kv.own_channels", "2".into())]);
    let many = kv("channels = 1\nreplicas = 3\nown_channels = 257");
    assert_eq!(problems(&many), [("kv.own_channels", "257".into())]);
    let cfg = RackConfig::parse(&kv("channels = 1\nreplicas = 3\nown_channels = 2")).expect("right");
    assert_eq!(cfg.kv.own_channels, 2);
    let mut other = cfg.clone();
    other.kv.own_channels = 3;
    let changed = crate::fixed::changed(&cfg, &other).map(|c| (c.key, c.stored, c.asked));
    assert_eq!(changed, Some(("kv.own_channels", "2".into(), "3".into())));
}

/// Initial vSSDs have sixteen ids on each server, of which a log takes the last; a drive's table has 64 entries.
#[test]
fn a_drive_has_at_most_64_vssds_and_16_of_shared_sets() {
    for (text, wrong) in [
        ("replicas = 3\n[ssd]\nspare = 13\nown_dies = 48\n", None),
        ("replicas = 3\n[ssd]\nspare = 14\n", Some(("ssd.spare", "14"))),
        ("replicas = 3\n[ssd]\nspare = 1\nown_channels = 30\nown_dies = 30\n", None),
        ("replicas = 3\n[ssd]\nspare = 1\nown_dies = 61\n", Some(("ssd.own_dies", "61"))),
        ("replicas = 3\n[ssd]\nspare = 1\nown_software_dies = 60\n", None),
        ("replicas = 3\n[ssd]\nspare = 1\nown_software_dies = 61\n", Some(("ssd.own_software_dies", "61"))),
        ("replicas = 3\n[ssd]\nspare = 12\n[kv]\nchannels = 1\nreplicas = 3\n", None),
        ("replicas = 3\n[ssd]\nspare = 13\n[kv]\nchannels = 1\nreplicas = 3\n", Some(("kv.channels", "1"))),
        (
            "replicas = 3\n[ssd]\nspare = 1\nown_dies = 60\n[kv]\nchannels = 1\nreplicas = 3\n",
            Some(("kv.channels", "1")),
        ),
        ("replicas = 3\n[ssd]\nspare = 10\n[kv]\nchannels = 1\nreplicas = 3\nown_channels = 1\n", None),
        (
            "replicas = 3\n[ssd]\nspare = 11\n[kv]\nchannels = 1\nreplicas = 3\nown_channels = 1\n",
            Some(("kv.own_channels", "1")),
        ),
        ("replicas = 3\n[ssd]\nspare = 1\nown_dies = 58\n[kv]\nchannels = 1\nreplicas = 3\nown_channels = 2\n", None),
        (
            "replicas = 3\n[ssd]\nspare = 1\nown_dies = 59\n[kv]\nchannels = 1\nreplicas = 3\nown_channels = 2\n",
            Some(("kv.own_channels", "2")),
        ),
    ] {
        match wrong {
            None => RackConfig::parse(text).map(drop).expect(text),
            Some((key, value)) => assert_eq!(problems(text), [(key, value.to_string())], "{text}"),
        }
    }
}
