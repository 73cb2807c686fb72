//! A tenant that is a volume of 4 KiB blocks ([`BlockMap`]), or several on one map, or one with a replica.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use rackweave_core::{BLOCK, Payload, Rng, Time, VssdId};
use rackweave_flash::VictimPolicy;
use rackweave_flash::blockmap::{BlockMap, BlockMapConfig, Io, MapDone, MapError, MapStats, Occupancy};
use rackweave_flash::manager::{Done, FlashManager};

use super::{Arrivals, Recorder, Tenant, Turn};
use rackweave_replay::ycsb;

/// One request, in 4 KiB blocks of its client's part of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRequest {
    pub write: bool,
    pub lba: u32,
    pub blocks: u32,
}

/// An endless sequence of requests.
pub type Requests = Box<dyn Iterator<Item = BlockRequest>>;

/// Sequential, cyclic requests of `blocks` each over `size` blocks; `writes` is the fraction of writes. Reads and writes
/// each have their own position.
pub fn sequential(size: u32, blocks: u32, writes: f64, seed: u64) -> Requests {
    let mut rng = Rng::stream(seed, 11);
    let round = size / blocks * blocks;
    let mut next = [0, round / 2 / blocks * blocks];
    Box::new(std::iter::repeat_with(move || {
        let write = rng.chance(writes);
        let at = &mut next[usize::from(write)];
        let lba = *at;
        *at = (*at + blocks) % round;
        BlockRequest { write, lba, blocks }
    }))
}

/// The same at random positions, drawn by YCSB's law of popularity (`popular`) or uniformly.
pub fn scattered(size: u32, blocks: u32, writes: f64, seed: u64, popular: bool) -> Requests {
    let mut rng = Rng::stream(seed, 12);
    Box::new(std::iter::repeat_with(move || {
        let write = rng.chance(writes);
        let places = u64::from(size / blocks);
        let place = if popular { ycsb::popular(&mut rng, places) } else { rng.below(places) };
        let lba = place as u32 * blocks;
        BlockRequest { write, lba, blocks }
    }))
}

/// A client of a part of the volume.
pub struct Client {
    /// First block and size of its part.
    pub first: u32,
    pub blocks: u32,
    pub requests: Requests,
    pub arrivals: Arrivals,
    /// Names of its reads and writes in the figures.
    pub kinds: [&'static str; 2],
}

/// Published state of a running tenant.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Statistics of its first map.
    pub stats: Rc<Cell<MapStats>>,
    /// Occupancy of its first map, on request.
    pub occupancy: Rc<Cell<Option<Occupancy>>>,
    /// 4 KiB blocks that each client wrote, including the initial fill.
    pub written: Rc<RefCell<Vec<u64>>>,
    /// The map that answers reads.
    pub reads_from: Rc<Cell<usize>>,
}

struct UnderWay {
    client: usize,
    write: bool,
    arrived: Time,
    blocks: u32,
    left: usize,
}

/// A volume and its clients. With several maps each is a replica: writes go to all, reads to one.
pub struct BlockTenant {
    maps: Vec<BlockMap>,
    clients: Vec<Client>,
    shared: Shared,
    recorder: Recorder,
    under_way: BTreeMap<u64, UnderWay>,
    of_client: Vec<u32>,
    /// Blocks of each client that are filled, and blocks of one fill request.
    laid: Vec<u32>,
    fill: u32,
    recovering: usize,
    next: u64,
    value: u64,
}

/// The bits of a token above these are the map's number.
const MAP_SHIFT: u32 = 40;
/// Pending requests during the initial fill of a volume.
const FILL_DEPTH: usize = 16;

