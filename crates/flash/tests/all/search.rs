//! Successive runs of one drive: written, trimmed, collected, cleared and reassigned. Between runs its contents, records
//! and tables are damaged, exchanged or replaced by older ones. The drive refuses or reports faults, or shows blocks as
//! lost; it never returns wrong data. Everything is drawn from the seed.

use std::collections::BTreeMap;

use rackweave_core::device::{Backend, DeviceData, DeviceOp, PageAddr, PageImage, SlotKind, SlotRecord};
use rackweave_core::msg::BlockRange;
use rackweave_core::rng::seeds;
use rackweave_core::{DriveId, Incarnation, Payload, Rng, Timestamp, VolumeId};
use rackweave_flash::backend::Memory;
use rackweave_flash::table::{area_bytes, copy_bytes};
use rackweave_flash::{BlockWrite, FlashDone, Losses, ReadError, RecoveryError, Ssd, SsdConfig};

use crate::rig::{Rig, VSSD, addr, contents, small_config};

const BLOCKS: u32 = 160;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Data,
    Zero,
    /// Marked as lost.
    Mark,
}

/// The data that one user of the vSSD has written.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Versions by block, newest last.
    blocks: BTreeMap<u32, Vec<(u64, Held)>>,
    /// Blocks with a damaged copy, which may be unreadable.
    damaged: Vec<u32>,
    /// Records were lost, so any block may show an earlier version.
    lost_records: bool,
    incarnation: u64,
}

impl Model {
    fn write(&mut self, block: u32, version: u64, held: Held) {
        self.blocks.entry(block).or_default().push((version, held));
        self.damaged.retain(|b| *b != block);
    }
    /// Whether a block may have this version and this result of a read.
    fn allows(&self, block: u32, version: Timestamp, read: &Result<Payload, ReadError>) -> bool {
        let history = self.blocks.get(&block).map_or(&[][..], |h| h);
        let newest = history.last().copied().unwrap_or((0, Held::Zero));
        if let Err(e) = read {
            let marked = newest.1 == Held::Mark && newest.0 == version.0;
            return matches!(e, ReadError::Corrupt { .. })
                && (marked || self.damaged.contains(&block) || self.lost_records);
        }
        let is = |&(v, held): &(u64, Held)| match held {
            Held::Data => *read == Ok(contents(v)) && version.0 == v,
            Held::Zero => *read == Ok(Payload::zero(4096)),
            Held::Mark => false,
        };
        is(&newest) || (self.lost_records && (history.iter().any(is) || *read == Ok(Payload::zero(4096))))
    }
    fn check(&self, rig: &mut Rig) -> Result<(), String> {
        for block in 0..BLOCKS {
            let (version, read) = rig.fetch(block);
            if !self.allows(block, version, &read) {
                let history = self.blocks.get(&block);
                return Err(format!("block {block} is {read:?} at {version:?}, of {history:?}"));
            }
        }
        if self.lost_records {
            return Ok(());
        }
        let newest = |(b, h): (&u32, &Vec<(u64, Held)>)| (h.last().map(|x| x.1) == Some(Held::Mark)).then_some(*b);
        let want: Vec<u32> = self.blocks.iter().filter_map(newest).collect();
        let marks: Vec<u32> = rig.ssd.lost(VSSD).0.map(|a| a.block).collect();
        let differ = (0..BLOCKS).any(|b| want.contains(&b) != marks.contains(&b) && !self.damaged.contains(&b));
        if differ {
            return Err(format!("{marks:?} are marked as lost, not {want:?}"));
        }
        if rig.ssd.table().incarnation != self.incarnation {
            return Err(format!("the table has incarnation {}, not {}", rig.ssd.table().incarnation, self.incarnation));
        }
        Ok(())
    }
}

fn work(rig: &mut Rig, model: &mut Model, rng: &mut Rng, next: &mut u64) -> Result<(), String> {
    for _ in 0..rng.between(50, 600) {
        *next += 1;
        let block = rng.below(u64::from(BLOCKS)) as u32;
        match rng.below(40) {
            0 => {
                let count = (rng.between(1, 30) as u32).min(BLOCKS - block);
                rig.zero(BlockRange { volume: VolumeId(1), first: block, count }, Timestamp(*next));
                (block..block + count).for_each(|b| model.write(b, *next, Held::Zero));
            }
            1 => {
                rig.write(BlockWrite { addr: addr(block), version: Timestamp(*next), data: Payload::zero(0) }, *next);
                model.write(block, *next, Held::Mark);
            }
            2 => {
                let (version, read) = rig.fetch(block);
                if !model.allows(block, version, &read) {
                    return Err(format!("block {block} is {read:?} at {version:?} meanwhile"));
                }
            }
            3 => rig.sync(*next),
            _ => {
                if rig.program(&[(block, *next)], *next).is_ok() {
                    model.write(block, *next, Held::Data);
                } else {
                    rig.gc_start();
                }
            }
        }
        if rig.ssd.space(VSSD).free_ratio() < 0.3 {
            rig.gc_start();
        }
        rig.settle();
    }
    Ok(())
}

