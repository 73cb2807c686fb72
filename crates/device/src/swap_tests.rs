//! Dies of a drive in a file are swapped; the process ends in the middle, and the next one finds every block.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::device::{Backend, Completion};
use rackweave_core::{BlockAddr, DriveId, Payload, Rng, SsdId, Time, Timestamp, VolumeId, VssdId};
use rackweave_flash::{BlockWrite, FlashDone, FlashOut, Geometry, Profile, Share, Ssd, SsdConfig, Timing};

use super::tests::Shared;
use super::*;

const VSSDS: [VssdId; 2] = [VssdId(1), VssdId(2)];
const G: Geometry = Geometry {
    channels: 1,
    dies_per_channel: 2,
    planes_per_die: 1,
    blocks_per_plane: 24,
    pages_per_block: 4,
    page_bytes: 16_384,
};

fn shape() -> Shape {
    Shape {
        blocks: G.blocks(),
        pages_per_block: G.pages_per_block,
        page_bytes: G.page_bytes,
        meta_bytes: Ssd::meta_bytes_by_die(&G),
    }
}
fn contents(version: u64) -> Payload {
    Payload::Bytes(Bytes::from(version.to_le_bytes().repeat(512)))
}

struct Drive {
    ssd: Ssd,
    dev: FileSsd<Shared>,
    out: FlashOut,
    done: Vec<FlashDone>,
    under_way: Vec<Completion>,
    rng: Rng,
}

impl Drive {
    fn open(f: &Shared, seed: u64) -> Drive {
        let mut p = Profile::builtin("p-ssd").expect("built in");
        p.geometry = G;
        let mut cfg = SsdConfig::new(SsdId(3), p);
        (cfg.timing, cfg.drive) = (Timing::None, DriveId(7));
        let mut ssd = Ssd::new(cfg).expect("valid");
        VSSDS.iter().for_each(|v| ssd.alloc_share(*v, Share::Dies(1)).expect("free"));
        let dev = FileSsd::open(f.clone(), SsdId(3), shape()).expect("opens");
        let (out, done, under_way) = (FlashOut::new(), Vec::new(), Vec::new());
        let mut d = Drive { ssd, dev, out, done, under_way, rng: Rng::new(seed) };
        d.ssd.boot(Time::ZERO, &mut d.out);
        d.settle();
        assert!(d.done.drain(..).any(|d| matches!(d, FlashDone::Recovered { result: Ok(()) })));
        d
    }
    fn take(&mut self) {
        for c in self.out.commands.drain(..) {
            let result = self.dev.execute(&c.op);
            self.under_way.push(Completion { ssd: c.ssd, tag: c.tag, result });
        }
        self.done.append(&mut self.out.done);
    }
    fn step(&mut self) -> bool {
        self.take();
        if self.under_way.is_empty() {
            return false;
        }
        let at = self.rng.below(self.under_way.len() as u64) as usize;
        let c = self.under_way.swap_remove(at);
        self.ssd.handle(Time::ZERO, c, &mut self.out);
        self.take();
        true
    }
    fn settle(&mut self) {
        while self.step() {}
    }
    fn write(&mut self, vssd: VssdId, block: u32, version: u64) -> bool {
        let addr = BlockAddr::new(VolumeId(1), block);
        let write = BlockWrite { addr, version: Timestamp(version), data: contents(version) };
        self.ssd.program(Time::ZERO, vssd, &[write], version, &mut self.out).is_ok()
    }
    fn read(&mut self, vssd: VssdId, block: u32) -> Payload {
        self.ssd.read(Time::ZERO, vssd, BlockAddr::new(VolumeId(1), block), 0, &mut self.out);
        self.settle();
        let read = |d| if let FlashDone::Read { result, .. } = d { Some(result.expect("whole")) } else { None };
        self.done.drain(..).find_map(read).expect("answered")
    }
}

#[test]
fn a_swap_of_dies_in_a_file_survives_the_ends_of_its_processes() {
    let f = Shared::default();
    let mut model: BTreeMap<(VssdId, u32), u64> = BTreeMap::new();
    let (mut version, mut resumed, mut swapped) = (0, 0, 0);
    for life in 0..30 {
        let mut d = Drive::open(&f, life);
        for (&(vssd, block), &version) in &model {
            let found = d.read(vssd, block);
            let first = found.bytes().and_then(|b| b.first_chunk().map(|b| u64::from_le_bytes(*b)));
            assert_eq!(first, Some(version), "life {life}, block {block} of {vssd}");
            assert!(found == contents(version), "life {life}, block {block} of {vssd}");
        }
        if d.ssd.swapping() {
            resumed += 1;
            d.ssd.resume_swap(Time::ZERO, &mut d.out);
        } else {
            d.ssd.swap_dies(Time::ZERO, &[(0, 1)], &mut d.out).expect("nothing is under way");
        }
        for _ in 0..d.rng.below(500) {
            version += 1;
            let (vssd, block) = (VSSDS[d.rng.below(2) as usize], d.rng.below(60) as u32);
            if d.write(vssd, block, version) {
                model.insert((vssd, block), version);
            } else {
                d.ssd.gc_start(Time::ZERO, vssd, &mut d.out);
            }
            (0..4).for_each(|_| {
                d.step();
            });
        }
        // The writes are durable; of the swap anything may be under way.
        VSSDS.iter().for_each(|v| d.ssd.sync(Time::ZERO, *v, u64::MAX, &mut d.out));
        let synced = |d: &Drive| d.done.iter().filter(|d| matches!(d, FlashDone::Synced { .. })).count();
        while synced(&d) < 2 {
            assert!(d.step(), "a sync is not answered");
        }
        swapped += d.done.iter().filter(|d| matches!(d, FlashDone::Swapped)).count();
        assert_eq!(d.ssd.check(), Ok(()));
    }
    assert!(resumed > 3 && swapped > 3 && model.len() == 120, "{resumed} resumed, {swapped} ended");
}
