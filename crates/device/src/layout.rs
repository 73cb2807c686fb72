//! The bytes of a device file. docs/format.md draws them; a change there is a change of [`VERSION`].

use rackweave_core::device::{BlockOob, PageAddr, SlotKind, SlotRecord};
use rackweave_core::{BlockAddr, DriveId, Payload, RackId, Timestamp, VolumeId};
use rackweave_flash::isolation::{LEVELS_MAX, ThroughputLevels};

/// Version of the device file's format.
pub const VERSION: u32 = 3;
/// Of drives with virtual SSDs of the flash manager: nothing in them has changed. A rack's drive of this version is to be converted.
pub const PLAIN_VERSION: u32 = 2;
/// A rack's drive on its way from [`PLAIN_VERSION`] to [`VERSION`]: neither reads it.
pub(super) const CONVERTING: u32 = 0x8000_0003;
pub(super) const MAGIC: [u8; 8] = *b"RWKSSD\r\n";

pub(super) const SUPER_AT: u64 = 0;
pub(super) const SUPER_LEN: usize = 80;
/// Of [`PLAIN_VERSION`].
const PLAIN_SUPER_LEN: usize = 64;
/// In a sector of its own: a power cut that tears its write leaves the first block alone.
/// Written before the first block is, never after.
pub(super) const LEVELS_AT: u64 = 1024;
pub(super) const LEVELS_LEN: usize = 16 + 3 * 4 * LEVELS_MAX;
pub(super) const OWNER_AT: u64 = 2048;
pub(super) const OWNER_LEN: usize = 32;
pub(super) const STATE_AT: [u64; 2] = [4096, 8192];
pub(super) const STATE_LEN: usize = 64;
pub(super) const TABLE_AT: u64 = 12_288;
pub(super) const ROW_LEN: usize = 64;
pub(super) const ROW_COPY_LEN: usize = 32;
pub(super) const SPARE_HEAD: usize = 64;
pub(super) const RECORD_LEN: usize = 64;
const SLOT: u64 = 4096;
/// Generations and stamps of one opening of the file; the opening's number is above them.
pub(super) const BOOT_SHIFT: u32 = 40;
/// Space is reserved in groups of extents with about this many bytes of contents: large, so that an fdatasync seldom
/// has to write the file's metadata.
pub const STEP_BYTES: u64 = 64 << 20;
/// Contents begin at a multiple of this, so that a run of pages ([`super::RUN_BYTES`]) is one folio of the page cache.
const ALIGN: u64 = super::RUN_BYTES as u64;
const SECTOR: u64 = 512;

/// The shape of a device, as its file keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub blocks: u32,
    pub pages_per_block: u16,
    /// A multiple of 4096.
    pub page_bytes: u32,
    /// Bytes of the checkpoint area.
    pub meta_bytes: u64,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shape { blocks, pages_per_block, page_bytes, meta_bytes } = self;
        write!(
            f,
            "{blocks} erase blocks of {pages_per_block} pages of {page_bytes} bytes, with {meta_bytes} bytes for checkpoints"
        )
    }
}

impl Shape {
    pub fn slots_per_page(&self) -> usize {
        (u64::from(self.page_bytes) / SLOT) as usize
    }
    pub(super) fn spare_len(&self) -> usize {
        SPARE_HEAD + RECORD_LEN * self.slots_per_page()
    }
    /// Spare areas of a block.
    fn spares_len(&self) -> u64 {
        (self.spare_len() as u64 * u64::from(self.pages_per_block)).next_multiple_of(SECTOR)
    }
    /// The same, without what follows the last.
    pub(super) fn spares_bytes(&self) -> usize {
        self.spare_len() * usize::from(self.pages_per_block)
    }
    /// Contents of a block.
    fn data_len(&self) -> u64 {
        u64::from(self.pages_per_block) * u64::from(self.page_bytes)
    }
    fn group_extents(&self) -> u32 {
        (STEP_BYTES / self.data_len().max(1)).clamp(1, u64::from(self.blocks.max(1))) as u32
    }
    fn group_spares_len(&self) -> u64 {
        (u64::from(self.group_extents()) * self.spares_len()).next_multiple_of(ALIGN)
    }
    fn group_len(&self) -> u64 {
        self.group_spares_len() + u64::from(self.group_extents()) * self.data_len()
    }
    /// Where the extent's group begins, and the extent's number in it.
    fn group_at(&self, extent: u32) -> (u64, u64) {
        let (group, within) = (extent / self.group_extents(), extent % self.group_extents());
        (self.groups_at() + u64::from(group) * self.group_len(), u64::from(within))
    }
    /// Place and length of the extent's group.
    pub(super) fn group_span(&self, extent: u32) -> (u64, u64) {
        (self.group_at(extent).0, self.group_len())
    }
    /// Extents of all groups that end within `len` bytes.
    pub(super) fn extents_within(&self, len: u64) -> u32 {
        (len.saturating_sub(self.groups_at()) / self.group_len()) as u32 * self.group_extents()
    }
    pub(super) fn meta_at(&self) -> u64 {
        TABLE_AT + round_up(ROW_LEN as u64 * u64::from(self.blocks))
    }
    fn groups_at(&self) -> u64 {
        (self.meta_at() + round_up(self.meta_bytes)).next_multiple_of(ALIGN)
    }
    pub(super) fn spare_at(&self, extent: u32, page: u16) -> u64 {
        let (group, within) = self.group_at(extent);
        group + within * self.spares_len() + u64::from(page) * self.spare_len() as u64
    }
    pub(super) fn data_at(&self, extent: u32, page: u16) -> u64 {
        let (group, within) = self.group_at(extent);
        let first = group + self.group_spares_len() + within * self.data_len();
        first + u64::from(page) * u64::from(self.page_bytes)
    }
    pub(super) fn holds(&self, p: PageAddr) -> bool {
        p.block < self.blocks && p.page < self.pages_per_block
    }
}