fn spares(
    disk: &mut Memory,
    block: u32,
) -> Option<(rackweave_core::device::BlockOob, Vec<rackweave_core::device::PageSpare>)> {
    match disk.execute(&DeviceOp::ReadSpares { block }) {
        Ok(DeviceData::Spares { oob, pages, .. }) => Some((oob, pages.to_vec())),
        _ => None,
    }
}

/// All programmed slots.
fn slots(disk: &mut Memory) -> Vec<(PageAddr, u8, SlotRecord)> {
    let g = small_config().profile.geometry;
    let mut all = Vec::new();
    for (block, page) in (0..g.blocks()).flat_map(|b| (0..g.pages_per_block).map(move |p| (b, p))) {
        let page = PageAddr { block, page };
        let Ok(DeviceData::Page(found)) = disk.execute(&DeviceOp::ReadPage { page }) else { continue };
        all.extend((0..).zip(&found).map(|(i, s)| (page, i, s.record)));
    }
    all
}

/// The permitted results of the next start.
enum Expected {
    Whole,
    /// Refused with a named error.
    Refused,
    /// Refused, or whole if the change is harmless.
    Either,
    /// Lost records are reported as losses.
    Losses,
}

struct Drive {
    disk: Memory,
    model: Model,
    rng: Rng,
    next: u64,
    /// Earlier copies of its tables.
    tables: Vec<Vec<u8>>,
}

impl Drive {
    fn tables(disk: &mut Memory) -> &mut [u8] {
        &mut disk.meta_mut()[..area_bytes(&small_config().profile.geometry) as usize]
    }

    /// Damages a copy of the drive, or changes its configuration.
    #[expect(clippy::too_many_lines, reason = "a list of damages")]
    fn spoil(&mut self, disk: &mut Memory, cfg: &mut SsdConfig, model: &mut Model) -> Expected {
        let copy = copy_bytes(&cfg.profile.geometry) as usize;
        let rng = &mut self.rng;
        let at = rng.below(100) as usize;
        match rng.below(14) {
            0 => Drive::tables(disk)[rng.below(2) as usize * copy + at] ^= 1,
            1 => {
                Drive::tables(disk)[at] ^= 1;
                Drive::tables(disk)[copy + at] ^= 1;
                return Expected::Refused;
            }
            2 => {
                Drive::tables(disk).fill(0);
                return Expected::Refused;
            }
            3 => {
                let old = self.tables[rng.below(self.tables.len() as u64) as usize].clone();
                Drive::tables(disk).copy_from_slice(&old);
                // If the old table lacks only incarnations, nothing shows its age.
                model.incarnation = 0;
                return Expected::Either;
            }
            4 => {
                cfg.drive = DriveId(9);
                return Expected::Refused;
            }
            5 => {
                cfg.profile.name = "q-ssd".into();
                return Expected::Refused;
            }
            6 => {
                let blocks = cfg.profile.geometry.blocks();
                let used: Vec<u32> =
                    (0..blocks).filter(|b| spares(disk, *b).is_some_and(|(_, p)| !p.is_empty())).collect();
                let free = (0..blocks).rev().find(|b| !used.contains(b));
                let (Some(free), false) = (free, used.is_empty()) else { return Expected::Whole };
                let from = *rng.pick(&used);
                let (oob, pages) = spares(disk, from).expect("it is used");
                for (page, p) in (0..).zip(pages) {
                    let at = PageAddr { block: from, page: p.page };
                    let Ok(DeviceData::Page(found)) = disk.execute(&DeviceOp::ReadPage { page: at }) else { break };
                    let image = Box::new(PageImage { slots: found.into(), sequence: p.sequence, oob });
                    if disk.execute(&DeviceOp::Program { page: PageAddr { block: free, page }, image }).is_err() {
                        return Expected::Whole;
                    }
                }
                return Expected::Refused;
            }
            7 | 8 => {
                for (page, i, record) in slots(disk) {
                    if record.kind == SlotKind::Data && rng.chance(0.1) {
                        disk.damage(page, i, Payload::elided(4096, 1));
                        model.damaged.push(record.addr.block);
                    }
                }
            }
            9 => {
                for (page, i, record) in slots(disk) {
                    if record.kind == SlotKind::Data && rng.chance(0.1) {
                        disk.misdirect(page, i, SlotRecord { owner: record.owner + 1, ..record });
                        model.damaged.push(record.addr.block);
                    }
                }
            }
            10 => {
                let mut hit = false;
                for (page, i, record) in slots(disk) {
                    if record.kind == SlotKind::Ranges && rng.chance(0.7) {
                        hit |= disk.damage(page, i, Payload::elided(4096, 1));
                    }
                }
                model.lost_records |= hit;
                return if hit { Expected::Losses } else { Expected::Whole };
            }
            11 => {
                let (mut hit, all) = (false, slots(disk));
                for block in 0..cfg.profile.geometry.blocks() {
                    if let Some((_, pages)) = spares(disk, block)
                        && let [first, _, ..] = &pages[..]
                        && rng.chance(0.3)
                    {
                        let page = PageAddr { block, page: first.page };
                        disk.damage_spare(page);
                        model.damaged.extend(all.iter().filter(|s| s.0 == page).map(|s| s.2.addr.block));
                        hit = true;
                    }
                }
                model.lost_records |= hit;
                return if hit { Expected::Losses } else { Expected::Whole };
            }
            _ => {}
        }
        Expected::Whole
    }

