//! The keys that fix the layout of drives and the placement of volumes. A rack keeps the values that it was created
//! with.

use std::fmt;

use crate::RackConfig;

type Key = (&'static str, fn(&RackConfig) -> String);

const KEYS: [Key; 18] = [
    ("servers", |c| c.servers.to_string()),
    ("replicas", |c| c.replicas.to_string()),
    ("stripe_blocks", |c| c.stripe_blocks.to_string()),
    ("ssd.profile", |c| c.ssd.profile.clone()),
    ("ssd.size", |c| c.ssd.size.to_string()),
    ("ssd.isolation", |c| c.ssd.isolation.to_string()),
    ("ssd.channels", |c| c.ssd.channels.map_or("all".into(), |n| n.to_string())),
    ("ssd.spare", |c| c.spare().to_string()),
    ("ssd.own_channels", |c| c.ssd.own_channels.to_string()),
    ("ssd.own_dies", |c| c.ssd.own_dies.to_string()),
    ("ssd.own_software_dies", |c| c.ssd.own_software_dies.to_string()),
    ("ssd.own_soft_planes", |c| c.ssd.own_soft_planes.to_string()),
    ("kv.channels", |c| c.kv.channels.to_string()),
    ("kv.own_channels", |c| c.kv.own_channels.to_string()),
    ("cloud.channels", |c| c.cloud.channels.to_string()),
    ("servers_max", |c| c.servers_max().to_string()),
    ("racks.count", |c| c.racks.count.to_string()),
    ("racks.far_replicas", |c| c.racks.far().to_string()),
];

/// A key that differs from the value that the rack was created with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    pub key: &'static str,
    pub stored: String,
    pub asked: String,
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, but the rack was made with {}", self.key, self.asked, self.stored)
    }
}

/// The keys with their values, one per line.
pub fn lines(c: &RackConfig) -> String {
    KEYS.iter().map(|(key, of)| format!("{key} = {}\n", of(c))).collect()
}

/// The value of a key in these [`lines`].
pub fn value<'a>(made: &'a str, key: &str) -> Option<&'a str> {
    made.lines().find_map(|l| l.split_once(" = ").filter(|(k, _)| *k == key).map(|(_, v)| v))
}

/// The first key whose value differs from these [`lines`]. A key missing from them may have any value.
pub fn changed_since(made: &str, now: &RackConfig) -> Option<Changed> {
    KEYS.iter().find_map(|&(key, of)| {
        let stored = value(made, key)?;
        let asked = of(now);
        (stored != asked).then(|| Changed { key, stored: stored.into(), asked })
    })
}

/// The first key in which two configurations differ.
pub fn changed(made: &RackConfig, now: &RackConfig) -> Option<Changed> {
    changed_since(&lines(made), now)
}