pub use rackweave_flash::table::Made;

/// Where the first bytes of the checkpoint area lie on a drive that was converted: it had no room for the drive's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Displaced {
    /// In the contents of this extent, which no erase block has.
    pub extent: u32,
    pub len: u32,
}

fn round_up(n: u64) -> u64 {
    n.next_multiple_of(SLOT)
}

/// Little-endian fields put one after another.
struct Put<'a>(&'a mut [u8], usize);
impl Put<'_> {
    fn bytes(&mut self, b: &[u8]) -> &mut Self {
        self.0[self.1..self.1 + b.len()].copy_from_slice(b);
        self.1 += b.len();
        self
    }
}

pub(super) fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
pub(super) fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

/// CRC32C of `b` without its first four bytes, where the sum itself is; begun with `place`, so that bytes found at
/// another place than they were written for are not taken.
fn sum(b: &[u8], place: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&place.to_le_bytes()), &b[4..])
}
fn seal(b: &mut [u8], place: u64) {
    let c = sum(b, place);
    b[..4].copy_from_slice(&c.to_le_bytes());
}
fn sealed(b: &[u8], place: u64) -> bool {
    u32_at(b, 0) == sum(b, place)
}

/// Fields of a file's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub version: u32,
    pub shape: Shape,
    pub ssd: u32,
    pub made: Option<Made>,
    pub displaced: Option<Displaced>,
    /// Of a conversion.
    pub phase: u32,
}

pub(super) fn encode_super(h: &Head) -> [u8; SUPER_LEN] {
    let mut b = [0; SUPER_LEN];
    let (s, ssd) = (&h.shape, h.ssd);
    Put(&mut b, 0)
        .bytes(&MAGIC)
        .bytes(&h.version.to_le_bytes())
        .bytes(&[0; 4])
        .bytes(&ssd.to_le_bytes())
        .bytes(&s.blocks.to_le_bytes())
        .bytes(&s.page_bytes.to_le_bytes())
        .bytes(&u32::from(s.pages_per_block).to_le_bytes())
        .bytes(&s.meta_bytes.to_le_bytes());
    if let Some(made) = h.made {
        Put(&mut b, 40).bytes(&made.profile).bytes(&made.bytes.to_le_bytes());
    }
    if let Some(d) = h.displaced {
        Put(&mut b, PLAIN_SUPER_LEN)
            .bytes(&(d.extent + 1).to_le_bytes())
            .bytes(&d.len.to_le_bytes())
            .bytes(&h.phase.to_le_bytes());
    }
    let c = crc32c::crc32c(&b[..super_len(h.version)]);
    b[12..16].copy_from_slice(&c.to_le_bytes());
    b
}

fn super_len(version: u32) -> usize {
    if version == PLAIN_VERSION { PLAIN_SUPER_LEN } else { SUPER_LEN }
}

/// Contents of a file's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Super {
    /// Only zeroes: a file that was never formatted.
    Blank,
    Foreign,
    Version(u32),
    Damaged,
    Found(Head),
}

