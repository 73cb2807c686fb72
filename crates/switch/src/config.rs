//! Configuration of a switch.

use rackweave_core::{NodeId, Span};
use rackweave_sched::egress::EgressConfig;

/// 64 servers × 16 SSDs × 128 vSSDs (RB1): what fits the memory of a switch's pipeline.
pub const ROWS_MAX: u32 = 131_072;
/// State reported by a vSSD's server expires this long after its last `gc_op` (protocol rule 16). Several announcements
/// long, so that a lost packet has no effect.
pub const BITS_EXPIRE: Span = Span::from_secs(1);
/// Latency of a top-of-rack switch from port to port.
pub const HOP: Span = Span::from_nanos(800);

/// Where reads go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirect {
    /// Where they were sent (the baseline); requests to collect are answered all the same.
    Off,
    /// Those of a collecting vSSD to an idle replica (RB3).
    Gc,
    /// Each to the replica with the fewest pending reads, seldom to a collecting one. Servers must report their
    /// answers.
    Load,
}

/// Pending reads that a collection counts as if its server does not say ([`rackweave_core::msg::ReadLoad`]).
pub const COLLECTING: u32 = 8;

/// Pending reads that a replica's state counts as when the switch chooses by load. `docs/results/rackblox.md` has the sweep; the
/// kernel's programs have the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadWeights {
    /// The vSSD collects garbage: whatever servers report, if given.
    pub collecting: Option<u32>,
    /// A die of it erases. On P-SSD a suspension takes as long as nine reads.
    pub erasing: u32,
}

impl Default for ReadWeights {
    fn default() -> ReadWeights {
        ReadWeights { collecting: None, erasing: 8 }
    }
}

/// Configuration of a [`crate::Switch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    pub node: NodeId,
    /// The rack whose servers announce their vSSDs here.
    pub rack: u32,
    /// The other rack's switch, if there is one: the two exchange the states of vSSDs whose sets lie in both racks.
    pub far: Option<NodeId>,
    pub redirect: Redirect,
    pub weights: ReadWeights,
    /// A read whose readable replicas in this rack all collect goes to the other rack's, if that is known to be idle.
    pub far_reads: bool,
    /// Most vSSDs the tables hold; one more is refused, none is evicted.
    pub rows_max: u32,
    /// A vSSD whose server is silent for this long is of unknown state: its collecting bits are cleared, and it counts
    /// neither as idle nor as a place for others' reads. Servers must announce more often.
    pub bits_expire: Span,
    /// Added to a packet's `lat` here.
    pub hop: Span,
    /// Queues at the ports, and their order (RB8). None: no packet waits in the switch.
    pub egress: Option<EgressConfig>,
    /// A request to collect that is granted is answered with an idle replica in `original_vssd`: the sender forwards its
    /// reads there itself (RackBlox in software, §4.1, where no switch can).
    pub names_idle: bool,
}

impl SwitchConfig {
    /// The defaults of the paper and of this module.
    pub fn new(node: NodeId) -> SwitchConfig {
        SwitchConfig {
            node,
            rack: 0,
            far: None,
            redirect: Redirect::Gc,
            weights: ReadWeights::default(),
            far_reads: true,
            rows_max: ROWS_MAX,
            bits_expire: BITS_EXPIRE,
            hop: HOP,
            egress: None,
            names_idle: false,
        }
    }
}
