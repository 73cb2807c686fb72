//! Cost of the choice by load in the kernel against Algorithm 1: time of the programs for a read that both redirect, of
//! vSSDs whose rows the processor's caches hold, and of any: `cargo run --release -p rackweave-dataplane --example
//! hop_speed`. Needs root.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a benchmark: a data plane of the kernel")]

use rackweave_core::msg::{
    Block, Body, GcField, GcOp, Header, IoRequest, Op, Packet, ReadLoad, SectorRange, Table, VssdRow,
};
use rackweave_core::{Epoch, Incarnation, NodeId, Rng, SetId, Span, Time, VolumeId, VssdId};
use rackweave_dataplane::{Hook, KernelConfig, KernelSwitch, Port, PortPlace, frame};
use rackweave_switch::control::{Announcement, Change, DataPlane};
use rackweave_switch::{ROWS_MAX, Redirect};

const SWITCH: NodeId = NodeId(1);
const CLIENT: NodeId = NodeId(100);
const SERVERS: u32 = 4;
/// Replicas of a set: the first one collects.
const REPLICAS: u32 = 3;
/// As a busy rack has: their rows fit a core's second-level cache.
const BUSY: u32 = 4_096;
const ROUNDS: usize = 21;
const READS: usize = 2_000;
const BAR: f64 = 1.2;
/// Of the UDP port that a frame is for.
const OTHER_PORT_AT: usize = 36;
/// Reads of a vSSD between two reports of its server, which reports every fourth answer.
const READS_A_REPORT: u64 = 4;

fn server(vssd: u32) -> NodeId {
    NodeId(2 + vssd % SERVERS)
}

fn framed(op: Op, src: NodeId, vssd: u32, request: u64, body: Body) -> Vec<u8> {
    let header = Header {
        set: SetId(1),
        epoch: Epoch(1),
        incarnation: Incarnation(1),
        request,
        ..Header::addressed(op, VssdId(vssd))
    };
    let mut bytes = Vec::new();
    rackweave_wire::encode(&Packet { src, dst: SWITCH, header, body }, &mut bytes).expect("a small packet");
    frame::around(src, SWITCH, &bytes)
}

fn read(vssd: u32, request: u64) -> Vec<u8> {
    let range = SectorRange { volume: VolumeId(1), first: 0, count: 8 };
    framed(Op::Read, CLIENT, vssd, request, Body::Block(Block::Io(IoRequest::read(range))))
}

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

/// Full tables of a data plane: sets of three, of each of which the first replica collects.
struct Plane {
    switch: KernelSwitch,
    rng: Rng,
    answered: u64,
}

impl Plane {
    fn new(hook: Hook, redirect: Redirect) -> Fallible<Plane> {
        let bits_expire = Span::from_secs(3600);
        let mut switch = KernelSwitch::load(KernelConfig { hook, redirect, bits_expire, ..KernelConfig::new(SWITCH) })?;
        for node in (0..SERVERS).map(|s| NodeId(2 + s)) {
            switch.set_port(node, Port { ifindex: 1, mac: frame::mac(node), place: PortPlace::Peer })?;
        }
        for v in 1..=ROWS_MAX / REPLICAS * REPLICAS {
            let first = (v - 1) / REPLICAS * REPLICAS + 1;
            let others = (first..first + REPLICAS).filter(|&p| p != v).map(|p| (VssdId(p), server(p)));
            let row = VssdRow { server: server(v), readable: true, peers: others.collect() };
            let (vssd, incarnation, epoch) = (VssdId(v), Incarnation(1), Epoch(1));
            switch.change(Time::ZERO, &Change::Create(Announcement { vssd, incarnation, epoch, request: 0, row }))?;
            let field = if v == first { GcField::Regular } else { GcField::Idle };
            let state = Body::Table(Table::Gc(GcOp { field, sequence: 1 }));
            switch.test_run(&framed(Op::GcOp, server(v), v, 0, state), 1)?;
        }
        Ok(Plane { switch, rng: Rng::new(1), answered: 0 })
    }