    fn boot(cfg: &SsdConfig, disk: Memory, channels: u16, seed: u64) -> (Rig, Result<(), RecoveryError>) {
        let mut ssd = Ssd::new(cfg.clone()).expect("valid");
        ssd.alloc_vssd(VSSD, channels).expect("channels are free");
        let mut rig = Rig::of(ssd, disk, seed);
        let booted = rig.try_boot();
        (rig, booted)
    }

    /// A run on a damaged copy of the drive. If the drive is accepted, its contents are right, also after more work.
    fn spoiled_life(&mut self) -> Result<(), String> {
        let (mut disk, mut cfg, mut model) = (self.disk.clone(), small_config(), self.model.clone());
        let expected = self.spoil(&mut disk, &mut cfg, &mut model);
        let seed = self.rng.next_u64();
        let other_share = self.rng.chance(0.05);
        let channels = if other_share { 1 } else { 2 };
        let (mut rig, booted) = Drive::boot(&cfg, disk, channels, seed);
        if other_share {
            let named = matches!(booted, Err(RecoveryError::Table(_)));
            return if named { Ok(()) } else { Err(format!("on one channel: {booted:?}")) };
        }
        match (expected, booted) {
            (Expected::Refused | Expected::Either, Err(RecoveryError::Table(_))) => return Ok(()),
            (Expected::Refused, other) => return Err(format!("not refused: {other:?}")),
            // Records that collection or a checkpoint has made obsolete are no loss.
            (Expected::Losses, Ok(())) => model.lost_records = rig.ssd.losses(VSSD) != Losses::default(),
            (_, Ok(())) => {}
            (_, Err(e)) => return Err(format!("refused: {e}")),
        }
        if model.incarnation == 0 {
            model.incarnation = rig.ssd.table().incarnation;
        }
        model.check(&mut rig)?;
        work(&mut rig, &mut model, &mut self.rng, &mut self.next)?;
        rig.sync(1);
        rig.settle();
        let mut again = Drive::boot(&small_config(), rig.crash(&mut self.rng), 2, seed).0;
        model.check(&mut again)
    }

    fn life(&mut self) -> Result<(), String> {
        let seed = self.rng.next_u64();
        let (mut rig, booted) = Drive::boot(&small_config(), self.disk.clone(), 2, seed);
        booted.map_err(|e| format!("refused as it is: {e}"))?;
        self.model.check(&mut rig)?;
        work(&mut rig, &mut self.model, &mut self.rng, &mut self.next)?;
        match self.rng.below(6) {
            0 => {
                rig.clear();
                rig.settle();
                if !rig.done.drain(..).any(|d| matches!(d, FlashDone::Cleared { result: Ok(()), .. })) {
                    return Err("not cleared".into());
                }
                rig.assign();
                let incarnation = self.model.incarnation;
                self.model = Model { incarnation, ..Model::default() };
                work(&mut rig, &mut self.model, &mut self.rng, &mut self.next)?;
            }
            1 => {
                let incarnation = self.rng.between(1, 50);
                rig.note_incarnation(Incarnation(incarnation));
                self.model.incarnation = self.model.incarnation.max(incarnation);
            }
            _ => {}
        }
        rig.sync(1);
        rig.settle();
        self.disk = rig.crash(&mut self.rng);
        let tables = Drive::tables(&mut self.disk).to_vec();
        self.tables.push(tables);
        Ok(())
    }
}

fn run(seed: u64) -> Result<(), String> {
    let cfg = small_config();
    let disk = Memory::new(cfg.profile.geometry);
    let mut d = Drive { disk, model: Model::default(), rng: Rng::new(seed), next: 0, tables: Vec::new() };
    for _ in 0..6 {
        d.life()?;
        for _ in 0..4 {
            d.spoiled_life()?;
        }
    }
    Ok(())
}

#[test]
fn what_was_damaged_or_exchanged_is_never_believed() {
    for seed in seeds(0..40) {
        run(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}
