//! The drive's record: facts that the out-of-band data of erase blocks lack. Kept twice in the checkpoint area and
//! written alternately; the whole copy with the greater generation counts. docs/format.md draws it.

use rackweave_core::VssdId;

use super::alloc::{Cut, Units};
use crate::drive::copies::In;
use crate::isolation::Isolation;

const MAGIC: &[u8; 8] = b"RWFLBX\r\n";
/// Version of the format.
pub const RECORD_VERSION: u16 = 1;
/// Power cuts kept one by one; older ones are only counted.
pub(super) const CUTS_MAX: usize = 256;
/// Most vSSDs of a drive.
pub(super) const VSSDS_MAX: usize = 4096;
const HEAD: usize = 64;
const VSSD_HEAD: usize = 24;

/// A vSSD as the record keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VssdRecord {
    pub id: VssdId,
    pub level: u32,
    /// Requested bytes.
    pub capacity: u64,
    pub units: Units,
    /// Parts of equal size that its units are in, each with superblocks of its own.
    pub parts: u16,
}

/// The drive's record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriveRecord {
    pub generation: u64,
    /// The drive was closed: nothing was under way.
    pub clean: bool,
    /// µs the drive has run, never wrapped.
    pub time: u64,
    /// Id of the next vSSD: none is used twice.
    pub next_vssd: u32,
    /// Power cuts before those listed.
    pub cuts_before: u64,
    /// Times at which runs ended without a close, by a power cut or otherwise, in order.
    pub cuts: Vec<u64>,
    /// Physical die of every logical die.
    pub homes: Vec<u16>,
    /// Erase blocks marked bad.
    pub bad: Vec<u32>,
    pub vssds: Vec<VssdRecord>,
    /// By physical die: bytes that had been erased of it when the rates of wear were last cleared, plus erases for wear
    /// leveling since then. None: not known.
    pub cleared: Vec<u64>,
    /// Running time of the drive then, in µs. None: not known.
    pub cleared_at: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("neither copy of the drive's record is whole")]
    Damaged,
    #[error("the drive's record has version {found}, this program reads {RECORD_VERSION}")]
    Version { found: u16 },
    #[error(
        "the drive's record is of {dies} dies of {blocks} erase blocks in {soft_planes} soft-planes of {stripes} \
         stripes a die, configured is another drive"
    )]
    Shape { dies: u16, blocks: u32, soft_planes: u16, stripes: u32 },
    #[error("the drive's record gives a unit to two vSSDs, or one that is not there")]
    Units,
    #[error(
        "the drive has no record, and erase block {block} has pages: it is not empty, so no new drive is made of it"
    )]
    Missing { block: u32 },
}

/// Bytes one copy may take.
pub fn copy_bytes(cut: &Cut) -> u64 {
    let dies = cut.geometry.dies() as usize;
    let units = dies * usize::from(cut.soft_planes_per_die);
    let vssds = units.min(VSSDS_MAX);
    let bytes = HEAD + CUTS_MAX * 8 + dies * 2 + cut.geometry.blocks().div_ceil(8) as usize;
    (bytes + vssds * VSSD_HEAD + units * 4 + 4).next_multiple_of(4096) as u64
}

/// Bytes of both copies.
pub fn record_bytes(cut: &Cut) -> u64 {
    2 * copy_bytes(cut)
}

pub fn encode(r: &DriveRecord, cut: &Cut) -> Vec<u8> {
    let g = &cut.geometry;
    let mut b = vec![0; HEAD];
    b[..8].copy_from_slice(MAGIC);
    b[8..10].copy_from_slice(&RECORD_VERSION.to_le_bytes());
    b[10] = u8::from(r.clean);
    b[12..14].copy_from_slice(&(g.dies() as u16).to_le_bytes());
    b[14..16].copy_from_slice(&cut.soft_planes_per_die.to_le_bytes());
    b[16..20].copy_from_slice(&g.blocks_per_die().to_le_bytes());
    b[20..24].copy_from_slice(&cut.stripes_per_die.to_le_bytes());
    b[24..32].copy_from_slice(&r.generation.to_le_bytes());
    b[32..40].copy_from_slice(&r.time.to_le_bytes());
    b[40..48].copy_from_slice(&r.cuts_before.to_le_bytes());
    b[48..52].copy_from_slice(&r.next_vssd.to_le_bytes());
    b[52..54].copy_from_slice(&(r.cuts.len() as u16).to_le_bytes());
    b[54..56].copy_from_slice(&(r.vssds.len() as u16).to_le_bytes());
    r.cuts.iter().for_each(|t| b.extend_from_slice(&t.to_le_bytes()));
    r.homes.iter().for_each(|d| b.extend_from_slice(&d.to_le_bytes()));
    let map = b.len();
    b.resize(map + g.blocks().div_ceil(8) as usize, 0);
    r.bad.iter().for_each(|&n| b[map + (n / 8) as usize] |= 1 << (n % 8));
    for v in &r.vssds {
        b.extend_from_slice(&v.id.0.to_le_bytes());
        b.extend_from_slice(&v.level.to_le_bytes());
        b.extend_from_slice(&v.capacity.to_le_bytes());
        b.extend_from_slice(&(v.units.isolation as u16).to_le_bytes());
        // None in records of versions with a single part.
        b.extend_from_slice(&(v.parts - 1).to_le_bytes());
        b.extend_from_slice(&(v.units.numbers.len() as u32).to_le_bytes());
        v.units.numbers.iter().for_each(|n| b.extend_from_slice(&n.to_le_bytes()));
    }
    // Where there is room: older versions have none of it, and leave none for it on a drive of thousands of vSSDs.
    if b.len() + r.cleared.len() * 8 + 4 <= copy_bytes(cut) as usize {
        r.cleared.iter().for_each(|n| b.extend_from_slice(&n.to_le_bytes()));
        if let Some(at) = r.cleared_at.filter(|_| !r.cleared.is_empty() && b.len() + 8 + 4 <= copy_bytes(cut) as usize)
        {
            b.extend_from_slice(&at.to_le_bytes());
        }
    }
    let len = b.len() as u32 + 4;
    b[56..60].copy_from_slice(&len.to_le_bytes());
    let crc = crc32c::crc32c(&b);
    b.extend_from_slice(&crc.to_le_bytes());
    b
}

