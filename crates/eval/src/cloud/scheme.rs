//! The compared systems (DF7) as values.

use rackweave_cloud::burst::BurstConfig;

/// How a merger of logs spares clients' requests (§3.4, §5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Sealed files are removed unmerged: a bound, not a system.
    None,
    /// All entries of the longest log at once.
    Asap,
    /// A bounded number of bytes at once.
    Limited,
    /// The same, and only while no client's request is served or waits.
    Prioritized,
}

/// How a migration predicts a segment's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predict {
    Last,
    Ewma,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A disk is bound to one proxy.
    None,
    Segmentation,
    /// Segments move every 5 s.
    Migration(Predict),
    /// Whole disks with several proxies, whose AddressMaps are kept equal by chain replication; C3 selects one.
    Replication,
    DiffForward {
        copies: usize,
        merge: Merge,
        burst: BurstConfig,
    },
}

/// One system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    pub name: &'static str,
    pub kind: Kind,
    /// Bytes of a segment; none: one a disk.
    pub segment: Option<u64>,
}

const SEGMENT: Option<u64> = Some(64 << 30);

impl Scheme {
    pub const NONE: Scheme = Scheme { name: "none", kind: Kind::None, segment: None };
    pub const SEGMENTATION: Scheme = Scheme { name: "segmentation", kind: Kind::Segmentation, segment: SEGMENT };
    pub const MIG_AVG: Scheme =
        Scheme { name: "migration, mean", kind: Kind::Migration(Predict::Last), segment: SEGMENT };
    pub const MIG_EWMA: Scheme =
        Scheme { name: "migration, EWMA", kind: Kind::Migration(Predict::Ewma), segment: SEGMENT };
    pub const REPLICATION: Scheme = Scheme { name: "replication", kind: Kind::Replication, segment: None };
    pub const DIFFFORWARD: Scheme = Scheme::diffforward("diffforward", 1, Merge::Prioritized);
    /// An acknowledged burst survives the loss of any server (DF9).
    pub const TWO_COPIES: Scheme = Scheme::diffforward("diffforward, two copies", 2, Merge::Prioritized);

    pub const fn diffforward(name: &'static str, copies: usize, merge: Merge) -> Scheme {
        Scheme { name, kind: Kind::DiffForward { copies, merge, burst: BurstConfig::PAPER }, segment: SEGMENT }
    }

    /// Those of figures 12 to 16.
    pub const ALL: [Scheme; 7] = [
        Scheme::NONE,
        Scheme::SEGMENTATION,
        Scheme::MIG_AVG,
        Scheme::MIG_EWMA,
        Scheme::REPLICATION,
        Scheme::DIFFFORWARD,
        Scheme::TWO_COPIES,
    ];
}
