//! A tenant with a key-value store and YCSB clients on it (FlashBlox §4.2.1, §4.3.1).

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use rackweave_core::map::{Map, map};
use rackweave_core::{Rng, Span, Time, VssdId};
use rackweave_flash::manager::Done;
use rackweave_kv::store::{Answer, Durability, Flash, Store, StoreConfig, StoreStats};

use super::{Recorder, Tenant, Turn};
use rackweave_replay::ycsb::{Op, RECORD_BYTES, Workload, Ycsb, key};

/// Pending puts during the fill of the store.
const FILL_DEPTH: usize = 256;
/// Retry interval of a store after the drive's queues were full.
const POLL: Span = Span::from_micros(50);

/// Load of clients on a store.
#[derive(Clone, Copy, Debug)]
pub struct KvLoad {
    /// Records in the store before the measurement, of [`RECORD_BYTES`] each.
    pub records: u64,
    /// Updates per record after the fill, so that the log has wrapped and compaction runs.
    pub ageing: f64,
    /// Clients, each with one request at a time.
    pub clients: usize,
    /// Durability of the clients' puts; the fill uses buffered ones.
    pub durability: Durability,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    kind: &'static str,
    arrived: Time,
    record: u64,
    /// Number of answers that it waits for.
    left: u8,
    /// A read that is followed by an update.
    then_update: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Filling,
    Ageing,
    Ready,
}

