use rackweave_core::device::SlotRecord;

use super::*;

fn page(block: u32, page: u16) -> PageAddr {
    PageAddr { block, page }
}

fn program(at: PageAddr, seed: u64) -> DeviceOp {
    let slot = Slot {
        data: Payload::elided(BLOCK, seed),
        record: SlotRecord { kind: SlotKind::Data, ..SlotRecord::default() },
    };
    let image = PageImage { sequence: seed, oob: BlockOob::default(), slots: [slot].into() };
    DeviceOp::Program { page: at, image: Box::new(image) }
}

fn do_it(d: &mut FaultDisk, op: &DeviceOp) -> Result<DeviceData, DeviceError> {
    let (r, id) = d.submit(op);
    d.complete(id, matches!(op, DeviceOp::Sync) && r.is_ok());
    r
}

fn readable(d: &mut FaultDisk, at: PageAddr) -> bool {
    d.submit(&DeviceOp::ReadPage { page: at }).0.is_ok()
}

const DROP_ALL: CutOdds = CutOdds { drop: 1.0, tear: 0.0 };
const TEAR_ALL: CutOdds = CutOdds { drop: 0.0, tear: 1.0 };

#[test]
fn a_power_cut_loses_only_what_no_completed_sync_covers() {
    let mut d = FaultDisk::new();
    do_it(&mut d, &program(page(0, 0), 1)).unwrap();
    do_it(&mut d, &DeviceOp::Sync).unwrap();
    do_it(&mut d, &program(page(0, 1), 2)).unwrap();
    let (_, id) = d.submit(&program(page(0, 2), 3));
    let (_, sync) = d.submit(&DeviceOp::Sync);
    d.complete(id, false);
    d.complete(sync, true);
    assert_eq!(d.power_cut(DROP_ALL, &mut Rng::new(1)), CutReport { dropped: 1, ..CutReport::default() });
    assert!(readable(&mut d, page(0, 0)) && readable(&mut d, page(0, 1)));
    assert!(!readable(&mut d, page(0, 2)), "it completed after the sync was submitted");
}

#[test]
fn an_unfinished_sync_protects_nothing_and_a_crash_of_the_process_loses_nothing() {
    let mut d = FaultDisk::new();
    do_it(&mut d, &program(page(0, 0), 1)).unwrap();
    let _ = d.submit(&DeviceOp::Sync);
    d.process_crash();
    assert!(readable(&mut d, page(0, 0)));
    d.power_cut(DROP_ALL, &mut Rng::new(1));
    assert!(!readable(&mut d, page(0, 0)));
}

#[test]
fn torn_pages_are_unreadable_and_left_out_of_spares() {
    let mut d = FaultDisk::new();
    do_it(&mut d, &program(page(3, 0), 1)).unwrap();
    do_it(&mut d, &DeviceOp::Sync).unwrap();
    do_it(&mut d, &program(page(3, 1), 2)).unwrap();
    d.power_cut(TEAR_ALL, &mut Rng::new(1));
    let Ok(DeviceData::Spares { pages, .. }) = d.submit(&DeviceOp::ReadSpares { block: 3 }).0 else { panic!() };
    assert_eq!(pages.len(), 1);
    do_it(&mut d, &program(page(3, 1), 3)).unwrap();
    assert_eq!(d.breaches(), [NandBreach::ProgramTwice { page: page(3, 1) }], "a torn page is not erased");
}

/// The out-of-band data of a block lie in its pages: those that an interrupted erase left name the block's old address.
#[test]
fn an_interrupted_erase_changes_no_page_that_it_leaves() {
    let old = BlockOob { logical: 7, ..BlockOob::default() };
    let new = BlockOob { logical: 9, ..BlockOob::default() };
    let (mut left, mut gone) = (0, 0);
    for seed in 0..40 {
        let mut d = FaultDisk::new();
        do_it(&mut d, &DeviceOp::Erase { block: 3, oob: old }).unwrap();
        for i in 0..3 {
            let DeviceOp::Program { page, mut image } = program(page(3, i), 1) else { unreachable!() };
            image.oob = old;
            do_it(&mut d, &DeviceOp::Program { page, image }).unwrap();
        }
        do_it(&mut d, &DeviceOp::Sync).unwrap();
        do_it(&mut d, &DeviceOp::Erase { block: 3, oob: new }).unwrap();
        d.power_cut(TEAR_ALL, &mut Rng::new(seed));
        let Ok(DeviceData::Spares { pages, oob, .. }) = d.submit(&DeviceOp::ReadSpares { block: 3 }).0 else {
            panic!()
        };
        let Ok(DeviceData::Oob { oob: alone, .. }) = d.submit(&DeviceOp::ReadOob { block: 3 }).0 else { panic!() };
        assert_eq!(oob, alone);
        if pages.is_empty() {
            gone += u32::from(oob == new);
        } else {
            assert_eq!(oob, old);
            left += 1;
        }
    }
    assert!(left > 5 && gone > 0, "{left} {gone}");
}

#[test]
fn every_nand_rule_is_watched() {
    let mut d = FaultDisk::new();
    do_it(&mut d, &program(page(0, 1), 1)).unwrap();
    do_it(&mut d, &program(page(0, 0), 2)).unwrap();
    let _ = d.submit(&program(page(0, 2), 2));
    let erase = DeviceOp::Erase { block: 0, oob: BlockOob::default() };
    let _ = d.submit(&erase);
    let _ = d.submit(&program(page(0, 0), 3));
    assert_eq!(
        d.breaches(),
        [
            NandBreach::OutOfOrder { page: page(0, 0), last: 1 },
            NandBreach::ProgramUnderWay { block: 0 },
            NandBreach::EraseUnderWay { page: page(0, 0) },
        ]
    );
}

#[test]
fn checkpoint_writes_read_back_short_where_nothing_was_written() {
    let mut d = FaultDisk::new();
    do_it(&mut d, &DeviceOp::WriteMeta { offset: 1024, data: Bytes::from(vec![7; 2048]) }).unwrap();
    let Ok(DeviceData::Meta(m)) = d.submit(&DeviceOp::ReadMeta { offset: 1000, len: 9000 }).0 else { panic!() };
    assert_eq!((m.len(), m[0], m[24]), (2072, 0, 7));
    d.power_cut(TEAR_ALL, &mut Rng::new(3));
    let Ok(DeviceData::Meta(m)) = d.submit(&DeviceOp::ReadMeta { offset: 1024, len: 2048 }).0 else { panic!() };
    assert!(m.chunks(512).all(|s| s.iter().all(|&b| b == s[0])), "sectors are whole or missing");
}

#[test]
fn a_failed_device_fails_every_command_and_corruption_changes_contents() {
    let mut d = FaultDisk::new();
    assert!(!d.corrupt(&mut Rng::new(1)));
    do_it(&mut d, &program(page(0, 0), 1)).unwrap();
    assert!(d.corrupt(&mut Rng::new(1)));
    let Ok(DeviceData::Slot(s)) = d.submit(&DeviceOp::ReadSlot { page: page(0, 0), slot: 0 }).0 else { panic!() };
    assert_ne!(s.data, Payload::elided(BLOCK, 1));
    d.fail(Breakage::Everything);
    assert!(d.submit(&DeviceOp::Sync).0.is_err());
}
