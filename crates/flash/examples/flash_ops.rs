//! Flash operations a CPU second, contents elided, collection running; memory a written block; start of an empty drive.
//!
//! *Device operations* are what the NAND does: page reads (the host's, of one slot each, and the collector's), page
//! programs (the host's and the collector's), block erases. *Host operations* are the 4 KiB blocks that the user of the
//! drive reads and writes; a page program takes four of them, and the collector's work counts nowhere.
//!
//! `cargo run --release -p rackweave-flash --example flash_ops`

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rackweave_core::device::{Backend, Completion, DeviceOp};
use rackweave_core::{BLOCK, BlockAddr, Payload, Rng, SsdId, Time, Timestamp, VolumeId, VssdId};
use rackweave_flash::backend::Discard;
use rackweave_flash::{BlockWrite, FlashDone, FlashOut, Profile, Ssd, SsdConfig};

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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

fn addr(block: u64) -> BlockAddr {
    BlockAddr::new(VolumeId(1), block as u32)
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
    rng: Rng,
    /// Blocks written and read at random, and the last version given to one.
    live: u64,
    version: u64,
    batch: Vec<BlockWrite>,
    /// Programs and reads in flight.
    writes: u64,
    reads: u64,
    /// Pages were programmed or a block was freed since the free ratio was looked at.
    changed: bool,
    /// Times the drive had no block for a program.
    waits: u64,
    /// Device operations: page reads, page programs, erases.
    device: [u64; 3],
    /// Host operations: blocks read, blocks written.
    host: [u64; 2],
}

impl Loop {
    fn new(ssd: Ssd, live: u64, rng: Rng) -> Loop {
        Loop {
            ssd,
            heap: BinaryHeap::new(),
            results: Vec::new(),
            free: Vec::new(),
            out: FlashOut::new(),
            now: Time::ZERO,
            order: 0,
            rng,
            live,
            version: live * 4,
            batch: Vec::with_capacity(4),
            writes: 0,
            reads: 0,
            changed: true,
            waits: 0,
            device: [0; 3],
            host: [0; 2],
        }
    }

    /// Until the drive has done this many device operations.
    #[inline(never)]
    fn run(&mut self, operations: u64) -> Result<(), &'static str> {
        while self.device.iter().sum::<u64>() < operations {
            self.ask();
            self.drain();
            if !self.step() {
                return Err("nothing in flight");
            }
            for d in self.out.done.drain(..) {
                match d {
                    FlashDone::Programmed { .. } => {
                        self.writes -= 1;
                        self.host[1] += 4;
                    }
                    FlashDone::Read { .. } => {
                        self.reads -= 1;
                        self.host[0] += 1;
                    }
                    FlashDone::BlockFreed { .. } => self.changed = true,
                    _ => {}
                }
            }
            self.out.traces.clear();
            self.drain();
        }
        Ok(())
    }

    /// Keeps programs and reads in flight, and the collector on between two thresholds.
    fn ask(&mut self) {
        while self.writes < DEPTH {
            self.batch.clear();
            for _ in 0..4 {
                self.version += 1;
                let data = Payload::elided(BLOCK, self.version);
                let addr = addr(self.rng.below(self.live));
                self.batch.push(BlockWrite { addr, version: Timestamp(self.version), data });
            }
            if self.ssd.program(self.now, VSSD, &self.batch, 1, &mut self.out).is_err() {
                self.waits += 1;
                break;
            }
            self.writes += 1;
            self.changed = true;
        }
        while self.reads < DEPTH {
            let addr = addr(self.rng.below(self.live));
            self.ssd.read(self.now, VSSD, addr, 2, &mut self.out);
            self.reads += 1;
        }
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let space = self.ssd.space(VSSD);
        if space.free_ratio() < 0.35 && !self.ssd.gc_running(VSSD) {
            self.ssd.gc_start(self.now, VSSD, &mut self.out);
        } else if space.free_ratio() > 0.45 {
            self.ssd.gc_stop(VSSD);
        }
    }

    fn drain(&mut self) {
        for c in self.out.commands.drain(..) {
            let result = Discard.execute(&c.op);
            match c.op {
                DeviceOp::ReadSlot { .. } | DeviceOp::ReadSlots { .. } | DeviceOp::ReadPage { .. } => {
                    self.device[0] += 1
                }
                DeviceOp::Program { .. } => self.device[1] += 1,
                DeviceOp::Erase { .. } => self.device[2] += 1,
                _ => {}
            }
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
    let begin = cpu_seconds();
    let random: Vec<u64> = (0..live).map(|_| rng.below(live)).collect();
    let aged = (0..live).chain(random);
    ssd.prefill(VSSD, aged.enumerate().map(|(i, b)| (addr(b), Timestamp(i as u64 + 1))));
    let took = cpu_seconds() - begin;
    println!("prefill: {:.1} M blocks/CPU s", live as f64 * 2.0 / took / 1e6);
    println!("state: {:.1} B a written 4 KiB", ssd.state_bytes() as f64 / live as f64);

    let mut l = Loop::new(ssd, live, rng);
    let begin = cpu_seconds();
    l.run(ops)?;
    let took = cpu_seconds() - begin;
    let s = l.ssd.stats(VSSD);
    let per_second = |n: u64| n as f64 / took / 1e6;
    let ([page_reads, programs, erases], [read, written]) = (l.device, l.host);
    println!(
        "device operations: {:.2} M a CPU second ({page_reads} page reads, {programs} page programs, {erases} erases)",
        per_second(page_reads + programs + erases)
    );
    println!(
        "host operations: {:.2} M a CPU second ({read} blocks read, {written} written) in {:.1} virtual s",
        per_second(read + written),
        l.now.0 as f64 / 1e9
    );
    println!(
        "WAF {:.2}, erases {}, victims {}, checkpoints {}, host waits {}",
        s.waf(),
        s.erases,
        s.gc_victims,
        s.checkpoints,
        l.waits
    );
    l.ssd.check()?;
    Ok(())
}
