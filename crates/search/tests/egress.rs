//! Queues at the switch's ports, in a whole rack.

use rackweave_config::RackConfig;
use rackweave_config::{EgressSection, SchedulingKind, Size};
use rackweave_core::admin;
use rackweave_core::request::{Op, Operation, Request, RequestId};
use rackweave_core::volume;
use rackweave_core::{Payload, Span, Time, VolumeId};
use rackweave_rack::sim::{Sim, SimConfig};
use rackweave_sim::Network;

const MIB: u64 = 1 << 20;
/// A port carries a block in about 0.34 ms.
const MBIT: u64 = 100;
/// Blocks that the first client reads at once.
const BURST: u64 = 160;

struct Clients {
    sim: Sim,
    volumes: Vec<VolumeId>,
    next: u64,
}

impl Clients {
    /// A server, and three clients with a fully written volume each.
    fn new(scheduling: SchedulingKind) -> Clients {
        let mut cfg = RackConfig { servers: 1, replicas: 1, min_copies: 1, ..RackConfig::default() };
        (cfg.ssd.profile, cfg.ssd.size) = ("femu".into(), Size::mib(256));
        cfg.switch.scheduling = scheduling;
        let flow = (scheduling == SchedulingKind::Tb).then_some(MBIT / 4);
        cfg.switch.egress = Some(EgressSection { flow_mbit_per_s: flow, ..EgressSection::of_rate(MBIT) });
        cfg.validate().expect("sound");
        let network = Network::constant(Span::from_micros(50));
        let sim = Sim::new(&cfg, SimConfig { clients: 3, network, ..SimConfig::new(7) }).expect("sound");
        let mut c = Clients { sim, volumes: Vec::new(), next: 0 };
        for client in 0..3 {
            let name: Box<str> = format!("v{client}").into();
            c.ask(client, admin::Op::create(name.clone(), 4 * MIB));
            let volume::Reply::Attached(v) = c.ask(client, volume::Op::Attach { name }) else { panic!("no volume") };
            c.volumes.push(v.id);
            let data = Payload::elided(65_536, 9);
            for offset in (0..4 * MIB).step_by(65_536) {
                c.ask(client, volume::Op::Write { volume: v.id, offset, data: data.clone(), fua: false });
            }
        }
        c
    }
    fn submit(&mut self, at: Time, client: u32, op: impl Into<Op>) -> u64 {
        self.next += 1;
        self.sim.submit(at, client, Request::new(RequestId(self.next), op));
        self.next
    }
    fn ask<O: Operation>(&mut self, client: u32, op: O) -> O::Reply {
        let id = self.submit(self.sim.now(), client, op);
        for _ in 0..10_000 {
            self.sim.run_until(self.sim.now() + Span::from_millis(1));
            if let Some((_, _, r)) = self.sim.take_replies().into_iter().find(|(_, _, r)| r.id.0 == id) {
                return O::result(r.result).expect("of the same API").expect("good");
            }
        }
        panic!("request {id} was not answered");
    }

    /// The first client writes a burst; returns how long each read of the others takes meanwhile, one at a time.
    fn reads_beside_a_burst(&mut self) -> Vec<Span> {
        let begin = self.sim.now();
        for i in 0..BURST {
            let data = Payload::elided(4096, i);
            let op = volume::Op::Write { volume: self.volumes[0], offset: i * 4096, data, fua: false };
            self.submit(begin, 0, op);
        }
        let mut took = Vec::new();
        for i in 0..10 {
            let client = 1 + i % 2;
            let asked = self.sim.now();
            let read =
                volume::Op::Read { volume: self.volumes[client as usize], offset: u64::from(i) * 65_536, len: 4096 };
            let id = self.submit(asked, client, read);
            while self.sim.step() {
                if let Some((at, _, r)) = self.sim.take_replies().into_iter().find(|(_, _, r)| r.id.0 == id) {
                    assert!(r.result.is_ok(), "{:?}", r.result);
                    took.push(at.since(asked));
                    break;
                }
            }
        }
        took
    }
}

#[test]
fn a_burst_of_one_client_delays_the_others_reads_by_priority_and_not_under_fair_queueing() {
    let worst = |scheduling| {
        let mut c = Clients::new(scheduling);
        let took = c.reads_beside_a_burst();
        let counted = c.sim.switch(0).and_then(|s| s.egress()).expect("it has queues");
        let dropped = counted.queue_full + counted.over_burst + counted.too_many_flows;
        assert_eq!(dropped, 0, "{scheduling:?}: {counted:?}");
        took.into_iter().max().expect("ten")
    };
    // All clients' I/O has the same class, so priority keeps the order of arrival: a read waits for the whole burst.
    let burst = Span::from_micros(BURST * 340);
    let (priority, fq, tb) = (worst(SchedulingKind::Priority), worst(SchedulingKind::Fq), worst(SchedulingKind::Tb));
    assert!(priority > burst * 9 / 10, "{priority:?}");
    assert!(fq < Span::from_millis(4), "{fq:?}");
    assert!(tb < Span::from_millis(4), "{tb:?}");
}

#[test]
fn what_a_port_drops_is_counted_and_asked_for_again() {
    let mut c = Clients::new(SchedulingKind::Priority);
    // Four times the capacity of a queue.
    for i in 0..1_024 {
        let data = Payload::elided(4096, i);
        let op = volume::Op::Write { volume: c.volumes[0], offset: i * 4096, data, fua: false };
        c.submit(c.sim.now(), 0, op);
    }
    c.sim.run_until(c.sim.now() + Span::from_secs(60));
    let answered = c.sim.take_replies().into_iter().filter(|(_, _, r)| r.result.is_ok()).count();
    assert_eq!(answered, 1_024);
    let counted = c.sim.switch(0).and_then(|s| s.egress()).expect("it has queues");
    assert!(counted.queue_full > 0, "{counted:?}");
    assert!(counted.queue_max <= 1 << 20, "{counted:?}");
    assert_eq!(counted.arrived, counted.sent + counted.queue_full + counted.waiting, "{counted:?}");
}
