//! Rows of the block table through power cuts: no power cut undoes a durable erase.

use super::*;

/// The state in which a power cut leaves a row copy that was written since the last sync.
#[derive(Clone, Copy, Debug)]
enum Left {
    Before,
    After,
    Torn,
}

/// Every file that a power cut can leave: `synced`, with each copy of the block's row that differs in `now` in any state.
fn cuts(synced: &MemFile, now: &MemFile, block: u64) -> Vec<(Vec<Left>, MemFile)> {
    let copy_at = |c: usize| layout::TABLE_AT + block * layout::ROW_LEN as u64 + (c * layout::ROW_COPY_LEN) as u64;
    let bytes = |f: &MemFile, c: usize| {
        let mut b = [0; layout::ROW_COPY_LEN];
        f.read_at(&mut b, copy_at(c)).expect("read");
        b
    };
    let mut all = vec![(Vec::new(), synced.clone())];
    for c in (0..2).filter(|&c| bytes(synced, c) != bytes(now, c)) {
        let each = |left: Left| {
            let mut b = bytes(if matches!(left, Left::Before) { synced } else { now }, c);
            b[9] ^= u8::from(matches!(left, Left::Torn));
            (left, b)
        };
        let ways = [Left::Before, Left::After, Left::Torn].map(each);
        let with = |(lefts, f): &(Vec<Left>, MemFile)| {
            let (lefts, f) = (lefts.clone(), f.clone());
            ways.map(move |(left, b)| {
                let (mut lefts, mut f) = (lefts.clone(), f.clone());
                lefts.push(left);
                f.write_at(&[&b], copy_at(c)).expect("write");
                (lefts, f)
            })
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

/// The second copy of a row is written after the sync that made the first durable, and is not durable itself.
#[test]
fn a_power_cut_after_the_next_erase_brings_back_nothing_that_was_erased_durably() {
    let erased = |d: &mut FileSsd<Shared>, erase_count| {
        let oob = BlockOob { logical: 8, erase_count, erase_time: 77 };
        d.execute(&DeviceOp::Erase { block: 1, oob }).expect("erase");
    };
    let f = Shared::default();
    let mut d = open(&f);
    program(&mut d, 1, 0, &image(1, 1)).expect("program");
    d.execute(&DeviceOp::Sync).expect("sync");
    d.execute(&DeviceOp::Sync).expect("sync");
    erased(&mut d, 2);
    let ticket = d.begin_sync().expect("begun");
    let synced = f.0.borrow().clone();
    d.finish_sync(ticket, Ok(())).expect("synced");
    erased(&mut d, 3);
    let now = f.0.borrow().clone();
    let cuts = cuts(&synced, &now, 1);
    assert!(cuts.len() > 1, "the erase has written something");
    for (left, file) in cuts {
        let mut d = open(&Shared(std::rc::Rc::new(std::cell::RefCell::new(file))));
        let (oob, pages) = spares(&mut d, 1);
        assert!(pages.is_empty() && oob.erase_count >= 2, "{left:?}: {oob:?} {pages:?}");
    }
}