/// A store, perhaps with a replica, and its clients.
#[derive(Debug)]
pub struct KvClients {
    load: KvLoad,
    stores: Vec<Store>,
    /// The store that serves the reads.
    pub reader: usize,
    phase: Phase,
    done: u64,
    rng: Rng,
    ycsb: Option<Ycsb>,
    running: Map<u64, Running>,
    next: u64,
    /// Completed requests that are not recorded yet: kind, arrival, end, bytes.
    ended: Vec<(&'static str, Time, Time, u64)>,
    poll_at: Option<Time>,
    value: Vec<u8>,
}

/// A store of [`KvClients`] as the tenant that gets its answers. The first one carries the clients' load.
#[derive(Debug)]
pub struct KvTenant {
    clients: Rc<RefCell<KvClients>>,
    vssd: VssdId,
    number: usize,
    recorder: Recorder,
}

impl KvTenant {
    /// A tenant for each vSSD: the first is the store, the others are replicas, which get every put.
    pub fn of(vssds: &[VssdId], load: KvLoad) -> (Rc<RefCell<KvClients>>, Vec<Box<dyn Tenant>>) {
        let clients = Rc::new(RefCell::new(KvClients {
            load,
            stores: Vec::new(),
            reader: 0,
            phase: Phase::Opening,
            done: 0,
            rng: Rng::stream(load.seed, 1),
            ycsb: None,
            running: map(),
            next: 0,
            ended: Vec::new(),
            poll_at: None,
            value: vec![0x5a; RECORD_BYTES as usize],
        }));
        let tenant = |(number, vssd): (usize, &VssdId)| -> Box<dyn Tenant> {
            let (clients, vssd) = (clients.clone(), *vssd);
            Box::new(KvTenant { clients, vssd, number, recorder: Recorder::new() })
        };
        let tenants = vssds.iter().enumerate().map(tenant).collect();
        (clients, tenants)
    }
}

fn name(record: u64) -> [u8; 24] {
    let mut k = *b"user00000000000000000000";
    let mut n = key(record);
    for d in k[4..].iter_mut().rev() {
        *d = b'0' + (n % 10) as u8;
        n /= 10;
    }
    k
}

impl KvClients {
    /// Switches the clients to another workload; pending requests complete.
    pub fn switch(&mut self, workload: Workload) {
        let records = self.ycsb.as_ref().map_or(self.load.records, Ycsb::records);
        self.ycsb = Some(Ycsb::new(workload, records, self.load.seed ^ workload as u64));
    }
    pub fn stats(&self) -> StoreStats {
        self.stores[0].stats()
    }
    fn on(&mut self, store: usize, turn: &mut Turn, f: impl FnOnce(&mut Store, &mut Flash<'_>)) {
        let mut fx = Flash { now: turn.now, manager: turn.manager, out: turn.out };
        f(&mut self.stores[store], &mut fx);
    }
    fn put(&mut self, turn: &mut Turn, token: u64, record: u64) {
        self.value[..8].copy_from_slice(&record.to_le_bytes());
        let durability = if self.phase == Phase::Ready { self.load.durability } else { Durability::Buffered };
        let (name, value) = (name(record), Bytes::copy_from_slice(&self.value));
        for store in 0..self.stores.len() {
            let value = value.clone();
            self.on(store, turn, |s, fx| s.put(fx, &name, value, durability, token).expect("the store takes it"));
        }
    }
    fn begin(&mut self, turn: &mut Turn, op: Op, arrived: Time) {
        self.next += 1;
        let token = self.next;
        let copies = self.stores.len() as u8;
        let mut run = |kind, record, left, then_update| {
            self.running.insert(token, Running { kind, arrived, record, left, then_update });
        };
        match op {
            Op::Read { record } => run("read", record, 1, false),
            Op::ReadModifyWrite { record } => run("read-modify-write", record, 1, true),
            Op::Scan { record, .. } => run("scan", record, 1, false),
            Op::Update { record } => run("update", record, copies, false),
            Op::Insert { record } => run("insert", record, copies, false),
        }
        let reader = self.reader;
        match op {
            Op::Read { record } | Op::ReadModifyWrite { record } => {
                self.on(reader, turn, |s, fx| s.get(fx, &name(record), token).expect("the store takes it"));
            }
            Op::Scan { record, records } => {
                let n = records as usize;
                self.on(reader, turn, |s, fx| s.scan(fx, &name(record), n, token).expect("the store takes it"));
            }
            Op::Update { record } | Op::Insert { record } => self.put(turn, token, record),
        }
    }
    fn go_on(&mut self, turn: &mut Turn) {
        loop {
            match self.phase {
                Phase::Opening => break,
                Phase::Filling if self.done < self.load.records => {
                    if self.running.len() >= FILL_DEPTH {
                        break;
                    }
                    let record = self.done;
                    self.done += 1;
                    self.begin(turn, Op::Insert { record }, turn.now);
                }
                Phase::Filling => (self.phase, self.done) = (Phase::Ageing, 0),
                Phase::Ageing if self.done < (self.load.records as f64 * self.load.ageing) as u64 => {
                    if self.running.len() >= FILL_DEPTH {
                        break;
                    }
                    self.done += 1;
                    let record = self.rng.below(self.load.records);
                    self.begin(turn, Op::Update { record }, turn.now);
                }
                Phase::Ageing => self.phase = Phase::Ready,
                Phase::Ready => {
                    let Some(y) = self.ycsb.as_mut().filter(|_| self.running.len() < self.load.clients) else { break };
                    let op = y.next().expect("without end");
                    self.begin(turn, op, turn.now);
                }
            }
            self.take(turn);
        }
        let waits = self.stores.iter().any(Store::wants_poll);
        self.poll_at = waits.then(|| self.poll_at.filter(|at| *at > turn.now).unwrap_or(turn.now + POLL));
    }
    /// Takes the stores' answers.
    fn take(&mut self, turn: &mut Turn) {
        for store in 0..self.stores.len() {
            for a in self.stores[store].answers().collect::<Vec<_>>() {
                let (token, bytes) = match a {
                    Answer::Opened { result } => {
                        result.expect("an empty vSSD");
                        continue;
                    }
                    Answer::Put { token, result } => {
                        result.expect("the store has room");
                        (token, u64::from(RECORD_BYTES))
                    }
                    Answer::Got { token, result } => {
                        let value = result.expect("sound").expect("the record was put");
                        let record = self.running[&token].record;
                        assert_eq!(value[..8], record.to_le_bytes(), "the value of another record");
                        (token, value.len() as u64)
                    }
                    Answer::Scanned { token, result } => {
                        (token, result.expect("sound").entries.iter().map(|(_, v)| v.len() as u64).sum())
                    }
                    Answer::Deleted { .. } | Answer::Loaded { .. } => continue,
                };
                let r = self.running.get_mut(&token).expect("it was asked");
                r.left -= 1;
                if r.left > 0 {
                    continue;
                }
                let copies = self.stores.len() as u8;
                let r = self.running.get_mut(&token).expect("it was asked");
                if std::mem::take(&mut r.then_update) {
                    r.left = copies;
                    let record = r.record;
                    self.put(turn, token, record);
                    continue;
                }
                let r = self.running.remove(&token).expect("it was asked");
                if self.phase == Phase::Ready {
                    self.ended.push((r.kind, r.arrived, turn.now, bytes));
                }
            }
        }
    }
    fn event(&mut self, turn: &mut Turn) {
        self.take(turn);
        if self.phase == Phase::Opening && self.stores.iter().all(Store::is_open) {
            self.phase = Phase::Filling;
        }
        self.go_on(turn);
    }
}

impl Tenant for KvTenant {
    fn prepare(&mut self, turn: &mut Turn) {
        let mut c = self.clients.borrow_mut();
        let user = (turn.token_base() >> 48) as u16;
        let mut fx = Flash { now: turn.now, manager: turn.manager, out: turn.out };
        let store = Store::open(StoreConfig::new(self.vssd, user), &mut fx).expect("room for a store");
        c.stores.push(store);
        // All copies are ready.
        if Rc::strong_count(&self.clients) - 1 == c.stores.len() {
            c.event(turn);
        }
    }
    fn prepared(&self) -> bool {
        let c = self.clients.borrow();
        c.phase == Phase::Ready && c.running.is_empty()
    }
    fn begin(&mut self, turn: &mut Turn) {
        if self.number == 0 {
            self.clients.borrow_mut().event(turn);
        }
    }
    fn done(&mut self, turn: &mut Turn, done: Done) {
        let mut c = self.clients.borrow_mut();
        c.on(self.number, turn, |s, fx| s.handle(fx, done));
        c.event(turn);
    }
    fn wake(&self) -> Option<Time> {
        if self.number == 0 { self.clients.borrow().poll_at } else { None }
    }
    fn tick(&mut self, turn: &mut Turn) {
        let mut c = self.clients.borrow_mut();
        c.poll_at = None;
        for store in 0..c.stores.len() {
            c.on(store, turn, |s, fx| s.poll(fx));
        }
        c.event(turn);
    }
    fn recorder(&mut self) -> &mut Recorder {
        if self.number == 0 {
            for (kind, arrived, now, bytes) in self.clients.borrow_mut().ended.drain(..) {
                self.recorder.note(kind, arrived, now, bytes);
            }
        }
        &mut self.recorder
    }
}
