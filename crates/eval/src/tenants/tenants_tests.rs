use rackweave_core::{Payload, SsdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::manager::api::Block;
use rackweave_flash::{Geometry, Profile};

use super::*;

/// A circular log: writes pages with `depth` in flight, and frees its oldest block when it is full.
struct Log {
    vssd: VssdId,
    arrivals: Arrivals,
    open: Option<Block>,
    old: std::collections::VecDeque<Block>,
    asked: bool,
    under_way: Vec<(u64, Time)>,
    next: u64,
    recorder: Recorder,
}

impl Log {
    fn new(vssd: VssdId, arrivals: Arrivals) -> Log {
        let (old, under_way) = (Default::default(), Vec::new());
        Log { vssd, arrivals, open: None, old, asked: false, under_way, next: 0, recorder: Recorder::new() }
    }
    fn go_on(&mut self, t: &mut Turn) {
        let size = t.manager.block_bytes(self.vssd).expect("live");
        let page = t.manager.geometry().page_bytes;
        loop {
            if let Some(b) = self.open
                && t.manager.block(b).expect("allocated").written == size
            {
                self.old.push_back(b);
                self.open = None;
            }
            let Some(block) = self.open else { return self.ask(t) };
            let Some(arrived) = self.arrivals.take(t.now, self.under_way.len() as u32) else { return };
            self.next += 1;
            let token = t.token_base() + self.next;
            let at = (self.vssd, block);
            t.manager.write(t.now, at, None, &Payload::elided(page, self.next), token, t.out).expect("room");
            self.under_way.push((token, arrived));
        }
    }
    fn ask(&mut self, t: &mut Turn) {
        let (all, allocated) = t.manager.blocks(self.vssd).expect("live");
        if allocated + 1 >= all && self.old.len() > 1 {
            let oldest = self.old[0];
            if t.manager.free_block(t.now, self.vssd, oldest, t.out).is_ok() {
                self.old.pop_front();
            }
        }
        if !std::mem::replace(&mut self.asked, true) {
            let token = t.token_base();
            t.manager.alloc_block(t.now, self.vssd, token, t.out).expect("one is free");
        }
    }
}

impl Tenant for Log {
    fn prepare(&mut self, turn: &mut Turn) {
        self.ask(turn);
    }
    fn prepared(&self) -> bool {
        self.open.is_some()
    }
    fn begin(&mut self, turn: &mut Turn) {
        self.arrivals.begin(turn.now);
        self.go_on(turn);
    }
    fn done(&mut self, turn: &mut Turn, done: Done) {
        match done {
            Done::BlockAllocated { result, .. } => {
                self.asked = false;
                self.open = Some(result.expect("sound"));
            }
            Done::Written { token, result } => {
                result.expect("sound");
                let at = self.under_way.iter().position(|(t, _)| *t == token).expect("it was asked");
                let (_, arrived) = self.under_way.remove(at);
                self.recorder.note("write", arrived, turn.now, u64::from(turn.manager.geometry().page_bytes));
            }
            other => panic!("unexpected answer: {other:?}"),
        }
        self.go_on(turn);
    }
    fn wake(&self) -> Option<Time> {
        self.open?;
        self.arrivals.wake(self.under_way.len() as u32)
    }
    fn tick(&mut self, turn: &mut Turn) {
        self.go_on(turn);
    }
    fn recorder(&mut self) -> &mut Recorder {
        &mut self.recorder
    }
}

fn bench() -> Bench {
    let mut p = Profile::builtin("p-ssd").expect("built in");
    p.geometry = Geometry {
        channels: 2,
        dies_per_channel: 2,
        planes_per_die: 2,
        blocks_per_plane: 64,
        pages_per_block: 16,
        page_bytes: 16_384,
    };
    let mut cfg = ManagerConfig::new(SsdId(0), p);
    // Throughput is counted in pages, so dies have no multi-plane operations.
    cfg.multi_plane = false;
    cfg.levels = unit_levels(&cfg);
    Bench::new(cfg.clone(), Memory::new(cfg.profile.geometry)).expect("a drive")
}

fn two(isolation: Isolation, units: u32, depths: [u32; 2]) -> Vec<TenantOutcome> {
    let mut b = bench();
    for depth in depths {
        let vssd = b.alloc(isolation, units).expect("free");
        b.add(Box::new(Log::new(vssd, Arrivals::closed(depth))));
    }
    b.prepare().expect("laid out");
    b.begin();
    b.run(Span::from_millis(200));
    b.measure(Span::from_secs(2))
}

/// A page is sent to the die in 49 µs and programmed in 750 µs; a block's erase takes 3.8 ms for 16 of them.
#[test]
fn a_channel_does_what_its_dies_can() {
    let outcomes = two(Isolation::Channel, 1, [8, 8]);
    for o in &outcomes {
        let most = 2.0 / 750e-6;
        assert!(o.ops_per_s() > 0.7 * most && o.ops_per_s() < most, "{} pages a second", o.ops_per_s());
        assert!(o.latency("write").p50_us > 4.0 * 750.0, "four pages are ahead of each at its die");
        assert_eq!(o.bytes_per_s(), o.ops_per_s() * 16_384.0);
    }
    // One page in flight: a transfer and a program each.
    let calm = &two(Isolation::Channel, 1, [1, 8])[0];
    assert!((calm.latency("write").p50_us - 799.2).abs() < 2.0, "{:?}", calm.latency("write"));
}

#[test]
fn weights_share_a_die_and_neither_rests() {
    // Two tenants of equal weight on the same dies get half each, whatever their queue depths.
    let o = two(Isolation::Software, 4, [4, 32]);
    let (a, b) = (o[0].ops_per_s(), o[1].ops_per_s());
    assert!(a > 0.45 * (a + b), "{a} and {b} pages a second");
    // One tenant is busy, the other almost idle: the busy one gets nearly everything.
    let o = two(Isolation::Software, 4, [0, 32]);
    assert!(o[1].ops_per_s() > 0.55 * 4.0 / 750e-6, "{}", o[1].ops_per_s());
}

#[test]
fn an_open_loop_counts_from_arrival() {
    let mut b = bench();
    let vssd = b.alloc(Isolation::Channel, 1).expect("free");
    // Ten arrivals at once, every 100 ms, with one request in flight at a time.
    let times = (0..).flat_map(|i| std::iter::repeat_n(Span::from_millis(100 * i), 10));
    b.add(Box::new(Log::new(vssd, Arrivals::open(times, 1))));
    b.prepare().expect("laid out");
    b.begin();
    b.run(Span::from_millis(50));
    let o = &b.measure(Span::from_secs(1))[0];
    assert_eq!(o.ops_per_s(), 100.0);
    let l = o.latency("write");
    assert!(l.max_us > 9.0 * 799.0 && l.p50_us > 4.0 * 799.0 && l.p50_us < 7.0 * 799.0, "{l:?}");
}

#[test]
fn the_same_run_gives_the_same_figures() {
    let without_cpu = |mut o: Vec<TenantOutcome>| {
        o.iter_mut().for_each(|o| o.cpu = Span::ZERO);
        o
    };
    let run = || without_cpu(two(Isolation::Software, 4, [4, 32]));
    assert_eq!(run(), run());
}
