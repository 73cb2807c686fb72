use rackweave_core::device::{
    Backend, BlockOob, DeviceData, DeviceOp, PageAddr, PageImage, Slot, SlotKind, SlotRecord,
};
use rackweave_core::{BLOCK, BlockAddr, Payload, Rng, SetId, Timestamp, VolumeId, VssdId};
use rackweave_flash::isolation::Isolation;
use rackweave_flash::table::{Copy, Entry, Extent, Kind, Made, Unit};

use super::*;
use crate::MemFile;
use crate::layers::{Journal, Recorder, Replay};

const TABLE_BYTES: u64 = 16_384;
const META_BYTES: u64 = 256 << 10;
const OLD: Shape = Shape { blocks: 24, pages_per_block: 4, page_bytes: 16_384, meta_bytes: META_BYTES };
const PER_DIE: u32 = 6;
/// A block on loan to the vSSD of entry 1.
const LENT: u32 = 3;

fn entry(index: u8, state: EntryState, dies: [u32; 1]) -> Entry {
    Entry {
        index,
        generation: 1,
        state,
        kind: Kind::Page,
        isolation: Isolation::Die,
        group: None,
        joined: None,
        vssd: VssdId(10 + u32::from(index)),
        set: SetId(u32::from(index)),
        units: dies.map(Unit::die).to_vec(),
        extents: vec![Extent { at: TABLE_BYTES + u64::from(index) * 0x1_0000, len: 0x1_0000 }],
    }
}

fn plan() -> Plan {
    let table = Table {
        generation: 0,
        drive: DriveId::NONE,
        made: Made::new("test", 1),
        channels: 2,
        dies_per_channel: 2,
        blocks_per_die: PER_DIE,
        incarnation: 0,
        entries: (0..4)
            .map(|i| entry(i, if i < 2 { EntryState::InUse } else { EntryState::Free }, [u32::from(i)]))
            .collect(),
        groups: Vec::new(),
        homes: Vec::new(),
        cleared: Vec::new(),
    };
    Plan {
        ssd: SsdId(5),
        shape: Shape { meta_bytes: META_BYTES + TABLE_BYTES, ..OLD },
        table_bytes: TABLE_BYTES,
        blocks_per_die: PER_DIE,
        table,
        rack: RackId(7),
        drawn: DriveId(0xd1),
    }
}

fn old_logical(block: u32) -> u64 {
    let borrowed = if block == LENT { 2 << BORROWER_AT } else { 0 };
    borrowed | u64::from(block / PER_DIE) << 32 | u64::from(block)
}

fn slots(block: u32, page: u16) -> Vec<Slot> {
    let index = if block == LENT { 1 } else { (block / PER_DIE) as u8 };
    let owner = Owner { index, generation: 1 }.packed();
    let slot = |i: u64| {
        let data = Payload::elided(BLOCK, u64::from(block) << 32 | u64::from(page) << 8 | i);
        let addr = BlockAddr::new(VolumeId(1), block * 100 + u32::from(page) * 10 + i as u32);
        let record = SlotRecord { kind: SlotKind::Data, addr, version: Timestamp(i + 1), crc: data.crc32c(), owner };
        Slot { data, record }
    };
    (0..4).map(slot).collect()
}

/// Blocks with pages: of the two vSSDs in use, and, in die 2, of a released slot.
const USED: [(u32, u16); 6] = [(0, 4), (1, 2), (LENT, 3), (7, 4), (8, 1), (13, 2)];

