use super::layers::{Faults, Faulty, Journal, Recorder, Step};
use rackweave_core::device::SlotKind;

use super::*;
use rackweave_core::{BlockAddr, Timestamp, VolumeId};
use rackweave_flash::isolation::ThroughputLevels;

#[path = "row_tests.rs"]
mod rows;

pub(super) const SHAPE: Shape = Shape { blocks: 16, pages_per_block: 8, page_bytes: 16_384, meta_bytes: 1 << 16 };

fn slot(block: u32, version: u64, data: Payload) -> Slot {
    let record = SlotRecord {
        kind: SlotKind::Data,
        addr: BlockAddr::new(VolumeId(1), block),
        version: Timestamp(version),
        crc: data.crc32c(),
        owner: 0,
    };
    Slot { data, record }
}

pub(super) fn image(sequence: u64, fill: u8) -> PageImage {
    let bytes = |i: u8| Payload::Bytes(Bytes::from(vec![fill.wrapping_add(i); SLOT]));
    let slots = (0..4).map(|i| slot(u32::from(i), sequence, bytes(i))).collect();
    PageImage { sequence, oob: BlockOob { logical: 5, erase_count: 1, erase_time: 9 }, slots }
}

pub(super) fn program<F: FileIo>(
    d: &mut FileSsd<F>,
    block: u32,
    page: u16,
    img: &PageImage,
) -> Result<(), DeviceError> {
    let op = DeviceOp::Program { page: PageAddr { block, page }, image: Box::new(img.clone()) };
    d.execute(&op).map(|_| ())
}

pub(super) fn read<F: FileIo>(d: &mut FileSsd<F>, block: u32, page: u16) -> Result<Box<[Slot]>, DeviceError> {
    match d.execute(&DeviceOp::ReadPage { page: PageAddr { block, page } })? {
        DeviceData::Page(p) => Ok(p),
        other => panic!("{other:?}"),
    }
}

pub(super) fn spares<F: FileIo>(d: &mut FileSsd<F>, block: u32) -> (BlockOob, Vec<u16>) {
    match d.execute(&DeviceOp::ReadSpares { block }).expect("spares") {
        DeviceData::Spares { oob, pages, .. } => (oob, pages.iter().map(|p| p.page).collect()),
        other => panic!("{other:?}"),
    }
}

/// A file that outlives the device on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(pub(super) std::rc::Rc<std::cell::RefCell<MemFile>>);
impl FileIo for Shared {
    fn len(&self) -> sys::Result<u64> {
        self.0.borrow().len()
    }
    fn read_at(&self, to: &mut [u8], offset: u64) -> sys::Result<()> {
        self.0.borrow().read_at(to, offset)
    }
    fn write_at(&mut self, parts: &[&[u8]], offset: u64) -> sys::Result<()> {
        self.0.borrow_mut().write_at(parts, offset)
    }
    fn allocate(&mut self, offset: u64, len: u64) -> sys::Result<()> {
        self.0.borrow_mut().allocate(offset, len)
    }
    fn sync(&mut self) -> sys::Result<()> {
        Ok(())
    }
}

pub(super) fn open(f: &Shared) -> FileSsd<Shared> {
    FileSsd::open(f.clone(), SsdId(3), SHAPE).expect("opens")
}

#[test]
fn a_drive_is_of_the_rack_that_used_it_first() {
    let (own, other) = (RackId(0xabcd << 100 | 1), RackId(2));
    let f = Shared::default();
    let mut d = open(&f);
    assert_eq!(d.rack(), None);
    program(&mut d, 0, 0, &image(1, 1)).expect("program");
    d.execute(&DeviceOp::Sync).expect("sync");
    assert!(d.adopt(own).expect("it had no rack"));
    assert!(!d.adopt(own).expect("its own"));
    drop(d);
    assert_eq!(FileSsd::owner(&f).expect("read"), Some(own));
    let mut d = open(&f);
    let e = d.adopt(other).expect_err("another's").to_string();
    assert!(e.contains(&own.to_string()) && e.contains(&other.to_string()) && e.contains("--replace-ssd"), "{e}");
    assert_eq!(d.rack(), Some(own));
    assert_eq!(read(&mut d, 0, 0).expect("as it was")[..], image(1, 1).slots[..]);
    drop(d);
    // A torn first write of the owner: the drive has no rack, and is not damaged.
    f.0.borrow_mut().write_at(&[&[0; 12]], layout::OWNER_AT + 16).expect("write");
    let mut d = open(&f);
    assert_eq!(d.rack(), None);
    assert!(d.adopt(other).expect("as a new one"));
    assert_eq!(read(&mut d, 0, 0).expect("as it was")[..], image(1, 1).slots[..]);
}

