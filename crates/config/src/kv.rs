//! Key-value stores on the servers' drives.

use serde::{Deserialize, Serialize};

use super::{Problem, need};

/// Most channels of a drive for its log: more than any profile has.
const CHANNELS_MAX: u16 = 256;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvSection {
    /// Channels of every drive for a log vSSD with a key-value store; 0 is none. Shared sets divide the rest.
    pub channels: u16,
}

impl KvSection {
    pub(super) fn is_default(&self) -> bool {
        *self == KvSection::default()
    }
    /// Slots that it takes of a drive.
    pub(super) fn slots(&self) -> u32 {
        u32::from(self.channels > 0)
    }
    pub(super) fn check(&self, out: &mut Vec<Problem>) {
        need(out, self.channels <= CHANNELS_MAX, "kv.channels", &self.channels, format!("0 to {CHANNELS_MAX}"));
    }
}
