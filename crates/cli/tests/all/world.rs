//! A whole rack in virtual time, on files of the test's choice.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use rackweave_config::TimingConfig;
use rackweave_config::{RackConfig, Size};
use rackweave_core::request::{Op, Operation, Reply, Request, RequestId};
use rackweave_core::volume;
use rackweave_core::{Layout, NodeId, Span, SsdId, Time, VolumeId};
use rackweave_device::layers::Journal;
use rackweave_device::{FileIo, FileSsd};
use rackweave_runtime::engine::{ADMIN, Engine};
use rackweave_runtime::store::{Entries, MetaStore, StoreEvent};
use rackweave_runtime::{RackNodes, shape};

pub const SERVERS: u32 = 3;

pub type Records = BTreeMap<Bytes, Bytes>;

/// The metadata service's store in memory, with its contents at each position of the journal.
#[derive(Clone, Default)]
pub struct Metadata {
    pub now: Records,
    pub history: Rc<RefCell<Vec<(usize, Records)>>>,
    pub journal: Journal,
    /// Writes that are not answered.
    pub begun: usize,
}

impl MetaStore for Metadata {
    fn begin(&mut self, entries: Entries) {
        for (k, v) in entries {
            match v {
                Some(v) => self.now.insert(k, v),
                None => self.now.remove(&k),
            };
        }
        self.history.borrow_mut().push((self.journal.len(), self.now.clone()));
        self.begun += 1;
    }
    fn poll(&mut self) -> Option<StoreEvent> {
        self.begun = self.begun.checked_sub(1)?;
        Some(StoreEvent::Stored)
    }
}

pub fn config() -> RackConfig {
    let mut c = RackConfig { servers: SERVERS, ..RackConfig::default() };
    c.ssd.size = Size::mib(64);
    c.ssd.timing = TimingConfig::None;
    c.cache_slots = 512;
    c
}

pub struct World<F: FileIo> {
    pub engine: Engine<RackNodes, F, Metadata>,
    now: Time,
    next: u64,
    client: NodeId,
}

impl<F: FileIo> World<F> {
    pub fn new(files: Vec<F>, metadata: Metadata, life: u64) -> World<F> {
        let cfg = config();
        let shape = shape(&cfg).expect("a shape");
        let open = |(i, f)| FileSsd::open(f, SsdId(i as u32), shape).expect("opens");
        let devices = files.into_iter().enumerate().map(open).collect();
        let saved = metadata.now.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        let mut nonce = life << 32;
        let nodes = RackNodes::new(&cfg, saved, || {
            nonce += 1;
            nonce
        });
        let client = Layout::new(SERVERS, 1).client(0);
        World { engine: Engine::new(nodes.expect("nodes"), devices, metadata), now: Time(1), next: 1, client }
    }

    pub fn send(&mut self, op: impl Into<Op>) -> RequestId {
        let op = op.into();
        let id = RequestId(self.next);
        self.next += 1;
        let to = if matches!(op, Op::Admin(_)) { ADMIN } else { self.client };
        self.engine.submit(to, Request { id, op });
        id
    }

    /// Runs until something is answered.
    pub fn answers(&mut self) -> Vec<Reply> {
        let mut all = Vec::new();
        for _ in 0..2_000_000 {
            self.engine.run(self.now);
            self.engine.take_replies(&mut all);
            if !all.is_empty() {
                return all;
            }
            let next = self.engine.next_deadline().expect("something is left to happen");
            self.now = self.now.max(next);
        }
        panic!("no answer by {:?}", self.now);
    }

    /// Runs for this time; returns the answers.
    pub fn run_for(&mut self, span: Span) -> Vec<Reply> {
        let (mut all, end) = (Vec::new(), self.now + span);
        while self.now < end {
            self.engine.run(self.now);
            let next = self.engine.next_deadline().unwrap_or(end);
            self.now = next.max(self.now).min(end);
        }
        self.engine.take_replies(&mut all);
        all
    }

    pub fn ask<O: Operation>(&mut self, op: O) -> O::Reply {
        self.try_ask(op).expect("succeeds")
    }

    pub fn try_ask<O: Operation>(&mut self, op: O) -> Result<O::Reply, O::Error> {
        let id = self.send(op);
        let mut all = self.answers();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].id, id);
        O::result(all.remove(0).result).expect("of the same API")
    }

    pub fn attach(&mut self) -> VolumeId {
        match self.ask(volume::Op::Attach { name: "v".into() }) {
            volume::Reply::Attached(v) => v.id,
            other => panic!("{other:?}"),
        }
    }
}
