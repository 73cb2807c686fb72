//! Effects on clients of a hung metadata service, and of a lost server (protocol rule 2).

use rackweave_core::admin;
use rackweave_core::msg::{Body, Class, Control, Header, Op, Packet};
use rackweave_core::request::RequestId;
use rackweave_core::volume;
use rackweave_core::{Incarnation, Layout, NodeId, Payload, Span, VolumeId};
use rackweave_rack::sim::{Contents, SimConfig};

use crate::rig::{Rig, has_rig, lose, small};

struct Rack {
    rig: Rig,
    volume: VolumeId,
}

has_rig!(Rack);

impl Rack {
    /// Three servers: without one, two copies of each set are left.
    fn new(lease_ms: u64, seed: u64) -> Rack {
        let mut cfg = small(3, 64);
        cfg.lease.span_ms = lease_ms;
        let mut rig = Rig::new(&cfg, SimConfig { contents: Contents::Memory, ..SimConfig::new(seed) });
        let volume = rig.volume("v", 1 << 20).id;
        rig.run(Span::from_secs(1));
        Rack { rig, volume }
    }
    /// Duration of a request, in whole milliseconds.
    fn took(&mut self, op: volume::Op) -> Span {
        let (start, ask) = (self.sim.now(), self.submit(op));
        assert!(self.wait(ask).is_ok());
        self.sim.now().since(start)
    }
    fn write(&mut self, n: u64) -> Span {
        let data = Payload::elided(4096, n << 30);
        self.took(volume::Op::Write { volume: self.volume, offset: n % 64 * 4096, data, fua: n.is_multiple_of(7) })
    }
    fn read(&mut self, n: u64) -> Span {
        self.took(volume::Op::Read { volume: self.volume, offset: n % 64 * 4096, len: 4096 })
    }
    fn read_now(&mut self, n: u64) -> Payload {
        let op = volume::Op::Read { volume: self.volume, offset: n % 64 * 4096, len: 4096 };
        match self.ask(op) {
            Ok(volume::Reply::Data(data)) => data,
            other => panic!("{other:?}"),
        }
    }
    /// Drops all packets to and from the metadata service.
    fn hang(&mut self, hangs: bool) {
        let all = self.sim.engine().layout().nodes();
        for n in (0..all).map(NodeId).filter(|&n| n != Layout::META) {
            self.sim.engine_mut().net().block(Layout::META, n, hangs);
            self.sim.engine_mut().net().block(n, Layout::META, hangs);
        }
    }
    fn lose(&mut self, server: u32) -> Incarnation {
        let incarnation = self.sim.server(server).expect("it runs").incarnation();
        let node = self.node(server);
        self.sim.crash(node);
        incarnation
    }
    fn word(&mut self, server: u32, incarnation: Incarnation) {
        let op = admin::Op::ServerEnded { server: self.node(server), incarnation };
        assert_eq!(self.admin(op), Ok(admin::Reply::Done));
    }
}

/// Leases are renewed often enough whenever it hangs, and nothing but leases waits for it.
#[test]
fn a_metadata_service_that_hangs_for_five_seconds_costs_nothing_while_leases_stand() {
    let mut worst = Span::ZERO;
    for phase in 0..12 {
        let mut r = Rack::new(6000, phase);
        r.run(Span::from_millis(phase * 110));
        r.hang(true);
        let end = r.sim.now() + Span::from_secs(5);
        for n in 0.. {
            worst = worst.max(r.write(n)).max(r.read(n + 1));
            if r.sim.now() >= end {
                break;
            }
            r.run(Span::from_millis(7));
        }
        r.hang(false);
        for n in 0..100 {
            worst = worst.max(r.write(n)).max(r.read(n + 1));
        }
    }
    println!("longest request while the metadata service hangs for 5 s, lease 6 s: {worst}");
    assert!(worst <= Span::from_millis(50), "{worst}");
}

