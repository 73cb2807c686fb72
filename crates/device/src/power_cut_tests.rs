use super::layers::{Faults, Faulty, Journal, Recorder, Replay, Step};
use super::tests::{SHAPE, Shared, image, open, read, spares};
use super::*;
use rackweave_core::Rng;
use rackweave_core::rng::seeds;

type File = Faulty<Recorder<MemFile>>;

/// Power cuts at every step of a run of programs, erases and syncs: synced data is there and whole, what an erase that was
/// synced has voided stays void, and no page of a block that was not full shows contents that do not match its records.
#[test]
fn power_cuts_at_every_step_lose_nothing_that_was_synced() {
    for seed in seeds(0..20) {
        power_cut_run(seed, 0.0);
    }
}

/// The same on a disk that is sometimes full: a command that finds no space is retried unchanged.
#[test]
fn what_found_no_room_is_tried_again_and_nothing_is_lost() {
    let of = seeds(0..60);
    let refused: u32 = of.clone().map(|seed| power_cut_run(seed, 0.4)).sum();
    assert!(of != (0..60) || refused > 500, "{refused} refused");
}

/// Runs a test's commands on a disk that is full for some of them.
struct Host {
    drive: FileSsd<File>,
    faults: Faults,
    full: f64,
    refused: u32,
}

impl Host {
    fn run(&mut self, rng: &mut Rng, op: DeviceOp) {
        if rng.chance(self.full) {
            self.faults.fail_allocations(Some(libc::ENOSPC));
            // When space cannot be reserved, some writes fail, too.
            self.faults.fail_writes_after(rng.chance(0.7).then(|| (libc::ENOSPC, rng.below(3))));
        }
        let first = self.drive.execute(&op);
        self.faults.fail_allocations(None);
        self.faults.fail_writes(None);
        if first.as_ref().is_err_and(|e| *e == DeviceError::NoSpace) {
            self.refused += 1;
            self.drive.execute(&op).expect("the disk has space again");
        } else {
            first.expect("nothing else fails");
        }
    }
    fn program(&mut self, rng: &mut Rng, block: u32, page: u16, sequence: u64) {
        let image = Box::new(image(sequence, sequence as u8));
        self.run(rng, DeviceOp::Program { page: PageAddr { block, page }, image });
    }
    fn sync(&mut self, rng: &mut Rng) {
        self.run(rng, DeviceOp::Sync);
    }
}

/// Returns the number of commands that found no space.
fn power_cut_run(seed: u64, full: f64) -> u32 {
    let mut rng = Rng::new(seed);
    let (journal, faults) = (Journal::default(), Faults::default());
    let start = {
        let f = Shared::default();
        drop(open(&f));
        f.0.borrow().clone()
    };
    let file = Faulty::new(Recorder::new(start.clone(), 0, journal.clone()), faults.clone());
    let drive = FileSsd::open(file, SsdId(3), SHAPE).expect("opens");
    let mut d = Host { drive, faults, full, refused: 0 };
    // The sequences of each erase block's pages, in order.
    let mut now = vec![Vec::<u64>::new(); 4];
    let mut synced = vec![Synced { pages: now.clone(), ..Synced::default() }];
    let mut bad: Vec<u32> = Vec::new();
    // Offset of the last write to the checkpoint area.
    let mut meta = None;
    for sequence in 1..120u64 {
        let block = rng.below(4) as u32;
        if bad.contains(&block) {
            continue;
        }
        let held = now[block as usize].len();
        if held == 8 || held == 0 && rng.chance(0.3) {
            // As in the page layer, a block is erased only when its contents are no longer needed. An empty one may be erased again.
            d.sync(&mut rng);
            synced.push(Synced { pages: now.clone(), bad: bad.clone(), meta, sequence });
            journal.note(synced.len() as u64 - 1);
            if bad.len() < 2 && rng.chance(0.2) {
                d.run(&mut rng, DeviceOp::MarkBad { block });
                bad.push(block);
            } else {
                now[block as usize].clear();
                d.run(&mut rng, DeviceOp::Erase { block, oob: BlockOob::default() });
            }
        } else {
            d.program(&mut rng, block, held as u16, sequence);
            now[block as usize].push(sequence);
        }
        if rng.chance(0.1) {
            d.run(&mut rng, DeviceOp::WriteMeta { offset: 512 * sequence, data: Bytes::from(vec![1; 512]) });
            meta = Some(512 * sequence);
            d.sync(&mut rng);
            synced.push(Synced { pages: now.clone(), bad: bad.clone(), meta, sequence });
            journal.note(synced.len() as u64 - 1);
        }
    }
    assert!(d.drive.extents_used <= 4, "each block has one extent");
    let mut replay = Replay::new(&journal, vec![start]);
    let mut known = synced[0].clone();
    while let Some(step) = replay.advance() {
        if let Step::Note(k) = step {
            known = synced[k as usize].clone();
        }
        let file = Shared(std::rc::Rc::new(std::cell::RefCell::new(replay.cut(&mut rng).remove(0))));
        for life in 0..2 {
            check_after_cut(&file, &known, (seed, replay.position(), life));
        }
    }
    d.refused
}

