//! What a packet costs the pipeline: `cargo run --release -p rackweave-switch --example pipeline_speed`.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use rackweave_core::msg::{Block, Body, GcField, GcOp, Header, IoRequest, Op, Packet, SectorRange, Table, VssdRow};
use rackweave_core::{Effects, Epoch, Event, Incarnation, Layout, Node, NodeId, Rng, Span, Time, VolumeId, VssdId};
use rackweave_switch::{Pipeline, Switch, SwitchConfig};

const READS: u32 = 20_000_000;
const GC_OPS: u32 = 2_000_000;
const PARTS: u32 = 40;
/// Ids drawn in advance, so that drawing is not measured.
const DRAWN: usize = 1 << 16;

fn header(op: Op, vssd: VssdId) -> Header {
    Header { epoch: Epoch(1), incarnation: Incarnation(1), ..Header::addressed(op, vssd) }
}

/// Sets of four neighbours.
fn row(v: u32) -> Body {
    let first = (v - 1) / 4 * 4 + 1;
    let peers = (first..first + 4).filter(|&p| p != v).map(|p| (VssdId(p), NodeId(2))).collect();
    Body::Table(Table::Create(Box::new(VssdRow { server: NodeId(2), readable: true, peers })))
}

fn announce(rows: u32, mut to: impl FnMut(Header, Body)) {
    for v in 1..=rows {
        to(header(Op::CreateVssd, VssdId(v)), row(v));
        to(header(Op::GcOp, VssdId(v)), Body::Table(Table::Gc(GcOp { field: GcField::Idle, sequence: 0 })));
    }
}

/// Of `n` calls in equal parts, the quickest part: others may be using the machine.
fn ns_each(n: u32, mut call: impl FnMut(u32)) -> f64 {
    let part = n / PARTS;
    let parts = (0..PARTS).map(|k| {
        let start = Instant::now();
        (k * part..(k + 1) * part).for_each(&mut call);
        start.elapsed()
    });
    parts.min().unwrap_or_default().as_nanos() as f64 / f64::from(part)
}

fn main() {
    println!("{:>8} {:>12} {:>12} {:>14} {:>12}   ns each", "rows", "read", "redirected", "read, as node", "gc_op");
    for rows in [16, 131_072] {
        let cfg = SwitchConfig { bits_expire: Span::from_secs(3600), ..SwitchConfig::new(Layout::SWITCH) };
        let mut pipeline = Pipeline::new(&cfg);
        let mut switch = Switch::new(cfg);
        announce(rows, |h, b| _ = pipeline.process(Time::ZERO, NodeId(2), &h, &b));
        let mut fx = Effects::new();
        announce(rows, |header, body| {
            let p = Packet { src: NodeId(2), dst: Layout::SWITCH, header, body };
            switch.handle(Time::ZERO, Event::Packet(p), &mut fx);
            fx.clear();
        });
        let mut rng = Rng::new(1);
        let ids: Vec<VssdId> = (0..DRAWN).map(|_| VssdId(1 + rng.below(u64::from(rows)) as u32)).collect();

        let read = ns_each(READS, |i| {
            black_box(pipeline.read(ids[i as usize % DRAWN], u64::from(i)));
        });
        let body = Body::Block(Block::Io(IoRequest::read(SectorRange { volume: VolumeId(1), first: 0, count: 8 })));
        let node = ns_each(READS / 4, |i| {
            let header = header(Op::Read, ids[i as usize % DRAWN]);
            let p = Packet { src: NodeId(9), dst: Layout::SWITCH, header, body: body.clone() };
            switch.handle(Time::ZERO, Event::Packet(p), &mut fx);
            black_box(&fx);
            fx.clear();
        });
        let mut sequence = 0;
        let gc = ns_each(GC_OPS, |i| {
            sequence += 1;
            let field = if i % 2 == 0 { GcField::Soft } else { GcField::Finish };
            let h = header(Op::GcOp, ids[(i / 2) as usize % DRAWN]);
            black_box(pipeline.process(
                Time(u64::from(i)),
                NodeId(2),
                &h,
                &Body::Table(Table::Gc(GcOp { field, sequence })),
            ));
        });
        for v in (1..=rows).step_by(4) {
            let op = GcOp { field: GcField::Regular, sequence: u64::MAX };
            pipeline.process(Time::ZERO, NodeId(2), &header(Op::GcOp, VssdId(v)), &Body::Table(Table::Gc(op)));
        }
        let redirected = ns_each(READS / 4, |i| {
            let v = VssdId((ids[i as usize % DRAWN].0 - 1) / 4 * 4 + 1);
            black_box(pipeline.read(v, u64::from(i)));
        });
        println!("{rows:>8} {read:>12.1} {redirected:>12.1} {node:>14.1} {gc:>12.1}");
    }
}
