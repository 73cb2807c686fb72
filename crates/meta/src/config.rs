//! Configuration of the metadata service, and its validation.

use rackweave_core::admin::{Isolation, OwnUnit};
use rackweave_core::{BLOCK, Layout, NodeId, SetId, Span, VssdId};

/// A configured replica set: a vSSD on each of its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetConfig {
    pub set: SetId,
    pub members: Vec<(VssdId, NodeId)>,
}

/// Sets of one home rack and one isolation level. A volume lies on the sets of one such level only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelConfig {
    /// FlashBlox's `isolationLevel`.
    pub level: Isolation,
    /// The rack with most replicas of each of the sets.
    pub home: u32,
    pub sets: Vec<SetId>,
    /// Capacity of all sets in bytes, counting one copy.
    pub capacity_bytes: u64,
}

/// Units of one kind that every drive sets aside for volumes with units of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnConfig {
    pub unit: OwnUnit,
    /// Units of a drive, each a slot.
    pub slots: u8,
    /// Blocks that a vSSD holds, by its number of units, from one on.
    pub blocks: Vec<u64>,
    /// Units that do not adjoin the one before on the drive: no vSSD has both.
    pub apart: Vec<u8>,
}

impl OwnConfig {
    pub(crate) fn holds(&self, units: u8) -> u64 {
        self.blocks.get(usize::from(units).saturating_sub(1)).copied().unwrap_or(0)
    }
}

/// What keyspaces may take, besides the rack's first.
#[derive(Clone, Debug, Default)]
pub struct KeyspaceConfig {
    /// Channels of every drive that are set aside for their logs, and dies of each.
    pub channels: u32,
    pub dies_per_channel: u32,
    /// Channels of the first's log.
    pub first_channels: u32,
    /// Bytes of the longest value in a log, by its number of channels and of dies, from one on; 0: the log is too small.
    pub value_max_of_channels: Vec<u32>,
    pub value_max_of_dies: Vec<u32>,
    /// Keyspaces that servers have room for.
    pub most: u32,
}

/// What cloud disks may take.
#[derive(Clone, Debug)]
pub struct CloudConfig {
    pub protocol: rackweave_cloud::Config,
    /// Bytes of records that each server's store takes: every server may come to hold every disk.
    pub room: u64,
    /// A disk with this many earlier generations or more, at least half of them its own of removed snapshots, is flattened; 0: none is.
    pub flatten_at: u32,
}

/// Configuration of [`crate::Meta`].
#[derive(Clone, Debug)]
pub struct MetaConfig {
    pub layout: Layout,
    /// Initial number of servers; the layout may have room for more.
    pub servers: u32,
    /// Slots of a server's drive for each isolation level: those of its vSSDs, in the order of their sets' members,
    /// then free ones.
    pub slots: u8,
    /// Units for volumes alone, in the slots behind those of the levels, in this order.
    pub own: [OwnConfig; 4],
    /// Copies of a volume with units of its own that names no number.
    pub replicas: u32,
    /// Time after the end of its lease until a server counts as lost and its vSSDs are recreated elsewhere; zero is
    /// never.
    pub replace_after: Span,
    /// vSSDs that are recreated or moved at once.
    pub moves: u32,
    pub sets: Vec<SetConfig>,
    /// Time for which a server may serve after it sent a heartbeat, by its own clock.
    pub lease: Span,
    /// Greatest deviation of any clock's rate in the rack, in parts per million.
    pub drift_ppm: u32,
    /// Members that a set needs to take writes (protocol rule 4).
    pub min_copies: u8,
    /// Blocks per stripe unit.
    pub stripe_blocks: u32,
    /// Sets by isolation level; the first level is that of volumes that name none. Every set has one.
    pub levels: Vec<LevelConfig>,
    /// Of the keys' membership service, if every server has a log vSSD.
    pub keys: Option<rackweave_kv_replica::Config>,
    pub keyspaces: KeyspaceConfig,
    /// Of cloud disks, if every server has a log vSSD for them.
    pub cloud: Option<CloudConfig>,
    /// Volumes may promise this multiple of the capacity.
    pub overcommit: f64,
}

