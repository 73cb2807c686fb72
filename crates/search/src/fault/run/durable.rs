//! After each completed FLUSH and FUA write: what every member of the affected sets would keep if it lost power now.
//!
//! Three copies hide from clients what one of them lacks, although protocol rule 12 requires it of each member. The
//! device's contents are read without the page layer: pages covered by a sync, in blocks without an erase in flight,
//! certainly remain; all else may or may not.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use rackweave_block::Striping;
use rackweave_core::device::{Slot, SlotKind};
use rackweave_core::msg::{Role, ViewState};
use rackweave_core::{BlockAddr, Layout, Payload, SECTORS_PER_BLOCK, SetId, VolumeId};
use rackweave_flash::format::decode_group;

use super::Run;
use crate::check::{History, OpId, Promise};
use crate::fault::report::Failure;
use rackweave_sim::FaultDisk;

/// A version of one block that a member may hold.
#[derive(Debug)]
struct Found<'a> {
    version: u64,
    certain: bool,
    /// `None` for a range record, which reads as zeroes.
    contents: Option<&'a Slot>,
    /// Whether the contents have their checksum, once that was asked: the answer is of all sectors.
    sound: OnceCell<bool>,
}

impl Found<'_> {
    /// Value of sector `i` of the block; `None` if it has none.
    fn value(&self, i: u32) -> Option<u64> {
        let Some(slot) = self.contents else { return Some(Payload::zero(rackweave_core::BLOCK).identity(i)) };
        let sound = self.sound.get_or_init(|| slot.data.crc32c() == slot.record.crc);
        sound.then(|| slot.data.identity(i))
    }
}

/// One volume's blocks on one member.
#[derive(Debug, Default)]
struct Copies<'a> {
    blocks: BTreeMap<u32, Vec<Found<'a>>>,
    /// First block, one past the last, version, certain.
    ranges: Vec<(u32, u32, u64, bool)>,
}

impl<'a> Copies<'a> {
    /// Of the vSSD with this `owner` ([`rackweave_core::device::BlockOob::owner`]), the `wanted` blocks, in order.
    fn read(disk: &'a FaultDisk, owner: u32, volume: VolumeId, wanted: &[u32]) -> Copies<'a> {
        let mut copies = Copies::default();
        let is_wanted = |block: u32| wanted.binary_search(&block).is_ok();
        for r in disk.remnants().filter(|r| r.slot.record.owner == owner) {
            let record = &r.slot.record;
            match record.kind {
                SlotKind::Data if record.addr.volume == volume && is_wanted(record.addr.block) => {
                    let (version, certain) = (record.version.0, r.certain);
                    let found = Found { version, certain, contents: Some(r.slot), sound: OnceCell::new() };
                    copies.blocks.entry(record.addr.block).or_default().push(found);
                }
                SlotKind::Ranges => {
                    let records = r.slot.data.bytes().and_then(decode_group).map(|g| g.1).unwrap_or_default();
                    let ours = records.into_iter().filter(|x| x.volume == volume);
                    copies.ranges.extend(ours.map(|x| (x.first, x.end, x.version, r.certain)));
                }
                SlotKind::Data | SlotKind::Pad => {}
            }
        }
        copies
    }

    /// Everything that may remain of a block, for the report.
    fn list(&self, block: u32) -> String {
        let sure = |certain: bool| if certain { "" } else { " perhaps" };
        let held = self.blocks.get(&block).map_or(&[][..], |f| f).iter();
        let held = held.map(|f| format!("{}{}", rackweave_core::Timestamp(f.version), sure(f.certain)));
        let over = self.ranges.iter().filter(|r| (r.0..r.1).contains(&block));
        let over = over.map(|r| format!("range {}{}", rackweave_core::Timestamp(r.2), sure(r.3)));
        held.chain(over).collect::<Vec<_>>().join(", ")
    }

    /// The versions that no newer one certainly hides.
    fn possible(&self, block: u32) -> Possible<'_> {
        let held = self.blocks.get(&block).map_or(&[][..], |f| f);
        let over = || self.ranges.iter().filter(|r| (r.0..r.1).contains(&block));
        let certain = held.iter().filter(|f| f.certain).map(|f| f.version);
        let certain = certain.chain(over().filter(|r| r.3).map(|r| r.2)).max();
        let least = certain.unwrap_or(0);
        let ranges = over().map(|r| r.2).filter(|&v| v >= least).collect();
        let copies = held.iter().filter(|f| f.version >= least).collect();
        Possible { block, copies, ranges, absent: certain.is_none() }
    }
}

/// Possible states of a block.
#[derive(Debug)]
struct Possible<'a> {
    block: u32,
    copies: Vec<&'a Found<'a>>,
    /// Versions of range records.
    ranges: Vec<u64>,
    /// It may be found unwritten.
    absent: bool,
}