#[test]
fn a_drive_keeps_the_id_it_was_given_first() {
    let (rack, first, second) = (RackId(7), DriveId(0xaa), DriveId(0xbb));
    let f = Shared::default();
    let mut d = open(&f);
    assert_eq!(d.drive_id(), DriveId::NONE);
    // A program of a version without drive ids gave it to the rack.
    assert!(d.adopt(rack).expect("it had no rack"));
    drop(d);
    let mut d = open(&f);
    d.name(first);
    d.name(second);
    assert_eq!(d.drive_id(), first);
    drop(d);
    let mut d = open(&f);
    assert_eq!(d.drive_id(), DriveId::NONE, "the id was never written");
    d.name(first);
    assert!(!d.adopt(rack).expect("its own"), "it already belongs to the rack");
    drop(d);
    let mut d = open(&f);
    d.name(second);
    assert_eq!((d.rack(), d.drive_id()), (Some(rack), first));
    assert!(!d.adopt(rack).expect("its own"));
    drop(d);
    assert_eq!(open(&f).drive_id(), first);
}

/// Pages of block 0 that were durably programmed and cannot be read.
fn unreadable<F: FileIo>(d: &mut FileSsd<F>) -> Vec<u16> {
    match d.execute(&DeviceOp::ReadSpares { block: 0 }).expect("spares") {
        DeviceData::Spares { unreadable, .. } => unreadable.into(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn lost_spare_areas_are_distinguished_from_unwritten_pages() {
    for wiped in [false, true] {
        let f = Shared::default();
        let mut d = open(&f);
        (0..4).for_each(|page| program(&mut d, 0, page, &image(u64::from(page) + 1, 1)).expect("program"));
        d.execute(&DeviceOp::Sync).expect("sync");
        assert_eq!(unreadable(&mut d), []);
        // The next sync writes the stamp that covers it.
        program(&mut d, 1, 0, &image(9, 1)).expect("program");
        d.execute(&DeviceOp::Sync).expect("sync");
        let at = d.shape.spare_at(d.blocks[0].expect("used").row.extent, 1);
        let damage = if wiped { vec![0; d.shape.spare_len()] } else { vec![0xa5; 40] };
        drop(d);
        f.0.borrow_mut().write_at(&[&damage], at).expect("write");
        let mut d = open(&f);
        assert_eq!(unreadable(&mut d), [1], "wiped: {wiped}");
        assert_eq!(spares(&mut d, 0).1, [0, 2, 3]);
    }
}

#[test]
fn what_was_programmed_is_read_again_after_reopening() {
    let f = Shared::default();
    let mut d = open(&f);
    program(&mut d, 2, 0, &image(7, 10)).expect("program");
    let mixed = Payload::elided(BLOCK, 5).merged(2, &Payload::zero(512));
    let odd = PageImage {
        slots: vec![slot(9, 8, Payload::elided(BLOCK, 4)), slot(10, 8, mixed), slot(11, 8, Payload::zero(BLOCK))]
            .into(),
        ..image(8, 0)
    };
    program(&mut d, 2, 1, &odd).expect("program");
    d.execute(&DeviceOp::WriteMeta { offset: 100, data: Bytes::from_static(b"checkpoint") }).expect("meta");
    d.close().expect("close");

    let mut d = open(&f);
    assert_eq!(*read(&mut d, 2, 0).expect("read"), *image(7, 10).slots);
    let back = read(&mut d, 2, 1).expect("read");
    assert_eq!(*back, *odd.slots);
    assert!(matches!(back[0].data, Payload::Elided { seed: 4, .. }), "an elided payload stays elided");
    assert_eq!(spares(&mut d, 2), (image(7, 0).oob, vec![0, 1]));
    match d.execute(&DeviceOp::ReadMeta { offset: 100, len: 4096 }).expect("meta") {
        DeviceData::Meta(b) => assert_eq!(&b[..], b"checkpoint"),
        other => panic!("{other:?}"),
    }
    let unwritten = PageAddr { block: 2, page: 2 };
    assert_eq!(read(&mut d, 2, 2).unwrap_err(), DeviceError::Unwritten { page: unwritten });
}

#[test]
fn an_erase_voids_every_page_without_touching_it() {
    let f = Shared::default();
    let mut d = open(&f);
    for page in 0..3 {
        program(&mut d, 1, page, &image(u64::from(page), 1)).expect("program");
    }
    let oob = BlockOob { logical: 8, erase_count: 2, erase_time: 77 };
    d.execute(&DeviceOp::Erase { block: 1, oob }).expect("erase");
    assert_eq!(spares(&mut d, 1), (oob, vec![]));
    program(&mut d, 1, 0, &image(9, 3)).expect("program");
    assert_eq!(spares(&mut d, 1).1, vec![0]);
    drop(d);
    let mut d = open(&f);
    assert_eq!(spares(&mut d, 1).1, vec![0], "and after an unclean stop");
}

/// Damage to either copy of a row brings back nothing that was erased before a sync.
#[test]
fn damage_to_a_row_undoes_no_erase() {
    for (copy, closed) in [(0, true), (1, true), (0, false), (1, false)] {
        let f = Shared::default();
        let mut d = open(&f);
        program(&mut d, 1, 0, &image(1, 1)).expect("program");
        d.execute(&DeviceOp::Sync).expect("sync");
        let oob = BlockOob { logical: 8, erase_count: 2, erase_time: 77 };
        d.execute(&DeviceOp::Erase { block: 1, oob }).expect("erase");
        d.execute(&DeviceOp::Sync).expect("sync");
        if closed {
            d.close().expect("close");
        } else {
            drop(d);
        }
        let at = layout::TABLE_AT + layout::ROW_LEN as u64 + copy * layout::ROW_COPY_LEN as u64;
        f.0.borrow_mut().flip(at + 9, 1);
        assert_eq!(spares(&mut open(&f), 1), (oob, vec![]), "copy {copy}, closed {closed}");
    }
}

/// A row with a right checksum that no drive of this shape can have: the file is refused, and nothing is reserved.
#[test]
fn rows_that_cannot_be_are_refused() {
    let f = Shared::default();
    let mut d = open(&f);
    for block in 1..3 {
        program(&mut d, block, 0, &image(1, 1)).expect("program");
    }
    d.close().expect("close");
    let (at, sound) = (layout::TABLE_AT + 2 * layout::ROW_LEN as u64, f.clone());
    for extent in [0, SHAPE.blocks, u32::MAX >> 1] {
        let f = Shared(std::rc::Rc::new(std::cell::RefCell::new(sound.0.borrow().clone())));
        let row = Row { extent, generation: 1 << 60, ..Row::default() };
        f.0.borrow_mut().write_at(&[&layout::encode_row(2, &row)], at).expect("write");
        let refused = FileSsd::open(f, SsdId(3), SHAPE).expect_err("no such extent");
        assert!(matches!(refused, OpenError::Extent { block: 2, extent: e } if e == extent), "{refused}");
    }
    let f = sound;
    for state in [
        State { meta_used: 1 << 40, ..State::default() },
        State { extents: 17, ..State::default() },
        State { boot: 1 << 30, ..State::default() },
    ] {
        for at in layout::STATE_AT {
            f.0.borrow_mut().write_at(&[&layout::encode_state(&state)], at).expect("write");
        }
        assert!(matches!(FileSsd::open(f.clone(), SsdId(3), SHAPE), Err(OpenError::NoState)));
    }
}

#[test]
fn an_empty_device_is_small_and_space_comes_in_steps() {
    let f = Shared::default();
    let mut d = open(&f);
    assert!(f.len().expect("len") < 64 << 10);
    program(&mut d, 0, 0, &image(1, 1)).expect("program");
    let len = f.len().expect("len");
    for block in 1..16 {
        program(&mut d, block, 0, &image(1, 1)).expect("program");
    }
    assert_eq!(f.len().expect("len"), len);
}

#[test]
fn a_flipped_byte_is_noticed() {
    let f = Shared::default();
    let mut d = open(&f);
    program(&mut d, 0, 0, &image(1, 1)).expect("program");
    d.execute(&DeviceOp::Sync).expect("sync");
    f.0.borrow_mut().flip(SHAPE.data_at(0, 0) + 4096 + 17, 4);
    let page = read(&mut d, 0, 0).expect("the spare area is whole");
    assert_eq!(page[0].data.crc32c(), page[0].record.crc);
    assert_ne!(page[1].data.crc32c(), page[1].record.crc, "the record's checksum reveals the damage to the reader");
    f.0.borrow_mut().flip(SHAPE.spare_at(0, 0) + 80, 4);
    assert!(read(&mut d, 0, 0).is_err());
    assert_eq!(spares(&mut d, 0).1, Vec::<u16>::new());
}

#[test]
fn a_device_that_is_only_read_stays_as_it_is() {
    let f = Shared::default();
    let mut d = open(&f);
    program(&mut d, 0, 0, &image(1, 1)).expect("program");
    d.execute(&DeviceOp::Sync).expect("sync");
    program(&mut d, 0, 1, &image(2, 1)).expect("program");
    d.write_tails().expect("written");
    drop(d);
    // Torn by a power cut.
    f.0.borrow_mut().flip(SHAPE.data_at(0, 1) + 17, 4);
    let bytes = || {
        let mut b = vec![0; f.len().expect("len") as usize];
        f.read_at(&mut b, 0).expect("read");
        b
    };
    let before = bytes();
    let mut d = open(&f);
    let only_first = |d: &mut FileSsd<Shared>| {
        assert_eq!(*read(d, 0, 0).expect("read"), *image(1, 1).slots);
        let unwritten = DeviceError::Unwritten { page: PageAddr { block: 0, page: 1 } };
        assert_eq!(read(d, 0, 1).unwrap_err(), unwritten);
        assert_eq!(spares(d, 0).1, [0]);
    };
    only_first(&mut d);
    d.execute(&DeviceOp::Sync).expect("sync");
    d.close().expect("close");
    assert!(bytes() == before, "opened, read, synced and closed");
    // The first change makes the torn page void for good.
    let mut d = open(&f);
    program(&mut d, 1, 0, &image(3, 1)).expect("program");
    only_first(&mut d);
    drop(d);
    f.0.borrow_mut().flip(SHAPE.data_at(0, 1) + 17, 4);
    only_first(&mut open(&f));
}

#[test]
fn either_copy_of_a_row_and_of_the_state_will_do() {
    let f = Shared::default();
    let mut d = open(&f);
    d.execute(&DeviceOp::Erase { block: 0, oob: BlockOob::default() }).expect("erase");
    program(&mut d, 0, 0, &image(1, 1)).expect("program");
    d.close().expect("close");
    for at in [layout::TABLE_AT + 9, layout::TABLE_AT + 41, layout::STATE_AT[0] + 9, layout::STATE_AT[1] + 9] {
        let mut copy = f.0.borrow().clone();
        copy.flip(at, 1);
        let flipped = Shared(std::rc::Rc::new(std::cell::RefCell::new(copy)));
        assert_eq!(spares(&mut open(&flipped), 0).1, vec![0], "byte {at}");
    }
}

fn pages(d: &mut FileSsd<Shared>, block: u32) -> u16 {
    match d.execute(&DeviceOp::ReadOob { block }).expect("out-of-band data") {
        DeviceData::Oob { pages, .. } => pages,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_row_of_random_bytes_is_refused() {
    let f = Shared::default();
    let mut d = open(&f);
    d.execute(&DeviceOp::Erase { block: 6, oob: BlockOob::default() }).expect("erase");
    program(&mut d, 6, 0, &image(1, 1)).expect("program");
    d.close().expect("close");
    let at = layout::TABLE_AT + 6 * layout::ROW_LEN as u64;
    f.0.borrow_mut().write_at(&[&[0x5a; layout::ROW_LEN]], at).expect("write");
    let e = FileSsd::open(f.clone(), SsdId(3), SHAPE).expect_err("the row is unreadable");
    assert!(matches!(e, OpenError::Row { block: 6 }), "{e}");
}

#[test]
fn a_spare_area_of_random_bytes_hides_no_page_but_its_own() {
    let f = Shared::default();
    let mut d = open(&f);
    d.execute(&DeviceOp::Erase { block: 2, oob: BlockOob { logical: u64::MAX, ..BlockOob::default() } })
        .expect("erase");
    for page in 0..4 {
        program(&mut d, 2, page, &image(1 + u64::from(page), 1)).expect("program");
    }
    d.execute(&DeviceOp::Sync).expect("sync");
    let unclean = Shared(std::rc::Rc::new(std::cell::RefCell::new(f.0.borrow().clone())));
    d.close().expect("close");
    for page in 0..4 {
        let f = Shared(std::rc::Rc::new(std::cell::RefCell::new(f.0.borrow().clone())));
        f.0.borrow_mut().write_at(&[&vec![0x5a; SHAPE.spare_len()]], SHAPE.spare_at(0, page)).expect("write");
        let mut d = open(&f);
        assert_eq!(pages(&mut d, 2), 4, "page {page}");
        for other in 0..4 {
            assert_eq!(read(&mut d, 2, other).is_ok(), other != page, "page {other} where {page} is damaged");
        }
    }
    // With all spare areas damaged, the row still holds the block's out-of-band data.
    for page in 0..4 {
        f.0.borrow_mut().write_at(&[&vec![0x5a; SHAPE.spare_len()]], SHAPE.spare_at(0, page)).expect("write");
    }
    match open(&f).execute(&DeviceOp::ReadOob { block: 2 }).expect("out-of-band data") {
        DeviceData::Oob { oob, pages } => assert_eq!((oob, pages), (image(1, 1).oob, 4)),
        other => panic!("{other:?}"),
    }

    // After a power cut, a torn page voids the pages behind it for good, unless one of them is known to be durable.
    let mut d = open(&unclean);
    program(&mut d, 2, 4, &image(5, 1)).expect("program");
    program(&mut d, 2, 5, &image(6, 1)).expect("program");
    d.write_tails().expect("write");
    drop(d);
    unclean.0.borrow_mut().write_at(&[&vec![0x5a; SHAPE.spare_len()]], SHAPE.spare_at(0, 4)).expect("write");
    for _ in 0..2 {
        let mut d = open(&unclean);
        assert_eq!(pages(&mut d, 2), 4);
        assert!(read(&mut d, 2, 5).is_err());
        program(&mut d, 9, 0, &image(7, 1)).expect("program");
        d.execute(&DeviceOp::Sync).expect("sync");
    }
    unclean.0.borrow_mut().write_at(&[&vec![0x5a; SHAPE.spare_len()]], SHAPE.spare_at(0, 1)).expect("write");
    let mut d = open(&unclean);
    assert_eq!(pages(&mut d, 2), 4, "the pages before a durable page were durable");
    assert!(read(&mut d, 2, 1).is_err() && read(&mut d, 2, 2).is_ok());
}

/// The result of an incomplete copy, or of a file system that lost the end.
#[test]
fn a_file_whose_end_is_missing_is_refused() {
    let f = Shared::default();
    let mut d = open(&f);
    program(&mut d, 3, 0, &image(1, 1)).expect("program");
    d.execute(&DeviceOp::Sync).expect("sync");
    program(&mut d, 5, 0, &image(2, 2)).expect("program");
    // This sync first records that the first page is durable.
    d.execute(&DeviceOp::Sync).expect("sync");
    let unclean = f.0.borrow().clone();
    d.close().expect("close");
    let clean = f.0.borrow().clone();
    let cut = |file: &MemFile, len| {
        let shared = Shared::default();
        let mut bytes = vec![0; len as usize];
        file.read_at(&mut bytes, 0).expect("read");
        shared.0.borrow_mut().write_at(&[&bytes], 0).expect("write");
        shared
    };
    let first = SHAPE.data_at(0, SHAPE.pages_per_block);
    let second = SHAPE.data_at(1, SHAPE.pages_per_block);
    for (file, needed) in [(&unclean, first), (&clean, second)] {
        for found in [needed - 1, SHAPE.data_at(0, 0), SHAPE.meta_at() + 1, layout::TABLE_AT] {
            match FileSsd::open(cut(file, found), SsdId(3), SHAPE).map(|_| ()) {
                Err(OpenError::Short { found: f, needed: n }) => assert_eq!((f, n), (found, needed)),
                other => panic!("{found} of {needed} bytes: {other:?}"),
            }
        }
        let mut d = FileSsd::open(cut(file, needed), SsdId(3), SHAPE).expect("all there");
        assert_eq!(read(&mut d, 3, 0).expect("durable")[..], image(1, 1).slots[..]);
    }
    // Also after a run in which no block was written.
    let quiet = cut(&clean, second);
    let mut d = open(&quiet);
    d.execute(&DeviceOp::WriteMeta { offset: 0, data: Bytes::from_static(b"x") }).expect("meta");
    d.close().expect("close");
    let quiet = quiet.0.borrow().clone();
    for found in [second - 1, layout::TABLE_AT + 3 * layout::ROW_LEN as u64, layout::TABLE_AT] {
        match FileSsd::open(cut(&quiet, found), SsdId(3), SHAPE).map(|_| ()) {
            Err(OpenError::Short { found: f, needed: n }) => assert_eq!((f, n), (found, second)),
            other => panic!("{found} of {second} bytes: {other:?}"),
        }
    }
    // Space reserved after the last sync may be lost. The first change reserves it again, as the rows require.
    let f = cut(&unclean, first);
    let mut d = open(&f);
    assert_eq!(spares(&mut d, 5).1, Vec::<u16>::new(), "it was never recorded as durable");
    program(&mut d, 3, 1, &image(3, 3)).expect("program");
    d.close().expect("close");
    assert_eq!(read(&mut open(&f), 3, 1).expect("durable")[..], image(3, 3).slots[..]);
    // On a new device, so may writes to the checkpoint area.
    let f = Shared::default();
    let mut d = open(&f);
    d.execute(&DeviceOp::WriteMeta { offset: 9000, data: Bytes::from_static(b"checkpoint") }).expect("meta");
    let f = cut(&f.0.borrow(), SHAPE.meta_at());
    let mut d = open(&f);
    d.execute(&DeviceOp::WriteMeta { offset: 0, data: Bytes::from_static(b"other") }).expect("meta");
    d.close().expect("close");
    drop(open(&f));
    let short = cut(&f.0.borrow(), SHAPE.meta_at() + 9009);
    assert!(matches!(FileSsd::open(short, SsdId(3), SHAPE), Err(OpenError::Short { .. })));
}

#[test]
fn other_versions_files_and_shapes_are_refused() {
    let f = Shared::default();
    drop(open(&f));
    f.0.borrow_mut().flip(8, 3);
    let e = FileSsd::open(f.clone(), SsdId(3), SHAPE).unwrap_err().to_string();
    assert!(e.contains("version 0") && e.contains("version 3"), "{e}");
    f.0.borrow_mut().flip(8, 3);
    f.0.borrow_mut().flip(40, 3);
    assert!(matches!(FileSsd::open(f.clone(), SsdId(3), SHAPE), Err(OpenError::Damaged)));
    f.0.borrow_mut().flip(40, 3);
    assert!(matches!(FileSsd::open(f.clone(), SsdId(4), SHAPE), Err(OpenError::Place { .. })));
    f.0.borrow_mut().flip(0, 3);
    assert!(matches!(FileSsd::open(f.clone(), SsdId(3), SHAPE), Err(OpenError::Foreign)));
}

/// An ext4 image begins with a kibibyte of zeroes, a btrfs image with 64.
#[test]
fn other_files_that_begin_with_zeroes_are_refused_unchanged() {
    for at in [600, 1 << 11, 5000, 64 << 10] {
        let mut f = Shared::default();
        f.write_at(&[&[7]], at).expect("written");
        let before = f.len().expect("length");
        assert!(!FileSsd::is_blank(&f).expect("read"), "byte {at}");
        assert!(matches!(FileSsd::open(f.clone(), SsdId(3), SHAPE), Err(OpenError::Foreign)), "byte {at}");
        let mut b = [0; 16];
        f.read_at(&mut b, 0).expect("read");
        assert!(b == [0; 16] && f.len().expect("length") == before, "byte {at}: the file has changed");
    }
    // What formatting leaves that is cut short.
    let mut f = Shared::default();
    FileSsd::set_levels(&mut f, Some(&ThroughputLevels::default())).expect("written");
    f.write_at(&[&[7; layout::STATE_LEN]], layout::STATE_AT[0]).expect("written");
    assert!(FileSsd::is_blank(&f).expect("read"));
    FileSsd::open(f, SsdId(3), SHAPE).expect("formatted");
}

#[test]
fn the_hosts_errors_have_their_names() {
    let faults = Faults::default();
    let f = Shared::default();
    let mut d = FileSsd::open(Faulty::new(f.clone(), faults.clone()), SsdId(3), SHAPE).expect("opens");
    faults.fail_allocations(Some(libc::ENOSPC));
    assert_eq!(program(&mut d, 0, 0, &image(1, 1)), Err(DeviceError::NoSpace));
    faults.fail_allocations(None);
    program(&mut d, 0, 0, &image(1, 1)).expect("program");
    for page in 1..3 {
        program(&mut d, 0, page, &image(2, 1)).expect("program");
    }
    faults.fail_writes(Some(libc::EIO));
    let failed = Err(DeviceError::Backend { os_error: libc::EIO });
    assert_eq!(program(&mut d, 0, 3, &image(2, 1)), failed, "this page completes a run");
    assert_eq!(d.execute(&DeviceOp::Sync).map(|_| ()), failed);
    faults.fail_writes(Some(libc::ENOSPC));
    assert_eq!(d.write_tails(), Err(DeviceError::NoSpace));
    assert_eq!(*read(&mut d, 0, 0).expect("a failed write stays in memory"), *image(1, 1).slots);
    faults.fail_writes(None);
    d.write_tails().expect("writes");
    faults.fail_reads(Some(libc::EIO));
    assert_eq!(read(&mut d, 0, 0).unwrap_err(), DeviceError::Backend { os_error: libc::EIO });
    faults.fail_reads(None);
    assert_eq!(*read(&mut d, 0, 0).expect("read"), *image(1, 1).slots);
}

#[test]
fn a_failed_sync_is_final() {
    let faults = Faults::default();
    let mut d = FileSsd::open(Faulty::new(MemFile::default(), faults.clone()), SsdId(3), SHAPE).expect("opens");
    faults.fail_syncs(Some(libc::EIO));
    let failed = Err(DeviceError::Backend { os_error: libc::EIO });
    assert_eq!(d.execute(&DeviceOp::Sync).map(|_| ()), failed);
    faults.fail_syncs(None);
    let reached = faults.syncs();
    assert_eq!(d.execute(&DeviceOp::Sync).map(|_| ()), failed, "a failed sync stays failed");
    assert_eq!(faults.syncs(), reached);
    assert!(d.close().is_err());
}

#[test]
fn pages_go_to_the_file_in_runs_and_spare_areas_by_the_block() {
    let journal = Journal::default();
    let mut d = FileSsd::open(Recorder::new(MemFile::default(), 0, journal.clone()), SsdId(3), SHAPE).expect("opens");
    d.execute(&DeviceOp::Erase { block: 0, oob: BlockOob::default() }).expect("erase");
    let before = journal.len();
    for page in 0..8u16 {
        program(&mut d, 0, page, &image(u64::from(page), page as u8)).expect("program");
        for back in 0..=page {
            assert_eq!(*read(&mut d, 0, back).expect("read"), *image(u64::from(back), back as u8).slots);
            let two = DeviceOp::ReadSlots { page: PageAddr { block: 0, page: back }, first: 1, count: 2 };
            let DeviceData::Page(s) = d.execute(&two).expect("read") else { panic!("not slots") };
            assert_eq!(*s, image(u64::from(back), back as u8).slots[1..3]);
        }
        let slot = DeviceOp::ReadSlot { page: PageAddr { block: 0, page }, slot: 3 };
        let DeviceData::Slot(s) = d.execute(&slot).expect("read") else { panic!("not a slot") };
        assert_eq!(s, image(u64::from(page), page as u8).slots[3]);
    }
    let writes: Vec<(u64, usize)> = (before..journal.len())
        .filter_map(|i| match journal.step(i) {
            Step::Write { offset, data, .. } if offset >= SHAPE.spare_at(0, 0) => Some((offset, data.len())),
            _ => None,
        })
        .collect();
    let run = RUN_BYTES as usize;
    assert_eq!(
        writes,
        [(SHAPE.data_at(0, 0), run), (SHAPE.data_at(0, 4), run), (SHAPE.spare_at(0, 0), 8 * SHAPE.spare_len())]
    );
    assert!(writes[..2].iter().all(|w| w.0.is_multiple_of(u64::from(RUN_BYTES))));
}

#[test]
fn programmed_pages_are_in_the_file_after_the_next_sync_or_on_request() {
    for ask in [FileSsd::write_tails, |d: &mut FileSsd<Shared>| d.execute(&DeviceOp::Sync).map(|_| ())] {
        let f = Shared::default();
        let mut d = open(&f);
        let zeroes = PageImage { slots: vec![slot(9, 8, Payload::zero(BLOCK)); 4].into(), ..image(8, 0) };
        program(&mut d, 0, 0, &image(1, 1)).expect("program");
        program(&mut d, 0, 1, &zeroes).expect("program");
        program(&mut d, 3, 0, &image(2, 7)).expect("program");
        let mut other = open(&Shared(std::rc::Rc::new(std::cell::RefCell::new(f.0.borrow().clone()))));
        assert_eq!(spares(&mut other, 0).1, Vec::<u16>::new(), "held back");
        ask(&mut d).expect("writes");
        drop(d);
        let mut d = open(&f);
        assert_eq!(*read(&mut d, 0, 0).expect("read"), *image(1, 1).slots);
        assert_eq!(*read(&mut d, 0, 1).expect("read"), *zeroes.slots);
        assert_eq!(*read(&mut d, 3, 0).expect("read"), *image(2, 7).slots);
    }
}

#[test]
fn an_erase_drops_what_was_held_back() {
    let f = Shared::default();
    let mut d = open(&f);
    program(&mut d, 0, 0, &image(1, 1)).expect("program");
    d.execute(&DeviceOp::Erase { block: 0, oob: BlockOob::default() }).expect("erase");
    assert!(read(&mut d, 0, 0).is_err());
    d.execute(&DeviceOp::Sync).expect("sync");
    assert_eq!(spares(&mut d, 0).1, Vec::<u16>::new());
    program(&mut d, 0, 0, &image(2, 9)).expect("program");
    assert_eq!(*read(&mut d, 0, 0).expect("read"), *image(2, 9).slots);
}

#[test]
fn a_block_that_is_marked_bad_stays_so_and_holds_nothing() {
    let f = Shared::default();
    let mut d = open(&f);
    for block in [1, 2] {
        program(&mut d, block, 0, &image(1, 1)).expect("program");
    }
    d.execute(&DeviceOp::MarkBad { block: 1 }).expect("mark");
    // A block that was never used, which is also the last.
    d.execute(&DeviceOp::MarkBad { block: 15 }).expect("mark");
    assert!(d.execute(&DeviceOp::MarkBad { block: 16 }).is_err());
    for again in 0..3 {
        for block in [1, 15] {
            let bad = DeviceError::BadBlock { block };
            assert_eq!(read(&mut d, block, 0).unwrap_err(), bad, "opened {again} times");
            assert_eq!(program(&mut d, block, 0, &image(2, 2)).unwrap_err(), bad);
            assert_eq!(d.execute(&DeviceOp::Erase { block, oob: BlockOob::default() }).unwrap_err(), bad);
            assert_eq!(d.execute(&DeviceOp::ReadSpares { block }).unwrap_err(), bad);
            assert_eq!(d.execute(&DeviceOp::ReadOob { block }).unwrap_err(), bad);
        }
        assert_eq!(*read(&mut d, 2, 0).expect("read"), *image(1, 1).slots);
        d.execute(&DeviceOp::Sync).expect("sync");
        // Once after a power cut, once after a close.
        if again == 1 {
            d.close().expect("close");
        }
        d = open(&f);
    }
}

#[test]
fn what_is_to_fail_fails_and_can_be_read_still() {
    let f = Shared::default();
    let mut d = open(&f);
    d.fail_by(MediaFaults::new(5, 0.05, 0.0));
    let mut failed = 0;
    for block in 0..16 {
        let written = (0..8).take_while(|&p| program(&mut d, block, p, &image(u64::from(p), 1)).is_ok()).count() as u16;
        failed += u32::from(written < 8);
        for page in 0..written {
            assert_eq!(*read(&mut d, block, page).expect("read"), *image(u64::from(page), 1).slots);
        }
        if written < 8 {
            let bad = Err(DeviceError::BadBlock { block });
            assert_eq!(program(&mut d, block, written, &image(9, 9)), bad, "again");
            assert!(matches!(read(&mut d, block, written), Err(DeviceError::Unwritten { .. })));
        }
    }
    assert!((2..12).contains(&failed), "{failed}");
}