pub(super) fn decode_super(b: &[u8; SUPER_LEN]) -> Super {
    if b.iter().all(|&x| x == 0) {
        return Super::Blank;
    }
    if b[..8] != MAGIC {
        return Super::Foreign;
    }
    let version = u32_at(b, 8);
    if ![VERSION, PLAIN_VERSION, CONVERTING].contains(&version) {
        return Super::Version(version);
    }
    let mut copy = *b;
    copy[12..16].fill(0);
    if crc32c::crc32c(&copy[..super_len(version)]) != u32_at(b, 12) {
        return Super::Damaged;
    }
    let mut profile = [0; 16];
    profile.copy_from_slice(&b[40..56]);
    let extent = u32_at(b, PLAIN_SUPER_LEN).checked_sub(1).filter(|_| version != PLAIN_VERSION);
    Super::Found(Head {
        version,
        made: (profile[0] != 0).then(|| Made { profile, bytes: u64_at(b, 56) }),
        ssd: u32_at(b, 16),
        shape: Shape {
            blocks: u32_at(b, 20),
            page_bytes: u32_at(b, 24),
            pages_per_block: u32_at(b, 28) as u16,
            meta_bytes: u64_at(b, 32),
        },
        displaced: extent.map(|extent| Displaced { extent, len: u32_at(b, PLAIN_SUPER_LEN + 4) }),
        phase: if version == PLAIN_VERSION { 0 } else { u32_at(b, PLAIN_SUPER_LEN + 8) },
    })
}

/// Zeroes for `None`, the default levels. Of longer lists the first [`LEVELS_MAX`] are kept.
pub(super) fn encode_levels(levels: Option<&ThroughputLevels>) -> [u8; LEVELS_LEN] {
    let mut b = [0; LEVELS_LEN];
    let Some(l) = levels else { return b };
    for (i, list) in [&l.channels, &l.dies, &l.soft_planes].into_iter().enumerate() {
        let list = &list[..list.len().min(LEVELS_MAX)];
        Put(&mut b, 4 + 4 * i).bytes(&(list.len() as u32).to_le_bytes());
        let mut to = Put(&mut b, 16 + 4 * LEVELS_MAX * i);
        list.iter().for_each(|n| {
            to.bytes(&n.to_le_bytes());
        });
    }
    seal(&mut b, LEVELS_AT);
    b
}

/// `Ok(None)`: the default ones. `Err`: what is there is damaged.
pub(super) fn decode_levels(b: &[u8; LEVELS_LEN]) -> Result<Option<ThroughputLevels>, ()> {
    if b.iter().all(|x| *x == 0) {
        return Ok(None);
    }
    let list = |i: usize| {
        let n = Some(u32_at(b, 4 + 4 * i) as usize).filter(|n| *n <= LEVELS_MAX)?;
        Some((0..n).map(|k| u32_at(b, 16 + 4 * (LEVELS_MAX * i + k))).collect())
    };
    match (list(0), list(1), list(2)) {
        (Some(channels), Some(dies), Some(soft_planes)) if sealed(b, LEVELS_AT) => {
            Ok(Some(ThroughputLevels { channels, dies, soft_planes }))
        }
        _ => Err(()),
    }
}

pub(super) fn encode_owner(rack: RackId, drive: DriveId) -> [u8; OWNER_LEN] {
    let mut b = [0; OWNER_LEN];
    Put(&mut b, 8).bytes(&rack.0.to_be_bytes()).bytes(&drive.0.to_be_bytes());
    seal(&mut b, OWNER_AT);
    b
}

/// The rack that the drive is of, and its own id ([`DriveId::NONE`]: a program that drew none made it a drive of the rack). `None`:
/// it never was of any, or what says so was torn while it was written first.
pub(super) fn decode_owner(b: &[u8; OWNER_LEN]) -> Option<(RackId, DriveId)> {
    let (mut id, mut drive) = ([0; 16], [0; 8]);
    id.copy_from_slice(&b[8..24]);
    drive.copy_from_slice(&b[24..]);
    let rack = RackId(u128::from_be_bytes(id));
    (sealed(b, OWNER_AT) && rack != RackId::default()).then(|| (rack, DriveId(u64::from_be_bytes(drive))))
}

/// Changing state of the file as a whole; two copies, written alternately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Grows with every write of a state; the copy with the greater one counts.
    pub number: u64,
    /// Grows with every opening of the file.
    pub boot: u64,
    /// Programs with a stamp up to this are known to be durable.
    pub durable: u64,
    /// Bytes of the checkpoint area ever written, rounded up.
    pub meta_used: u64,
    /// Extents known to be durably in use; 0 in files of programs that did not keep it.
    pub extents: u32,
    /// The file was closed with everything synced.
    pub clean: bool,
}

