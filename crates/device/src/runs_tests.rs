//! Successive runs of a drive on one file. The seed draws the commands, a failing sync, where and how each run ends,
//! changes of the file between runs, and the rack that uses it.

use super::layers::{Faults, Faulty, Journal, Recorder, Replay, Step};
use super::tests::{SHAPE, Shared, image, open, program, read, spares};
use super::*;
use rackweave_core::Rng;
use rackweave_core::rng::seeds;

const BLOCKS: u32 = 3;
const PAGES: usize = SHAPE.pages_per_block as usize;
const SSD: SsdId = SsdId(3);
const RACK: RackId = RackId(0xabc);
const DRIVE: DriveId = DriveId(0xd1);

/// By erase block: sequences of its pages, in order.
type Pages = Vec<Vec<u64>>;

/// The blocks during one run.
#[derive(Default)]
struct Log {
    /// By block: its pages at the start of the run, and those of each use since, where an erase starts a use.
    uses: Vec<Pages>,
    /// Instants of the journal, by their note's number.
    marks: Vec<Mark>,
}

#[derive(Clone)]
enum Mark {
    /// Everything up to here is durable: by block, the current use and its number of pages.
    Synced(Vec<(usize, usize)>),
    Erasing(u32),
    Adopted,
}

impl Log {
    fn note(&mut self, journal: &Journal, mark: Mark) {
        journal.note(self.marks.len() as u64);
        self.marks.push(mark);
    }
    fn synced(&mut self, journal: &Journal) {
        let at = self.uses.iter().map(|u| (u.len() - 1, u.last().expect("the current use").len())).collect();
        self.note(journal, Mark::Synced(at));
    }
    fn present(&self, block: u32) -> &Vec<u64> {
        self.uses[block as usize].last().expect("the current use")
    }
}

/// A drive between two runs.
struct World {
    rng: Rng,
    file: MemFile,
    held: Pages,
    /// Blocks whose erase was interrupted: any of their pages may be left.
    foul: [bool; BLOCKS as usize],
    adopted: bool,
    /// The last run ended with a close.
    closed: bool,
    sequence: u64,
    refused: u64,
    failed_syncs: u64,
}

/// The sequences of the block's pages, and whether their contents are intact.
fn pages<F: FileIo>(d: &mut FileSsd<F>, block: u32) -> (Vec<u64>, bool) {
    let (mut sequences, mut whole) = (Vec::new(), true);
    for page in spares(d, block).1 {
        let slots = read(d, block, page).expect("shown, so readable");
        whole &= slots.iter().all(|s| s.data.crc32c() == s.record.crc);
        sequences.push(slots[0].record.version.0);
    }
    (sequences, whole)
}

impl World {
    fn run(&mut self) {
        let (journal, faults) = (Journal::default(), Faults::default());
        let file = Faulty::new(Recorder::new(self.file.clone(), 0, journal.clone()), faults.clone());
        let mut d = FileSsd::open(file, SSD, SHAPE).expect("opens");
        let mut log = Log { uses: self.held.iter().map(|p| vec![p.clone()]).collect(), ..Log::default() };
        log.synced(&journal);
        self.adopt(&mut d, &mut log, &journal);
        let works = self.work(&mut d, &mut log, &journal, &faults);
        let closes = works && self.rng.chance(0.5);
        if closes {
            d.close().expect("nothing fails");
            log.synced(&journal);
        }
        let steps = journal.len();
        let back = *self.rng.pick(&[0, 0, 8, steps as u64]);
        let end = steps - self.rng.below(back.min(steps as u64) + 1) as usize;
        self.cut(&journal, &log, end);
        let wrote = steps > log.marks.len();
        self.closed = if wrote { closes && end == steps } else { self.closed };
    }

