//! A backend in memory that tracks the commands that a power cut may lose: those that no later sync covers.

use std::collections::BTreeSet;

use rackweave_core::Rng;
use rackweave_core::device::{Backend, DeviceData, DeviceError, DeviceOp, PageAddr};
use rackweave_core::media_faults::MediaFaults;
use rackweave_flash::backend::Memory;

/// An executed command that no sync covers yet.
struct Unsynced {
    id: u64,
    op: DeviceOp,
    completed: bool,
}

fn block_of(op: &DeviceOp) -> Option<u32> {
    match op {
        DeviceOp::Program { page, .. } => Some(page.block),
        DeviceOp::Erase { block, .. } | DeviceOp::MarkBad { block } => Some(*block),
        _ => None,
    }
}

/// An executed command, to be returned when its completion is delivered.
pub struct Ticket {
    id: u64,
    /// For a sync, the commands that it makes durable.
    covers: Option<Vec<u64>>,
}

/// Contents with every executed command, which reads see.
pub struct PowerDisk {
    disk: Memory,
    /// Contents that survive a power cut.
    durable: Memory,
    unsynced: Vec<Unsynced>,
    commands: u64,
    /// Erase blocks that failed.
    pub bad: BTreeSet<u32>,
    pub flaws: Option<MediaFaults>,
}

impl std::ops::Deref for PowerDisk {
    type Target = Memory;
    fn deref(&self) -> &Memory {
        &self.disk
    }
}
impl std::ops::DerefMut for PowerDisk {
    fn deref_mut(&mut self) -> &mut Memory {
        &mut self.disk
    }
}

impl PowerDisk {
    pub fn on(disk: Memory) -> PowerDisk {
        PowerDisk { durable: disk.clone(), disk, unsynced: Vec::new(), commands: 0, bad: BTreeSet::new(), flaws: None }
    }
    /// Executes the command, or fails it with the given error.
    pub fn submit(&mut self, op: DeviceOp, fail: Option<DeviceError>) -> (Result<DeviceData, DeviceError>, Ticket) {
        self.commands += 1;
        let sync = matches!(op, DeviceOp::Sync);
        let marked = block_of(&op).is_some_and(|b| self.disk.is_bad(b));
        let fail = fail.or_else(|| self.flaws.filter(|_| !marked)?.check(&op).err());
        let result = match fail {
            Some(e) => {
                if let DeviceOp::Program { page, .. } = &op {
                    self.disk.tear_program(*page);
                    self.durable_tear(*page);
                }
                Err(e)
            }
            None => self.disk.execute(&op),
        };
        let covers = sync.then(|| self.covered());
        let changes = block_of(&op).is_some() || matches!(op, DeviceOp::WriteMeta { .. });
        let id = self.commands;
        if changes && result.is_ok() {
            self.unsynced.push(Unsynced { id, op, completed: false });
        }
        (result, Ticket { id, covers })
    }
    /// Records that the completion is delivered; `ok` if there was no error.
    pub fn delivered(&mut self, t: Ticket, ok: bool) {
        if let Some(covers) = t.covers.filter(|_| ok) {
            for u in self.unsynced.extract_if(.., |u| covers.contains(&u.id)) {
                self.durable.execute(&u.op).expect("the disk has executed it already");
            }
        }
        if let Some(u) = self.unsynced.iter_mut().find(|u| u.id == t.id) {
            u.completed = true;
        }
    }
    /// Completed commands, and earlier ones of the same erase blocks.
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
    /// Makes the page unreadable. Not every user of this file needs it.
    #[allow(dead_code)]
    pub fn lose_page(&mut self, page: PageAddr) {
        self.disk.lose_page(page);
        self.durable.lose_page(page);
    }
    fn durable_tear(&mut self, page: PageAddr) {
        // The block's earlier pages become durable, so that the torn page follows in order.
        for u in self.unsynced.extract_if(.., |u| block_of(&u.op) == Some(page.block)) {
            self.durable.execute(&u.op).expect("in order");
        }
        self.durable.tear_program(page);
    }
    /// Possible contents after a power cut now: each command that no sync covers was executed, was not, or is half done.
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
                    disk.execute(&u.op).expect("a prefix of executed commands");
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
