//! Requests of clients in a fault search: reads, writes, trims, zeroes and flushes of every shape.

use rackweave_core::volume;
use rackweave_core::{BLOCK, Payload, Rng, SECTOR, SECTORS_PER_BLOCK, VolumeId};

/// Largest request in blocks: it crosses stripes, sets and the message limit.
const BLOCKS_MAX: u64 = 24;

/// Kinds of requests, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Read,
    Write,
    Trim,
    Zeroes,
    Flush,
    Status,
    Attach,
}

/// Range of requests: a number of blocks of a volume, from `at` on.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub volume: VolumeId,
    pub at: u32,
    pub blocks: u32,
    /// Whether the client may change them.
    pub writer: bool,
}

/// Draws a trim or write-zeroes from a point in one place of a volume to a point in another.
pub fn draw_far(rng: &mut Rng, volume: VolumeId, places: &[(u32, u32)]) -> (Kind, volume::Op) {
    let mut ends = [0, 1].map(|_| {
        let &(first, blocks) = rng.pick(places);
        first + rng.below(u64::from(blocks)) as u32
    });
    ends.sort_unstable();
    let [offset, end] = ends.map(|b| u64::from(b) * u64::from(BLOCK));
    let (len, fua) = (end - offset + u64::from(BLOCK), rng.chance(0.1));
    match rng.chance(0.7) {
        true => (Kind::Trim, volume::Op::Trim { volume, offset, len, fua }),
        false => (Kind::Zeroes, volume::Op::WriteZeroes { volume, offset, len, fua, allocate: false }),
    }
}

/// Draws a request from block `at` on. `seed` makes the contents of a write unique. `bytes`: contents are real;
/// `ragged`: partial blocks, trims and zeroes predominate.
pub fn draw(rng: &mut Rng, on: Target, bytes: bool, ragged: bool, seed: u64) -> (Kind, volume::Op) {
    let Target { volume, at, blocks, writer } = on;
    let (first, count) = draw_sectors(rng, blocks, ragged);
    let offset = u64::from(at) * u64::from(BLOCK) + first * u64::from(SECTOR);
    let len = count * SECTOR;
    let fua = rng.chance(0.1);
    let draw = if writer { rng.below(100) } else { 99 };
    let [writes, trims, zeroes, flushes, status] = if ragged { [35, 55, 65, 70, 71] } else { [45, 50, 54, 59, 61] };
    match draw {
        d if d < writes => {
            let data = Payload::elided(len, seed);
            let data = if bytes { Payload::Bytes(data.to_bytes()) } else { data };
            (Kind::Write, volume::Op::Write { volume, offset, data, fua })
        }
        d if d < trims => {
            let (offset, len) = whole_blocks(offset, len);
            (Kind::Trim, volume::Op::Trim { volume, offset, len, fua })
        }
        d if d < zeroes => {
            let allocate = rng.chance(0.3);
            (Kind::Zeroes, volume::Op::WriteZeroes { volume, offset, len: u64::from(len), fua, allocate })
        }
        d if d < flushes => (Kind::Flush, volume::Op::Flush { volume }),
        d if d < status => {
            let (offset, len) = whole_blocks(offset, len);
            (Kind::Status, volume::Op::BlockStatus { volume, offset, len })
        }
        _ => (Kind::Read, volume::Op::Read { volume, offset, len }),
    }
}

/// The blocks touched by a range of sectors, as bytes.
fn whole_blocks(offset: u64, len: u32) -> (u64, u64) {
    let block = u64::from(BLOCK);
    let first = offset / block * block;
    (first, (offset + u64::from(len)).next_multiple_of(block) - first)
}

/// A partial block, a block, or several with partial ends; some places are requested more often than others.
fn draw_sectors(rng: &mut Rng, blocks: u32, ragged: bool) -> (u64, u32) {
    let sectors = u64::from(blocks) * u64::from(SECTORS_PER_BLOCK);
    let per_block = u64::from(SECTORS_PER_BLOCK);
    let hot = rng.chance(0.5);
    let block = rng.below(if hot { u64::from(blocks).min(8) } else { u64::from(blocks) });
    let first = block * per_block;
    let (first, count) = match rng.below(if ragged { 9 } else { 10 }) {
        _ if ragged && rng.chance(0.7) => (first + rng.below(per_block), rng.between(1, 2 * per_block)),
        0..3 => (first + rng.below(per_block), rng.between(1, per_block)),
        3..6 => (first, per_block),
        6..8 => (first, per_block * rng.between(2, 6)),
        8 => (first + rng.below(per_block), rng.between(1, 4 * per_block)),
        _ => (first, per_block * rng.between(8, BLOCKS_MAX)),
    };
    (first, count.min(sectors - first) as u32)
}
