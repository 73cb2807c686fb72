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
    /// A request that could not go on for this long is dropped; its client has asked again by then.
    pub stall: Span,
    /// First repetition of what a fill or recovery waits for, or longer where answers take longer; doubles up to 16 times.
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
/// Volumes whose fences a replica knows and that were made since it heard of all: as many as there can be. Writers of further ones
/// wait until it has heard again.
pub const FENCES_UNHEARD_MAX: usize = 32_768;
/// Fences that a replica knows: those, and as many of volumes that it heard of.
pub const FENCES_MAX: usize = 2 * FENCES_UNHEARD_MAX;
/// So many more of them, and it asks: a few bytes each, and an answer of all volumes for a thousand made.
pub const FENCES_ASK: usize = 1_024;
/// Cache slots granted to one member at once: about a round trip's worth of full-speed writes.
pub const CREDIT_SLOTS: u64 = 256;
/// Page credits granted to one member at once. Small, because what a member does not use has to be asked back when
/// flash runs full.
pub const CREDIT_PAGES: u64 = 64;
/// A member that did not answer so many requests to give credit back keeps it.
pub const RECALLS_MAX: u8 = 4;
/// Blocks a fill or recovery asks for at once.
pub const FILL_WINDOW: usize = 16;
/// Range records remembered after they are Valid, though flash may have forgotten them: longer than a lost validation
/// stays unnoticed, few enough to look through at every write to an unmapped block.
pub const RANGES_REMEMBERED: usize = 64;
/// Range records of its epoch that a shadow remembers while it fills: every copied block is compared with each. At
/// the bound further ones wait for the end of the fill.
pub const FILL_RANGES_MAX: usize = 4096;
/// Chunks per digest message.
pub const DIGEST_LIMIT: u32 = 256;
/// Members asked for an intact copy of a corrupt block, repetitions included, before who reads is told to ask again.
pub const HEAL_ATTEMPTS: u8 = 8;
/// One that is the last complete member says after so long that nobody has an intact copy of a block: until then one of those
/// that are out of the view may come back with it.
pub const LOST_WAIT: Span = Span::from_secs(30);
/// Extents in one answer about allocation.
pub const EXTENTS_MAX: usize = 512;
