//! Appends of a rack's cloud disks by way of the switch.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use rackweave_config::{RackConfig, Size};
use rackweave_core::msg::Packet;
use rackweave_core::request::{self, Operation, Request, RequestId};
use rackweave_core::{Message, NodeId, Payload, Span, Time, admin, volume};
use rackweave_sim::Recorder;

use crate::engine::RackEngine;
use crate::networked::Datagram;
use crate::sim::{Contents, Sim, SimConfig};
use crate::wire::{Authentication, TransportConfig};

const SERVERS: u32 = 4;
const WRITE: u32 = 64 << 10;

/// Counts bytes that a client sends.
struct Sent {
    from: NodeId,
    bytes: Rc<Cell<i64>>,
}

impl Sent {
    fn count(&self, from: NodeId, times: i64, bytes: u32) {
        if from == self.from {
            self.bytes.update(|n| n + times * i64::from(bytes));
        }
    }
}
impl Recorder for Sent {
    fn sent(&mut self, _: Time, p: &Packet) {
        // The switch sends two copies in the client's name.
        self.count(p.src, if p.dst.is_ring() { -1 } else { 1 }, p.bytes());
    }
}
impl Recorder<Datagram> for Sent {
    fn sent(&mut self, _: Time, d: &Datagram) {
        self.count(d.from(), 1, d.bytes());
    }
}

fn ask(sim: &mut Sim, id: u64, op: impl Into<request::Op>) -> request::Outcome {
    let now = sim.now();
    sim.submit(now, 0, Request::new(RequestId(id), op));
    for _ in 0..10_000 {
        sim.run_until(sim.now() + Span::from_millis(1));
        if let Some((_, _, reply)) = sim.take_replies().pop() {
            return reply.result;
        }
    }
    panic!("no answer within ten seconds");
}

/// A rack with a disk that client 0 has.
fn rack(transport: Option<TransportConfig>) -> (Sim, volume::VolumeInfo) {
    let mut cfg = RackConfig { servers: SERVERS, replicas: 2, min_copies: 2, ..RackConfig::default() };
    cfg.ssd.profile = "femu".into();
    cfg.ssd.size = Size::mib(512);
    cfg.ssd.channels = Some(5);
    (cfg.ssd.spare, cfg.cloud.channels) = (Some(0), 2);
    let sim = SimConfig { contents: Contents::Memory, transport, ..SimConfig::new(3) };
    let mut sim = Sim::new(&cfg, sim).expect("sound");
    sim.run_until(Time::ZERO + Span::from_secs(2));
    let create = admin::Op::CloudCreate { name: "disk".into(), size: 32 << 20, segment: 16 << 20, log_copies: 2 };
    assert!(matches!(admin::Op::result(ask(&mut sim, 1, create)), Some(Ok(admin::Reply::Volume(_)))));
    let attach = volume::Op::Attach { name: "disk".into() };
    match volume::Op::result(ask(&mut sim, 2, attach)) {
        Some(Ok(volume::Reply::Attached(info))) => (sim, *info),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_client_sends_a_burst_once_and_the_switch_copies_it_to_both_logs() {
    let transport = TransportConfig {
        one_machine: false,
        datagram_bytes: 1_472,
        authentication: Authentication::Encrypted,
        trains: true,
        damage: 0.0,
    };
    for transport in [None, Some(transport)] {
        let over = transport.is_some();
        let (mut sim, info) = rack(transport);
        let bytes = Rc::new(Cell::new(0));
        let from = sim.engine().layout().client(0);
        let counter = Sent { from, bytes: Rc::clone(&bytes) };
        match sim.engine_mut() {
            RackEngine::Packets(e) => e.record_by(Box::new(counter)),
            RackEngine::Datagrams(e) => e.record_by(Box::new(counter)),
        }
        let before = *sim.switch(0).expect("runs").counters();
        let writes = 100;
        for n in 0..writes {
            let data = Payload::Bytes(Bytes::from(vec![n as u8; WRITE as usize]));
            let write = volume::Op::Write { volume: info.id, offset: n * u64::from(WRITE), data, fua: false };
            let now = sim.now();
            sim.submit(now, 0, Request::new(RequestId(10 + n), write));
            sim.run_until(sim.now() + Span::from_millis(3));
        }
        let done = |r: &(Time, u32, request::Reply)| {
            matches!(volume::Op::result(r.2.result.clone()), Some(Ok(volume::Reply::Done)))
        };
        let mut answered = 0;
        while answered < writes {
            let now = sim.now();
            assert!(now < Time::ZERO + Span::from_secs(30), "{answered} of {writes} are answered");
            sim.run_until(now + Span::from_millis(1));
            let replies = sim.take_replies();
            assert!(replies.iter().all(done));
            answered += replies.len() as u64;
        }
        let after = *sim.switch(0).expect("runs").counters();
        assert_eq!(after.unknown_ring, before.unknown_ring);
        let (copied, sent) = (after.ring_packets - before.ring_packets, bytes.get() as u64);
        let payload = writes * u64::from(WRITE);
        assert!(copied > if over { writes * 40 } else { writes * 9 / 10 }, "{copied} packets of bursts went to a pair");
        // Datagrams have a chunk of 1 KiB and 130 bytes of headers, and the client acknowledges answers.
        let most = if over { payload * 125 / 100 } else { payload * 102 / 100 };
        assert!(sent <= most, "{sent} bytes for {payload}, over a transport: {over}");
        assert_eq!(sim.network_violation(), None);
    }
}

/// The best copy may be that of the proxy's own server: the switch brings the read back to it.
#[test]
fn no_read_of_a_quiet_disk_waits_for_a_timeout() {
    let transport = TransportConfig {
        one_machine: true,
        datagram_bytes: 1_472,
        authentication: Authentication::Encrypted,
        trains: true,
        damage: 0.0,
    };
    for transport in [None, Some(transport)] {
        let over = transport.is_some();
        let (mut sim, info) = rack(transport);
        let stripes = 64;
        for n in 0..stripes {
            let data = Payload::Bytes(Bytes::from(vec![n as u8; WRITE as usize]));
            let write = volume::Op::Write { volume: info.id, offset: n * u64::from(WRITE), data, fua: false };
            assert_eq!(volume::Op::result(ask(&mut sim, 10 + n, write)), Some(Ok(volume::Reply::Done)));
        }
        // Contents leave the logs and overlays.
        sim.run_until(sim.now() + Span::from_secs(10));
        for n in 0..4 * stripes {
            let (offset, begun) = (n * u64::from(WRITE) / 4, sim.now());
            let read = volume::Op::Read { volume: info.id, offset, len: 4096 };
            let Some(Ok(volume::Reply::Data(data))) = volume::Op::result(ask(&mut sim, 1_000 + n, read)) else {
                panic!("read {n}")
            };
            assert_eq!(data.to_bytes()[0], (n / 4) as u8);
            let took = sim.now().since(begun);
            assert!(took < Span::from_millis(15), "read {n} took {took}, over a transport: {over}");
        }
    }
}