/// What a sync made durable.
#[derive(Clone, Debug, Default)]
struct Synced {
    /// Sequences of each block's pages.
    pages: Vec<Vec<u64>>,
    /// Blocks marked bad.
    bad: Vec<u32>,
    /// Offset of the last write to the checkpoint area.
    meta: Option<u64>,
    /// The last one that was in use.
    sequence: u64,
}

fn check_after_cut(file: &Shared, known: &Synced, at: (u64, usize, u32)) {
    let mut d = open(file);
    if let Some(offset) = known.meta {
        assert_eq!(d.read_meta(offset, 512).expect("read")[..], [1; 512], "checkpoint area at {at:?}");
    }
    for block in &known.bad {
        let found = d.execute(&DeviceOp::ReadSpares { block: *block }).unwrap_err();
        assert_eq!(found, DeviceError::BadBlock { block: *block }, "at {at:?}");
    }
    for (block, pages) in known.pages.iter().enumerate() {
        // Full at the sync: it may have been erased and partly programmed since.
        let is_bad = d.execute(&DeviceOp::ReadSpares { block: block as u32 }).is_err();
        if pages.len() == 8 || is_bad && pages.is_empty() {
            continue;
        }
        let mut sequences = Vec::new();
        for page in spares(&mut d, block as u32).1 {
            let slots = read(&mut d, block as u32, page).expect("shown, so readable");
            for s in &slots {
                assert_eq!(s.data.crc32c(), s.record.crc, "block {block} page {page} at {at:?}");
            }
            sequences.push(slots[0].record.version.0);
        }
        let kept = sequences.starts_with(pages);
        let later = sequences.iter().all(|s| pages.contains(s) || *s > known.sequence);
        assert!(kept && later, "block {block}: synced {pages:?}, found {sequences:?} at {at:?}");
    }
}

#[test]
fn no_more_is_kept_in_memory_than_when_there_was_no_room() {
    let faults = Faults::default();
    let f = Shared::default();
    let mut d = FileSsd::open(Faulty::new(f.clone(), faults.clone()), SsdId(3), SHAPE).expect("opens");
    let program = |d: &mut FileSsd<_>, page| {
        let op =
            DeviceOp::Program { page: PageAddr { block: 0, page }, image: Box::new(image(u64::from(page) + 1, 1)) };
        d.execute(&op).map(|_| ())
    };
    program(&mut d, 0).expect("program");
    faults.fail_writes(Some(libc::ENOSPC));
    let run = (RUN_BYTES / SHAPE.page_bytes) as u16;
    (1..run - 1).for_each(|page| program(&mut d, page).expect("in memory"));
    for _ in 0..3 {
        assert_eq!(program(&mut d, run - 1), Err(DeviceError::NoSpace));
        assert_eq!(d.tails[&0].end(), run, "once");
    }
    assert_eq!(d.execute(&DeviceOp::Sync).map(|_| ()), Err(DeviceError::NoSpace), "a full disk is not a final error");
    faults.fail_writes(None);
    (run - 1..8).for_each(|page| program(&mut d, page).expect("the disk has space again"));
    d.execute(&DeviceOp::Sync).expect("sync");
    d.close().expect("close");
    let mut d = open(&f);
    assert_eq!(spares(&mut d, 0).1, (0..8).collect::<Vec<_>>());
    for page in 0..8 {
        assert_eq!(*read(&mut d, 0, page).expect("read"), *image(u64::from(page) + 1, 1).slots);
    }
}

/// A failed fdatasync is final, whatever its error (protocol rule 12).
#[test]
fn a_sync_that_fails_for_want_of_room_is_final() {
    let faults = Faults::default();
    let mut d = FileSsd::open(Faulty::new(MemFile::default(), faults.clone()), SsdId(3), SHAPE).expect("opens");
    faults.fail_syncs(Some(libc::ENOSPC));
    let failed = Err(DeviceError::Backend { os_error: libc::ENOSPC });
    assert_eq!(d.execute(&DeviceOp::Sync).map(|_| ()), failed);
    faults.fail_syncs(None);
    assert_eq!(d.execute(&DeviceOp::Sync).map(|_| ()), failed);
}
