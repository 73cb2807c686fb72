//! Replicated keys on the servers' drives.

use serde::{Deserialize, Serialize};

use super::{Problem, RackConfig, need};

/// Most channels of a drive for its log: more than any profile has.
const CHANNELS_MAX: u16 = 256;
/// Most replicas of a partition of keys.
pub const KEY_REPLICAS_MAX: u32 = 9;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvSection {
    /// Channels of every drive for a log vSSD with keys; 0 is none. Shared sets divide the rest.
    pub channels: u16,
    /// Channels of every drive for logs of keyspaces that are made later; 0 is none. Shared sets divide the rest.
    pub own_channels: u16,
    /// Replicas of each key, on different servers.
    pub replicas: u32,
    /// Replicas that a put needs; 2, or 1 with one replica.
    pub min_copies: Option<u32>,
}

impl KvSection {
    pub(super) fn is_default(&self) -> bool {
        *self == KvSection::default()
    }
    /// Slots that it takes of a drive.
    pub fn slots(&self) -> u32 {
        u32::from(self.channels > 0)
    }
    /// Entries of a drive's table that the channels for later logs take.
    pub(super) fn areas(&self) -> u32 {
        u32::from(self.own_channels > 0)
    }
    /// Whether the rack has keys.
    pub fn is_on(&self) -> bool {
        self.channels > 0
    }
    pub fn min_copies(&self) -> u32 {
        self.min_copies.unwrap_or(2.min(self.replicas))
    }
    pub(super) fn check(&self, rack: &RackConfig, out: &mut Vec<Problem>) {
        if self.channels > 0 {
            let (most, servers) = (KEY_REPLICAS_MAX.min(rack.servers), rack.servers);
            let rule = format!("1 to {most}: at most {KEY_REPLICAS_MAX}, on as many of {servers} servers");
            need(out, self.replicas >= 1 && self.replicas <= most, "kv.replicas", &self.replicas, rule);
            let least = self.min_copies();
            let rule = format!("1 to kv.replicas ({})", self.replicas);
            need(out, least >= 1 && least <= self.replicas || self.replicas == 0, "kv.min_copies", &least, rule);
        }
        need(out, self.channels <= CHANNELS_MAX, "kv.channels", &self.channels, format!("0 to {CHANNELS_MAX}"));
        let own = self.own_channels;
        let rule = format!("0 to {CHANNELS_MAX}, and 0 without kv.channels: keyspaces are added to the rack's first");
        need(out, own == 0 || own <= CHANNELS_MAX && self.channels > 0, "kv.own_channels", &own, rule);
    }
}