impl BlockTenant {
    /// A tenant on these vSSDs, to be added to a bench as tenant `number`, from which its tokens are made.
    ///
    /// # Errors
    /// The volume does not fit.
    pub fn new(
        manager: &FlashManager,
        number: usize,
        vssds: &[VssdId],
        fill: u32,
        clients: Vec<Client>,
        shared: Shared,
    ) -> Result<BlockTenant, MapError> {
        let blocks = clients.iter().map(|c| c.first + c.blocks).max().unwrap_or(0);
        let map = |(i, &vssd): (usize, &VssdId)| {
            let token_base = (number as u64) << super::TENANT_SHIFT | (i as u64) << MAP_SHIFT;
            let cfg = BlockMapConfig { vssd, blocks, victims: VictimPolicy::Greedy, token_base };
            BlockMap::new(cfg, manager)
        };
        let maps = vssds.iter().enumerate().map(map).collect::<Result<Vec<_>, _>>()?;
        let n = clients.len();
        *shared.written.borrow_mut() = vec![0; n];
        Ok(BlockTenant {
            recovering: maps.len(),
            maps,
            clients,
            shared,
            recorder: Recorder::new(),
            under_way: BTreeMap::new(),
            of_client: vec![0; n],
            laid: vec![0; n],
            fill,
            next: 0,
            value: 0,
        })
    }
    fn submit(&mut self, t: &mut Turn, client: usize, arrived: Time, r: BlockRequest) {
        self.next += 1;
        let token = self.next;
        let lba = self.clients[client].first + r.lba;
        let mut io = Io { now: t.now, manager: &mut *t.manager, out: &mut *t.out };
        let to =
            if r.write { 0..self.maps.len() } else { self.shared.reads_from.get()..self.shared.reads_from.get() + 1 };
        let left = to.len();
        self.under_way.insert(token, UnderWay { client, write: r.write, arrived, blocks: r.blocks, left });
        self.of_client[client] += 1;
        if r.write {
            self.shared.written.borrow_mut()[client] += u64::from(r.blocks);
        }
        self.value += u64::from(r.blocks);
        let data = Payload::elided(r.blocks * BLOCK, self.value);
        for m in to {
            let map = &mut self.maps[m];
            let asked =
                if r.write { map.write(&mut io, lba, &data, token) } else { map.read(&mut io, lba, r.blocks, token) };
            asked.expect("clients stay in their parts and below the bound of waiting requests");
        }
    }
    fn lay_out(&mut self, t: &mut Turn) {
        while self.recovering == 0 && self.under_way.len() < FILL_DEPTH {
            // Clients of one volume fill their parts at the same time.
            let behind = (0..self.clients.len()).filter(|c| self.laid[*c] < self.clients[*c].blocks);
            let Some(c) = behind.min_by_key(|c| self.laid[*c]) else { return };
            let blocks = self.fill.min(self.clients[c].blocks - self.laid[c]);
            let lba = self.laid[c];
            self.laid[c] += blocks;
            self.submit(t, c, t.now, BlockRequest { write: true, lba, blocks });
        }
    }
    fn go_on(&mut self, t: &mut Turn) {
        for m in 0..self.maps.len() {
            for d in self.maps[m].take_done() {
                self.answer(t.now, d);
            }
        }
        self.lay_out(t);
        for c in 0..self.clients.len() {
            while let Some(arrived) = self.clients[c].arrivals.take(t.now, self.of_client[c]) {
                let r = self.clients[c].requests.next().expect("requests do not end");
                self.submit(t, c, arrived, r);
            }
        }
        self.shared.stats.set(self.maps[0].stats());
        if self.shared.occupancy.get().is_none() {
            self.shared.occupancy.set(Some(self.maps[0].occupancy()));
        }
    }
    fn answer(&mut self, now: Time, done: MapDone) {
        let (token, result) = match done {
            MapDone::Recovered { result } => {
                self.recovering -= 1;
                return result.expect("a new volume");
            }
            MapDone::Read { token, result } => (token, result.map(|_| ())),
            MapDone::Written { token, result }
            | MapDone::Trimmed { token, result }
            | MapDone::Flushed { token, result } => (token, result),
        };
        result.expect("the modelled device does not fail");
        let u = self.under_way.get_mut(&token).expect("it was asked");
        u.left -= 1;
        if u.left > 0 {
            return;
        }
        let UnderWay { client, write, arrived, blocks, .. } = self.under_way.remove(&token).expect("it was there");
        self.of_client[client] -= 1;
        let kind = self.clients[client].kinds[usize::from(write)];
        self.recorder.note(kind, arrived, now, u64::from(blocks) * u64::from(BLOCK));
    }
    /// Runs until no request is answered at once.
    fn settle(&mut self, t: &mut Turn) {
        loop {
            let before = self.next;
            self.go_on(t);
            if self.next == before {
                return;
            }
        }
    }
}

impl Tenant for BlockTenant {
    fn prepare(&mut self, turn: &mut Turn) {
        for m in &mut self.maps {
            m.recover(&mut Io { now: turn.now, manager: &mut *turn.manager, out: &mut *turn.out });
        }
        self.settle(turn);
    }
    fn prepared(&self) -> bool {
        let laid = self.laid.iter().zip(&self.clients).all(|(l, c)| *l >= c.blocks);
        self.recovering == 0 && laid && self.under_way.is_empty()
    }
    fn begin(&mut self, turn: &mut Turn) {
        self.clients.iter_mut().for_each(|c| c.arrivals.begin(turn.now));
        self.settle(turn);
    }
    fn done(&mut self, turn: &mut Turn, done: Done) {
        let token = match &done {
            Done::BlockAllocated { token, .. }
            | Done::Written { token, .. }
            | Done::Read { token, .. }
            | Done::Synced { token, .. } => *token,
            _ => return,
        };
        let m = (super::own_token(token) >> MAP_SHIFT) as usize;
        let mut io = Io { now: turn.now, manager: &mut *turn.manager, out: &mut *turn.out };
        self.maps[m].handle(&mut io, done);
        self.settle(turn);
    }
    fn wake(&self) -> Option<Time> {
        let arrivals = self.clients.iter().zip(&self.of_client).filter_map(|(c, n)| c.arrivals.wake(*n));
        self.maps.iter().filter_map(BlockMap::wake).chain(arrivals).min()
    }
    fn tick(&mut self, turn: &mut Turn) {
        for m in &mut self.maps {
            m.tick(&mut Io { now: turn.now, manager: &mut *turn.manager, out: &mut *turn.out });
        }
        self.settle(turn);
    }
    fn recorder(&mut self) -> &mut Recorder {
        &mut self.recorder
    }
}
