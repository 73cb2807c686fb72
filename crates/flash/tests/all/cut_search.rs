//! Searches for power cuts that lose data on a drive of the flash manager: random calls on vSSDs of all kinds, failing
//! blocks, swaps of dies, and power cuts at any time, recovery included. A seed names a run.

use std::collections::BTreeMap;

use rackweave_core::{Payload, Rng, SECTOR, SsdId, VssdId};
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::api::{Block, BlockError};
use rackweave_flash::manager::{Done, DriveStats, ManagerConfig};
use rackweave_flash::wear::Swap;
use rackweave_flash::{Geometry, Profile, Timing};

use crate::power_drive::PowerDrive;

const PAGE: u64 = 8192;
const PAGE_SECTORS: u32 = PAGE as u32 / SECTOR;

/// 3 channels of 2 dies of 2 planes of 8 blocks of 4 pages.
pub fn config() -> ManagerConfig {
    let mut p = Profile::builtin("p-ssd").expect("built in");
    p.geometry = Geometry {
        channels: 3,
        dies_per_channel: 2,
        planes_per_die: 2,
        blocks_per_plane: 8,
        pages_per_block: 4,
        page_bytes: PAGE as u32,
    };
    let mut cfg = ManagerConfig::new(SsdId(7), p);
    cfg.timing = Timing::None;
    cfg.soft_planes_per_die = 2;
    cfg.soft_stripe_dies = 2;
    cfg.die_spread = 3;
    cfg
}

/// Counts of situations: the test fails if one is never met.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub cuts: u64,
    pub cuts_in_recovery: u64,
    pub cuts_in_swaps: u64,
    pub closed: u64,
    /// Freed blocks that reappeared, and blocks with fewer pages than were written.
    pub returned: u64,
    pub shorter: u64,
    pub swap_moves: u64,
    pub rotations: u64,
    pub failed_blocks: u64,
    pub worn_out: u64,
    pub verified: u64,
    pub commands: u64,
}

impl Seen {
    pub fn add(&mut self, o: &Seen) {
        let pairs = [
            (&mut self.cuts, o.cuts),
            (&mut self.cuts_in_recovery, o.cuts_in_recovery),
            (&mut self.cuts_in_swaps, o.cuts_in_swaps),
            (&mut self.closed, o.closed),
            (&mut self.returned, o.returned),
            (&mut self.shorter, o.shorter),
            (&mut self.swap_moves, o.swap_moves),
            (&mut self.rotations, o.rotations),
            (&mut self.failed_blocks, o.failed_blocks),
            (&mut self.worn_out, o.worn_out),
            (&mut self.verified, o.verified),
            (&mut self.commands, o.commands),
        ];
        pairs.into_iter().for_each(|(a, b)| *a += b);
    }
}

/// A block since its allocation.
#[derive(Clone, Copy, Debug)]
struct Life {
    seed: u64,
    /// Pages submitted; answered ones of them; flushed ones of these.
    pages: u32,
    answered: u32,
    flushed: u32,
    freed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    AllocVssd,
    FreeVssd { vssd: VssdId },
    AllocBlock,
    Write { block: Block, pages: u32 },
    Read { block: Block, first: u32, pages: u32 },
    Sync,
    Close,
}

struct Run {
    drive: PowerDrive,
    vssds: BTreeMap<VssdId, bool>,
    lives: BTreeMap<Block, Life>,
    asked: BTreeMap<u64, Asked>,
    /// For each pending sync, the pages that it makes durable: those answered when it was requested.
    covers: BTreeMap<u64, Vec<(Block, u64, u32)>>,
    token: u64,
    ready: bool,
    seen: Seen,
}

