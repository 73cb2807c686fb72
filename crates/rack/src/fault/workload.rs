//! What clients ask for in a fault search: reads, writes, trims, zeroes and flushes of every shape.

use rackweave_core::request::RequestOp;
use rackweave_core::{BLOCK, Payload, Rng, SECTOR, SECTORS_PER_BLOCK, VolumeId};

/// Largest request, blocks: crosses stripes, sets and the message limit.
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

/// Draws a request on a volume of `blocks` blocks. `seed` makes the contents of this one write unlike any other's.
pub fn draw(rng: &mut Rng, volume: VolumeId, blocks: u32, bytes: bool, writer: bool, seed: u64) -> (Kind, RequestOp) {
    let (first, count) = draw_sectors(rng, blocks);
    let offset = first * u64::from(SECTOR);
    let len = count * SECTOR;
    let fua = rng.chance(0.1);
    let draw = if writer { rng.below(100) } else { 99 };
    match draw {
        0..45 => {
            let data = Payload::elided(len, seed);
            let data = if bytes { Payload::Bytes(data.to_bytes()) } else { data };
            (Kind::Write, RequestOp::Write { volume, offset, data, fua })
        }
        45..50 => {
            let (offset, len) = whole_blocks(offset, len);
            (Kind::Trim, RequestOp::Trim { volume, offset, len, fua })
        }
        50..54 => {
            let allocate = rng.chance(0.3);
            (Kind::Zeroes, RequestOp::WriteZeroes { volume, offset, len: u64::from(len), fua, allocate })
        }
        54..59 => (Kind::Flush, RequestOp::Flush { volume }),
        59..61 => {
            let (offset, len) = whole_blocks(offset, len);
            (Kind::Status, RequestOp::BlockStatus { volume, offset, len })
        }
        _ => (Kind::Read, RequestOp::Read { volume, offset, len }),
    }
}

/// The blocks that a range of sectors touches, as bytes.
fn whole_blocks(offset: u64, len: u32) -> (u64, u64) {
    let block = u64::from(BLOCK);
    let first = offset / block * block;
    (first, (offset + u64::from(len)).next_multiple_of(block) - first)
}

/// Part of a block, a block, or several with ragged ends; some places are asked for more often than others.
fn draw_sectors(rng: &mut Rng, blocks: u32) -> (u64, u32) {
    let sectors = u64::from(blocks) * u64::from(SECTORS_PER_BLOCK);
    let per_block = u64::from(SECTORS_PER_BLOCK);
    let hot = rng.chance(0.5);
    let block = rng.below(if hot { u64::from(blocks).min(8) } else { u64::from(blocks) });
    let first = block * per_block;
    let (first, count) = match rng.below(10) {
        0..3 => (first + rng.below(per_block), rng.between(1, per_block)),
        3..6 => (first, per_block),
        6..8 => (first, per_block * rng.between(2, 6)),
        8 => (first + rng.below(per_block), rng.between(1, 4 * per_block)),
        _ => (first, per_block * rng.between(8, BLOCKS_MAX)),
    };
    (first, count.min(sectors - first) as u32)
}
