//! A drive of the flash manager with power cuts: the manager's commands are executed at once and completed in any
//! order, erase blocks fail, and a power cut loses commands that no sync covers.

use rackweave_core::device::{Completion, DeviceError, DeviceOp};
use rackweave_core::{Rng, Time};
use rackweave_flash::backend::Memory;
use rackweave_flash::manager::{Done, FlashManager, ManagerConfig, ManagerOut};

use crate::power_disk::{PowerDisk, Ticket};

pub struct PowerDrive {
    cfg: ManagerConfig,
    pub rng: Rng,
    pub manager: FlashManager,
    pub disk: PowerDisk,
    in_flight: Vec<(Completion, Ticket)>,
    pub out: ManagerOut,
    pub now: Time,
    /// Fraction of programs and erases that fail, together with their erase block.
    pub failures: f64,
    /// Number of the next programs and erases that fail.
    pub fail_next: u64,
    pub sync_fails: bool,
    pub failed_blocks: u64,
    pub commands: u64,
}

impl PowerDrive {
    /// A new drive, not started.
    pub fn new(cfg: &ManagerConfig, rng: Rng, failures: f64) -> PowerDrive {
        PowerDrive {
            cfg: cfg.clone(),
            rng,
            manager: FlashManager::new(cfg.clone()).expect("a drive"),
            disk: PowerDisk::on(Memory::new(cfg.profile.geometry)),
            in_flight: Vec::new(),
            out: ManagerOut::new(),
            now: Time::ZERO,
            failures,
            fail_next: 0,
            sync_fails: false,
            failed_blocks: 0,
            commands: 0,
        }
    }
    /// Executes the manager's commands, and takes its answers.
    pub fn take(&mut self) -> Vec<Done> {
        for c in std::mem::take(&mut self.out.commands) {
            self.commands += 1;
            let fails = match &c.op {
                DeviceOp::Program { page, .. } => Some(page.block),
                DeviceOp::Erase { block, .. } => Some(*block),
                _ => None,
            };
            let next = fails.is_some() && self.fail_next > 0;
            self.fail_next -= u64::from(next);
            let fail = fails.filter(|b| next || self.disk.bad.contains(b) || self.rng.chance(self.failures));
            if let Some(block) = fail {
                self.failed_blocks += u64::from(self.disk.bad.insert(block));
            }
            let fail = fail.map(|block| DeviceError::BadBlock { block });
            let sync = self.sync_fails && matches!(c.op, DeviceOp::Sync);
            let fail = fail.or(sync.then_some(DeviceError::Backend { os_error: 5 }));
            let (result, ticket) = self.disk.submit(c.op, fail);
            self.in_flight.push((Completion { ssd: c.ssd, tag: c.tag, result }, ticket));
        }
        std::mem::take(&mut self.out.done)
    }
    /// Completes one pending command, less than `ns` later; false if there is none.
    pub fn complete(&mut self, ns: u64) -> bool {
        if self.in_flight.is_empty() {
            return false;
        }
        let i = self.rng.below(self.in_flight.len() as u64) as usize;
        let (completion, ticket) = self.in_flight.swap_remove(i);
        self.now.0 += self.rng.below(ns);
        self.disk.delivered(ticket, completion.result.is_ok());
        self.manager.handle(self.now, completion, &mut self.out);
        true
    }
    /// Checks that no rule of NAND flash was broken.
    pub fn sound(&self) -> Result<(), String> {
        if self.disk.violations().is_empty() { Ok(()) } else { Err(format!("{:?}", self.disk.violations())) }
    }
    /// Cuts the power; the drive is not started afterwards.
    pub fn cut(&mut self) {
        let disk = self.disk.crash(&mut self.rng);
        let bad = std::mem::take(&mut self.disk.bad);
        self.disk = PowerDisk::on(disk);
        self.disk.bad = bad;
        self.in_flight.clear();
        self.out = ManagerOut::new();
        self.manager = FlashManager::new(self.cfg.clone()).expect("a drive");
        self.now = Time::ZERO;
    }
}
