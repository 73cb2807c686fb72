//! Cloud disks on the servers' drives.

use rackweave_core::Layout;
use rackweave_core::admin::SERVERS_MAX;
use rackweave_core::msg::cloud::{GENERATIONS_MAX, LogPair};
use rackweave_switch::Prefix;
use serde::{Deserialize, Serialize};

use super::switching::DataPlaneKind;
use super::{Problem, RackConfig, need};

/// Most channels of a drive for its log: more than any profile has.
const CHANNELS_MAX: u16 = 256;
/// Just below the limit: a disk that is being flattened takes no snapshot.
const FLATTEN_AT: u32 = 1000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CloudSection {
    /// Channels of every drive for a log vSSD with cloud disks; 0 is none. Shared sets divide the rest.
    pub channels: u16,
    /// Earlier generations with which a disk is flattened, if at least half are its own of removed snapshots; 0 is never.
    pub flatten_at: u32,
}

impl Default for CloudSection {
    fn default() -> CloudSection {
        CloudSection { channels: 0, flatten_at: FLATTEN_AT }
    }
}

impl CloudSection {
    pub(super) fn is_default(&self) -> bool {
        *self == CloudSection::default()
    }
    /// Slots that it takes of a drive.
    pub fn slots(&self) -> u32 {
        u32::from(self.channels > 0)
    }
    /// Whether an append goes once to the switch, which copies it to the two servers of the log: one rack has all of them, and its
    /// data plane can copy.
    pub(super) fn multicasts(&self, rack: &RackConfig) -> bool {
        self.channels > 0 && rack.racks.count == 1 && rack.switch.data_plane != DataPlaneKind::Xdp
    }
    pub(super) fn check(&self, rack: &RackConfig, out: &mut Vec<Problem>) {
        need(out, self.channels <= CHANNELS_MAX, "cloud.channels", &self.channels, format!("0 to {CHANNELS_MAX}"));
        let enough = self.channels == 0 || rack.servers >= 2;
        need(out, enough, "cloud.channels", &self.channels, "0 with one server: a disk's log has two copies");
        let (most, rule) = (GENERATIONS_MAX as u32, format!("0 to {GENERATIONS_MAX}"));
        need(out, self.flatten_at <= most, "cloud.flatten_at", &self.flatten_at, rule);
        if self.multicasts(rack) {
            let plans = rack.switch.ring_plans(&Layout::new(rack.servers_max(), 0), &mut Vec::new());
            let prefixes = plans.iter().map(|p| p.ring.prefix);
            let of_pairs = |p: &Prefix| LogPair::all(SERVERS_MAX).any(|pair| p.contains(pair.address()));
            for taken in prefixes.filter(of_pairs) {
                let value = format!("{}/{}", taken.address, taken.bits);
                let rule = "no addresses whose last four bits are 1: those are of pairs of servers, for appends of cloud disks".into();
                out.push(Problem { key: "switch.rings".into(), value, rule });
            }
        }
    }
}