/// `Ok(None)`: not a whole copy.
pub fn decode(copy: &[u8], cut: &Cut) -> Result<Option<DriveRecord>, RecordError> {
    let Some(head) = copy.get(..HEAD).filter(|h| &h[..8] == MAGIC) else { return Ok(None) };
    let len = u32::from_le_bytes([head[56], head[57], head[58], head[59]]) as usize;
    let Some((body, crc)) = len.checked_sub(4).and_then(|n| Some((copy.get(..n)?, copy.get(n..len)?))) else {
        return Ok(None);
    };
    if crc32c::crc32c(body).to_le_bytes() != *crc {
        return Ok(None);
    }
    let version = u16::from_le_bytes([head[8], head[9]]);
    if version != RECORD_VERSION {
        return Err(RecordError::Version { found: version });
    }
    parse(body, cut).map_or(Err(RecordError::Damaged), |r| r.map(Some))
}

fn parse(body: &[u8], cut: &Cut) -> Option<Result<DriveRecord, RecordError>> {
    let g = &cut.geometry;
    let mut r = In(body.get(10..)?);
    let [clean, _] = r.take::<2>()?;
    let (dies, soft_planes, blocks, stripes) = (r.u16()?, r.u16()?, r.u32()?, r.u32()?);
    let ours = (g.dies() as u16, cut.soft_planes_per_die, g.blocks_per_die(), cut.stripes_per_die);
    if (dies, soft_planes, blocks, stripes) != ours {
        return Some(Err(RecordError::Shape { dies, blocks, soft_planes, stripes }));
    }
    let (generation, time, cuts_before, next_vssd) = (r.u64()?, r.u64()?, r.u64()?, r.u32()?);
    let (cuts, vssds) = (r.u16()?, r.u16()?);
    r.take::<8>()?;
    let cuts = (0..cuts).map(|_| r.u64()).collect::<Option<_>>()?;
    let homes: Vec<u16> = (0..dies).map(|_| r.u16()).collect::<Option<_>>()?;
    let mut seen = vec![false; usize::from(dies)];
    for d in &homes {
        // Every die is home to one.
        if std::mem::replace(seen.get_mut(usize::from(*d))?, true) {
            return None;
        }
    }
    let mut bad = Vec::new();
    for byte in 0..g.blocks().div_ceil(8) {
        let [bits] = r.take()?;
        bad.extend((0..8).filter(|i| bits >> i & 1 == 1).map(|i| byte * 8 + i));
    }
    let mut records = Vec::new();
    for _ in 0..vssds {
        let (id, level, capacity, isolation, parts, n) = (r.u32()?, r.u32()?, r.u64()?, r.u16()?, r.u16()?, r.u32()?);
        let isolation = Isolation::from_level(i32::from(isolation))?;
        let parts = parts.checked_add(1).filter(|p| n.is_multiple_of(u32::from(*p)))?;
        let numbers = (0..n).map(|_| r.u32()).collect::<Option<_>>()?;
        records.push(VssdRecord { id: VssdId(id), level, capacity, units: Units { isolation, numbers }, parts });
    }
    let mut cleared: Vec<u64> = (0..dies).map_while(|_| r.u64()).collect();
    if cleared.len() != usize::from(dies) {
        cleared.clear();
    }
    let cleared_at = r.u64();
    let (clean, vssds) = (clean == 1, records);
    Some(Ok(DriveRecord {
        generation,
        clean,
        time,
        next_vssd,
        cuts_before,
        cuts,
        homes,
        bad,
        vssds,
        cleared,
        cleared_at,
    }))
}