    /// ns of the program for a read of a collecting vSSD among the first `among` vSSDs: the median of `READS`.
    fn read_ns(&mut self, among: u32) -> Fallible<f64> {
        let before = self.switch.counters()?;
        let mut times = Vec::with_capacity(READS);
        for i in 0..READS as u64 {
            let vssd = 1 + REPLICAS * self.rng.below(u64::from(among / REPLICAS)) as u32;
            let (.., time) = self.switch.test_run(&read(vssd, i), 1)?;
            times.push(time.as_nanos() as f64);
        }
        let after = self.switch.counters()?;
        let (reads, left) = (after.reads - before.reads, after.redirects - before.redirects);
        // By load a set whose idle replicas have eight pending reads each keeps one.
        assert!(reads == READS as u64 && left * 100 >= reads * 95, "{left} of {reads} reads were redirected");
        Ok(median(times).0)
    }

    /// ns of a run that looks at the frame's addresses and port, and leaves it: what a run costs by itself.
    fn run_ns(&mut self) -> Fallible<f64> {
        let mut other = read(1, 0);
        other[OTHER_PORT_AT] ^= 1;
        let times = (0..READS).map(|_| Ok(self.switch.test_run(&other, 1)?.2.as_nanos() as f64));
        Ok(median(times.collect::<Fallible<_>>()?).0)
    }

    /// ns of the program for a report of load.
    fn report_ns(&mut self, among: u32) -> Fallible<f64> {
        let mut times = Vec::with_capacity(READS);
        for _ in 0..READS {
            self.answered += READS_A_REPORT;
            let vssd = 1 + self.rng.below(u64::from(among)) as u32;
            let load = Body::Table(Table::Load(ReadLoad {
                answered: self.answered,
                waiting: 0,
                erasing: false,
                collecting: 0,
            }));
            let (.., time) = self.switch.test_run(&framed(Op::Load, server(vssd), vssd, 0, load), 1)?;
            times.push(time.as_nanos() as f64);
        }
        Ok(median(times).0)
    }
}

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

fn compare(hook: Hook, name: &str) -> Fallible<()> {
    let (mut by_gc, mut by_load) = (Plane::new(hook, Redirect::Gc)?, Plane::new(hook, Redirect::Load)?);
    for (among, which, bar) in
        [(BUSY, "busy vSSDs", Some(BAR)), (ROWS_MAX / REPLICAS * REPLICAS, "vSSDs, all rows", None)]
    {
        let (mut a, mut b, mut ratios, mut nets, mut reports) = (vec![], vec![], vec![], vec![], vec![]);
        for _ in 0..ROUNDS {
            let (x, y, run) = (by_gc.read_ns(among)?, by_load.read_ns(among)?, by_load.run_ns()?);
            a.push(x);
            b.push(y);
            ratios.push(y / x);
            nets.push((y - run) / (x - run));
            reports.push(by_load.report_ns(among)?);
        }
        let ((gc, ..), (load, ..), (ratio, low, high)) = (median(a), median(b), median(ratios));
        let ((net, ..), (report, ..)) = (median(nets), median(reports));
        let verdict = match bar {
            Some(bar) if ratio > bar => format!("; bar {bar}×  MISSED"),
            Some(bar) => format!("; bar {bar}×"),
            None => String::new(),
        };
        println!(
            "{name}, {among} {which}: a redirected read {gc:.0} ns by Algorithm 1, {load:.0} ns by load: {ratio:.2}× \
             ({low:.2}–{high:.2}{verdict}), {net:.2}× without the run's own cost; a report of load {report:.0} ns"
        );
    }
    Ok(())
}

fn main() -> Fallible<()> {
    if let Some(why) = KernelSwitch::unavailable() {
        println!("SKIP hop_speed: {why}");
        return Ok(());
    }
    compare(Hook::Tc, "tc-BPF")?;
    compare(Hook::Xdp, "XDP")?;
    println!("    ({ROUNDS} alternating rounds of {READS} reads; medians and ranges)");
    Ok(())
}
