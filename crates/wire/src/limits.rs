//! Bounds of the lists in one packet, each with its reason. Longer lists are refused on both sides.

use rackweave_core::{BLOCK, MESSAGE_MAX, SECTOR};

/// Bytes of a body: a page of keys that ends with the longest value, and clients with their finished puts, fit.
pub const BODY_MAX: u32 = 10 << 20;
/// Blocks of a mutation: a message's data, not aligned to blocks.
pub const BLOCKS_MAX: u32 = MESSAGE_MAX / BLOCK + 1;
/// Sectors of one payload: the blocks of a mutation.
pub const SECTORS_MAX: u32 = BLOCKS_MAX * BLOCK / SECTOR;
/// Digests in an answer: with 16 bytes each they fill a message as contents do.
pub const DIGESTS_MAX: u32 = 4096;
/// Clients a replica keeps deduplication state of.
pub const CLIENTS_MAX: u32 = 4096;
/// Sequences of one client above its floor: a replica begins no more when it knows 65,536; those of other members come
/// on top.
pub const APPLIED_MAX: u32 = 131_072;
/// Volumes, as in a list for the operator.
pub const VOLUMES_MAX: u32 = 32_768;
/// Volumes with their writers' generations, and an entry before them: a replica may know as many again that were
/// created since its last list.
pub const WRITERS_MAX: u32 = 2 * VOLUMES_MAX + 1;
/// Extents in an answer about mapping; a further request continues at its end.
pub const EXTENTS_MAX: u32 = 4096;
/// vSSDs of one server: 16 SSDs × 128 (RB1).
pub const VSSDS_PER_SERVER_MAX: u32 = 2048;
/// SSDs of one server: its slots, with room.
pub const SSDS_PER_SERVER_MAX: u32 = 64;
/// Members of a set: what a timestamp can name.
pub const MEMBERS_MAX: u32 = 64;
/// Servers of a rack: 64 (RB1), with room for several racks.
pub const SERVERS_MAX: u32 = 1024;
/// Sets of a rack: its 131,072 vSSDs (RB1) in sets of at least two.
pub const SETS_MAX: u32 = 65_536;
/// Bytes of a text. Names are shorter; a refused name is quoted in the error.
pub const TEXT_MAX: u32 = 1024;
/// Partitions of a node's heartbeat: more than a rack's nodes serve together.
pub const PARTITIONS_MAX: u32 = 65_536;
/// Ranges of epochs that a member of a partition holds: one for each time that it was away. 64 members with as many fit in
/// a body.
pub const EPOCH_RANGES_MAX: u32 = 2048;
/// Finished puts of one client in one partition: members remember as many.
pub const FINISHED_MAX: u32 = 256;
/// Each level once.
pub const ISOLATION_LEVELS: u32 = 4;
