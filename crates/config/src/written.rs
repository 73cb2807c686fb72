//! Keys that a configuration states itself, as opposed to values of policies and defaults. None of them is overridden
//! silently.

use std::fmt;

use toml::{Table, Value};

use super::{ConfigError, RackConfig};

/// Keys that only concern processes with sockets.
pub const OF_PROCESSES: &[&str] = &["control", "hosts", "memory", "mtu", "nbd", "paths", "protocol_version", "resp"];
/// Keys that concern any rack, including a simulated one.
pub const OF_EVERY_RACK: &[&str] = &[
    "cache_slots",
    "client",
    "gc",
    "cloud",
    "kv",
    "lease",
    "min_copies",
    "overcommit",
    "policy",
    "racks",
    "repair",
    "replicas",
    "sched",
    "scrub",
    "servers",
    "servers_max",
    "ssd",
    "stripe_blocks",
    "switch",
    "version",
    "wear",
];

/// The keys written in a text, and the configuration that results.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    keys: Table,
    whole: Table,
}

/// A written key whose effective value differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overridden {
    pub key: String,
    pub written: String,
    pub now: String,
}

impl fmt::Display for Overridden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} has no effect: the value is {}", self.key, self.written, self.now)
    }
}

impl Written {
    /// Parses and checks a configuration; see [`RackConfig::parse`].
    ///
    /// # Errors
    /// A syntax error, or all broken rules.
    pub fn parse(text: &str) -> Result<(RackConfig, Written), ConfigError> {
        let (cfg, written) = Self::read(text)?;
        cfg.validate()?;
        Ok((cfg, written))
    }
    /// As [`Written::parse`], for a configuration that is completed before its rules are looked at.
    ///
    /// # Errors
    /// A syntax error.
    pub fn read(text: &str) -> Result<(RackConfig, Written), ConfigError> {
        let cfg = RackConfig::read(text)?;
        let mut keys: Table =
            toml::from_str(text).map_err(|e: toml::de::Error| ConfigError::Syntax(e.to_string().into()))?;
        super::newer_names(&mut keys);
        let whole = cfg.table();
        Ok((cfg, Written { keys, whole }))
    }

    /// Replaces the resulting configuration, after its paths were resolved.
    pub fn means(&mut self, cfg: &RackConfig) {
        self.whole = cfg.table();
    }

    /// Every written key, with its section names.
    pub fn keys(&self) -> Vec<String> {
        let mut all = Vec::new();
        leaves(&self.keys, "", &mut all);
        all
    }

    /// The written keys that differ from `cfg`, the configuration in use.
    pub fn overridden(&self, cfg: &RackConfig) -> Vec<Overridden> {
        let used = cfg.table();
        let differs = |key: String| {
            let (written, now) = (value(&self.whole, &key), value(&used, &key));
            let text = |v: Option<&Value>| v.map_or("as by default".into(), Value::to_string);
            (written != now).then(|| Overridden { written: text(written), now: text(now), key })
        };
        self.keys().into_iter().filter_map(differs).collect()
    }

    /// The first key that a simulated rack ignores.
    pub fn of_processes(&self) -> Option<String> {
        self.keys().into_iter().find(|k| k.split('.').next().is_some_and(|top| OF_PROCESSES.contains(&top)))
    }
    pub fn has(&self, key: &str) -> bool {
        value(&self.keys, key).is_some()
    }
}

fn leaves(table: &Table, above: &str, all: &mut Vec<String>) {
    for (key, value) in table {
        let name = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
        match value {
            Value::Table(t) => leaves(t, &name, all),
            _ => all.push(name),
        }
    }
}

fn value<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    match key.split_once('.') {
        Some((section, rest)) => value(table.get(section)?.as_table()?, rest),
        None => table.get(key),
    }
}
