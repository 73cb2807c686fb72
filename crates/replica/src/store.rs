//! Storage of a replica's blocks: the server's write cache over flash, behind one trait.

use rackweave_core::msg::peer::ScanEntry;
use rackweave_core::msg::{BlockRange, LiveVolumes};
use rackweave_core::{BlockAddr, Payload, Timestamp, VolumeId};

/// Blocks with versions. "Holds" means the cache, else flash, else a range record.
pub trait Store {
    /// The newest version held of `a`; [`Timestamp::ZERO`] without a trace of it.
    fn version(&self, a: BlockAddr) -> Timestamp;
    /// At least the highest version in the range.
    fn max_version(&self, r: BlockRange) -> Timestamp;
    fn mapped(&self, a: BlockAddr) -> bool;
    /// Length of the leading run of `r` whose blocks are all mapped or all not (at least one), and which.
    fn next_extent(&self, r: BlockRange) -> (u32, bool);
    /// Takes a block's contents. Older than what is held: ignored; the same version: replaces (a healed block).
    fn put(&mut self, a: BlockAddr, v: Timestamp, data: Payload);
    /// The block exists at this version, and its contents are lost: reading it fails as with a wrong checksum, until it
    /// is put again, at this version (healed) or a newer one. As durable as contents.
    fn put_lost(&mut self, a: BlockAddr, v: Timestamp);
    /// Zeroes what is older than `v` in the range by a range record (protocol rule 10).
    fn put_range(&mut self, r: BlockRange, v: Timestamp);
    /// The volume is deleted for good: its blocks are dropped, durable or not, and later ones are ignored.
    fn bury(&mut self, volume: VolumeId);
    /// The complete list of volumes. Volumes that do not exist are buried.
    fn know_volumes(&mut self, volumes: &LiveVolumes);
    /// Contents of a block as held now; a block that is not mapped is zero. Pending: [`StoreDone::Read`] follows.
    fn read(&mut self, a: BlockAddr, token: u64) -> ReadStart;
    /// Makes everything put before durable; [`StoreDone::Persisted`] follows.
    fn persist(&mut self, token: u64);
    /// Makes the present contents of these blocks durable; [`StoreDone::Persisted`] follows.
    fn persist_blocks(&mut self, blocks: &[BlockAddr], token: u64);
    /// Cache slots this vSSD may still fill, in blocks.
    fn slots_free(&self) -> u64;
    /// Flash room for blocks not mapped yet, what waits in the cache already subtracted.
    fn pages_free(&self) -> u64;
    /// Pages that will be free without anyone's doing: what range records freed is, once they are durable.
    fn pages_coming(&self) -> u64 {
        0
    }
    /// Appends the runs of blocks from the first address on and before the second, in order, at most `limit`. Returns
    /// their end: the second address, or the end of the last run. Stores with equal contents have equal runs, apart
    /// from where they are cut.
    fn scan(&self, stretch: (BlockAddr, BlockAddr), limit: usize, into: &mut Vec<ScanEntry>) -> BlockAddr;
}

/// Answer of [`Store::read`].
#[derive(Clone, Debug)]
pub enum ReadStart {
    Ready(Payload, Timestamp),
    Pending,
}

/// A [`Store`] has completed a command.
#[derive(Clone, Debug)]
pub enum StoreDone {
    Read {
        token: u64,
        addr: BlockAddr,
        version: Timestamp,
        result: Result<Payload, StoreError>,
    },
    /// Not `ok`: the device failed, for good (protocol rule 12).
    Persisted {
        token: u64,
        ok: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Another replica can heal it.
    #[error("the stored block failed its checksum")]
    Corrupt,
    /// The same; a later read may succeed.
    #[error("the stored block could not be read")]
    Unreadable,
    #[error("the device failed")]
    Device,
}
