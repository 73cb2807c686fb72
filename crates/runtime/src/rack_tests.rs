//! The nodes and engine of a running rack, on a clock that only the test advances.

use rackweave_core::admin;
use rackweave_core::msg::Role;
use rackweave_core::request::{Op, Operation, Outcome, Request, RequestId};
use rackweave_core::volume;
use rackweave_core::{Payload, Rng, Span, SsdId, VolumeId};
use rackweave_device::layers::{Faults, Faulty};
use rackweave_device::{FileSsd, MemFile};

use super::*;
use crate::engine::{Engine, HostFault};
use crate::store::{Entries, MetaStore, StoreEvent};
use rackweave_config::Size;

const BLOCK_BYTES: u64 = 4096;
/// Blocks of the volume; the drives' dies hold a few pages each.
const BLOCKS: u64 = 512;
const SLOW: u32 = 1;

/// A store that completes at once and keeps nothing.
struct Forgetful {
    begun: usize,
}
impl MetaStore for Forgetful {
    fn begin(&mut self, _: Entries) {
        self.begun += 1;
    }
    fn poll(&mut self) -> Option<StoreEvent> {
        self.begun = self.begun.checked_sub(1)?;
        Some(StoreEvent::Stored)
    }
}

struct Running {
    engine: Engine<RackNodes, Faulty<MemFile>, Forgetful>,
    /// Faults of each drive's file.
    hosts: Vec<Faults>,
    now: Time,
    asked: u64,
    volume: VolumeId,
}