/// Largest permitted drift: one in a hundred. Above it the bound on other nodes' leases means nothing.
pub const DRIFT_PPM_MAX: u32 = 10_000;
/// Most members of a set: the place in the view must fit a timestamp, and the peers a row of the switch.
pub const MEMBERS_MAX: usize = 1 + rackweave_core::msg::PEERS_MAX;

/// Why a metadata service does not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    #[error("set {set} has {members} members: 1 to {MEMBERS_MAX} are possible")]
    Members { set: SetId, members: usize },
    #[error("set {set} is configured twice")]
    DuplicateSet { set: SetId },
    #[error("{vssd} is configured twice")]
    DuplicateVssd { vssd: VssdId },
    #[error("{vssd} of set {set} is on {node}, which is no server of the layout")]
    NotAServer { set: SetId, vssd: VssdId, node: NodeId },
    #[error("set {set} has two members on node {node}: copies lie on different servers")]
    OneServer { set: SetId, node: NodeId },
    #[error("a rack needs at least one replica set")]
    NoSets,
    #[error("set {set} has {levels} levels of isolation: it has one")]
    Levels { set: SetId, levels: usize },
    #[error("level {level} is configured twice, or has no set")]
    Level { level: Isolation },
    #[error("a level has {slots} slots on a drive, and sets of {members} members need as many")]
    Slots { slots: u8, members: usize },
    #[error("a lease of {lease} is no lease")]
    Lease { lease: Span },
    #[error("a drift of {ppm} ppm is above {DRIFT_PPM_MAX}")]
    Drift { ppm: u32 },
    #[error("stripe_blocks is zero")]
    Stripe,
    #[error("overcommit is not a positive number")]
    Overcommit,
    #[error("keys: {0}")]
    Keys(#[from] rackweave_kv_replica::membership::MembershipError),
    #[error("cloud disks: {0}")]
    Cloud(#[from] rackweave_cloud::record::RecordError),
    #[error("saved state: {disks} cloud disks, of which the configuration has none (cloud.channels is 0)")]
    NoCloud { disks: usize },
    #[error("saved state: {records} records of keys, of which the configuration has none (kv.channels is 0)")]
    NoKeys { records: usize },
    #[error("saved state: key {key:?} is of no kind this version knows")]
    UnknownKey { key: Box<[u8]> },
    #[error("saved state: record {key:?} has format version {found}, this program reads {expected}")]
    Version { key: Box<[u8]>, found: u8, expected: u8 },
    #[error("saved state: record {key:?} is malformed at byte {at}")]
    Malformed { key: Box<[u8]>, at: usize },
    #[error("saved state: set {set} is not in the configuration")]
    UnknownSet { set: SetId },
    #[error("saved state: {vssd} is a member of set {set}, but the configuration has it elsewhere")]
    Moved { set: SetId, vssd: VssdId },
}

impl MetaConfig {
    /// Checks everything that the service relies on.
    pub fn validate(&self) -> Result<(), MetaError> {
        if self.sets.is_empty() {
            return Err(MetaError::NoSets);
        }
        if self.lease == Span::ZERO {
            return Err(MetaError::Lease { lease: self.lease });
        }
        if self.drift_ppm > DRIFT_PPM_MAX {
            return Err(MetaError::Drift { ppm: self.drift_ppm });
        }
        if self.stripe_blocks == 0 {
            return Err(MetaError::Stripe);
        }
        if !(self.overcommit.is_finite() && self.overcommit > 0.0) {
            return Err(MetaError::Overcommit);
        }
        for (i, l) in self.levels.iter().enumerate() {
            if l.sets.is_empty() || self.levels[..i].iter().any(|o| (o.level, o.home) == (l.level, l.home)) {
                return Err(MetaError::Level { level: l.level });
            }
        }
        let mut sets = rackweave_core::map::set();
        let mut vssds = rackweave_core::map::set();
        for s in &self.sets {
            if !sets.insert(s.set) {
                return Err(MetaError::DuplicateSet { set: s.set });
            }
            let levels = self.levels.iter().flat_map(|l| &l.sets).filter(|set| **set == s.set).count();
            if levels != 1 {
                return Err(MetaError::Levels { set: s.set, levels });
            }
            if s.members.is_empty() || s.members.len() > MEMBERS_MAX {
                return Err(MetaError::Members { set: s.set, members: s.members.len() });
            }
            if s.members.len() > usize::from(self.slots) {
                return Err(MetaError::Slots { slots: self.slots, members: s.members.len() });
            }
            for &(vssd, node) in &s.members {
                if !vssds.insert(vssd) {
                    return Err(MetaError::DuplicateVssd { vssd });
                }
                if s.members.iter().filter(|m| m.1 == node).count() > 1 {
                    return Err(MetaError::OneServer { set: s.set, node });
                }
                if self.layout.kind(node) != Some(rackweave_core::NodeKind::Server) {
                    return Err(MetaError::NotAServer { set: s.set, vssd, node });
                }
            }
        }
        Ok(())
    }

    /// Index of the set's isolation level, in order.
    pub fn level_place(&self, set: SetId) -> u8 {
        let of = |l: &LevelConfig| l.sets.contains(&set);
        let level = self.levels.iter().find(|l| of(l)).map(|l| l.level);
        self.distinct_levels().iter().position(|l| Some(*l) == level).unwrap_or(0) as u8
    }
    /// Slots of every drive for units of this kind.
    pub fn all_slots(&self) -> u8 {
        self.slots * self.level_count() as u8 + self.own.iter().map(|o| o.slots).sum::<u8>()
    }
    pub fn own_slots(&self, unit: OwnUnit) -> std::ops::Range<u8> {
        let before: u8 = self.own.iter().take_while(|o| o.unit != unit).map(|o| o.slots).sum();
        let first = self.slots * self.level_count() as u8 + before;
        first..first + self.own_of(unit).slots
    }
    /// The first of each row of `units` adjoining slots among these, which are in order and of one kind.
    pub(crate) fn rows(&self, unit: OwnUnit, slots: &[u8], units: u8) -> Vec<u8> {
        let (of, first) = (self.own_of(unit), self.own_slots(unit).start);
        let adjoin = |w: &[u8]| w[0] + 1 == w[1] && !of.apart.contains(&(w[1] - first));
        let row = |w: &&[u8]| w.windows(2).all(adjoin);
        slots.windows(usize::from(units).max(1)).filter(row).map(|w| w[0]).collect()
    }
    pub(crate) fn own_of(&self, unit: OwnUnit) -> &OwnConfig {
        self.own.iter().find(|o| o.unit == unit).unwrap_or(&self.own[0])
    }
    pub fn level_count(&self) -> u32 {
        self.distinct_levels().len() as u32
    }
    pub(crate) fn distinct_levels(&self) -> Vec<Isolation> {
        let mut all: Vec<Isolation> = Vec::new();
        for l in &self.levels {
            if !all.contains(&l.level) {
                all.push(l.level);
            }
        }
        all
    }

    /// Time for which the service must consider a lease held, by its own clock: the holder's clock may be the slowest
    /// and this one the fastest.
    pub fn lease_bound(&self) -> Span {
        let million = 1_000_000;
        let drift = u64::from(self.drift_ppm);
        if mutant!("meta.lease.remove-early") {
            return self.lease / 2;
        }
        let drift = if mutant!("meta.lease.no-drift") { 0 } else { drift };
        self.lease.scale(million + drift, million - drift) + Span::from_nanos(1)
    }

    /// Bytes of the largest addressable volume on this number of sets: a set's share has less than 2³² blocks.
    pub fn volume_max(&self, sets: usize) -> u64 {
        let share = u64::from(u32::MAX - self.stripe_blocks) / u64::from(self.stripe_blocks);
        share * u64::from(self.stripe_blocks) * sets as u64 * u64::from(BLOCK)
    }
}
