//! The file of a drive: opened when bytes of it are damaged, or forged with checksums that are right.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use rackweave_core::device::{
    Backend, BlockOob, DeviceData, DeviceOp, PageAddr, PageImage, Slot, SlotKind, SlotRecord,
};
use rackweave_core::{BlockAddr, Payload, RackId, SsdId, Timestamp, VolumeId};
use rackweave_device::{FileIo, FileSsd, MemFile, RUN_BYTES, Shape};

use crate::corrupt::corrupt_in_place;

const SHAPE: Shape = Shape { blocks: 8, pages_per_block: 4, page_bytes: 8192, meta_bytes: 8192 };
const SLOTS: usize = 2;
/// One group of extents, and the bytes before it.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where docs/format.md has what is sealed: place, length, what its sum begins with.
mod at {
    use super::{RUN_BYTES, SHAPE, SLOTS};

    pub(super) const FIRST: (u64, usize) = (0, 80);
    pub(super) const LEVELS: (u64, usize) = (1024, 16 + 3 * 4 * 16);
    pub(super) const OWNER: (u64, usize) = (2048, 32);
    pub(super) const STATES: [u64; 2] = [4096, 8192];
    pub(super) const STATE_LEN: usize = 64;
    pub(super) const TABLE: u64 = 12_288;
    pub(super) const ROW_LEN: usize = 32;
    pub(super) const META: u64 = 16_384;
    pub(super) const SPARE_LEN: usize = 64 + 64 * SLOTS;
    pub(super) const SPARES_LEN: u64 = 1024;

    /// Of the first extent.
    pub(super) fn spares() -> u64 {
        (META + SHAPE.meta_bytes).next_multiple_of(RUN_BYTES as u64)
    }
}

/// A file that outlives its device.
#[derive(Clone, Debug, Default)]
struct Shared(Rc<RefCell<MemFile>>);

impl FileIo for Shared {
    fn len(&self) -> io::Result<u64> {
        self.0.borrow().len()
    }
    fn read_at(&self, to: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.borrow().read_at(to, offset)
    }
    fn write_at(&mut self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        self.0.borrow_mut().write_at(parts, offset)
    }
    /// # Panics
    /// If it is to be longer than a drive of this shape can be.
    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= FILE_BYTES_MAX), "{len} bytes reserved at {offset}");
        self.0.borrow_mut().allocate(offset, len)
    }
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// By block and page, what was programmed since the last erase.
type Model = Vec<Vec<PageImage>>;

pub(super) fn run(input: &[u8]) {
    _ = opened(&mut Unstructured::new(input));
}

fn opened(u: &mut Unstructured<'_>) -> Result<()> {
    let mut model: Model = vec![Vec::new(); SHAPE.blocks as usize];
    let file = Shared::default();
    let mut d = FileSsd::open(file.clone(), SsdId(3), SHAPE).expect("a new drive");
    d.adopt(RackId(77)).expect("of none before");
    let mut sequence = 0;
    for _ in 0..u.int_in_range(1..=24u8)? {
        let block = u.int_in_range(0..=SHAPE.blocks - 1)?;
        match u.int_in_range(0..=7u8)? {
            0 => {
                let oob = BlockOob { logical: u.arbitrary()?, erase_count: u.arbitrary()?, erase_time: 9 };
                d.execute(&DeviceOp::Erase { block, oob }).expect("in memory");
                model[block as usize].clear();
            }
            1 => _ = d.execute(&DeviceOp::Sync).expect("in memory"),
            2 => {
                let (offset, n) = (u.int_in_range(0..=8000u64)?, u.int_in_range(0..=192usize)?);
                let data = Bytes::from(vec![7; n]);
                d.execute(&DeviceOp::WriteMeta { offset, data }).expect("in memory");
            }
            _ => {
                let pages = &mut model[block as usize];
                if pages.len() < usize::from(SHAPE.pages_per_block) {
                    sequence += 1;
                    let image = image(u, sequence)?;
                    let page = PageAddr { block, page: pages.len() as u16 };
                    d.execute(&DeviceOp::Program { page, image: Box::new(image.clone()) }).expect("in memory");
                    pages.push(image);
                }
            }
        }
    }
    d.execute(&DeviceOp::Sync).expect("in memory");
    if u.arbitrary()? {
        d.close().expect("in memory");
    }
    let forged: bool = u.arbitrary()?;
    for _ in 0..u.int_in_range(1..=3u8)? {
        let file = &mut *file.0.borrow_mut();
        if forged { forge(u, file)? } else { flip(u, file)? }
    }
    let want = if forged { None } else { Some(&model) };
    use_again(u, file, want)
}

fn image(u: &mut Unstructured<'_>, sequence: u64) -> Result<PageImage> {
    let mut slots = Vec::new();
    for i in 0..SLOTS as u32 {
        let data = match u.int_in_range(0..=3u8)? {
            0 => Payload::zero(4096),
            1 => Payload::elided(4096, sequence),
            2 => Payload::elided(4096, 5).merged(2, &Payload::zero(512)),
            _ => Payload::Bytes(vec![sequence as u8; 4096].into()),
        };
        let addr = BlockAddr::new(VolumeId(1), sequence as u32 * 2 + i);
        let crc = data.crc32c();
        let record = SlotRecord { kind: SlotKind::Data, addr, version: Timestamp(sequence), crc, owner: 0 };
        slots.push(Slot { data, record });
    }
    let oob = BlockOob { logical: 5, erase_count: 1, erase_time: 9 };
    Ok(PageImage { sequence, oob, slots: slots.into() })
}