impl Running {
    /// Reads of one server's flash take fifty times as long as the others'.
    fn with_a_slow_server(cfg: &RackConfig) -> Running {
        let mut slow = build::server_config(cfg, SLOW, 100).expect("sound");
        slow.ssd.profile.read = slow.ssd.profile.read * 50;
        let mut nodes = Running::nodes(cfg);
        nodes.servers[SLOW as usize] = Some(build::server_from(slow, SLOW).expect("sound"));
        Running::with(cfg, nodes)
    }
    fn nodes(cfg: &RackConfig) -> RackNodes {
        let mut nonce = 0;
        let next = || {
            nonce += 1;
            nonce
        };
        RackNodes::new(cfg, Vec::new(), next).expect("sound")
    }
    /// A rack with a written and flushed volume.
    fn with(cfg: &RackConfig, nodes: RackNodes) -> Running {
        let shape = shape(cfg).expect("sound");
        let hosts: Vec<Faults> = (0..cfg.servers).map(|_| Faults::default()).collect();
        let open = |(i, f): (u32, &Faults)| {
            FileSsd::open(Faulty::new(MemFile::default(), f.clone()), SsdId(i), shape).expect("new")
        };
        let engine = Engine::new(nodes, (0..).zip(&hosts).map(open).collect(), Forgetful { begun: 0 });
        let mut r = Running { engine, hosts, now: Time::ZERO, asked: 0, volume: VolumeId(0) };
        let create = admin::Op::create("v", BLOCKS * BLOCK_BYTES);
        r.ask(create).expect("created");
        let Ok(volume::Reply::Attached(v)) = r.ask(volume::Op::Attach { name: "v".into() }) else {
            panic!("not attached")
        };
        r.volume = v.id;
        let (volume, data) = (v.id, |i: u64| Payload::elided(BLOCK_BYTES as u32, i << 8));
        let writes =
            (0..BLOCKS).map(|i| volume::Op::Write { volume, offset: i * BLOCK_BYTES, data: data(i), fua: false });
        r.ask_all(writes.collect(), 32);
        r.ask(volume::Op::Flush { volume }).expect("flushed");
        r
    }
    fn submit(&mut self, op: impl Into<Op>) {
        self.asked += 1;
        let client = self.engine.nodes.client().expect("the rack has a client");
        self.engine.submit(client, Request::new(RequestId(self.asked), op));
    }
    /// Handles the next event; returns the answers.
    fn step(&mut self) -> Vec<Outcome> {
        let next = self.engine.next_deadline().expect("some node has a timer");
        self.now = self.now.max(next);
        self.engine.run(self.now);
        let mut replies = Vec::new();
        self.engine.take_replies(&mut replies);
        replies.into_iter().map(|r| r.result).collect()
    }
    fn ask<O: Operation>(&mut self, op: O) -> Result<O::Reply, O::Error> {
        self.submit(op);
        for _ in 0..1_000_000 {
            if let Some(answer) = self.step().pop() {
                return O::result(answer).expect("of the same API");
            }
        }
        panic!("no answer by {:?}", self.now)
    }
    /// Runs all operations, `depth` at a time.
    fn ask_all(&mut self, ops: Vec<volume::Op>, depth: usize) {
        let (mut left, mut ops) = (ops.len(), ops.into_iter());
        ops.by_ref().take(depth).for_each(|op| self.submit(op));
        for _ in 0..10_000_000 {
            for answer in self.step() {
                assert!(answer.is_ok(), "{answer:?}");
                left -= 1;
                ops.by_ref().take(1).for_each(|op| self.submit(op));
            }
            if left == 0 {
                return;
            }
        }
        panic!("{left} unanswered by {:?}", self.now)
    }
    /// As [`Running::ask`]; `None` without an answer within the span.
    fn ask_for(&mut self, op: volume::Op, span: Span) -> Option<Result<volume::Reply, volume::Error>> {
        let end = self.now + span;
        self.submit(op);
        while self.now < end {
            if let Some(answer) = self.step().pop() {
                return volume::Op::result(answer);
            }
        }
        None
    }
    /// Writes one block.
    fn write(&mut self, block: u64, stamp: u64, span: Span) -> Option<Result<volume::Reply, volume::Error>> {
        let data = Payload::elided(BLOCK_BYTES as u32, block << 8 | stamp);
        let volume = self.volume;
        self.ask_for(volume::Op::Write { volume, offset: block * BLOCK_BYTES, data, fua: false }, span)
    }
    fn run_for(&mut self, span: Span) {
        let end = self.now + span;
        while self.now < end {
            assert!(self.step().is_empty(), "an answer without a request");
        }
    }
    /// Whether the host's disk is full for the drives of these servers.
    fn full(&self, servers: &[usize], full: bool) {
        for &i in servers {
            let error = full.then_some(libc::ENOSPC);
            self.hosts[i].fail_allocations(error);
            self.hosts[i].fail_writes(error);
        }
    }
    /// Role of each of the server's vSSDs in the installed view.
    fn roles(&self, server: usize) -> Vec<Option<Role>> {
        let status = self.engine.nodes.server(server).expect("runs").status(self.now);
        status.vssds.iter().map(|v| v.role).collect()
    }
    /// Members of each set's view.
    fn members(&self) -> Vec<usize> {
        let meta = self.engine.nodes.meta.as_ref().expect("runs here");
        let all = meta.status(self.now).sets;
        all.iter().map(|s| s.members.iter().filter(|m| m.role == Role::Member).count()).collect()
    }
    /// Number of reads that each server's flash served.
    fn read_by(&self) -> Vec<u64> {
        let reads = |s: &Server| s.status(self.now).vssds.iter().map(|v| v.replica.reads).sum();
        (0..self.engine.nodes.cfg.servers as usize).map(|i| self.engine.nodes.server(i).map_or(0, reads)).collect()
    }
    /// Random reads, `depth` at a time; returns the number served by each server.
    fn reads(&mut self, n: usize, depth: usize) -> Vec<u64> {
        let (before, mut rng, volume) = (self.read_by(), Rng::new(7), self.volume);
        let ops = (0..n).map(|_| {
            let offset = rng.below(BLOCKS) * BLOCK_BYTES;
            volume::Op::Read { volume, offset, len: BLOCK_BYTES as u32 }
        });
        self.ask_all(ops.collect(), depth);
        self.read_by().iter().zip(before).map(|(now, before)| now - before).collect()
    }
}

