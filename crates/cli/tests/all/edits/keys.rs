//! Configuration keys, and other values for each.

use std::fmt;

use rackweave_config::RackConfig;
use rackweave_core::Rng;
use toml::{Table, Value};

/// Every key of the schema, with values: valid ones, ones that need another key, and invalid ones.
const KEYS: &[(&str, &[&str])] = &[
    ("version", &["1", "2"]),
    ("policy", &["\"baseline\"", "\"rackblox\"", "\"rackweave\"", "\"ideal\"", "\"best\""]),
    ("servers", &["3", "4", "5", "6", "0"]),
    ("servers_max", &["3", "4", "5", "6", "64"]),
    ("replicas", &["1", "2", "3", "4"]),
    ("min_copies", &["1", "2", "3"]),
    ("stripe_blocks", &["1", "8", "16", "32", "17"]),
    ("overcommit", &["0.5", "1.0", "100.0", "0.0"]),
    ("cache_slots", &["1024", "4096", "65536", "10"]),
    ("protocol_version", &["2", "3"]),
    ("paths", &["1", "4"]),
    ("mtu", &["1500", "9000"]),
    ("ssd.profile", &["\"p-ssd\"", "\"intel-dc\"", "\"optane\"", "\"femu\"", "\"none\""]),
    ("ssd.size", &["\"64M\"", "\"96M\"", "\"128M\"", "\"256M\"", "\"1G\"", "134221824"]),
    ("ssd.channels", &["2", "4", "8", "16"]),
    ("ssd.spare", &["0", "1", "2", "3"]),
    ("ssd.own_channels", &["0", "1", "2"]),
    ("ssd.own_dies", &["0", "1", "3"]),
    ("ssd.own_software_dies", &["0", "2", "5"]),
    ("ssd.own_soft_planes", &["0", "2", "5"]),
    (
        "ssd.isolation",
        &[
            "\"channel\"",
            "\"die\"",
            "\"software\"",
            "\"none\"",
            "[\"software\", \"channel\"]",
            "[\"channel\", \"software\"]",
            "[\"channel\"]",
            "[\"die\", \"none\"]",
            "[]",
        ],
    ),
    ("ssd.timing", &["\"real\"", "\"none\"", "\"ideal-gc\""]),
    ("ssd.blocking_unit", &["\"page\"", "\"block\""]),
    ("ssd.erase_suspend", &["true", "false"]),
    ("ssd.program_suspend", &["true", "false"]),
    ("ssd.host_program_suspend", &["true", "false"]),
    ("ssd.verify", &["true", "false"]),
    ("ssd.checkpoint_blocks", &["1", "4", "64", "4096", "0"]),
    ("ssd.program_failures", &["0.0", "0.0001", "2.0"]),
    ("ssd.erase_failures", &["0.0", "0.001", "-1.0"]),
    ("ssd.failure_seed", &["0", "7"]),
    ("gc.policy", &["\"coordinated\"", "\"uncoordinated\""]),
    ("gc.soft_percent", &["30", "35", "60", "95"]),
    ("gc.regular_percent", &["10", "25", "50"]),
    ("gc.background", &["true", "false"]),
    ("gc.idle_alpha", &["0.25", "0.5", "2.0"]),
    ("gc.idle_over_ms", &["10", "30"]),
    ("gc.yields", &["true", "false"]),
    ("gc.victims", &["\"greedy\"", "\"cost-benefit\""]),
    ("gc.separation", &["\"moved\"", "\"lifespans\""]),
    ("sched.kind", &["\"fifo\"", "\"deadline\"", "\"kyber\""]),
    ("sched.coordinated", &["true", "false"]),
    ("sched.read_target_us", &["100", "750", "0"]),
    ("sched.write_target_us", &["500", "3000"]),
    ("sched.reads_per_die", &["1", "2", "16", "1000"]),
    ("lease.span_ms", &["200", "500", "2000", "1"]),
    ("lease.drift_ppm", &["0", "200", "10000", "20000"]),
    ("client.timeout_ms", &["50", "200", "1000", "0"]),
    ("client.window", &["1", "16", "256"]),
    ("client.keep_kib", &["0", "64", "65536"]),
    ("nbd.tls", &["\"off\"", "\"allow\"", "\"require\""]),
    ("nbd.certificate", &["\"none.pem\""]),
    ("nbd.key", &["\"none.pem\""]),
    ("nbd.client_ca", &["\"none.pem\""]),
    ("control", &["{ port = 7000, certificates = \"certificates\" }"]),
    (
        "hosts",
        &[
            "{ meta = \"127.0.0.1:1\", switch = \"127.0.0.1:2\", servers = [\"127.0.0.1:3\"], gateways = [\"127.0.0.1:4\"] }",
        ],
    ),
    ("switch.data_plane", &["\"process\"", "\"tc\"", "\"xdp\""]),
    ("switch.redirect", &["\"off\"", "\"gc\"", "\"load\""]),
    ("switch.far_reads", &["true", "false"]),
    ("switch.scheduling", &["\"priority\"", "\"tb\"", "\"fq\""]),
    (
        "switch.egress",
        &[
            "{ mbit_per_s = 1000 }",
            "{ mbit_per_s = 2000, queue_kib = 256, flows = [{ from = \"gateway-0\", weight = 2 }] }",
            "{ mbit_per_s = 0 }",
        ],
    ),
    ("switch.ports", &["[{ nodes = [\"server-0\"], interfaces = [\"p0\"] }]"]),
    (
        "switch.rings",
        &[
            "[{ prefix = \"10.11.0.0/24\", members = [\"server-0\", \"server-1\"] }]",
            "[{ prefix = \"10.20.0.0/24\", members = [\"server-0\"] }]",
        ],
    ),
    ("racks.count", &["1", "2", "3"]),
    ("racks.far_replicas", &["1", "2"]),
    ("repair.replace_after_s", &["0", "1", "300"]),
    ("repair.moves", &["1", "2", "64", "0"]),
    ("repair.mib_per_s", &["0", "1", "64"]),
    ("scrub.every_days", &["0.0", "0.00005", "7.0", "-1.0"]),
    ("wear.gamma", &["0.05", "0.1", "2.0"]),
    ("wear.local_every_days", &["1.0", "12.0"]),
    ("wear.global_every_days", &["0.0001", "1.0", "56.0"]),
    ("wear.swaps", &["true", "false"]),
    ("wear.swap_erased", &["\"1M\"", "\"4G\"", "\"24T\""]),
    ("wear.swap_slice_ms", &["1", "100"]),
    ("wear.swap_pause_ms", &["1", "100", "60000"]),
    ("kv.channels", &["0", "1", "2", "1000"]),
    ("kv.own_channels", &["0", "1", "1000"]),
    ("kv.replicas", &["0", "1", "3", "10"]),
    ("kv.min_copies", &["0", "1", "2", "10"]),
    ("cloud.channels", &["0", "1", "2", "65", "1000"]),
    ("resp.flushall", &["true", "false"]),
    ("memory.budget_mib", &["512", "1024", "1"]),
    ("ssd.no_such_key", &["1"]),
    ("no_such_section.key", &["1"]),
];

