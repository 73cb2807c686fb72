//! A file system on a small in-memory drive of the flash manager, with power cuts.

use std::cell::Cell;
use std::rc::Rc;

use rackweave_core::device::{Backend, DeviceData, DeviceError, DeviceOp};
use rackweave_core::{Rng, SsdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::ManagerConfig;
use rackweave_flash::manager::api::VirtualSsds;
use rackweave_flash::manager::driver::BlockingDrive;
use rackweave_flash::{Geometry, Profile, Timing};
use rackweave_vlfs::{Disk, Owner, Stamp, Vlfs};

use crate::power_disk::PowerDisk;

pub const PAGE: u32 = 8192;
pub const SLOT: u64 = 4096;

/// A power cut at a command, and the contents that it leaves.
pub struct Cut {
    pub at: u64,
    pub rng: Rng,
    pub left: Option<Memory>,
}

/// Executes at once, and can produce the contents after a power cut.
pub struct Disk2 {
    pub disk: PowerDisk,
    pub commands: u64,
    pub cut: Option<Cut>,
    /// Number of programs before one that fails, together with its erase block.
    pub fail_in: Option<u64>,
    /// Reads fail; the contents stay.
    pub reads_fail: Rc<Cell<bool>>,
}

impl Disk2 {
    pub fn on(memory: Memory) -> Disk2 {
        let reads_fail = Rc::default();
        Disk2 { disk: PowerDisk::on(memory), commands: 0, cut: None, fail_in: None, reads_fail }
    }
}

impl Backend for Disk2 {
    fn execute(&mut self, op: &DeviceOp) -> Result<DeviceData, DeviceError> {
        self.commands += 1;
        if let Some(c) = self.cut.as_mut().filter(|c| c.at == self.commands) {
            c.left = Some(self.disk.crash(&mut c.rng));
        }
        let reads = matches!(op, DeviceOp::ReadSlot { .. } | DeviceOp::ReadPage { .. });
        let mut fail = (reads && self.reads_fail.get()).then_some(DeviceError::Backend { os_error: 5 });
        if let DeviceOp::Program { page, .. } | DeviceOp::ReadSlot { page, .. } = op
            && self.disk.bad.contains(&page.block)
            && matches!(op, DeviceOp::Program { .. })
        {
            fail = Some(DeviceError::BadBlock { block: page.block });
        }
        if let DeviceOp::Program { page, .. } = op
            && let Some(n) = self.fail_in.as_mut()
        {
            if *n == 0 {
                self.fail_in = None;
                self.disk.bad.insert(page.block);
                fail = Some(DeviceError::BadBlock { block: page.block });
            } else {
                *n -= 1;
            }
        }
        let (result, ticket) = self.disk.submit(op.clone(), fail);
        self.disk.delivered(ticket, result.is_ok());
        result
    }
}

pub type Fs = Vlfs<BlockingDrive<Disk2>>;

/// One die of two planes, `blocks` erase blocks each, of 8 pages of 8 KiB: blocks of 32 slots.
pub fn config(blocks: u32) -> ManagerConfig {
    let mut p = Profile::builtin("p-ssd").expect("built in");
    p.geometry = Geometry {
        channels: 1,
        dies_per_channel: 1,
        planes_per_die: 2,
        blocks_per_plane: blocks,
        pages_per_block: 8,
        page_bytes: PAGE,
    };
    p.device_over_provisioning = 0.1;
    let mut cfg = ManagerConfig::new(SsdId(0), p);
    cfg.timing = Timing::None;
    cfg.die_spread = 60_000;
    cfg
}

pub fn stamp(s: i64) -> Stamp {
    Stamp { s, ns: 7 }
}

/// Mounts the drive; a new one gets a vSSD first.
pub fn mount(cfg: &ManagerConfig, memory: Memory) -> Result<Fs, String> {
    mount_on(cfg, Disk2::on(memory))
}
pub fn mount_on(cfg: &ManagerConfig, disk: Disk2) -> Result<Fs, String> {
    let mut d = BlockingDrive::open(cfg.clone(), disk).map_err(|e| e.to_string())?;
    let known = d.manager().vssds().next().map(|v| v.id);
    let vssd = match known {
        Some(v) => v,
        None => {
            let v = d.alloc_vssd(Isolation::Channel, 0, 1).map_err(|e| e.to_string())?;
            d.sync().map_err(|e| e.to_string())?;
            v
        }
    };
    let blocks = d.manager().blocks(vssd).map_err(|e| e.to_string())?.0;
    let disk = Disk { vssd, blocks, page_bytes: PAGE };
    Vlfs::mount(d, disk, Owner::default(), stamp(1)).map_err(|(_, e)| e.to_string())
}

pub fn new(cfg: &ManagerConfig) -> Fs {
    mount(cfg, Memory::new(cfg.profile.geometry)).expect("a new file system")
}
