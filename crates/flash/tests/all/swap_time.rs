//! Swaps of dies on a modelled device: aged drives without contents, and reads that do not wait for moves.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use rackweave_core::device::{Backend, Completion};
use rackweave_core::{BLOCK, Payload, Rng, Span, Time, Timestamp, VssdId};
use rackweave_flash::backend::Discard;
use rackweave_flash::{BlockWrite, FlashDone, FlashOut, Share, Ssd, SsdConfig, Timing};

use crate::rig::{VSSD, addr, small_config};

const VSSDS: [VssdId; 2] = [VSSD, VssdId(2)];

struct Device {
    ssd: Ssd,
    out: FlashOut,
    now: Time,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    under_way: BTreeMap<u64, Completion>,
    commands: u64,
    /// By token.
    reads: BTreeMap<u64, Time>,
    latest: Span,
    swapped: u32,
}

impl Device {
    /// Prefilled, with a swap of two dies begun.
    fn aged(cfg: &SsdConfig) -> Device {
        let mut ssd = Ssd::new(cfg.clone()).expect("valid profile");
        for vssd in VSSDS {
            ssd.alloc_share(vssd, Share::Dies(2)).expect("dies are free");
            let blocks = ssd.space(vssd).exported_slots * 8 / 10;
            ssd.prefill(vssd, (0..blocks).map(|b| (addr(b as u32), Timestamp(b + 1))));
        }
        let mut out = FlashOut::new();
        ssd.boot(Time::ZERO, &mut out);
        ssd.swap_dies(Time::ZERO, &[(0, 3)], &mut out).expect("nothing is under way");
        let (queue, under_way) = (BinaryHeap::new(), BTreeMap::new());
        let (reads, latest) = (BTreeMap::new(), Span::ZERO);
        Device { ssd, out, now: Time::ZERO, queue, under_way, commands: 0, reads, latest, swapped: 0 }
    }
    /// Lets time pass until `until`.
    fn run(&mut self, until: Time) {
        loop {
            for c in self.out.commands.drain(..) {
                self.commands += 1;
                let result = Discard.execute(&c.op).expect("it answers everything");
                self.queue.push(Reverse((c.done_at.max(self.now), self.commands)));
                self.under_way.insert(self.commands, Completion { ssd: c.ssd, tag: c.tag, result: Ok(result) });
            }
            for d in self.out.done.drain(..) {
                match d {
                    FlashDone::Swapped => self.swapped += 1,
                    FlashDone::Read { token, .. } => {
                        let asked = self.reads.remove(&token).expect("asked for");
                        self.latest = self.latest.max(self.now.since(asked));
                    }
                    _ => {}
                }
            }
            let Some(&Reverse((at, n))) = self.queue.peek().filter(|c| c.0.0 <= until) else { break };
            self.queue.pop();
            self.now = at;
            let c = self.under_way.remove(&n).expect("under way");
            self.ssd.handle(self.now, c, &mut self.out);
        }
        self.now = until;
    }
    fn ask(&mut self, vssd: VssdId, token: u64, rng: &mut Rng) {
        let blocks = self.ssd.space(vssd).mapped_slots;
        let block = addr(rng.below(blocks) as u32);
        if rng.chance(0.2) {
            let data = Payload::elided(BLOCK, token);
            let write = BlockWrite { addr: block, version: Timestamp(1 << 20 | token), data };
            let _ = self.ssd.program(self.now, vssd, &[write], token, &mut self.out);
        } else {
            self.reads.insert(token, self.now);
            self.ssd.read(self.now, vssd, block, token, &mut self.out);
        }
        match self.ssd.space(vssd).free_ratio() {
            free if free < 0.3 => self.ssd.gc_start(self.now, vssd, &mut self.out),
            free if free > 0.4 => self.ssd.gc_stop(vssd),
            _ => {}
        }
    }
}

#[test]
fn an_aged_drive_swaps_dies_and_reads_pass_the_moves() {
    let mut cfg = small_config();
    let g = &mut cfg.profile.geometry;
    (g.blocks_per_plane, g.pages_per_block) = (24, 16);
    (cfg.timing, cfg.verify) = (Timing::Real, false);
    let latest = [false, true].map(|suspend| {
        (cfg.erase_suspend, cfg.program_suspend, cfg.host_program_suspend) = (suspend, suspend, suspend);
        let mut device = Device::aged(&cfg);
        let mut rng = Rng::new(3);
        let mut token = 0;
        while device.ssd.swapping() {
            token += 1;
            assert!(token < 60_000, "the swap never ends");
            device.ask(VSSDS[(token % 2) as usize], token, &mut rng);
            device.run(device.now + Span::from_micros(400));
        }
        device.run(device.now + Span::from_millis(100));
        assert_eq!((device.swapped, device.ssd.check()), (1, Ok(())));
        assert_eq!(VSSDS.map(|v| device.ssd.first_block(v) / 24), [3, 2]);
        device.latest
    });
    let erase = cfg.profile.erase;
    assert!(latest[0] > erase && latest[1] < erase, "{latest:?}; an erase takes {erase:?}");
}