/// Keys that fix the layout of drives and volumes.
pub const FIXED: &[&str] = &[
    "servers",
    "replicas",
    "stripe_blocks",
    "ssd.profile",
    "ssd.size",
    "ssd.isolation",
    "ssd.channels",
    "ssd.spare",
    "ssd.own_channels",
    "ssd.own_dies",
    "ssd.own_software_dies",
    "ssd.own_soft_planes",
    "kv.channels",
    "kv.own_channels",
    "cloud.channels",
    "servers_max",
    "racks.count",
    "racks.far_replicas",
];

/// Whether the second configuration is valid, and of another layout than the first.
pub fn fixed_differ(kept: &str, edited: &str) -> bool {
    let layout = |text: &str| {
        let c = RackConfig::parse(text).ok()?;
        let levels = c.ssd.isolation.all().to_vec();
        let logs = (c.kv.channels, c.kv.own_channels, c.cloud.channels);
        let own = (rackweave_config::OwnUnit::ALL.map(|unit| c.ssd.own(unit)), logs);
        let drives = (c.ssd.profile.clone(), c.ssd.size, c.ssd.channels, c.spare(), levels, own);
        let far = if c.racks.count > 1 { c.racks.far_replicas.unwrap_or(1) } else { 0 };
        Some((drives, c.servers, c.servers_max(), c.replicas, c.stripe_blocks, (c.racks.count, far)))
    };
    layout(edited).is_some_and(|edited| Some(edited) != layout(kept))
}