impl State {
    /// Whether a drive of this shape can reach this state.
    pub(super) fn is_of(&self, shape: &Shape) -> bool {
        self.meta_used <= round_up(shape.meta_bytes)
            && self.extents <= shape.blocks
            && self.boot < 1 << (u64::BITS - BOOT_SHIFT)
            && self.number < u64::MAX
    }
}

pub(super) fn encode_state(s: &State) -> [u8; STATE_LEN] {
    let mut b = [0; STATE_LEN];
    Put(&mut b, 4)
        .bytes(&u32::from(s.clean).to_le_bytes())
        .bytes(&s.number.to_le_bytes())
        .bytes(&s.boot.to_le_bytes())
        .bytes(&s.durable.to_le_bytes())
        .bytes(&s.meta_used.to_le_bytes())
        .bytes(&s.extents.to_le_bytes());
    seal(&mut b, 0);
    b
}

pub(super) fn decode_state(b: &[u8; STATE_LEN]) -> Option<State> {
    sealed(b, 0).then(|| State {
        clean: u32_at(b, 4) != 0,
        number: u64_at(b, 8),
        boot: u64_at(b, 16),
        durable: u64_at(b, 24),
        meta_used: u64_at(b, 32),
        extents: u32_at(b, 40),
    })
}

/// A block of the device that was ever erased or programmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    /// Where in the file it is kept.
    pub extent: u32,
    /// Drawn anew with every erase and never again: spares of another one are void.
    pub generation: u64,
    pub oob: BlockOob,
    /// Out of use for good.
    pub bad: bool,
}

/// With an extent's number in a row: its block is bad.
const ROW_BAD: u32 = 1 << 31;

fn encode_oob(o: &BlockOob) -> [u8; 16] {
    let mut b = [0; 16];
    b[..8].copy_from_slice(&o.logical.to_le_bytes());
    let packed = u64::from(o.erase_count) << 48 | o.erase_time & 0xffff_ffff_ffff;
    b[8..].copy_from_slice(&packed.to_le_bytes());
    b
}
fn decode_oob(b: &[u8]) -> BlockOob {
    let packed = u64_at(b, 8);
    BlockOob { logical: u64_at(b, 0), erase_count: (packed >> 48) as u16, erase_time: packed & 0xffff_ffff_ffff }
}

pub(super) fn encode_row(block: u32, r: &Row) -> [u8; ROW_COPY_LEN] {
    let mut b = [0; ROW_COPY_LEN];
    let extent = r.extent | if r.bad { ROW_BAD } else { 0 };
    Put(&mut b, 4).bytes(&extent.to_le_bytes()).bytes(&r.generation.to_le_bytes()).bytes(&encode_oob(&r.oob));
    seal(&mut b, u64::from(block) + 1);
    b
}

fn decode_row_copy(block: u32, b: &[u8]) -> Option<Row> {
    sealed(b, u64::from(block) + 1).then(|| Row {
        extent: u32_at(b, 4) & !ROW_BAD,
        generation: u64_at(b, 8),
        oob: decode_oob(&b[16..]),
        bad: u32_at(b, 4) & ROW_BAD != 0,
    })
}

/// The newer whole copy of a block's row, and which of the two it is. Within one generation the newer one names the
/// block's owner.
pub(super) fn decode_row(block: u32, b: &[u8]) -> Option<(Row, usize)> {
    let copies = [decode_row_copy(block, &b[..ROW_COPY_LEN]), decode_row_copy(block, &b[ROW_COPY_LEN..ROW_LEN])];
    let claimed = |r: &Row| r.oob.logical != u64::MAX;
    (0..2).filter_map(|i| copies[i].map(|r| (r, i))).max_by_key(|(r, _)| (r.generation, claimed(r)))
}
/// Both copies are whole and of one generation.
pub(super) fn row_is_doubled(block: u32, b: &[u8]) -> bool {
    let generation = |copy: &[u8]| decode_row_copy(block, copy).map(|r| r.generation);
    let first = generation(&b[..ROW_COPY_LEN]);
    first.is_some() && first == generation(&b[ROW_COPY_LEN..ROW_LEN])
}
/// Both copies hold something: the block was used, and only the first of all its writes can have been torn with nothing lost.
pub(super) fn row_was_written(b: &[u8]) -> bool {
    let written = |copy: &[u8]| copy.iter().any(|b| *b != 0);
    written(&b[..ROW_COPY_LEN]) && written(&b[ROW_COPY_LEN..ROW_LEN])
}

