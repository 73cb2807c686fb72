//! A drive with the page layer on a backend that tracks the commands that a power cut may lose.

use rackweave_core::device::{Completion, DeviceCommand, DeviceError, DeviceOp};
use rackweave_core::msg::BlockRange;
use rackweave_core::{BLOCK, BlockAddr, Incarnation, Payload, Rng, SetId, SsdId, Time, Timestamp, VolumeId, VssdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::manager::{FlashManager, ManagerOut};
use rackweave_flash::{
    BlockWrite, FlashDone, FlashOut, Geometry, NoFreeBlock, Profile, RecoveryError, Share, Ssd, SsdConfig, SwapError,
    Timing,
};

use crate::power_disk::{PowerDisk, Ticket};

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

/// The vSSD has all channels; on a drive with one channel, all dies but the first, which belongs to another vSSD.
pub fn new_ssd(cfg: &SsdConfig) -> Ssd {
    let mut ssd = Ssd::new(cfg.clone()).expect("valid profile");
    let g = &cfg.profile.geometry;
    if g.channels > 1 {
        ssd.alloc_vssd(VSSD, g.channels).expect("channels are free");
    } else {
        ssd.alloc_share(VssdId(9), Share::Dies(1)).expect("dies are free");
        ssd.alloc_share(VSSD, Share::Dies(g.dies() - 1)).expect("dies are free");
    }
    ssd
}

struct InFlight {
    held: bool,
    /// Erase block that it reads.
    reads: Option<u32>,
    completion: Completion,
    ticket: Ticket,
}

pub struct Rig {
    pub ssd: Ssd,
    pub disk: PowerDisk,
    in_flight: Vec<InFlight>,
    pub done: Vec<FlashDone>,
    pub rng: Rng,
    pub now: Time,
    /// Fails the next program or sync.
    pub fail: Option<DeviceError>,
    /// Marks of bad blocks are not answered.
    pub hold_marks: bool,
    /// Reads of single slots, as the host's are, are not answered.
    pub hold_reads: bool,
    /// Erases are not answered.
    pub hold_erases: bool,
    /// The vSSD that the calls are for.
    pub vssd: VssdId,
    pub out: FlashOut,
    pub traces: Vec<rackweave_core::TracePoint>,
}

impl Rig {
    pub fn new(cfg: &SsdConfig, seed: u64) -> Rig {
        let disk = Memory::new(cfg.profile.geometry);
        Rig::on(cfg, disk, seed)
    }
    pub fn on(cfg: &SsdConfig, disk: Memory, seed: u64) -> Rig {
        Rig::of(new_ssd(cfg), disk, seed)
    }
    /// A rig on a drive that has vSSDs.
    pub fn of(ssd: Ssd, disk: Memory, seed: u64) -> Rig {
        Rig {
            ssd,
            disk: PowerDisk::on(disk),
            in_flight: Vec::new(),
            done: Vec::new(),
            rng: Rng::new(seed),
            now: Time::ZERO,
            fail: None,
            hold_marks: false,
            hold_reads: false,
            hold_erases: false,
            vssd: VSSD,
            out: FlashOut::new(),
            traces: Vec::new(),
        }
    }
    pub fn take(&mut self) {
        self.traces.extend(self.out.traces.drain(..).map(|t| t.point));
        self.done.append(&mut self.out.done);
        for c in std::mem::take(&mut self.out.commands) {
            self.execute(c);
        }
    }
    fn execute(&mut self, c: DeviceCommand) {
        let failing = matches!(c.op, DeviceOp::Program { .. } | DeviceOp::Sync);
        let slots = matches!(c.op, DeviceOp::ReadSlot { .. } | DeviceOp::ReadSlots { .. });
        let held = self.hold_marks && matches!(c.op, DeviceOp::MarkBad { .. })
            || self.hold_reads && slots
            || self.hold_erases && matches!(c.op, DeviceOp::Erase { .. });
        let read = matches!(c.op, DeviceOp::ReadSlot { .. } | DeviceOp::ReadSlots { .. } | DeviceOp::ReadPage { .. });
        let reads = c.op.block().filter(|_| read);
        if let DeviceOp::Erase { block, .. } = c.op {
            let read = self.in_flight.iter().any(|f| f.reads == Some(block));
            assert!(!read, "erase block {block} is erased while it is read");
        }
        let (result, ticket) = self.disk.submit(c.op, self.fail.take_if(|_| failing));
        let completion = Completion { ssd: c.ssd, tag: c.tag, result };
        self.in_flight.push(InFlight { held, reads, completion, ticket });
    }
    /// Answers what was held.
    pub fn release(&mut self) {
        (self.hold_marks, self.hold_reads, self.hold_erases) = (false, false, false);
        self.in_flight.iter_mut().for_each(|f| f.held = false);
    }
    /// Delivers one of the pending completions; false if there is none.
    pub fn step(&mut self) -> bool {
        self.take();
        let held = self.in_flight.iter().filter(|f| f.held).count();
        if self.in_flight.len() == held {
            return false;
        }
        self.in_flight.sort_by_key(|f| f.held);
        let i = self.rng.below((self.in_flight.len() - held) as u64) as usize;
        let InFlight { completion, ticket, .. } = self.in_flight.swap_remove(i);
        self.now.0 += 1000;
        self.disk.delivered(ticket, completion.result.is_ok());
        self.ssd.handle(self.now, completion, &mut self.out);
        self.take();
        true
    }
    pub fn settle(&mut self) {
        while self.step() {}
    }
    pub fn boot(&mut self) {
        assert_eq!(self.try_boot(), Ok(()));
    }
    pub fn try_boot(&mut self) -> Result<(), RecoveryError> {
        self.ssd.boot(self.now, &mut self.out);
        self.settle();
        let at = self.done.iter().position(|d| matches!(d, FlashDone::Recovered { .. })).expect("boot ends");
        let FlashDone::Recovered { result } = self.done.remove(at) else { unreachable!() };
        result
    }
    /// Starts a boot and stops after `steps` completions.
    pub fn boot_partly(&mut self, steps: u64) {
        self.ssd.boot(self.now, &mut self.out);
        for _ in 0..steps {
            self.step();
        }
    }
    pub fn program(&mut self, blocks: &[(u32, u64)], token: u64) -> Result<(), NoFreeBlock> {
        let write = |&(b, v): &(u32, u64)| BlockWrite { addr: addr(b), version: Timestamp(v), data: contents(v) };
        let writes: Vec<BlockWrite> = blocks.iter().map(write).collect();
        let r = self.ssd.program(self.now, self.vssd, &writes, token, &mut self.out);
        self.take();
        r
    }
    pub fn write(&mut self, w: BlockWrite, token: u64) {
        self.ssd.program(self.now, self.vssd, &[w], token, &mut self.out).expect("room");
        self.take();
    }
    pub fn sync(&mut self, token: u64) {
        self.ssd.sync(self.now, self.vssd, token, &mut self.out);
        self.take();
    }
    pub fn gc_start(&mut self) {
        self.ssd.gc_start(self.now, self.vssd, &mut self.out);
        self.take();
    }
    /// Stops collection, and returns borrowed blocks.
    pub fn gc_end(&mut self) {
        self.ssd.gc_stop(self.vssd);
        self.ssd.give_back(self.now, self.vssd, &mut self.out);
        self.take();
    }
    pub fn borrow(&mut self) -> u32 {
        let borrowed = self.ssd.borrow(self.now, self.vssd, &mut self.out);
        self.take();
        borrowed
    }
    /// Assigns the cleared slot to another user with the same vSSD id.
    pub fn assign(&mut self) {
        self.assign_first();
        self.settle();
    }
    /// As `assign`, but runs only until the call is answered.
    pub fn assign_first(&mut self) {
        self.ssd.assign(self.now, self.vssd, (self.vssd, SetId(7)), &mut self.out);
        self.take();
        let durable = |d: &FlashDone| matches!(d, FlashDone::Assigned { result: Ok(()), .. });
        while !self.done.iter().any(durable) {
            assert!(self.step(), "the call is not answered");
        }
    }
    pub fn note_incarnation(&mut self, incarnation: Incarnation) {
        self.ssd.note_incarnation(self.now, incarnation, &mut self.out);
        self.settle();
    }
    pub fn clear(&mut self) {
        self.ssd.clear(self.now, self.vssd, &mut self.out);
        self.take();
    }
    pub fn zero(&mut self, range: BlockRange, version: Timestamp) {
        self.ssd.zero_range(self.now, self.vssd, range, version);
    }
    pub fn read(&mut self, block: u32, token: u64) {
        self.ssd.read(self.now, self.vssd, addr(block), token, &mut self.out);
        self.take();
    }
    /// Reads blocks in one call, with their numbers as tokens; returns the number of commands.
    pub fn read_all(&mut self, blocks: &[u32]) -> usize {
        for &block in blocks {
            self.ssd.read(self.now, self.vssd, addr(block), u64::from(block), &mut self.out);
        }
        let commands = self.out.commands.len();
        self.take();
        commands
    }
    /// Reads a block with nothing else pending; returns its version and contents.
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
    pub fn swap(&mut self, dies: (u32, u32)) -> Result<(), SwapError> {
        let begun = self.ssd.swap_dies(self.now, &[dies], &mut self.out);
        self.take();
        begun
    }
    pub fn resume_swap(&mut self) {
        self.ssd.resume_swap(self.now, &mut self.out);
        self.take();
    }
    /// Calls the manager of a log vSSD.
    pub fn with_log<R>(
        &mut self,
        vssd: VssdId,
        call: impl FnOnce(&mut FlashManager, VssdId, Time, &mut ManagerOut) -> R,
    ) -> R {
        let now = self.now;
        let result = self.ssd.with_log(now, vssd, &mut self.out, |m, inner, out| call(m, inner, now, out));
        self.take();
        result.expect("it is recovered")
    }
    pub fn crash(&self, rng: &mut Rng) -> Memory {
        self.disk.crash(rng)
    }
}