/// A configuration as its keys.
#[derive(Clone, Default)]
pub struct Keys(Table);

pub enum KeyEdit {
    Set(&'static str, &'static str),
    Remove(&'static str),
    /// The levels of isolation in another order.
    Reorder,
}

impl fmt::Display for KeyEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyEdit::Set(key, value) => write!(f, "{key} = {value}"),
            KeyEdit::Remove(key) => write!(f, "{key} removed"),
            KeyEdit::Reorder => write!(f, "ssd.isolation in another order"),
        }
    }
}

impl KeyEdit {
    /// Names of which an error contains one: sections alone, as in a syntax error, and keys that the policy sets.
    pub fn names(&self) -> Vec<&'static str> {
        match self {
            KeyEdit::Set(key, _) | KeyEdit::Remove(key) => {
                let last = key.rsplit('.').next().expect("a part");
                let first = key.split('.').next().expect("a part");
                vec![key, last, first]
            }
            KeyEdit::Reorder => vec!["ssd.isolation"],
        }
    }
}

impl Keys {
    pub fn of(text: &str) -> Keys {
        Keys(toml::from_str(text).expect("TOML"))
    }
    pub fn text(&self) -> String {
        toml::to_string(&self.0).expect("TOML")
    }
    pub fn edit(&mut self, rng: &mut Rng) -> KeyEdit {
        if let Some(Value::Array(levels)) = self.0["ssd"].get("isolation").filter(|_| rng.chance(0.1)) {
            let mut levels = levels.clone();
            levels.rotate_left(1);
            self.set("ssd.isolation", Value::Array(levels));
            return KeyEdit::Reorder;
        }
        let (key, values) = *rng.pick(KEYS);
        if rng.chance(0.2) {
            self.remove(key);
            return KeyEdit::Remove(key);
        }
        let value = *rng.pick(values);
        let parsed: Table = toml::from_str(&format!("value = {value}")).expect("a value");
        self.set(key, parsed["value"].clone());
        KeyEdit::Set(key, value)
    }
    fn set(&mut self, key: &str, value: Value) {
        let (table, name) = match key.split_once('.') {
            Some((section, name)) => {
                let section = self.0.entry(section).or_insert_with(|| Value::Table(Table::new()));
                (section.as_table_mut().expect("a section"), name)
            }
            None => (&mut self.0, key),
        };
        table.insert(name.into(), value);
    }
    fn remove(&mut self, key: &str) {
        match key.split_once('.') {
            Some((section, name)) => {
                if let Some(section) = self.0.get_mut(section).and_then(Value::as_table_mut) {
                    section.remove(name);
                }
            }
            None => {
                self.0.remove(key);
            }
        }
    }
}

/// The names that a table of this name may have, by its refusal of another one; none if it is no table.
fn names_in(section: &str) -> Option<Vec<String>> {
    let text = if section.is_empty() { "nonsense = 1".into() } else { format!("[{section}]\nnonsense = 1") };
    let refused = RackConfig::parse(&text).expect_err("no such key").to_string();
    let (_, expected) = refused.split_once("unknown field `nonsense`, expected one of ")?;
    Some(expected.split('`').skip(1).step_by(2).map(String::from).collect())
}

#[test]
fn every_key_of_the_schema_is_edited() {
    let listed = |key: &str| KEYS.iter().any(|k| k.0 == key || k.0.starts_with(&format!("{key}.")));
    let top = names_in("").expect("keys");
    assert!(top.len() > 20, "{top:?}");
    for name in top {
        assert!(listed(&name), "{name}");
        for key in names_in(&name).unwrap_or_default() {
            let whole = format!("{name}.{key}");
            assert!(listed(&whole) || KEYS.iter().any(|k| k.0 == name), "{whole}");
        }
    }
}