/// A drive as version 2 wrote it, closed or not.
fn old_drive(clean: bool) -> MemFile {
    let mut file = MemFile::default();
    let mut dev = FileSsd::open(&mut file, SsdId(5), OLD).expect("new");
    dev.adopt(RackId(7)).expect("of none");
    for (block, pages) in USED {
        let oob = BlockOob { logical: old_logical(block), erase_count: 3, erase_time: 4 };
        dev.execute(&DeviceOp::Erase { block, oob }).expect("whole");
        for page in 0..pages {
            let image = PageImage { sequence: u64::from(page) + 1, oob, slots: slots(block, page).into() };
            dev.execute(&DeviceOp::Program { page: PageAddr { block, page }, image: Box::new(image) }).expect("whole");
        }
    }
    // Block 10 is erased only; block 23 is marked bad before its first use.
    let oob = BlockOob { logical: old_logical(10), erase_count: 9, erase_time: 4 };
    dev.execute(&DeviceOp::Erase { block: 10, oob }).expect("whole");
    dev.execute(&DeviceOp::MarkBad { block: 23 }).expect("whole");
    dev.execute(&DeviceOp::WriteMeta { offset: 0, data: vec![7; 100_000].into() }).expect("whole");
    dev.execute(&DeviceOp::Sync).expect("whole");
    dev.execute(&DeviceOp::Sync).expect("whole");
    if clean {
        dev.close().expect("whole");
    }
    let head = Head { version: PLAIN_VERSION, shape: OLD, ssd: 5, made: None, displaced: None, phase: 0 };
    file.write_at(&[&layout::encode_super(&head)], layout::SUPER_AT).expect("memory");
    file
}

fn check(file: MemFile, what: &str) {
    let p = plan();
    let mut dev = FileSsd::open(file, SsdId(5), p.shape).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!((dev.rack(), dev.drive_id()), (Some(RackId(7)), DriveId(0xd1)), "{what}");
    for (block, pages) in USED {
        let DeviceData::Spares { oob, pages: found, .. } = dev.execute(&DeviceOp::ReadSpares { block }).expect("there")
        else {
            panic!("{what}")
        };
        let index = if block == LENT { 1 } else { (block / PER_DIE) as u8 };
        let owner = Owner { index, generation: 1 };
        let named = Address { owner, die: block / PER_DIE, block: block % PER_DIE };
        assert_eq!((Address::unpack(oob.logical), oob.erase_count), (named, 3), "{what}, block {block}");
        assert_eq!(found.len(), usize::from(pages), "{what}, block {block}");
        for page in 0..pages {
            let op = DeviceOp::ReadPage { page: PageAddr { block, page } };
            let DeviceData::Page(read) = dev.execute(&op).unwrap_or_else(|e| panic!("{what}: {e}")) else { panic!() };
            assert_eq!(read[..], slots(block, page)[..], "{what}, block {block}, page {page}");
        }
    }
    assert!(dev.execute(&DeviceOp::ReadOob { block: 23 }).is_err(), "{what}: block 23 is bad");
    let area =
        |at: u64, len: u32, dev: &mut FileSsd<MemFile>| match dev.execute(&DeviceOp::ReadMeta { offset: at, len }) {
            Ok(DeviceData::Meta(b)) => b,
            other => panic!("{what}: {other:?}"),
        };
    let tables = area(0, TABLE_BYTES as u32, &mut dev);
    for copy in tables.chunks(TABLE_BYTES as usize / 2) {
        let Copy::Whole(t) = table::decode(copy) else { panic!("{what}: no table") };
        assert_eq!((t.drive, t.generation), (DriveId(0xd1), 1), "{what}");
        let states: Vec<(EntryState, u16)> = t.entries.iter().map(|e| (e.state, e.generation)).collect();
        // The pages of the released slot are of its previous generation.
        let want =
            [(EntryState::InUse, 1), (EntryState::InUse, 1), (EntryState::Clearing, 2), (EntryState::Clearing, 2)];
        assert_eq!(states, want, "{what}");
    }
    for e in &p.table.entries {
        let head = area(e.extents[0].at, head_bytes(PER_DIE) as u32, &mut dev);
        assert!(head.iter().all(|b| *b == 0), "{what}: a checkpoint of entry {}", e.index);
    }
    // The converted drive works: the next block takes an extent of its own.
    let oob = BlockOob { logical: 0, ..BlockOob::default() };
    let image = PageImage { sequence: 9, oob, slots: slots(20, 0).into() };
    let page = PageAddr { block: 20, page: 0 };
    dev.execute(&DeviceOp::Program { page, image: Box::new(image) }).expect("room");
    dev.execute(&DeviceOp::WriteMeta { offset: TABLE_BYTES, data: vec![9; 10].into() }).expect("room");
    dev.execute(&DeviceOp::Sync).expect("whole");
    assert_eq!(area(0, TABLE_BYTES as u32, &mut dev), tables, "{what}");
    assert_eq!(area(TABLE_BYTES, 10, &mut dev), vec![9; 10], "{what}");
}

