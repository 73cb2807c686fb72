//! A running rack's nodes and engine, by a clock that only the test moves.

use rackweave_core::node::StoreWrite;
use rackweave_core::request::{AdminOp, ReplyData, Request, RequestError, RequestId, RequestOp};
use rackweave_core::{Payload, Rng, SsdId, VolumeId};
use rackweave_device::{FileSsd, MemFile};

use super::*;
use crate::config::Size;
use crate::embedded::engine::{Engine, MetaStore};
use crate::embedded::store::StoreError;

const BLOCK_BYTES: u64 = 4096;
/// Of the volume; the drives' dies hold a few pages each.
const BLOCKS: u64 = 512;
const SLOW: u32 = 1;

struct NoStore;
impl MetaStore for NoStore {
    fn write(&mut self, _: &StoreWrite) -> Result<(), StoreError> {
        Ok(())
    }
}

struct Running {
    engine: Engine<RackNodes, MemFile, NoStore>,
    now: Time,
    asked: u64,
    volume: VolumeId,
}

impl Running {
    /// Reads of one server's flash take fifty times as long as the others'.
    fn with_a_slow_server(cfg: &RackConfig) -> Running {
        let mut nonce = 0;
        let mut next = || {
            nonce += 1;
            nonce
        };
        let mut nodes = RackNodes::new(cfg, Vec::new(), &mut next).expect("sound");
        let mut slow = build::server_config(cfg, SLOW, next()).expect("sound");
        slow.ssd.profile.read = slow.ssd.profile.read * 50;
        nodes.servers[SLOW as usize] = Some(build::server_from(slow, SLOW).expect("sound"));
        let shape = shape(cfg).expect("sound");
        let open = |i| FileSsd::open(MemFile::default(), SsdId(i), shape).expect("new");
        let engine = Engine::new(nodes, (0..cfg.servers).map(open).collect(), NoStore);
        let mut r = Running { engine, now: Time::ZERO, asked: 0, volume: VolumeId(0) };
        let create = AdminOp::VolumeCreate { name: "v".into(), size: BLOCKS * BLOCK_BYTES };
        r.ask(RequestOp::Admin(create)).expect("created");
        let Ok(ReplyData::Attached(v)) = r.ask(RequestOp::Attach { name: "v".into() }) else { panic!("not attached") };
        r.volume = v.id;
        let (volume, data) = (v.id, |i: u64| Payload::elided(BLOCK_BYTES as u32, i << 8));
        let writes =
            (0..BLOCKS).map(|i| RequestOp::Write { volume, offset: i * BLOCK_BYTES, data: data(i), fua: false });
        r.ask_all(writes.collect(), 32);
        r.ask(RequestOp::Flush { volume }).expect("flushed");
        r
    }
    fn submit(&mut self, op: RequestOp) {
        self.asked += 1;
        let client = self.engine.nodes.client().expect("one runs here");
        self.engine.submit(client, Request { id: RequestId(self.asked), op });
    }
    /// What is due next happens; its answers.
    fn step(&mut self) -> Vec<Result<ReplyData, RequestError>> {
        let next = self.engine.next_deadline().expect("somebody always has a timer");
        self.now = self.now.max(next);
        self.engine.run(self.now);
        let mut replies = Vec::new();
        self.engine.take_replies(&mut replies);
        replies.into_iter().map(|r| r.result).collect()
    }
    fn ask(&mut self, op: RequestOp) -> Result<ReplyData, RequestError> {
        self.submit(op);
        for _ in 0..1_000_000 {
            if let Some(answer) = self.step().pop() {
                return answer;
            }
        }
        panic!("no answer by {:?}", self.now)
    }
    /// All of them, so many at a time.
    fn ask_all(&mut self, ops: Vec<RequestOp>, depth: usize) {
        let (mut left, mut ops) = (ops.len(), ops.into_iter());
        ops.by_ref().take(depth).for_each(|op| self.submit(op));
        for _ in 0..10_000_000 {
            for answer in self.step() {
                answer.expect("served");
                left -= 1;
                ops.by_ref().take(1).for_each(|op| self.submit(op));
            }
            if left == 0 {
                return;
            }
        }
        panic!("{left} unanswered by {:?}", self.now)
    }
    /// Reads that each server's flash served.
    fn read_by(&self) -> Vec<u64> {
        let reads = |s: &Server| s.status(self.now).vssds.iter().map(|v| v.reads).sum();
        (0..self.engine.nodes.cfg.servers as usize).map(|i| self.engine.nodes.server(i).map_or(0, reads)).collect()
    }
    /// Random reads, so many at a time, by each server.
    fn reads(&mut self, n: usize, depth: usize) -> Vec<u64> {
        let (before, mut rng, volume) = (self.read_by(), Rng::new(7), self.volume);
        let ops = (0..n).map(|_| {
            let offset = rng.below(BLOCKS) * BLOCK_BYTES;
            RequestOp::Read { volume, offset, len: BLOCK_BYTES as u32 }
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
    let by_load = r.reads(4_000, 16);
    let (slow, others) = (by_load[SLOW as usize], by_load[0].min(by_load[2]));
    assert!(slow * 2 < others, "{by_load:?}");
    // Where reads stay where they are sent, it gets as many as each.
    r.engine.set_policy(r.now, Policy::Rackblox).expect("live");
    let by_gc = r.reads(4_000, 16);
    assert!(by_gc[SLOW as usize] * 2 > by_gc[0].max(by_gc[2]), "{by_gc:?}");
    // What they were made with stays until they are started again, and is shown.
    let made = |i| format!("server-{i}: gc.yields = true until it is started again");
    assert_eq!(r.engine.nodes.policy().expect("it has one").otherwise, [0, 1, 2].map(made));
    r.engine.set_policy(r.now, Policy::Rackweave).expect("live");
    assert_eq!(r.engine.nodes.policy().expect("it has one").otherwise, Vec::<String>::new());
    let again = r.reads(4_000, 16);
    assert!(again[SLOW as usize] * 2 < again[0].min(again[2]), "{again:?}");
}