    fn adopt<F: FileIo>(&mut self, d: &mut FileSsd<F>, log: &mut Log, journal: &Journal) {
        if !self.rng.chance(0.5) {
            return;
        }
        d.name(if self.adopted { DriveId(0xd2) } else { DRIVE });
        assert_eq!(d.adopt(RACK).expect("its own"), !self.adopted);
        assert_eq!(d.drive_id(), DRIVE, "the first id stays");
        log.note(journal, Mark::Adopted);
    }

    /// False if a sync failed.
    fn work<F: FileIo>(&mut self, d: &mut FileSsd<F>, log: &mut Log, journal: &Journal, faults: &Faults) -> bool {
        let fails_after = if self.rng.chance(0.2) { self.rng.below(30) } else { u64::MAX };
        // A block with pages of an earlier run may have a torn one, so nothing is programmed behind them.
        let mut open: Vec<bool> = self.held.iter().map(Vec::is_empty).collect();
        let mut sound = true;
        let mut changed = false;
        for n in 0..self.rng.between(2, 40) {
            let block = self.rng.below(u64::from(BLOCKS)) as u32;
            let page = log.present(block).len();
            if self.rng.chance(0.15) {
                let fails = sound && changed && n >= fails_after;
                faults.fail_syncs(fails.then_some(libc::EIO));
                let result = d.execute(&DeviceOp::Sync);
                faults.fail_syncs(None);
                sound &= !fails;
                self.failed_syncs += u64::from(!sound);
                assert_eq!(result.is_ok(), sound, "a failed sync is final");
                if sound {
                    log.synced(journal);
                }
            } else if page == PAGES || !open[block as usize] || self.rng.chance(0.05) {
                log.note(journal, Mark::Erasing(block));
                let oob = BlockOob { logical: 5, erase_count: 1, erase_time: 9 };
                d.execute(&DeviceOp::Erase { block, oob }).expect("erase");
                log.uses[block as usize].push(Vec::new());
                (open[block as usize], changed) = (true, true);
                assert_eq!(pages(d, block).0, [0; 0], "erased");
            } else {
                self.sequence += 1;
                program(d, block, page as u16, &image(self.sequence, self.sequence as u8)).expect("program");
                log.uses[block as usize].last_mut().expect("the current use").push(self.sequence);
                changed = true;
            }
            if open[block as usize] && self.rng.chance(0.1) {
                assert_eq!(pages(d, block), (log.present(block).clone(), true), "during the run");
            }
        }
        sound
    }

    /// The power fails at step `end`. The next run must find all that the last completed sync covers, and no pages that
    /// were never written.
    fn cut(&mut self, journal: &Journal, log: &Log, end: usize) {
        let mut replay = Replay::new(journal, vec![std::mem::take(&mut self.file)]);
        let (mut synced, mut erased, mut adopted) = (Vec::new(), self.foul, self.adopted);
        while replay.position() < end {
            let Some(Step::Note(n)) = replay.advance() else { continue };
            match &log.marks[n as usize] {
                Mark::Synced(at) => {
                    let foul = |b: usize| self.foul[b] && at[b].0 == 0;
                    (synced, erased) = (at.clone(), [foul(0), foul(1), foul(2)]);
                }
                Mark::Erasing(block) => erased[*block as usize] = true,
                Mark::Adopted => adopted = true,
            }
        }
        self.file = replay.cut(&mut self.rng).remove(0);
        let mut d = FileSsd::open(self.file.clone(), SSD, SHAPE).expect("opens after a power cut");
        for (b, uses) in log.uses.iter().enumerate() {
            let (found, whole) = pages(&mut d, b as u32);
            let (at, n) = synced.get(b).copied().unwrap_or_default();
            let later = (at + 1..uses.len()).find(|&j| !found.is_empty() && uses[j].starts_with(&found));
            let fits = match later {
                Some(_) => erased[b] && whole,
                // An interrupted erase may have left any of the pages.
                None if erased[b] => found.iter().all(|s| uses[at].contains(s)),
                None => whole && found.starts_with(&uses[at][..n]) && uses[at].starts_with(&found),
            };
            assert!(
                fits,
                "block {b}: {found:?}, whole: {whole}, of {uses:?}; use {at} had {n} pages, erased: {erased:?}"
            );
            self.foul[b] = erased[b] && later.is_none() && !found.is_empty();
            self.held[b] = found;
        }
        let owner = FileSsd::owner(&self.file).expect("read");
        assert!(owner == Some(RACK) || owner.is_none() && !adopted, "{owner:?}, adopted: {adopted}");
        self.adopted = owner.is_some();
        assert!(!self.adopted || d.drive_id() == DRIVE);
    }