#[test]
fn a_drive_of_version_2_is_refused_and_named_until_it_is_converted() {
    for clean in [false, true] {
        let file = old_drive(clean);
        let refused = FileSsd::open(file.clone(), SsdId(5), plan().shape).expect_err("of before");
        assert!(matches!(refused, OpenError::Unconverted), "{refused}");
        let mut file = Recorder::new(file, 0, Journal::default());
        assert_eq!(convert(&mut file, &plan()).expect("whole"), Outcome::Converted);
        assert_eq!(convert(&mut file, &plan()).expect("whole"), Outcome::Already);
        check(file.into_inner(), "once");
    }
}

#[test]
fn a_conversion_that_power_cuts_end_at_any_write_is_completed_by_the_next() {
    let mut rng = Rng::new(3);
    let before = old_drive(false);
    let journal = Journal::default();
    convert(Recorder::new(before.clone(), 0, journal.clone()), &plan()).expect("whole");
    let mut replay = Replay::new(&journal, vec![before]);
    let mut at = 0;
    loop {
        for draw in 0..4 {
            let what = format!("cut after step {at}, draw {draw}");
            let file = replay.cut(&mut rng).swap_remove(0);
            // A power cut may also end the second run.
            let second = Journal::default();
            let open = FileSsd::open(file.clone(), SsdId(5), plan().shape);
            assert!(
                matches!(open, Err(OpenError::Unconverted | OpenError::Converting)) || at + 1 >= journal.len(),
                "{what}: a half-converted drive was opened"
            );
            convert(Recorder::new(file.clone(), 0, second.clone()), &plan()).unwrap_or_else(|e| panic!("{what}: {e}"));
            let mut again = Replay::new(&second, vec![file]);
            for _ in 0..rng.below(second.len() as u64 + 1) {
                again.advance();
            }
            let mut file = again.cut(&mut rng).swap_remove(0);
            convert(&mut file, &plan()).unwrap_or_else(|e| panic!("{what}, then again: {e}"));
            check(file, &what);
        }
        if replay.advance().is_none() {
            break;
        }
        at += 1;
    }
    assert!(at > 20, "{at} steps");
}

#[test]
fn a_drive_that_the_configuration_does_not_fit_is_left_as_it_is() {
    // A checkpoint at an offset where the configuration has none.
    let mut file = old_drive(true);
    let mut header = [0u8; 32];
    header[..6].copy_from_slice(b"RWCK\x01\0");
    header[20] = PER_DIE as u8;
    let sum = crc32c::crc32c(&header[..28]);
    header[28..].copy_from_slice(&sum.to_le_bytes());
    for (at, fits) in [(0, true), (0x1_1000, true), (0x8000, false), (0x3_4000, false)] {
        let mut file = file.clone();
        file.write_at(&[&header], OLD.meta_at() + at).expect("memory");
        let before = format!("{file:?}");
        match convert(&mut file, &plan()) {
            Err(ConvertError::Layout) if !fits => assert_eq!(format!("{file:?}"), before, "at {at}: changed"),
            Ok(Outcome::Converted) if fits => {}
            other => panic!("at {at}: {other:?}"),
        }
    }
    let other = Plan { rack: RackId(8), ..plan() };
    assert!(matches!(convert(&mut file, &other), Err(ConvertError::Open(OpenError::Rack { .. }))));
    let swapped = Plan { ssd: SsdId(6), ..plan() };
    assert!(matches!(convert(&mut file, &swapped), Err(ConvertError::Open(OpenError::Shape { .. }))));
}