#[test]
fn reads_leave_a_slow_server_to_its_peers_and_come_back_by_another_policy() {
    let mut cfg = RackConfig { servers: 3, ..Policy::Rackweave.apply(&RackConfig::default()) };
    cfg.ssd.size = Size::mib(64);
    cfg.ssd.profile = "femu".into();
    cfg.validate().expect("good configuration");
    let mut r = Running::with_a_slow_server(&cfg);
    assert_eq!(r.engine.nodes.policy().expect("it has one").otherwise, Vec::<String>::new());
    // The slow server gets its lease last; a client that it refused avoids it for a while.
    r.run_for(Span::from_secs(2));
    let by_load = r.reads(4_000, 16);
    let (slow, others) = (by_load[SLOW as usize], by_load[0].min(by_load[2]));
    assert!(slow * 2 < others, "{by_load:?}");
    // Without redirection the slow server gets an equal share.
    r.engine.set_policy(r.now, Policy::Rackblox).expect("live");
    let by_gc = r.reads(4_000, 16);
    assert!(by_gc[SLOW as usize] * 2 > by_gc[0].max(by_gc[2]), "{by_gc:?}");
    // Keys that take effect at a start are unchanged until then, and are listed.
    r.engine.set_policy(r.now, Policy::Baseline).expect("live");
    let made = |i| format!("server-{i}: sched.coordinated = true until it is started again");
    assert_eq!(r.engine.nodes.policy().expect("it has one").otherwise, [0, 1, 2].map(made));
    r.engine.set_policy(r.now, Policy::Rackweave).expect("live");
    assert_eq!(r.engine.nodes.policy().expect("it has one").otherwise, Vec::<String>::new());
    let again = r.reads(4_000, 16);
    assert!(again[SLOW as usize] * 2 < again[0].min(again[2]), "{again:?}");
}

fn three() -> RackConfig {
    let mut cfg = RackConfig { servers: 3, ..Policy::Rackweave.apply(&RackConfig::default()) };
    cfg.ssd.size = Size::mib(64);
    cfg.ssd.profile = "femu".into();
    cfg.validate().expect("good configuration");
    cfg
}

#[test]
fn sets_go_on_without_a_drive_that_finds_no_room_for_longer_than_a_lease() {
    let cfg = three();
    let mut r = Running::with(&cfg, Running::nodes(&cfg));
    let (volume, lease) = (r.volume, cfg.lease());
    r.full(&[1], true);
    for block in 0..8 {
        r.write(block, 1, lease * 4).expect("a lease and a few messages later").expect("written");
    }
    let begun = r.now;
    r.ask_for(volume::Op::Flush { volume }, lease * 4).expect("the other members have it on flash").expect("flushed");
    assert!(r.now.since(begun) > lease / 2, "the flush waited for the member: {:?}", r.now.since(begun));
    assert_eq!((r.engine.drive_fault(1), r.roles(1)), (Some(HostFault::NoRoom), vec![None; 3]));
    assert_eq!(r.members(), [2; 3], "the least number of members");
    for block in 0..64 {
        r.write(block * 8, 2, lease).expect("no write waits any more").expect("written");
    }
    r.ask_for(volume::Op::Flush { volume }, lease).expect("no flush waits any more").expect("flushed");
    r.run_for(lease * 10);
    assert_eq!(r.members(), [2; 3]);
    r.full(&[1], false);
    r.run_for(lease * 10);
    assert_eq!((r.engine.drive_fault(1), r.roles(1)), (None, vec![Some(Role::Member); 3]), "by itself");
    assert_eq!(r.members(), [3; 3]);
    // The server holds everything: the others may fail.
    r.full(&[0], true);
    r.write(0, 3, lease * 4).expect("in time").expect("written");
    r.ask_for(volume::Op::Flush { volume }, lease * 4).expect("in time").expect("flushed");
}

#[test]
fn two_copies_are_waited_for_while_two_of_three_drives_find_no_room() {
    let cfg = three();
    let mut r = Running::with(&cfg, Running::nodes(&cfg));
    let (volume, lease) = (r.volume, cfg.lease());
    r.full(&[1, 2], true);
    r.write(0, 1, lease * 4);
    assert_eq!(r.ask_for(volume::Op::Flush { volume }, lease * 20), None, "one copy is too few (rule 4)");
    assert!(r.members().iter().all(|&n| n >= 2), "{:?}", r.members());
    r.full(&[1, 2], false);
    let end = r.now + lease * 10;
    let mut answers = Vec::new();
    while r.now < end {
        answers.extend(r.step());
    }
    assert!(!answers.is_empty() && answers.iter().all(Outcome::is_ok), "{answers:?}");
    assert_eq!(r.members(), [3; 3]);
}