    /// A change of the file between two runs: the drive refuses it, or finds everything unchanged.
    fn between(&mut self) {
        let mut file = self.file.clone();
        let refused = match self.rng.below(5) {
            0 => {
                let number = self.rng.chance(0.5);
                let shape = Shape { blocks: SHAPE.blocks + u32::from(!number), ..SHAPE };
                FileSsd::open(file, SsdId(SSD.0 + u32::from(number)), shape).is_err()
            }
            1 if self.adopted => {
                let mut d = FileSsd::open(file, SSD, SHAPE).expect("opens");
                d.name(DRIVE);
                matches!(d.adopt(RackId(0xdef)), Err(OpenError::Rack { found: RACK, .. }))
            }
            2 => {
                let block = self.rng.below(u64::from(BLOCKS)) as u32;
                let at = layout::TABLE_AT + u64::from(block) * layout::ROW_LEN as u64;
                let mut row = [0; layout::ROW_LEN];
                file.read_at(&mut row, at).expect("read");
                if !layout::row_was_written(&row) {
                    return;
                }
                for copy in 0..2 {
                    let byte = self.rng.below(layout::ROW_COPY_LEN as u64);
                    file.flip(at + copy * layout::ROW_COPY_LEN as u64 + byte, 1 << self.rng.below(8));
                }
                matches!(FileSsd::open(file, SSD, SHAPE), Err(OpenError::Row { block: b }) if b == block)
            }
            // The file is cut short; everything in a closed file is known to be durable.
            3 if self.closed => {
                let len = self.rng.below(2 * SHAPE.data_at(BLOCKS, 0)).min(file.len().expect("read"));
                let mut kept = vec![0; len as usize];
                file.read_at(&mut kept, 0).expect("read");
                let mut short = MemFile::default();
                short.write_at(&[&kept], 0).expect("write");
                match FileSsd::open(short, SSD, SHAPE) {
                    Err(_) => true,
                    // An empty file is a new drive.
                    Ok(_) if len < layout::SUPER_LEN as u64 => return,
                    Ok(mut d) => {
                        let there: Pages = (0..BLOCKS).map(|b| pages(&mut d, b).0).collect();
                        assert_eq!(there, self.held, "{len} bytes are left");
                        return;
                    }
                }
            }
            _ => return,
        };
        assert!(refused, "a wrong or damaged file was accepted");
        self.refused += 1;
    }
}

fn runs(seed: u64) -> World {
    let mut w = World {
        rng: Rng::stream(seed, 1),
        file: MemFile::default(),
        held: vec![Vec::new(); BLOCKS as usize],
        foul: [false; BLOCKS as usize],
        adopted: false,
        closed: false,
        sequence: 0,
        refused: 0,
        failed_syncs: 0,
    };
    let made = Shared::default();
    drop(open(&made));
    w.file = made.0.borrow().clone();
    for _ in 0..12 {
        w.run();
        w.between();
    }
    w
}

#[test]
fn runs_of_a_drive_find_what_was_synced_and_believe_nothing_else() {
    let of = seeds(0..40);
    let (mut refused, mut failed) = (0, 0);
    for seed in of.clone() {
        println!("seed {seed}");
        let w = runs(seed);
        (refused, failed) = (refused + w.refused, failed + w.failed_syncs);
    }
    assert!(of != (0..40) || refused > 50 && failed > 20, "{refused} refused, {failed} syncs failed");
}
