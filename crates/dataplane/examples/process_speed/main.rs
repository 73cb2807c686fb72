//! The switch as a process: datagrams in by a socket, decoded, through the node, encoded, out again.
//! `cargo run --release -p rackweave-dataplane --example process_speed`. Loopback, two system calls for each 32 datagrams.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a benchmark: clocks, sockets, threads")]

mod batch;

use std::io;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use batch::{Batch, packet, thread_cpu_ns};
use rackweave_core::msg::{Body, IoRequest, Op, SectorRange, VssdRow};
use rackweave_core::{Effects, Event, Node, NodeId, Span, Time, VolumeId};
use rackweave_switch::{Switch, SwitchConfig};

const SWITCH: NodeId = NodeId(1);
const SERVER: NodeId = NodeId(2);
const CLIENT: NodeId = NodeId(100);
const RUN: Duration = Duration::from_secs(1);
const ROUNDS: usize = 5;

fn main() -> io::Result<()> {
    let bind = || UdpSocket::bind("127.0.0.1:0");
    let (client, at_switch, sink) = (bind()?, bind()?, bind()?);
    at_switch.set_read_timeout(Some(Duration::from_millis(100)))?;
    client.connect(at_switch.local_addr()?)?;
    at_switch.connect(client.local_addr()?)?;
    let out = bind()?;
    out.connect(sink.local_addr()?)?;
    let mut switch = Switch::new(SwitchConfig { bits_expire: Span::from_secs(3600), ..SwitchConfig::new(SWITCH) });
    let mut fx = Effects::new();
    let row = VssdRow { server: SERVER, readable: true, peers: Vec::new() };
    let create = packet(Op::CreateVssd, SERVER, SWITCH, Body::CreateVssd(Box::new(row)));
    let create = rackweave_wire::decode(&create).expect("just encoded");
    switch.handle(Time::ZERO, Event::Packet(create), &mut fx);
    fx.clear();

    let range = SectorRange { volume: VolumeId(1), first: 0, count: 8 };
    let request = packet(Op::Read, CLIENT, SWITCH, Body::Io(IoRequest::Read { range }));
    let stop = AtomicBool::new(false);
    let rounds = std::thread::scope(|s| {
        s.spawn(|| {
            let mut batch = Batch::new();
            batch.fill(&request);
            while !stop.load(Ordering::Relaxed) {
                // A full receive buffer drops; that is what a flood is.
                let _ = batch.send(&client);
            }
        });
        let result = (0..ROUNDS).map(|_| one(&mut switch, &mut fx, &at_switch, &out)).collect::<io::Result<Vec<_>>>();
        stop.store(true, Ordering::Relaxed);
        result
    })?;
    let best = rounds.iter().map(|r| r.0).fold(0.0, f64::max);
    let cpu = rounds.iter().map(|r| r.1).fold(f64::MAX, f64::min);
    let missed = if best >= 100e3 { "" } else { "  MISSED" };
    println!("process switch: {:.0} k packets/s (bar 100 k){missed}, {cpu:.0} ns of CPU each", best / 1e3);
    println!("    (best of {ROUNDS} rounds beside the sender; {:.0} k a CPU second)", 1e6 / cpu);
    Ok(())
}

/// Packets a second, and ns of CPU for each.
fn one(switch: &mut Switch, fx: &mut Effects, from: &UdpSocket, to: &UdpSocket) -> io::Result<(f64, f64)> {
    let (mut arrived, mut leaving) = (Batch::new(), Batch::new());
    let (start, cpu, mut count) = (Instant::now(), thread_cpu_ns(), 0u64);
    while start.elapsed() < RUN {
        let now = Time(start.elapsed().as_nanos() as u64);
        leaving.clear();
        for bytes in arrived.receive(from) {
            let Ok(p) = rackweave_wire::decode(bytes) else { continue };
            switch.handle(now, Event::Packet(p), fx);
            for p in fx.packets.drain(..) {
                leaving.push(|bytes| rackweave_wire::encode(&p, bytes).is_ok());
            }
            fx.clear();
        }
        count += leaving.send(to)? as u64;
    }
    Ok((count as f64 / start.elapsed().as_secs_f64(), (thread_cpu_ns() - cpu) as f64 / count.max(1) as f64))
}