/// Runs a seed. `Err` says what was lost or wrong.
pub fn run(cfg: &ManagerConfig, seed: u64) -> Result<Seen, String> {
    let mut rng = Rng::new(seed);
    let failures = if rng.chance(0.3) { 0.004 } else { 0.0 };
    let mut cfg = cfg.clone();
    // Superblocks of all soft-planes of a vSSD, or of one.
    cfg.superblock_soft_planes = if seed.is_multiple_of(2) { u32::MAX } else { 1 };
    let mut r = Run {
        drive: PowerDrive::new(&cfg, rng, failures),
        vssds: BTreeMap::new(),
        lives: BTreeMap::new(),
        asked: BTreeMap::new(),
        covers: BTreeMap::new(),
        token: 0,
        ready: false,
        seen: Seen::default(),
    };
    for _ in 0..r.drive.rng.between(2, 6) {
        r.boot()?;
        let acts = r.drive.rng.between(20, 250);
        for _ in 0..acts {
            r.act()?;
            for _ in 0..r.drive.rng.below(6) {
                r.step()?;
            }
        }
        r.end()?;
    }
    r.boot()?;
    r.settle()?;
    r.drive.manager.check().map_err(|e| e.to_string())?;
    (r.seen.failed_blocks, r.seen.commands) = (r.drive.failed_blocks, r.drive.commands);
    Ok(r.seen)
}

