//! What encoding and decoding cost: `cargo run --release -p rackweave-wire --example wire_speed`.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use rackweave_core::msg::io::WriteRequest;
use rackweave_core::msg::{Block, Body, GcField, GcOp, Header, IoRequest, Mutation, Op, Packet, SectorRange, Table};
use rackweave_core::{Epoch, Incarnation, Layout, NodeId, Payload, SetId, VolumeId, VssdId};
use rackweave_wire::{decode, decode_shared, encode};

const ROUNDS: u32 = 20_000;
/// The quickest of so many: others may be using the machine.
const TRIES: u32 = 50;

fn packet(op: Op, body: Body) -> Packet {
    let header = Header {
        lat: 800,
        set: SetId(3),
        epoch: Epoch(1),
        incarnation: Incarnation(5),
        request: 77,
        ..Header::addressed(op, VssdId(17))
    };
    Packet { src: NodeId(6), dst: Layout::SWITCH, header, body }
}

fn ns_each(mut what: impl FnMut()) -> f64 {
    let tries = (0..TRIES).map(|_| {
        let start = Instant::now();
        (0..ROUNDS).for_each(|_| what());
        start.elapsed()
    });
    tries.min().unwrap_or_default().as_nanos() as f64 / f64::from(ROUNDS)
}

fn main() {
    let range = SectorRange { volume: VolumeId(1), first: 8, count: 8 };
    let write = |data| {
        let mutation = Mutation { client: Incarnation(5), sequence: 9, floor: 4 };
        Body::Block(Block::Io(IoRequest::Write(Box::new(WriteRequest {
            range,
            data,
            fua: false,
            attach: 1,
            mutation,
        }))))
    };
    let packets = [
        ("read", packet(Op::Read, Body::Block(Block::Io(IoRequest::read(range))))),
        ("gc_op", packet(Op::GcOp, Body::Table(Table::Gc(GcOp { field: GcField::Soft, sequence: 4 })))),
        ("write 4 KiB", packet(Op::Write, write(Payload::Bytes(Bytes::from(vec![7; 4096]))))),
        ("write elided", packet(Op::Write, write(Payload::elided(4096, 1)))),
    ];
    println!("{:>14} {:>8} {:>10} {:>10} {:>16}   ns each", "packet", "bytes", "encode", "decode", "decode_shared");
    for (name, p) in &packets {
        let mut bytes = Vec::new();
        let put = ns_each(|| {
            bytes.clear();
            encode(black_box(p), &mut bytes).expect("within the bounds");
        });
        let get = ns_each(|| drop(black_box(decode(black_box(&bytes)).expect("as encoded"))));
        let shared = Bytes::from(bytes.clone());
        let get_shared = ns_each(|| drop(black_box(decode_shared(black_box(&shared)).expect("as encoded"))));
        println!("{name:>14} {:>8} {put:>10.1} {get:>10.1} {get_shared:>16.1}", bytes.len());
    }
}
