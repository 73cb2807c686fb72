//! Configuration and bounds.

use rackweave_core::{NodeId, SetId, Span, VssdId};

/// One replica: a vSSD's part in its set.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    pub set: SetId,
    pub vssd: VssdId,
    pub node: NodeId,
    /// Mutations wait while the view has fewer members (protocol rule 4).
    pub min_copies: u8,
    pub timeouts: Timeouts,
    /// Bytes a second that a shadow copies; zero: as many as come.
    pub fill_rate: u64,
}

impl ReplicaConfig {
    pub fn new(set: SetId, vssd: VssdId, node: NodeId) -> ReplicaConfig {
        ReplicaConfig { set, vssd, node, min_copies: 2, timeouts: Timeouts::default(), fill_rate: 0 }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// First repetition of an unanswered message, or longer where answers take longer, up to 16 times this; doubles up to
    /// 16 times.
    pub retransmit: Span,
    /// A block invalid for this long is replayed; longer where answers take longer, likewise.
    pub replay: Span,
    /// A request that cannot go on for this long is dropped; its client has sent it again by then.
    pub stall: Span,
    /// First retry interval of fills and recoveries, or longer where answers take longer; doubles up to 16 times.
    pub fill: Span,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            retransmit: Span::from_millis(5),
            replay: Span::from_millis(50),
            stall: Span::from_secs(2),
            fill: Span::from_millis(20),
        }
    }
}

/// Requests that may wait in one replica for a block, credit or another member: at depth 32 of a hundred clients
/// with a retry each, still within a few MiB. Beyond: `NotServing`, and the client turns elsewhere.
pub const STALLED_MAX: usize = 4096;
/// Operations a replica coordinates at once; the rest wait as stalled. Twenty bits of an operation's number name it.
pub const OPS_MAX: usize = 4096;
/// Blocks replayed at once: an epoch change may leave thousands, and each replay is a message to every member.
pub const REPLAYS_MAX: usize = 64;
/// Range records under way at once: every block operation looks at each of them.
pub const RANGES_MAX: usize = 256;
/// Clients whose mutations are remembered; the one idle for longest goes first. A volume client is one.
pub const CLIENTS_MAX: usize = 4096;
/// Mutations remembered per client above its floor: far above any client's window.
pub const APPLIED_MAX: usize = 65_536;
/// Volumes created since the last complete list, whose fences a replica has: as many as there can be. Writers of
/// further ones wait for the next list.
pub const FENCES_UNHEARD_MAX: usize = 32_768;
/// Fences that a replica has: those, and as many of listed volumes.
pub const FENCES_MAX: usize = 2 * FENCES_UNHEARD_MAX;
/// After this number of new volumes the replica requests the list: a few bytes each, and one answer with all volumes
/// per thousand.
pub const FENCES_ASK: usize = 1_024;
/// Cache slots granted to one member at once: about a round trip's worth of full-speed writes.
pub const CREDIT_SLOTS: u64 = 256;
/// Page credits granted to one member at once. Small, because unused credit must be recalled when flash is almost full.
pub const CREDIT_PAGES: u64 = 64;
/// A member that leaves this number of recalls unanswered keeps its credit.
pub const RECALLS_MAX: u8 = 4;
/// Blocks that a fill or recovery requests at once.
pub const FILL_WINDOW: usize = 16;
/// Range records remembered after they are Valid, though flash may have forgotten them: longer than a lost validation
/// stays unnoticed, few enough to look through at every write to an unmapped block.
pub const RANGES_REMEMBERED: usize = 64;
/// Range records of its epoch that a shadow remembers while it fills: every copied block is compared with each. At
/// the bound further ones wait for the end of the fill.
pub const FILL_RANGES_MAX: usize = 4096;
/// Chunks per digest message.
pub const DIGEST_LIMIT: u32 = 256;
/// Requests for an intact copy of a corrupt block, repetitions included, before the reader gets the answer to retry.
pub const HEAL_ATTEMPTS: u8 = 8;
/// The last complete member reports a block as unreadable after this time; until then a member outside the view may
/// return with an intact copy.
pub const LOST_WAIT: Span = Span::from_secs(30);
/// Extents in one answer about allocation.
pub const EXTENTS_MAX: usize = 512;
