//! Flash operations a CPU second, contents elided, collection running; memory a written block; start of an empty drive.
//!
//! `cargo run --release -p rackweave-flash --example flash_ops`

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rackweave_core::device::{Backend, Completion, DeviceOp};
use rackweave_core::{BLOCK, BlockAddr, Payload, Rng, SsdId, Time, Timestamp, VolumeId, VssdId};
use rackweave_flash::backend::Discard;
use rackweave_flash::{BlockWrite, FlashDone, FlashOut, Profile, Ssd, SsdConfig};

const VSSD: VssdId = VssdId(1);
const GIB: u64 = 1 << 30;
/// Programs and reads kept in flight.
const DEPTH: u64 = 64;

/// CPU time of this process, s.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

struct Loop {
    ssd: Ssd,
    heap: BinaryHeap<Reverse<(Time, u64, u64)>>,
    /// Results by their number; the heap holds no payloads.
    results: Vec<Option<Completion>>,
    free: Vec<usize>,
    out: FlashOut,
    now: Time,
    order: u64,
    commands: u64,
}

impl Loop {
    fn drain(&mut self) {
        for c in self.out.commands.drain(..) {
            let result = Discard.execute(&c.op);
            self.commands += u64::from(!matches!(c.op, DeviceOp::Sync | DeviceOp::WriteMeta { .. }));
            let done = Completion { ssd: c.ssd, tag: c.tag, result };
            let at = self.free.pop().unwrap_or_else(|| {
                self.results.push(None);
                self.results.len() - 1
            });
            self.results[at] = Some(done);
            self.heap.push(Reverse((c.done_at, self.order, at as u64)));
            self.order += 1;
        }
    }
    fn step(&mut self) -> bool {
        let Some(Reverse((t, _, at))) = self.heap.pop() else { return false };
        self.now = t;
        let Some(c) = self.results[at as usize].take() else { return false };
        self.free.push(at as usize);
        self.ssd.handle(t, c, &mut self.out);
        true
    }
}

fn ssd(bytes: u64) -> Result<Ssd, Box<dyn std::error::Error>> {
    let profile = Profile::builtin("p-ssd").ok_or("no p-ssd")?.scaled_to(bytes)?;
    let channels = profile.geometry.channels;
    let mut cfg = SsdConfig::new(SsdId(0), profile);
    cfg.verify = false;
    let mut ssd = Ssd::new(cfg)?;
    ssd.alloc_vssd(VSSD, channels)?;
    Ok(ssd)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ops: u64 = std::env::args().nth(1).map_or(Ok(10_000_000), |a| a.parse())?;
    let begin = cpu_seconds();
    let four: Vec<Ssd> = (0..4).map(|_| ssd(64 * GIB)).collect::<Result<_, _>>()?;
    let made = cpu_seconds() - begin;
    println!(
        "4 drives of 64 GiB: {made:.2} CPU s, {} MB of state",
        four.iter().map(Ssd::state_bytes).sum::<u64>() >> 20
    );
    drop(four);

    let mut ssd = ssd(16 * GIB)?;
    let live = ssd.space(VSSD).exported_slots * 85 / 100;
    let mut rng = Rng::new(7);
    let addr = |b: u64| BlockAddr::new(VolumeId(1), b as u32);
    let begin = cpu_seconds();
    let random: Vec<u64> = (0..live).map(|_| rng.below(live)).collect();
    let aged = (0..live).chain(random);
    ssd.prefill(VSSD, aged.enumerate().map(|(i, b)| (addr(b), Timestamp(i as u64 + 1))));
    let took = cpu_seconds() - begin;
    println!("prefill: {:.1} M blocks/CPU s", live as f64 * 2.0 / took / 1e6);
    println!("state: {:.1} B a written 4 KiB", ssd.state_bytes() as f64 / live as f64);

    let (heap, results, free) = (BinaryHeap::new(), Vec::new(), Vec::new());
    let mut l = Loop { ssd, heap, results, free, out: FlashOut::new(), now: Time::ZERO, order: 0, commands: 0 };
    let (mut writes, mut reads, mut version) = (0, 0, live * 4);
    let mut stuck = 0u64;
    let begin = cpu_seconds();
    let mut batch = Vec::with_capacity(4);
    while l.commands < ops {
        while writes < DEPTH {
            batch.clear();
            for _ in 0..4 {
                version += 1;
                let data = Payload::elided(BLOCK, version);
                batch.push(BlockWrite { addr: addr(rng.below(live)), version: Timestamp(version), data });
            }
            if l.ssd.program(l.now, VSSD, &batch, 1, &mut l.out).is_err() {
                stuck += 1;
                break;
            }
            writes += 1;
        }
        while reads < DEPTH {
            l.ssd.read(l.now, VSSD, addr(rng.below(live)), 2, &mut l.out);
            reads += 1;
        }
        let space = l.ssd.space(VSSD);
        if space.free_ratio() < 0.35 && !l.ssd.gc_running(VSSD) {
            l.ssd.gc_start(l.now, VSSD, &mut l.out);
        } else if space.free_ratio() > 0.45 {
            l.ssd.gc_stop(VSSD);
        }
        l.drain();
        if !l.step() {
            return Err("nothing in flight".into());
        }
        for d in l.out.done.drain(..) {
            match d {
                FlashDone::Programmed { .. } => writes -= 1,
                FlashDone::Read { .. } => reads -= 1,
                _ => {}
            }
        }
        l.out.traces.clear();
        l.drain();
    }
    let took = cpu_seconds() - begin;
    let s = l.ssd.stats(VSSD);
    println!(
        "{} operations, {:.2} M a CPU second, {:.1} virtual s",
        l.commands,
        l.commands as f64 / took / 1e6,
        l.now.0 as f64 / 1e9
    );
    println!(
        "WAF {:.2}, erases {}, victims {}, checkpoints {}, host waits {stuck}",
        s.waf(),
        s.erases,
        s.gc_victims,
        s.checkpoints
    );
    l.ssd.check()?;
    Ok(())
}
