//! A log vSSD beside a page vSSD in one file: successive processes find what was synced.

use bytes::Bytes;
use rackweave_core::device::{Backend, Completion};
use rackweave_core::{BlockAddr, DriveId, Payload, SsdId, Time, Timestamp, VolumeId, VssdId};
use rackweave_flash::manager::api::Block;
use rackweave_flash::manager::{Done, FlashManager, ManagerOut};
use rackweave_flash::{BlockWrite, FlashDone, FlashOut, Geometry, Profile, Share, Ssd, SsdConfig, Timing};

use super::tests::Shared;
use super::*;

const PAGES: VssdId = VssdId(1);
const LOG: VssdId = VssdId(2);
const G: Geometry = Geometry {
    channels: 2,
    dies_per_channel: 2,
    planes_per_die: 1,
    blocks_per_plane: 24,
    pages_per_block: 4,
    page_bytes: 16_384,
};

struct Drive {
    ssd: Ssd,
    dev: FileSsd<Shared>,
    out: FlashOut,
}

impl Drive {
    fn open(f: &Shared) -> Drive {
        let mut p = Profile::builtin("p-ssd").expect("built in");
        p.geometry = G;
        let mut cfg = SsdConfig::new(SsdId(3), p);
        (cfg.timing, cfg.drive) = (Timing::None, DriveId(7));
        let mut ssd = Ssd::new(cfg).expect("valid");
        ssd.alloc_vssd(PAGES, 1).expect("free");
        ssd.alloc_share(LOG, Share::Log { channels: 1 }).expect("free");
        let shape = Shape {
            blocks: G.blocks(),
            pages_per_block: G.pages_per_block,
            page_bytes: G.page_bytes,
            meta_bytes: Ssd::meta_bytes(&G),
        };
        let dev = FileSsd::open(f.clone(), SsdId(3), shape).expect("opens");
        let mut d = Drive { ssd, dev, out: FlashOut::new() };
        d.ssd.boot(Time::ZERO, &mut d.out);
        let recovered = |d: &FlashDone| matches!(d, FlashDone::Recovered { result: Ok(()) });
        assert!(d.settle().iter().any(recovered));
        d
    }
    fn settle(&mut self) -> Vec<FlashDone> {
        let mut done = Vec::new();
        while !self.out.commands.is_empty() || !self.out.done.is_empty() {
            done.append(&mut self.out.done);
            for c in std::mem::take(&mut self.out.commands) {
                let completion = Completion { ssd: c.ssd, tag: c.tag, result: self.dev.execute(&c.op) };
                self.ssd.handle(Time::ZERO, completion, &mut self.out);
            }
        }
        done
    }
    fn log(&mut self, call: impl FnOnce(&mut FlashManager, VssdId, &mut ManagerOut)) -> Vec<Done> {
        self.ssd.with_log(Time::ZERO, LOG, &mut self.out, call).expect("recovered");
        let of_log = |d| if let FlashDone::Log { done, .. } = d { Some(done) } else { None };
        self.settle().into_iter().filter_map(of_log).collect()
    }
}

fn page(n: u8) -> Payload {
    Payload::Bytes(Bytes::from(vec![n; 16_384]))
}

#[test]
fn each_process_finds_the_blocks_of_the_log_and_the_pages() {
    let f = Shared::default();
    let mut blocks: Vec<Block> = Vec::new();
    for life in 0..6u8 {
        let mut d = Drive::open(&f);
        for (n, &block) in (0..).zip(&blocks) {
            let done = d.log(|m, v, out| m.read(Time::ZERO, (v, block), (0, 16_384), 1, out).expect("written"));
            let [Done::Read { result: Ok(found), .. }] = &done[..] else { panic!("life {life}: {done:?}") };
            assert!(*found == page(n), "life {life}, block {n}");
        }
        let done = d.log(|m, v, out| m.alloc_block(Time::ZERO, v, 2, out).expect("a free block"));
        let [Done::BlockAllocated { result: Ok(block), .. }] = &done[..] else { panic!("{done:?}") };
        let block = *block;
        d.log(|m, v, out| m.write(Time::ZERO, (v, block), None, &page(life), 3, out).expect("fits"));
        let write = BlockWrite {
            addr: BlockAddr::new(VolumeId(1), 0),
            version: Timestamp(u64::from(life) + 1),
            data: page(9).slice(0, 8),
        };
        d.ssd.program(Time::ZERO, PAGES, &[write], 4, &mut d.out).expect("room");
        d.settle();
        d.ssd.sync(Time::ZERO, PAGES, 5, &mut d.out);
        d.settle();
        let done = d.log(|m, _, out| m.sync(Time::ZERO, 6, out));
        assert!(matches!(done[..], [Done::Synced { result: Ok(()), .. }]), "{done:?}");
        assert_eq!(d.ssd.version(PAGES, BlockAddr::new(VolumeId(1), 0)), Timestamp(u64::from(life) + 1));
        blocks.push(block);
    }
}