impl Run {
    fn token(&mut self, asked: Asked) -> u64 {
        self.token += 1;
        self.asked.insert(self.token, asked);
        self.token
    }
    /// Delivers one completion; false if none is pending.
    fn step(&mut self) -> Result<bool, String> {
        self.take()?;
        if !self.drive.complete(3_000_000) {
            return Ok(false);
        }
        self.take()?;
        if self.drive.rng.chance(0.1) {
            self.drive.manager.check().map_err(|e| e.to_string())?;
        }
        Ok(true)
    }
    fn settle(&mut self) -> Result<(), String> {
        let mut steps = 0;
        while self.step()? {
            steps += 1;
            if steps > 200_000 {
                return Err("it does not come to rest".into());
            }
        }
        let waiting: Vec<_> = self.asked.values().collect();
        if waiting.is_empty() { Ok(()) } else { Err(format!("at rest and not answered: {waiting:?}")) }
    }
    /// Executes the manager's commands, and takes its answers.
    fn take(&mut self) -> Result<(), String> {
        for d in self.drive.take() {
            self.answer(d)?;
        }
        self.drive.sound()
    }
    fn answer(&mut self, done: Done) -> Result<(), String> {
        let token = match &done {
            Done::Recovered { result } => {
                self.ready = true;
                return result.map_err(|e| e.to_string());
            }
            Done::Swapped => return Ok(()),
            Done::VssdAllocated { token, .. }
            | Done::VssdFreed { token, .. }
            | Done::BlockAllocated { token, .. }
            | Done::Written { token, .. }
            | Done::Read { token, .. }
            | Done::Synced { token, .. } => *token,
        };
        let asked = self.asked.remove(&token).ok_or_else(|| format!("{done:?} was not asked"))?;
        match (done, asked) {
            (Done::VssdAllocated { result, .. }, Asked::AllocVssd) => {
                self.vssds.insert(result.map_err(|e| e.to_string())?, true);
            }
            (Done::VssdFreed { result, .. }, Asked::FreeVssd { vssd }) => {
                result.map_err(|e| e.to_string())?;
                self.vssds.remove(&vssd);
                self.lives.retain(|b, _| b.vssd != vssd);
            }
            (Done::BlockAllocated { result: Ok(block), .. }, Asked::AllocBlock) => {
                if self.lives.get(&block).is_some_and(|l| !l.freed) {
                    return Err(format!("{block} was given twice"));
                }
                let life = Life { seed: self.drive.rng.next_u64(), pages: 0, answered: 0, flushed: 0, freed: false };
                self.lives.insert(block, life);
            }
            (Done::BlockAllocated { result: Err(BlockError::WornOut { .. }), .. }, _) => self.seen.worn_out += 1,
            (Done::Written { result: Ok(()), .. }, Asked::Write { block, pages }) => {
                let l = self.lives.get_mut(&block).expect("it was there");
                l.answered = l.answered.max(pages);
            }
            (Done::Written { result: Err(BlockError::WornOut { .. } | BlockError::Sealed { .. }), .. }, _) => {
                self.seen.worn_out += 1;
            }
            (Done::Read { result, .. }, Asked::Read { block, first, pages }) => {
                let life = self.lives[&block];
                let data = result.map_err(|e| format!("read of {block}: {e}"))?;
                if data != contents(&life, first, pages) {
                    return Err(format!("{block}, page {first}+{pages}: other contents"));
                }
            }
            (Done::Synced { result, .. }, Asked::Sync) => {
                result.map_err(|e| e.to_string())?;
                for (block, seed, pages) in self.covers.remove(&token).unwrap_or_default() {
                    if let Some(l) = self.lives.get_mut(&block).filter(|l| l.seed == seed) {
                        l.flushed = l.flushed.max(pages);
                    }
                }
            }
            (Done::Synced { result: Ok(()), .. }, Asked::Close) => {}
            (done, asked) => return Err(format!("{asked:?} was answered with {done:?}")),
        }
        Ok(())
    }
    fn act(&mut self) -> Result<(), String> {
        let live: Vec<VssdId> = self.vssds.iter().filter(|v| *v.1).map(|v| *v.0).collect();
        let open: Vec<Block> =
            self.lives.iter().filter(|(b, l)| !l.freed && live.contains(&b.vssd)).map(|(b, _)| *b).collect();
        match self.drive.rng.below(100) {
            _ if live.is_empty() => self.alloc_vssd(),
            0..=3 if live.len() < 5 => self.alloc_vssd(),
            4 => {
                let vssd = *self.drive.rng.pick(&live);
                let token = self.token(Asked::FreeVssd { vssd });
                match self.drive.manager.dealloc_vssd(self.drive.now, vssd, token, &mut self.drive.out) {
                    Ok(()) => _ = self.vssds.insert(vssd, false),
                    Err(_) => _ = self.asked.remove(&token),
                }
            }
            5..=24 => {
                let vssd = *self.drive.rng.pick(&live);
                let token = self.token(Asked::AllocBlock);
                if self.drive.manager.alloc_block(self.drive.now, vssd, token, &mut self.drive.out).is_err() {
                    self.asked.remove(&token);
                }
            }
            25..=54 if !open.is_empty() => self.write(*self.drive.rng.clone().pick(&open)),
            55..=69 if !open.is_empty() => self.read(*self.drive.rng.clone().pick(&open)),
            70..=84 if !open.is_empty() => {
                let block = *self.drive.rng.pick(&open);
                if self.drive.manager.free_block(self.drive.now, block.vssd, block, &mut self.drive.out).is_ok() {
                    self.lives.get_mut(&block).expect("open").freed = true;
                }
            }
            85..=92 => {
                let token = self.token(Asked::Sync);
                let answered = self.lives.iter().map(|(b, l)| (*b, l.seed, l.answered));
                self.covers.insert(token, answered.collect());
                self.drive.manager.sync(self.drive.now, token, &mut self.drive.out);
            }
            93..=95 => {
                let mut dies: Vec<u32> = (0..6).collect();
                self.drive.rng.shuffle(&mut dies);
                let pairs = self.drive.rng.between(1, 3) as usize;
                let dies = dies.chunks(2).take(pairs).map(|p| (p[0], p[1])).collect();
                self.drive.manager.swap_dies(self.drive.now, &Swap { dies }, &mut self.drive.out);
            }
            _ => {}
        }
        self.take()
    }
    fn alloc_vssd(&mut self) {
        let isolation = *self.drive.rng.pick(&Isolation::ALL);
        let level = self.drive.rng.below(2) as u32;
        let token = self.token(Asked::AllocVssd);
        if self.drive.manager.alloc_vssd(self.drive.now, (isolation, level, 1), token, &mut self.drive.out).is_err() {
            self.asked.remove(&token);
        }
    }
    fn write(&mut self, block: Block) {
        let size = self.drive.manager.block_bytes(block.vssd).expect("live") / PAGE;
        let life = self.lives[&block];
        let n = self.drive.rng.between(1, 6).min(size - u64::from(life.pages)) as u32;
        if n == 0 {
            return;
        }
        let token = self.token(Asked::Write { block, pages: life.pages + n });
        let data = contents(&life, life.pages, n);
        match self.drive.manager.write(self.drive.now, (block.vssd, block), None, &data, token, &mut self.drive.out) {
            Ok(()) => self.lives.get_mut(&block).expect("open").pages += n,
            Err(_) => _ = self.asked.remove(&token),
        }
    }
    fn read(&mut self, block: Block) {
        let life = self.lives[&block];
        if life.answered == 0 {
            return;
        }
        let first = self.drive.rng.below(u64::from(life.answered)) as u32;
        let pages = self.drive.rng.between(1, u64::from(life.answered - first).min(4)) as u32;
        let token = self.token(Asked::Read { block, first, pages });
        let at = (u64::from(first) * PAGE, u64::from(pages) * PAGE);
        if self.drive.manager.read(self.drive.now, (block.vssd, block), at, token, &mut self.drive.out).is_err() {
            self.asked.remove(&token);
        }
    }