/// How long a write waits when a server is lost; `word`: its supervisor reports that at once.
fn pause(lease_ms: u64, word: bool) -> Span {
    let mut r = Rack::new(lease_ms, 5);
    r.write(1);
    let lost = r.lose(1);
    let start = r.sim.now();
    if word {
        r.word(1, lost);
    }
    r.write(2);
    r.sim.now().since(start)
}

#[test]
fn a_write_waits_for_the_lease_of_a_lost_server_unless_its_supervisor_says_that_it_has_ended() {
    println!("| lease | write pause | with the supervisor's word |");
    for lease in [500, 6000] {
        let (without, with) = (pause(lease, false), pause(lease, true));
        println!("| {lease} ms | {without} | {with} |");
        let (least, most) = (Span::from_millis(lease - 100), Span::from_millis(lease + 400));
        assert!((least..most).contains(&without), "lease {lease} ms: {without}");
        assert!(with <= Span::from_millis(300), "lease {lease} ms, with a word: {with}");
    }
}

/// A server hears nobody but a client that hears nobody else, and so neither learns that another client has the volume.
#[test]
fn a_lost_server_answers_no_reads_once_others_write_without_it() {
    for seed in 0..6 {
        let mut cfg = small(3, 64);
        cfg.lease.span_ms = 3000;
        let sim = SimConfig { contents: Contents::Memory, clients: 2, ..SimConfig::new(seed) };
        let mut rig = Rig::new(&cfg, sim);
        let volume = rig.volume("v", 64 << 10).id;
        let mut r = Rack { rig, volume };
        r.write(0);
        let old = r.read_now(0);
        let (lost, client) = (r.node(1), r.sim.engine().layout().client(0));
        lose(&mut r, move |p| {
            let between = [p.src, p.dst].map(|n| n == Layout::SWITCH || n == lost || n == client);
            between != [true, true] && [p.src, p.dst].iter().any(|n| [lost, client].contains(n))
        });
        r.ask_from(1, volume::Op::Attach { name: "v".into() }).expect("its sets have other members");
        let data = Payload::elided(4096, 99 << 30);
        let new = volume::Op::Write { volume, offset: 0, data, fua: false };
        assert_eq!(r.ask_from(1, new), Ok(volume::Reply::Done), "seed {seed}");
        let read = || volume::Op::Read { volume, offset: 0, len: 4096 };
        let reads: Vec<RequestId> = (0..20).map(|_| r.submit(read())).collect();
        r.run(Span::from_secs(2));
        let stale = reads.into_iter().filter(|id| r.answer(*id) == Some(Ok(volume::Reply::Data(old.clone())))).count();
        assert_eq!(stale, 0, "seed {seed}: reads of what was overwritten");
    }
}

#[test]
fn a_word_ends_the_lease_of_the_incarnation_that_it_names_for_good_and_of_no_other() {
    let mut r = Rack::new(6000, 7);
    let old = r.lose(1);
    r.run(Span::from_millis(5));
    r.start(1);
    let serves = |r: &Rig| (0..3).all(|i| r.members(0).iter().any(|m| m.1 == i));
    r.until("it is a member again", serves);
    r.word(1, old);
    r.word(1, Incarnation(0));
    r.run(Span::from_millis(500));
    assert!(serves(&r), "an incarnation from before ends nothing");
    let lost = r.lose(1);
    r.word(1, lost);
    // A heartbeat that was in flight when the process ended.
    let (src, body) = (r.node(1), Body::Control(Control::Heartbeat { sequence: 9, vssds: Vec::new() }));
    let header = Header { class: Class::Gold, incarnation: lost, ..Header::new(Op::Control) };
    let now = r.sim.now();
    r.sim.engine_mut().inject(now, Packet { src, dst: Layout::META, header, body });
    let waited = r.write(3);
    // Because of its client's retries; up to 320 ms over 24 seeds.
    assert!(waited <= Span::from_millis(400), "{waited}");
    r.run(Span::from_millis(500));
    assert!(!serves(&r), "a late heartbeat does not bring it back");
}
