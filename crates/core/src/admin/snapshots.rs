//! What is reported of snapshots and of the room of volumes.

use serde::{Deserialize, Serialize};

/// Bytes on flash of a volume or of a snapshot, one copy counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeUse {
    pub name: Box<str>,
    /// What nothing else needs.
    pub own: u64,
    /// What other disks or snapshots need too.
    pub shared: u64,
}

/// A snapshot of a cloud disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// As `disk@monday`.
    pub name: Box<str>,
    /// Bytes of the disk.
    pub size: u64,
    /// Whether it can be read: what was written before it has left the logs.
    pub made: bool,
    /// Bytes on flash, counting one copy, that were written since the snapshot before.
    pub used: u64,
    /// Names of the disks that began with it.
    pub clones: Vec<Box<str>>,
}
