//! Trace points of the metadata service.

use rackweave_core::trace_points;

pub use rackweave_core::trace::{MEMBER_REMOVED, SET_RECOVERED, SHADOW_ADDED, SHADOW_COMPLETE};

trace_points! {
    /// A vSSD is to move to another server; it has moved; the move was abandoned. a: set, b: the new vSSD.
    MOVE_STARTED: MoveStarted = 58,
    MOVE_DONE: MoveDone = 59,
    MOVE_CANCELLED: MoveCancelled = 60,
    /// A set of a volume's own was made. a: set, b: volume. It has ended: its places are given back. b: its last epoch.
    OWN_SET_MADE: OwnSetMade = 87,
    OWN_SET_ENDED: OwnSetEnded = 88,
    /// Its vSSDs are to have another number of units. a: set, b: units of each.
    UNITS_CHANGED: UnitsChanged = 186,
    /// A keyspace was made, with this number of replicas; it was deleted. a: its id, b: replicas; the last epoch of its partitions.
    KEYSPACE_MADE: KeyspaceMade = 191,
    KEYSPACE_DELETED: KeyspaceDeleted = 192,
    /// What nobody needs of a removed snapshot was given back. a: its generation, b: stripes.
    SNAPSHOT_SWEPT: SnapshotSwept = 198,
    /// A disk is flattened automatically. a: disk, b: its earlier generations.
    LONG_DISK_FLATTENED: LongDiskFlattened = 202,
    /// A member left the view or became a shadow, because others cannot reach it although it holds a lease; they reach
    /// it again. a: set, b: vSSD.
    MEMBER_UNREACHED: MemberUnreached = 66,
    MEMBER_REACHED: MemberReached = 67,
}