impl Run<'_> {
    /// `client`'s `op` was answered. Checks a flush, or a write with FUA. The flush of a fenced client covers only its
    /// own writes, and is not checked. An answer may arrive when its volume is deleted and replaced by another, for
    /// which it promises nothing.
    pub(super) fn check_members(&mut self, client: u32, volume: usize, op: OpId) -> Result<(), Failure> {
        let v = &self.volumes[volume];
        if v.writer != Some(client) || self.is_leaving(volume) || self.history.volume(op) != v.id() {
            return Ok(());
        }
        let (id, sets) = (v.id(), v.sets().to_vec());
        let Some(striping) = Striping::new(sets.len() as u32, self.sim.config().stripe_blocks) else { return Ok(()) };
        let locate = |sector: u64| striping.locate(sector / u64::from(SECTORS_PER_BLOCK));
        let promised = self.history.promised(op, |sector| sets[locate(sector).0 as usize]);
        for &set in &sets {
            let promised: Vec<&Promise> = promised.iter().filter(|p| p.set == set).collect();
            if promised.is_empty() {
                continue;
            }
            let mut wanted: Vec<u32> = promised.iter().map(|p| locate(p.sector).1 as u32).collect();
            wanted.sort_unstable();
            wanted.dedup();
            for server in self.members_of(set) {
                let Some(owner) = self.owner_of(set, server) else { continue };
                let history = &self.history;
                let Some(disk) = self.sim.disk(server) else { continue };
                let copies = Copies::read(disk, owner, id, &wanted);
                let mut possible = Possible { block: u32::MAX, copies: Vec::new(), ranges: Vec::new(), absent: true };
                for p in &promised {
                    let block = locate(p.sector).1 as u32;
                    self.stats.copies_checked += 1;
                    if possible.block != block {
                        possible = copies.possible(block);
                    }
                    if let Some(what) = lacks(history, &copies, p, &possible) {
                        let addr = BlockAddr::new(id, block);
                        let in_memory = self.in_memory(set, addr);
                        let trail = history.trail(id, p.sector, set).join("\n    ");
                        return Err(Failure::Undurable(format!(
                            "server {server} of {set} may lose sector {} of {addr}: {what}; {}; \
                             in memory: {in_memory}\n    {trail}",
                            p.sector,
                            history.describe(op)
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    /// State of a block at each member of the set's view, durable or not.
    fn in_memory(&self, set: SetId, addr: BlockAddr) -> String {
        let Some(view) = self.sim.meta().and_then(|m| m.view(set)) else { return "no view".into() };
        let held = view.members.iter().filter_map(|m| {
            let ssd = self.sim.server(Layout::server_number(m.server))?.ssd();
            let mapped = if ssd.mapped(m.vssd, addr) { "" } else { " (zeroes)" };
            Some(format!("{} {:?} {}{mapped}", m.server, m.role, ssd.version(m.vssd, addr)))
        });
        format!("epoch {}, {}", view.epoch, held.collect::<Vec<_>>().join(", "))
    }

    /// Servers whose current incarnation is a member of the set's current view.
    fn members_of(&mut self, set: SetId) -> Vec<u32> {
        self.watch.refresh(&self.sim);
        let Some(view) = self.sim.meta().and_then(|m| m.view(set)) else { return Vec::new() };
        let serves = |m: &&rackweave_core::msg::Member| m.role == Role::Member && self.watch.serves(&self.sim, m);
        let members = view.members.iter().filter(serves).map(|m| Layout::server_number(m.server));
        if view.state == ViewState::Normal { members.collect() } else { Vec::new() }
    }

    /// Owner of the set's vSSD in the pages of this server's drive.
    fn owner_of(&self, set: SetId, server: u32) -> Option<u32> {
        let view = self.sim.meta()?.view(set)?;
        let vssd = view.members.iter().find(|m| Layout::server_number(m.server) == server)?.vssd;
        let table = self.sim.server(server)?.ssd().table();
        table.entries.iter().find(|e| e.vssd == vssd).map(|e| e.owner().packed())
    }
}

/// What is wrong with a member's copy, if anything.
fn lacks(history: &History, copies: &Copies, p: &Promise, possible: &Possible) -> Option<String> {
    let sector = (p.sector % u64::from(SECTORS_PER_BLOCK)) as u32;
    let stale = |f: &&&Found| f.value(sector).is_some_and(|value| history.breaks(p, value));
    if let Some(f) = possible.copies.iter().find(stale) {
        return Some(format!(
            "version {} would be read of {}",
            rackweave_core::Timestamp(f.version),
            copies.list(possible.block)
        ));
    }
    let zero = Payload::zero(rackweave_core::BLOCK).identity(sector);
    if (possible.absent || !possible.ranges.is_empty()) && history.breaks(p, zero) {
        if possible.absent {
            return Some("nothing is there for certain".into());
        }
        if let Some(version) = possible.ranges.first() {
            return Some(format!("a range record of version {} is the newest", rackweave_core::Timestamp(*version)));
        }
    }
    None
}
