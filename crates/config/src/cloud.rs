//! Cloud disks on the servers' drives.

use serde::{Deserialize, Serialize};

use super::{Problem, RackConfig, need};

/// Most channels of a drive for its log: more than any profile has.
const CHANNELS_MAX: u16 = 256;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CloudSection {
    /// Channels of every drive for a log vSSD with cloud disks; 0 is none. Shared sets divide the rest.
    pub channels: u16,
}

impl CloudSection {
    pub(super) fn is_default(&self) -> bool {
        *self == CloudSection::default()
    }
    /// Slots that it takes of a drive.
    pub fn slots(&self) -> u32 {
        u32::from(self.channels > 0)
    }
    pub(super) fn check(&self, rack: &RackConfig, out: &mut Vec<Problem>) {
        need(out, self.channels <= CHANNELS_MAX, "cloud.channels", &self.channels, format!("0 to {CHANNELS_MAX}"));
        let enough = self.channels == 0 || rack.servers >= 2;
        need(out, enough, "cloud.channels", &self.channels, "0 with one server: a disk's log has two copies");
    }
}