/// A drawn place that is in use.
fn place(u: &mut Unstructured<'_>) -> Result<(u64, usize, u64)> {
    let block = u.int_in_range(0..=u64::from(SHAPE.blocks) - 1)?;
    Ok(match u.int_in_range(0..=6u8)? {
        0 => (at::FIRST.0, at::FIRST.1, 0),
        1 => (at::LEVELS.0, at::LEVELS.1, at::LEVELS.0),
        2 => (at::OWNER.0, at::OWNER.1, at::OWNER.0),
        3 => (*u.choose(&at::STATES)?, at::STATE_LEN, 0),
        4 | 5 => {
            let copy = u.int_in_range(0..=1u64)?;
            (at::TABLE + (2 * block + copy) * at::ROW_LEN as u64, at::ROW_LEN, block + 1)
        }
        _ => {
            let (page, of) = (u.int_in_range(0..=3u64)?, u.int_in_range(0..=u64::from(SHAPE.blocks) - 1)?);
            let from = at::spares() + block * at::SPARES_LEN + page * at::SPARE_LEN as u64;
            (from, at::SPARE_LEN, of << 16 | page)
        }
    })
}

fn forge(u: &mut Unstructured<'_>, file: &mut MemFile) -> Result<()> {
    let (from, len, seed) = place(u)?;
    let mut b = vec![0; len];
    file.read_at(&mut b, from).expect("in memory");
    corrupt_in_place(u, &mut b)?;
    if from == at::FIRST.0 {
        b[12..16].fill(0);
        let crc = crc32c::crc32c(&b);
        b[12..16].copy_from_slice(&crc.to_le_bytes());
    } else {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&seed.to_le_bytes()), &b[4..]);
        b[..4].copy_from_slice(&crc.to_le_bytes());
    }
    file.write_at(&[&b], from).expect("in memory");
    Ok(())
}

fn flip(u: &mut Unstructured<'_>, file: &mut MemFile) -> Result<()> {
    let (from, len, _) = place(u)?;
    let at = match u.ratio(1u8, 4u8)? {
        true => u.int_in_range(0..=file.len().expect("in memory").saturating_sub(1))?,
        false => from + u.int_in_range(0..=len as u64 - 1)?,
    };
    file.flip(at, 1 << u.int_in_range(0..=7u8)?);
    Ok(())
}

/// Opens it, reads everything and goes on; twice.
fn use_again(u: &mut Unstructured<'_>, file: Shared, want: Option<&Model>) -> Result<()> {
    for round in 0..2 {
        _ = FileSsd::is_blank(&file);
        let mut d = match FileSsd::open(file.clone(), SsdId(3), SHAPE) {
            Ok(d) => d,
            Err(e) => {
                assert!(!e.to_string().is_empty());
                break;
            }
        };
        _ = d.levels();
        read_all(&mut d, want.filter(|_| round == 0));
        for _ in 0..u.int_in_range(0..=6u8)? {
            let page = PageAddr { block: u.int_in_range(0..=SHAPE.blocks - 1)?, page: u.int_in_range(0..=3u16)? };
            let op = match u.int_in_range(0..=4u8)? {
                0 => DeviceOp::Erase { block: page.block, oob: BlockOob::default() },
                1 => DeviceOp::Sync,
                2 => DeviceOp::MarkBad { block: page.block },
                _ => DeviceOp::Program { page, image: Box::new(image(u, 100)?) },
            };
            _ = d.execute(&op);
        }
        _ = d.close();
    }
    Ok(())
}

/// Every readable page that matches its record is the programmed one, and no other page exists.
fn read_all(d: &mut FileSsd<Shared>, want: Option<&Model>) {
    for block in 0..SHAPE.blocks {
        _ = d.execute(&DeviceOp::ReadOob { block });
        if let Ok(DeviceData::Spares { pages, .. }) = d.execute(&DeviceOp::ReadSpares { block })
            && let Some(model) = want
        {
            for p in &pages {
                let was = model[block as usize].get(usize::from(p.page));
                let was = was.unwrap_or_else(|| panic!("block {block} has a page {} again", p.page));
                assert_eq!(p.sequence, was.sequence);
                assert!(p.records.iter().eq(was.slots.iter().map(|s| &s.record)));
            }
        }
        for page in 0..SHAPE.pages_per_block {
            let Ok(DeviceData::Page(slots)) = d.execute(&DeviceOp::ReadPage { page: PageAddr { block, page } }) else {
                continue;
            };
            let Some(model) = want else { continue };
            let was = model[block as usize].get(usize::from(page));
            for (i, s) in slots.iter().enumerate().filter(|(_, s)| s.data.crc32c() == s.record.crc) {
                assert_eq!(Some(s), was.and_then(|w| w.slots.get(i)), "block {block}, page {page}");
            }
        }
    }
    _ = d.execute(&DeviceOp::ReadMeta { offset: 0, len: 8192 });
}