/// The head of a page's spare area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SpareHead {
    pub sequence: u64,
    pub generation: u64,
    /// Grows with every program of the device.
    pub stamp: u64,
    pub oob: BlockOob,
}

fn place(p: PageAddr) -> u64 {
    u64::from(p.block) << 16 | u64::from(p.page)
}

/// Begins a spare area in `b`, whose length is that of one.
pub(super) fn encode_spare_head(b: &mut [u8], h: &SpareHead, slots: usize) {
    Put(b, 4)
        .bytes(&(slots as u32).to_le_bytes())
        .bytes(&h.sequence.to_le_bytes())
        .bytes(&h.generation.to_le_bytes())
        .bytes(&h.stamp.to_le_bytes())
        .bytes(&encode_oob(&h.oob));
}
pub(super) fn seal_spare(b: &mut [u8], p: PageAddr) {
    seal(b, place(p));
}

/// The head of the spare area in `b`, if it is whole and of this generation.
pub(super) fn decode_spare_head(b: &[u8], p: PageAddr, generation: u64) -> Option<(SpareHead, usize)> {
    // The cheap test first: most spares of a scan were never written, or are of an older generation.
    if u64_at(b, 16) != generation {
        return None;
    }
    let slots = u32_at(b, 4) as usize;
    if !sealed(b, place(p)) || SPARE_HEAD + slots * RECORD_LEN > b.len() {
        return None;
    }
    let h = SpareHead { sequence: u64_at(b, 8), generation, stamp: u64_at(b, 24), oob: decode_oob(&b[32..48]) };
    Some((h, slots))
}

/// Owner of the page with this spare area.
pub(super) fn spare_owner(b: &[u8]) -> u32 {
    decode_oob(&b[32..48]).owner()
}

/// The spare area is neither blank nor whole, of any generation.
pub(super) fn spare_is_damaged(b: &[u8], p: PageAddr) -> bool {
    b.iter().any(|x| *x != 0) && !sealed(b, place(p))
}

const REPR_BYTES: u8 = 0;
const REPR_ZERO: u8 = 1;
const REPR_ELIDED: u8 = 2;
const REPR_MIXED: u8 = 3;

/// How a slot's contents are held: as bytes in the data area, or by the record alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repr {
    Bytes,
    Zero,
    Elided {
        seed: u64,
    },
    /// Eight sector identities at the start of the slot's data.
    Mixed,
}

impl Repr {
    pub(super) fn of(p: &Payload) -> Repr {
        match p {
            Payload::Bytes(_) | Payload::Summed(_) => Repr::Bytes,
            Payload::Zero { .. } => Repr::Zero,
            Payload::Elided { seed, .. } => Repr::Elided { seed: *seed },
            Payload::Mixed(_) => Repr::Mixed,
        }
    }
}

pub(super) fn encode_record(b: &mut [u8], r: &SlotRecord, repr: Repr) {
    let (code, seed) = match repr {
        Repr::Bytes => (REPR_BYTES, 0),
        Repr::Zero => (REPR_ZERO, 0),
        Repr::Elided { seed } => (REPR_ELIDED, seed),
        Repr::Mixed => (REPR_MIXED, 0),
    };
    b.fill(0);
    Put(b, 0)
        .bytes(&[r.kind as u8, code, 0, 0])
        .bytes(&r.crc.to_le_bytes())
        .bytes(&r.version.0.to_le_bytes())
        .bytes(&r.addr.volume.0.to_le_bytes())
        .bytes(&r.addr.block.to_le_bytes());
    b[56..64].copy_from_slice(&seed.to_le_bytes());
}

pub(super) fn decode_record(b: &[u8]) -> Option<(SlotRecord, Repr)> {
    let kind = match b[0] {
        0 => SlotKind::Pad,
        1 => SlotKind::Data,
        2 => SlotKind::Ranges,
        _ => return None,
    };
    let repr = match b[1] {
        REPR_BYTES => Repr::Bytes,
        REPR_ZERO => Repr::Zero,
        REPR_ELIDED => Repr::Elided { seed: u64_at(b, 56) },
        REPR_MIXED => Repr::Mixed,
        _ => return None,
    };
    let addr = BlockAddr { volume: VolumeId(u32_at(b, 16)), block: u32_at(b, 20) };
    Some((SlotRecord { kind, addr, version: Timestamp(u64_at(b, 8)), crc: u32_at(b, 4), owner: 0 }, repr))
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
