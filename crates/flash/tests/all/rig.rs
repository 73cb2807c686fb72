//! A drive on a backend in memory that knows what a power cut may lose: commands that no later sync covers.

use rackweave_core::device::{Backend, Completion, DeviceCommand, DeviceError, DeviceOp, PageAddr};
use rackweave_core::{BLOCK, BlockAddr, Payload, Rng, SsdId, Time, Timestamp, VolumeId, VssdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::{BlockWrite, FlashDone, FlashOut, Geometry, NoFreeBlock, Profile, Ssd, SsdConfig, Timing};

pub const VSSD: VssdId = VssdId(1);

pub fn addr(block: u32) -> BlockAddr {
    BlockAddr::new(VolumeId(1), block)
}
pub fn contents(version: u64) -> Payload {
    Payload::elided(BLOCK, version)
}

/// 32 erase blocks of 16 pages of 4 slots on 4 dies.
pub fn small_profile() -> Profile {
    let mut p = Profile::builtin("p-ssd").expect("built in");
    p.geometry = Geometry {
        channels: 2,
        dies_per_channel: 2,
        planes_per_die: 1,
        blocks_per_plane: 8,
        pages_per_block: 16,
        page_bytes: 16_384,
    };
    p
}

pub fn small_config() -> SsdConfig {
    let mut cfg = SsdConfig::new(SsdId(3), small_profile());
    cfg.timing = Timing::None;
    cfg.checkpoint_blocks = Some(12);
    cfg
}

pub fn new_ssd(cfg: &SsdConfig) -> Ssd {
    let mut ssd = Ssd::new(cfg.clone()).expect("valid profile");
    ssd.alloc_vssd(VSSD, cfg.profile.geometry.channels).expect("channels are free");
    ssd
}

/// A command executed and not yet covered by a sync.
struct Unsynced {
    id: u64,
    op: DeviceOp,
    completed: bool,
}

struct InFlight {
    completion: Completion,
    id: u64,
    /// Of a sync: the commands it makes durable.
    covers: Option<Vec<u64>>,
}

fn block_of(op: &DeviceOp) -> Option<u32> {
    match op {
        DeviceOp::Program { page, .. } => Some(page.block),
        DeviceOp::Erase { block, .. } => Some(*block),
        _ => None,
    }
}

pub struct Rig {
    pub ssd: Ssd,
    pub disk: Memory,
    /// What a power cut cannot take away.
    durable: Memory,
    unsynced: Vec<Unsynced>,
    in_flight: Vec<InFlight>,
    pub done: Vec<FlashDone>,
    pub rng: Rng,
    pub now: Time,
    /// Fails the next program or sync.
    pub fail: Option<DeviceError>,
    pub commands: u64,
    out: FlashOut,
    pub traces: Vec<rackweave_core::TracePoint>,
}

impl Rig {
    pub fn new(cfg: &SsdConfig, seed: u64) -> Rig {
        let disk = Memory::new(cfg.profile.geometry);
        Rig::on(cfg, disk, seed)
    }
    pub fn on(cfg: &SsdConfig, disk: Memory, seed: u64) -> Rig {
        Rig {
            ssd: new_ssd(cfg),
            durable: disk.clone(),
            disk,
            unsynced: Vec::new(),
            in_flight: Vec::new(),
            done: Vec::new(),
            rng: Rng::new(seed),
            now: Time::ZERO,
            fail: None,
            commands: 0,
            out: FlashOut::new(),
            traces: Vec::new(),
        }
    }
    fn take(&mut self) {
        self.traces.extend(self.out.traces.drain(..).map(|t| t.point));
        self.done.append(&mut self.out.done);
        for c in std::mem::take(&mut self.out.commands) {
            self.execute(c);
        }
    }
    fn execute(&mut self, c: DeviceCommand) {
        self.commands += 1;
        let sync = matches!(c.op, DeviceOp::Sync);
        let failing = matches!(c.op, DeviceOp::Program { .. } | DeviceOp::Sync);
        let result = match self.fail.take_if(|_| failing) {
            Some(e) => {
                if let DeviceOp::Program { page, .. } = &c.op {
                    self.disk.tear_program(*page);
                    self.durable_tear(*page);
                }
                Err(e)
            }
            None => self.disk.execute(&c.op),
        };
        let covers = sync.then(|| self.covered());
        let changes = matches!(c.op, DeviceOp::Program { .. } | DeviceOp::Erase { .. } | DeviceOp::WriteMeta { .. });
        let id = self.commands;
        if changes && result.is_ok() {
            self.unsynced.push(Unsynced { id, op: c.op, completed: false });
        }
        let completion = Completion { ssd: c.ssd, tag: c.tag, result };
        self.in_flight.push(InFlight { completion, id, covers });
    }
    /// What is complete, and what came before it in its erase block.
    fn covered(&self) -> Vec<u64> {
        let mut covered = Vec::new();
        let mut blocks = std::collections::BTreeSet::new();
        for u in self.unsynced.iter().rev() {
            let block = block_of(&u.op);
            if u.completed || block.is_some_and(|b| blocks.contains(&b)) {
                blocks.extend(block);
                covered.push(u.id);
            }
        }
        covered
    }
    fn durable_tear(&mut self, page: PageAddr) {
        // Everything of the block so far is taken as durable, so that the torn page follows in order.
        for u in self.unsynced.extract_if(.., |u| block_of(&u.op) == Some(page.block)) {
            self.durable.execute(&u.op).expect("in order");
        }
        self.durable.tear_program(page);
    }
    /// Delivers one completion, any of those in flight. False: none is.
    pub fn step(&mut self) -> bool {
        self.take();
        if self.in_flight.is_empty() {
            return false;
        }
        let i = self.rng.below(self.in_flight.len() as u64) as usize;
        let InFlight { completion, id, covers } = self.in_flight.swap_remove(i);
        self.now.0 += 1000;
        if let Some(covers) = covers.filter(|_| completion.result.is_ok()) {
            for u in self.unsynced.extract_if(.., |u| covers.contains(&u.id)) {
                self.durable.execute(&u.op).expect("what the disk took, the durable one takes");
            }
        }
        if let Some(u) = self.unsynced.iter_mut().find(|u| u.id == id) {
            u.completed = true;
        }
        self.ssd.handle(self.now, completion, &mut self.out);
        self.take();
        true
    }
    pub fn settle(&mut self) {
        while self.step() {}
    }
    pub fn boot(&mut self) {
        self.ssd.boot(self.now, &mut self.out);
        self.settle();
        let at = self.done.iter().position(|d| matches!(d, FlashDone::Recovered { .. })).expect("boot ends");
        let FlashDone::Recovered { result } = self.done.remove(at) else { unreachable!() };
        assert_eq!(result, Ok(()));
    }
    /// Begins a boot and stops after `steps` completions.
    pub fn boot_partly(&mut self, steps: u64) {
        self.ssd.boot(self.now, &mut self.out);
        for _ in 0..steps {
            self.step();
        }
    }
    pub fn program(&mut self, blocks: &[(u32, u64)], token: u64) -> Result<(), NoFreeBlock> {
        let write = |&(b, v): &(u32, u64)| BlockWrite { addr: addr(b), version: Timestamp(v), data: contents(v) };
        let writes: Vec<BlockWrite> = blocks.iter().map(write).collect();
        let r = self.ssd.program(self.now, VSSD, &writes, token, &mut self.out);
        self.take();
        r
    }
    pub fn write(&mut self, w: BlockWrite, token: u64) {
        self.ssd.program(self.now, VSSD, &[w], token, &mut self.out).expect("room");
        self.take();
    }
    pub fn sync(&mut self, token: u64) {
        self.ssd.sync(self.now, VSSD, token, &mut self.out);
        self.take();
    }
    pub fn gc_start(&mut self) {
        self.ssd.gc_start(self.now, VSSD, &mut self.out);
        self.take();
    }
    pub fn read(&mut self, block: u32, token: u64) {
        self.ssd.read(self.now, VSSD, addr(block), token, &mut self.out);
        self.take();
    }
    /// Reads a block with nothing else going on: its version and contents.
    pub fn fetch(&mut self, block: u32) -> (Timestamp, Result<Payload, rackweave_flash::ReadError>) {
        let token = u64::MAX;
        self.read(block, token);
        loop {
            let is = |d: &FlashDone| matches!(d, FlashDone::Read { token: t, .. } if *t == token);
            if let Some(i) = self.done.iter().position(is) {
                let FlashDone::Read { version, result, .. } = self.done.swap_remove(i) else { unreachable!() };
                return (version, result);
            }
            assert!(self.step(), "the read was not answered");
        }
    }

    /// What could be on the flash after a power cut now: each command no sync covers happened, or not, or half.
    pub fn crash(&self, rng: &mut Rng) -> Memory {
        let mut disk = self.durable.clone();
        let mut dead = std::collections::BTreeSet::new();
        let p = rng.unit();
        for u in &self.unsynced {
            let block = block_of(&u.op).unwrap_or(u32::MAX);
            let lost = rng.chance(p);
            if dead.contains(&block) {
                continue;
            }
            match &u.op {
                _ if !lost => {
                    disk.execute(&u.op).expect("a prefix of what the disk took");
                }
                DeviceOp::Program { page, .. } if rng.chance(0.5) => disk.tear_program(*page),
                DeviceOp::Erase { block, .. } => {
                    if rng.chance(0.5) {
                        let keep = rng.next_u64();
                        disk.tear_erase(*block, |page| keep >> (page % 64) & 1 == 1);
                    }
                    dead.insert(*block);
                }
                DeviceOp::WriteMeta { offset, data } if rng.chance(0.5) && data.len() > 1 => {
                    let data = data.slice(..rng.between(1, data.len() as u64 - 1) as usize);
                    disk.execute(&DeviceOp::WriteMeta { offset: *offset, data }).expect("memory");
                }
                DeviceOp::WriteMeta { .. } => {}
                _ => {
                    dead.insert(block);
                }
            }
        }
        disk
    }
}
