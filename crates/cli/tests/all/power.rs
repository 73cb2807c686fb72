//! Power cuts: a recording layer lies under a whole rack, and every prefix of the run's writes is replayed with
//! unsynced ones kept, lost or torn. A rack started on the result holds everything that was flushed, and every block
//! has contents that were written (protocol rule 11).

use bytes::Bytes;
use rackweave_core::admin;
use rackweave_core::volume;
use rackweave_core::{BLOCK, Payload, Rng};
use rackweave_device::MemFile;
use rackweave_device::layers::{Journal, Recorder, Replay};

use crate::world::{Metadata, SERVERS, World};

const BLOCKS: u64 = 48;

/// One write (or trim) of a block, in order; `begun` and `done` are positions in the journal.
struct Written {
    contents: Payload,
    begun: usize,
    done: usize,
}

/// Operations on each block, and the last write that each flush covers.
struct History {
    blocks: Vec<Vec<Written>>,
    /// (position of the answer, number of each block's writes that the flush covers).
    floors: Vec<(usize, Vec<usize>)>,
}

impl History {
    fn done_count(&self, block: usize, at: usize) -> usize {
        self.blocks[block].iter().filter(|w| w.done <= at).count()
    }
}

fn contents(block: u64, n: usize) -> Payload {
    Payload::Bytes(Bytes::from(crate::nbd::pattern(block, n as u64)))
}

/// A random run on recorded files, one request at a time.
fn run(seed: u64, journal: &Journal, files: Vec<MemFile>, requests: usize) -> (History, Metadata) {
    let metadata = Metadata { journal: journal.clone(), ..Metadata::default() };
    let history = metadata.history.clone();
    let recorded = files.into_iter().enumerate().map(|(i, f)| Recorder::new(f, i, journal.clone())).collect();
    let mut w = World::new(recorded, metadata, seed + 1);
    w.ask(admin::Op::create("v", BLOCKS * u64::from(BLOCK)));
    let volume = w.attach();
    let mut rng = Rng::new(seed);
    let mut h = History { blocks: (0..BLOCKS).map(|_| Vec::new()).collect(), floors: Vec::new() };
    for _ in 0..requests {
        let block = rng.below(BLOCKS);
        let offset = block * u64::from(BLOCK);
        let begun = journal.len();
        let n = h.blocks[block as usize].len() + 1;
        let (op, value, fua) = match rng.below(10) {
            0 => (volume::Op::Flush { volume }, None, false),
            1 => {
                let fua = rng.chance(0.3);
                let op = volume::Op::Trim { volume, offset, len: u64::from(BLOCK), fua };
                (op, Some(Payload::zero(BLOCK)), fua)
            }
            k => {
                let (data, fua) = (contents(block, n), k == 2);
                (volume::Op::Write { volume, offset, data: data.clone(), fua }, Some(data), fua)
            }
        };
        let flush = value.is_none();
        w.ask(op);
        let done = journal.len();
        if let Some(contents) = value {
            h.blocks[block as usize].push(Written { contents, begun, done });
        }
        if flush || fua {
            let mut floor = h.floors.last().map_or(vec![0; BLOCKS as usize], |f| f.1.clone());
            for (b, least) in floor.iter_mut().enumerate() {
                if flush || b == block as usize {
                    *least = h.done_count(b, done);
                }
            }
            h.floors.push((done, floor));
        }
    }
    let last = history.borrow().last().map(|h| h.1.clone()).unwrap_or_default();
    let metadata = Metadata { now: last, history, journal: journal.clone(), ..Metadata::default() };
    (h, metadata)
}

/// Brings a rack up after a power cut at `at` and checks every block.
fn check(files: Vec<MemFile>, metadata: &Metadata, h: &History, at: usize, seed: u64) {
    let held = metadata.history.borrow();
    let Some((_, now)) = held.iter().rev().find(|(p, _)| *p <= at) else { return };
    let floor = h.floors.iter().rev().find(|f| f.0 <= at).map(|f| &f.1);
    if h.blocks.iter().flatten().all(|w| w.begun > at) {
        return;
    }
    let metadata = Metadata { now: now.clone(), ..Metadata::default() };
    let mut w = World::new(files, metadata, (seed + 1) << 16 | at as u64);
    let volume = w.attach();
    let whole = w.ask(volume::Op::Read { volume, offset: 0, len: (BLOCKS * u64::from(BLOCK)) as u32 });
    let volume::Reply::Data(data) = whole else { panic!("{whole:?}") };
    for b in 0..BLOCKS as usize {
        let got = data.block(b as u32);
        let writes = &h.blocks[b];
        let least = floor.map_or(0, |f| f[b]);
        let most = writes.iter().filter(|w| w.begun <= at).count();
        let allowed = |n: usize| if n == 0 { Payload::zero(BLOCK) == got } else { writes[n - 1].contents == got };
        assert!(
            (least..=most).any(allowed),
            "seed {seed}, cut after step {at}: block {b} is none of its writes {least} to {most}"
        );
    }
}

fn every_prefix(seed: u64, requests: usize) -> usize {
    let files = vec![MemFile::default(); SERVERS as usize];
    let journal = Journal::default();
    let (h, metadata) = run(seed, &journal, files.clone(), requests);
    let mut replay = Replay::new(&journal, files);
    let mut rng = Rng::stream(seed, 1);
    let mut cuts = 0;
    while replay.advance().is_some() {
        let at = replay.position();
        check(replay.cut(&mut rng), &metadata, &h, at, seed);
        cuts += 1;
    }
    cuts
}

#[test]
fn every_prefix_of_the_writes_keeps_what_was_flushed() {
    for seed in 0..3 {
        let cuts = every_prefix(seed, 120);
        assert!(cuts > 300, "{cuts} cuts");
    }
}
