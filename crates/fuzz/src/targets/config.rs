//! Files written by users: a rack's configuration, a drive's profile, a plan of faults.

use std::fmt::Write as _;
use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use rackweave_config::{Policy, RackConfig};
use rackweave_eval::ageing::{RackRates, Rates};
use rackweave_eval::cloud::params::Params;
use rackweave_flash::Profile;
use rackweave_rack::build;
use rackweave_search::fault::Plan;

use crate::corrupt::{corrupt, rest};

/// Keys that a default configuration leaves out.
const MORE_KEYS: [&str; 12] = [
    "servers_max",
    "protocol_version",
    "paths",
    "mtu",
    "hosts.servers",
    "hosts.switch",
    "hosts.meta",
    "hosts.gateway",
    "hosts.key_file",
    "control.certificates",
    "gc.redirect",
    "nbd.tls",
];
/// Values of every type, at the edges.
const VALUES: [&str; 22] = [
    "0",
    "1",
    "2",
    "3",
    "64",
    "-1",
    "4294967296",
    "9223372036854775807",
    "0.0",
    "1.5",
    "-0.5",
    "nan",
    "inf",
    "1e308",
    "true",
    "false",
    "\"\"",
    "\"channel\"",
    "\"16G\"",
    "\"10:00\"",
    "[\"channel\", \"die\"]",
    "[]",
];

/// Keys of a whole configuration with the values that policies give them.
static KEYS: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for policy in Policy::ALL {
        let text = policy.apply(&RackConfig::default()).to_toml();
        let mut section = String::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('[') {
                section = format!("{}.", name.trim_end_matches(']'));
            } else if let Some((key, value)) = line.split_once(" = ") {
                all.push((format!("{section}{key}"), value.to_string()));
            }
        }
    }
    all.extend(MORE_KEYS.map(|k| (k.to_string(), "1".to_string())));
    all
});

/// A configuration: what is taken is written and taken again as it was.
pub(super) fn rack(input: &[u8]) {
    let mut u = Unstructured::new(input);
    let text = match u.arbitrary::<bool>().unwrap_or(false) {
        true => String::from_utf8_lossy(&rest(&mut u)).into_owned(),
        false => drawn(&mut u).unwrap_or_default(),
    };
    match RackConfig::parse(&text) {
        Ok(cfg) => {
            let again = RackConfig::parse(&cfg.to_toml());
            assert_eq!(again.as_ref(), Ok(&cfg), "{text}\n---\n{}", cfg.to_toml());
            follow(&cfg);
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

/// The nodes' configurations follow from it, or an error.
fn follow(cfg: &RackConfig) {
    let last = cfg.servers - 1;
    _ = (build::profile(cfg), build::meta_bytes(cfg), build::capacity_bytes(cfg));
    _ = (build::ssd(cfg, last), build::server_config(cfg, last, 1), build::meta_config(cfg));
    _ = (build::gc(cfg), build::switch_config(cfg, 0), cfg.lease(), cfg.sets());
}

fn drawn(u: &mut Unstructured<'_>) -> Result<String> {
    let mut text = String::new();
    if u.arbitrary()? {
        _ = writeln!(text, "policy = \"{}\"", u.choose(&Policy::ALL)?.name());
    }
    let mut taken = Vec::new();
    for _ in 0..u.int_in_range(0..=8u8)? {
        let (key, usual) = u.choose(&KEYS)?;
        if taken.contains(&key) || key == "policy" {
            continue;
        }
        taken.push(key);
        let value = match u.int_in_range(0..=3u8)? {
            0 => usual.clone(),
            1 => u.int_in_range(0..=200u32)?.to_string(),
            2 => {
                let (_, other) = u.choose(&KEYS)?;
                other.clone()
            }
            _ => u.choose(&VALUES)?.to_string(),
        };
        _ = writeln!(text, "{key} = {value}");
    }
    let mut bytes = text.into_bytes();
    if u.ratio(1u8, 4u8)? {
        corrupt(u, &mut bytes)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A profile: what is taken can be scaled without a panic.
pub(super) fn profile(input: &[u8]) {
    let mut u = Unstructured::new(input);
    let text = match u.arbitrary::<bool>().unwrap_or(false) {
        true => String::from_utf8_lossy(&rest(&mut u)).into_owned(),
        false => one_value_changed(&mut u).unwrap_or_default(),
    };
    let Ok(p) = Profile::parse(&text) else { return };
    for bytes in [0, 1, 16 << 20, u.arbitrary().unwrap_or(1 << 33), u64::MAX] {
        if let Ok(scaled) = p.scaled_to(bytes) {
            assert!(scaled.geometry.blocks() > 0);
        }
    }
}

fn one_value_changed(u: &mut Unstructured<'_>) -> Result<String> {
    let lines: Vec<&str> = include_str!("../../../flash/profiles/p-ssd.toml").lines().collect();
    let mut out = String::new();
    let changed = u.choose_index(lines.len())?;
    for (i, line) in lines.iter().enumerate() {
        match line.split_once("value = ") {
            Some((head, rest)) if i == changed || u.ratio(1u8, 12u8)? => {
                let tail = rest.find(',').map_or("", |at| &rest[at..]);
                let value = match u.arbitrary()? {
                    true => u.choose(&VALUES)?.to_string(),
                    false => u.arbitrary::<i64>()?.to_string(),
                };
                _ = writeln!(out, "{head}value = {value}{tail}");
            }
            _ => _ = writeln!(out, "{line}"),
        }
    }
    Ok(out)
}

/// Rates of wear, of drives and of racks.
pub(super) fn rates(input: &[u8]) {
    let mut u = Unstructured::new(input);
    let mut text = match u.int_in_range(0..=3u8).unwrap_or(0) {
        0 => rest(&mut u),
        1 => include_bytes!("../../../eval/data/flashblox-rates.toml").to_vec(),
        2 => include_bytes!("../../../eval/data/diffforward.toml").to_vec(),
        _ => include_bytes!("../../../eval/data/rackblox-wear.toml").to_vec(),
    };
    _ = corrupt(&mut u, &mut text);
    let text = String::from_utf8_lossy(&text);
    _ = Rates::parse(&text).map_err(|e| assert!(!e.to_string().is_empty()));
    _ = Params::parse(&text).map_err(|e| assert!(!e.to_string().is_empty()));
    _ = RackRates::parse(&text).map_err(|e| assert!(!e.to_string().is_empty()));
}

/// A plan: what is read is written and read again as it was, and has smaller ones.
pub(super) fn plan(input: &[u8]) {
    let mut u = Unstructured::new(input);
    let drawn = match u.int_in_range(0..=4u8).unwrap_or(0) {
        0 => None,
        1 => u.arbitrary().ok().map(Plan::draw_grouped),
        2 => u.arbitrary().ok().map(Plan::draw_two_racks),
        3 => u.arbitrary().ok().map(Plan::draw_moving),
        _ => u.arbitrary().ok().map(Plan::draw),
    };
    let bytes = match drawn {
        None => rest(&mut u),
        Some(p) => {
            let mut text = serde_json::to_vec(&p).expect("a plan has a JSON form");
            assert_eq!(serde_json::from_slice::<Plan>(&text).expect("its own"), p);
            _ = corrupt(&mut u, &mut text);
            text
        }
    };
    let Ok(p) = serde_json::from_slice::<Plan>(&bytes) else { return };
    let text = serde_json::to_vec(&p).expect("a plan has a JSON form");
    assert_eq!(serde_json::to_vec(&serde_json::from_slice::<Plan>(&text).expect("its own")).expect("JSON"), text);
}