    /// A power cut, or sometimes an orderly close.
    fn end(&mut self) -> Result<(), String> {
        if self.drive.rng.chance(0.2) {
            self.settle()?;
            let token = self.token(Asked::Close);
            self.drive.manager.close(self.drive.now, token, &mut self.drive.out);
            self.settle()?;
            self.seen.closed += 1;
        } else {
            self.seen.cuts += 1;
            self.seen.cuts_in_swaps += u64::from(self.drive.manager.swapping());
        }
        let DriveStats { swap_moves, rotations, .. } = self.drive.manager.stats();
        self.seen.swap_moves += swap_moves;
        self.seen.rotations += rotations;
        self.cut();
        Ok(())
    }
    fn cut(&mut self) {
        self.drive.cut();
        self.ready = false;
    }
    fn boot(&mut self) -> Result<(), String> {
        loop {
            self.drive.manager.boot(self.drive.now, &mut self.drive.out);
            let most = if self.drive.rng.chance(0.3) { self.drive.rng.below(120) } else { u64::MAX };
            for _ in 0..most {
                if self.ready || !self.step()? {
                    break;
                }
            }
            if self.ready {
                break;
            }
            if most == u64::MAX {
                return Err("recovery does not end".into());
            }
            self.seen.cuts_in_recovery += 1;
            self.cut();
        }
        self.verify()
    }
    /// Checks that durable data is there.
    fn verify(&mut self) -> Result<(), String> {
        self.drive.manager.check().map_err(|e| e.to_string())?;
        for (block, count) in self.drive.manager.erase_counts().enumerate() {
            let truth = self.drive.disk.erases(block as u32);
            if count < truth {
                return Err(format!("erase block {block} was erased {truth} times, {count} are counted"));
            }
        }
        // A vSSD whose allocation or deletion was not answered may or may not exist.
        let found: Vec<VssdId> = self.drive.manager.vssds().map(|v| v.id).collect();
        if let Some((lost, _)) = self.vssds.iter().find(|(v, live)| **live && !found.contains(v)) {
            return Err(format!("{lost} is gone"));
        }
        self.asked.clear();
        self.covers.clear();
        self.vssds = found.iter().map(|v| (*v, true)).collect();
        let known = std::mem::take(&mut self.lives);
        for vssd in found {
            let mut from = 0;
            while let Some(block) = self.drive.manager.next_block(vssd, from).map_err(|e| e.to_string())? {
                from = block.index + 1;
                let life = known.get(&block).ok_or_else(|| format!("{block} was never written"))?;
                let written = (self.drive.manager.block(block).map_err(|e| e.to_string())?.written / PAGE) as u32;
                if written > life.pages || (!life.freed && written < life.flushed) {
                    return Err(format!("{block} has {written} pages: {life:?}"));
                }
                self.seen.returned += u64::from(life.freed);
                self.seen.shorter += u64::from(written < life.pages);
                let life = Life { pages: written, answered: written, flushed: written, freed: false, ..*life };
                self.lives.insert(block, life);
            }
        }
        let lost = |(b, l): &(&Block, &Life)| {
            self.vssds.contains_key(&b.vssd) && !l.freed && l.flushed > 0 && !self.lives.contains_key(b)
        };
        if let Some((block, life)) = known.iter().find(lost) {
            return Err(format!("{block} is gone: {life:?}"));
        }
        for (block, life) in self.lives.clone() {
            self.seen.verified += 1;
            let token = self.token(Asked::Read { block, first: 0, pages: life.pages });
            let bytes = u64::from(life.pages) * PAGE;
            self.drive
                .manager
                .read(self.drive.now, (block.vssd, block), (0, bytes), token, &mut self.drive.out)
                .map_err(|e| e.to_string())?;
            while self.asked.contains_key(&token) {
                if !self.step()? {
                    return Err(format!("a read of {block} is not answered"));
                }
            }
        }
        Ok(())
    }
}

fn contents(life: &Life, first: u32, pages: u32) -> Payload {
    let all = Payload::Elided { sectors: u32::MAX / 2, seed: life.seed };
    all.slice(first * PAGE_SECTORS, pages * PAGE_SECTORS)
}
