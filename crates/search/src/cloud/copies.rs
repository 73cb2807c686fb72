//! Snapshots and clones of the disk, while it is written and nodes fail.
//!
//! For the history a snapshot is a read of all sectors that ends when the snapshot is made; [`Writes`] checks that it shows one time. It
//! never changes. A clone begins with its contents, and then has what is written to the clone alone; flattened, it needs its snapshot
//! no more.

use std::collections::BTreeMap;

use rackweave_core::admin::{self, VolumeError};
use rackweave_core::request::Operation;
use rackweave_core::volume;
use rackweave_core::{Payload, SECTOR, Span, VolumeId};

use super::{NAME, PATIENCE, Run, Violation};

/// Sectors of a read of a whole snapshot or clone.
const PIECE: u64 = 128;
/// Writes to a clone.
const WRITES: u64 = 6;
/// Time between two looks at a snapshot, or at a disk that is being flattened.
const LOOK: Span = Span::from_millis(50);

/// What becomes of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fork {
    Keep,
    Remove,
    Clone,
    /// The clone is flattened while it is written, and the snapshot is removed.
    Flatten,
}

impl Fork {
    pub const ALL: [Fork; 4] = [Fork::Keep, Fork::Remove, Fork::Clone, Fork::Flatten];
}

#[derive(Debug, Default)]
pub(super) struct Copies {
    made: u64,
    /// Names, and contents as sectors.
    kept: Vec<(String, Vec<Payload>)>,
    /// Snapshots that were removed while a client had them, and what they showed.
    removed: Vec<(VolumeId, Vec<Payload>)>,
    pub writes: Writes,
}

/// Writes to the disk. Each has values that no other has.
#[derive(Debug, Default)]
pub(super) struct Writes {
    /// Calls and answers so far.
    events: u64,
    all: Vec<Write>,
    by_request: BTreeMap<u64, usize>,
    by_value: BTreeMap<u64, usize>,
}

#[derive(Debug)]
struct Write {
    first: u64,
    count: u64,
    called: u64,
    answered: Option<u64>,
}

impl Copies {
    /// Whether there were any.
    pub fn were_made(&self) -> bool {
        self.made > 0
    }
}

impl Writes {
    pub fn called(&mut self, request: u64, first: u64, data: &Payload) {
        self.events += 1;
        let (n, count) = (self.all.len(), u64::from(data.sectors()));
        self.all.push(Write { first, count, called: self.events, answered: None });
        self.by_request.insert(request, n);
        self.by_value.extend((0..data.sectors()).map(|i| (data.identity(i), n)));
    }
    /// The request was answered with success.
    pub fn answered(&mut self, request: u64) {
        self.events += 1;
        if let Some(n) = self.by_request.remove(&request) {
            self.all[n].answered = Some(self.events);
        }
    }
    /// Two sectors whose values the disk never had at one time: the first has a value that was written after the other's was
    /// overwritten.
    fn torn(&self, contents: &[Payload]) -> Option<(u64, u64)> {
        let shown: Vec<Option<&Write>> =
            contents.iter().map(|s| Some(&self.all[*self.by_value.get(&s.identity(0))?])).collect();
        let calls = (0..).zip(&shown).filter_map(|(sector, w)| Some((w.as_ref()?.called, sector)));
        let (from, later) = calls.max()?;
        let overwritten = self.all.iter().flat_map(|w| (w.first..w.first + w.count).map(move |sector| (w, sector)));
        let ends = overwritten.filter_map(|(w, sector)| {
            let before = shown.get(sector as usize)?.as_ref()?.answered?;
            (w.called > before).then_some((w.answered?, sector))
        });
        let (until, earlier) = ends.min()?;
        (from > until).then_some((later, earlier))
    }
}

impl Run {
    /// Makes a snapshot, and uses it.
    pub(super) fn fork(&mut self, fork: Fork) -> Result<(), Violation> {
        let Some(disk) = self.info.as_ref().map(|i| i.id) else { return Ok(()) };
        self.copies.made += 1;
        let (n, sectors) = (self.copies.made, self.plan.sectors);
        let snapshot = format!("{NAME}@s{n}");
        self.history.at(self.sim.now());
        let all = self.history.read(disk, 0, sectors as u32);
        self.begin(&snapshot)?;
        if !self.made(&snapshot)? {
            return Ok(());
        }
        self.history.at(self.sim.now());
        self.history.ended(all);
        let (frozen, contents) = self.contents(&snapshot, sectors)?;
        self.history.saw(all, &joined(&contents));
        if let Some((later, earlier)) = self.copies.writes.torn(&contents) {
            return Err(Violation::Torn { snapshot, later, earlier });
        }
        match fork {
            Fork::Keep => self.copies.kept.push((snapshot, contents)),
            Fork::Remove => {
                self.admin(admin::Op::SnapshotRemove { snapshot: snapshot.into() })?;
                self.copies.removed.push((frozen, contents));
            }
            Fork::Clone | Fork::Flatten => self.clone_of(snapshot, contents, fork == Fork::Flatten)?,
        }
        Ok(())
    }
    fn clone_of(&mut self, snapshot: String, contents: Vec<Payload>, flatten: bool) -> Result<(), Violation> {
        let name = format!("clone-{}", self.copies.made);
        self.admin(admin::Op::VolumeClone { snapshot: snapshot.as_str().into(), name: name.as_str().into() })?;
        let (id, mut own) = self.contents(&name, contents.len() as u64)?;
        self.same(&name, &own, &contents)?;
        self.write_to(id, &mut own)?;
        // With a snapshot of its own, which needs the other's as long as it is there.
        let own_snapshot = format!("{name}@own");
        let kept = flatten && self.rng.chance(0.5) && {
            self.begin(&own_snapshot)?;
            self.made(&own_snapshot)?
        };
        let frozen = own.clone();
        if flatten {
            let until = self.sim.now() + PATIENCE;
            loop {
                let op = admin::Op::VolumeFlatten { name: name.as_str().into() };
                match admin::Op::result(self.ask(self.writer, op)?) {
                    Some(Ok(admin::Reply::Done)) => break,
                    Some(Ok(_)) if self.sim.now() < until => {}
                    other => return Err(self.odd("flatten", format!("{other:?}"))),
                }
                self.write_to(id, &mut own)?;
                self.pass(LOOK)?;
            }
        }
        if (kept || !flatten) && !self.plan.flattens() {
            self.is_needed(&snapshot)?;
        }
        if kept {
            let (_, found) = self.contents(&own_snapshot, frozen.len() as u64)?;
            self.same(&own_snapshot, &found, &frozen)?;
            if self.rng.chance(0.5) {
                self.copies.kept.push((own_snapshot, frozen));
                self.copies.kept.push((snapshot, contents));
                self.copies.kept.push((name, own));
                return Ok(());
            }
            self.admin(admin::Op::SnapshotRemove { snapshot: own_snapshot.into() })?;
        }
        if flatten {
            self.admin(admin::Op::SnapshotRemove { snapshot: snapshot.into() })?;
        } else {
            self.copies.kept.push((snapshot, contents));
        }
        self.copies.kept.push((name, own));
        Ok(())
    }
    /// A snapshot is not removed while a clone or a snapshot of one needs it.
    fn is_needed(&mut self, snapshot: &str) -> Result<(), Violation> {
        let remove = admin::Op::SnapshotRemove { snapshot: snapshot.into() };
        match admin::Op::result(self.ask(self.writer, remove)?) {
            Some(Err(admin::Error::Volume(VolumeError::HasClones { .. }))) => Ok(()),
            other => Err(self.odd("removal of a snapshot that is needed", format!("{other:?}"))),
        }
    }
    /// Snapshots have what they had, clones what was written to them last. Who has a removed one reads that or nothing.
    pub(super) fn check_copies(&mut self) -> Result<(), Violation> {
        for (name, expected) in self.copies.kept.clone() {
            let (_, found) = self.contents(&name, expected.len() as u64)?;
            self.same(&name, &found, &expected)?;
        }
        for (volume, expected) in self.copies.removed.clone() {
            self.read_removed(volume, &expected)?;
        }
        Ok(())
    }
    /// Removes some of the snapshots that are not needed. What they alone have is given back while others are read.
    pub(super) fn remove_some(&mut self) -> Result<(), Violation> {
        for (name, contents) in std::mem::take(&mut self.copies.kept) {
            let removed = name.contains('@') && self.rng.chance(0.5) && {
                let (frozen, _) = self.contents(&name, contents.len() as u64)?;
                let remove = admin::Op::SnapshotRemove { snapshot: name.as_str().into() };
                match admin::Op::result(self.ask(self.writer, remove)?) {
                    Some(Ok(_)) => {
                        self.copies.removed.push((frozen, contents.clone()));
                        true
                    }
                    Some(Err(admin::Error::Volume(VolumeError::HasClones { .. }))) => false,
                    other => return Err(self.odd(format!("removal of {name}"), format!("{other:?}"))),
                }
            };
            if !removed {
                self.copies.kept.push((name, contents));
            }
        }
        for (volume, expected) in self.copies.removed.clone() {
            self.read_removed(volume, &expected)?;
        }
        Ok(())
    }
    fn read_removed(&mut self, volume: VolumeId, expected: &[Payload]) -> Result<(), Violation> {
        for first in (0..expected.len() as u64).step_by(PIECE as usize) {
            let sectors = &expected[first as usize..expected.len().min((first + PIECE) as usize)];
            let (offset, len) = (first * u64::from(SECTOR), sectors.len() as u32 * SECTOR);
            match volume::Op::result(self.ask(self.writer, volume::Op::Read { volume, offset, len })?) {
                Some(Ok(volume::Reply::Data(data))) if data.len() == len => {
                    let found: Vec<Payload> = (0..data.sectors()).map(|i| data.slice(i, 1)).collect();
                    self.same(&format!("removed snapshot {volume} from sector {first}"), &found, sectors)?;
                }
                Some(Err(_)) => return Ok(()),
                other => return Err(self.odd(format!("read of {volume}"), format!("{other:?}"))),
            }
        }
        Ok(())
    }
    fn same(&self, name: &str, found: &[Payload], expected: &[Payload]) -> Result<(), Violation> {
        if found.len() != expected.len() {
            let (found, expected) = (found.len(), expected.len());
            return Err(self.odd(name, format!("{found} sectors, not {expected}")));
        }
        match (0..).zip(found).zip(expected).find(|((_, f), e)| f.identity(0) != e.identity(0)) {
            Some(((sector, found), expected)) => Err(Violation::Copy {
                name: name.into(),
                sector,
                found: found.identity(0),
                expected: expected.identity(0),
            }),
            None => Ok(()),
        }
    }
    /// A disk that is being flattened takes no snapshot.
    fn begin(&mut self, snapshot: &str) -> Result<(), Violation> {
        let until = self.sim.now() + PATIENCE;
        loop {
            let op = admin::Op::SnapshotCreate { snapshot: snapshot.into() };
            match admin::Op::result(self.ask(self.writer, op)?) {
                Some(Ok(_)) => return Ok(()),
                Some(Err(admin::Error::Volume(VolumeError::Flattening { .. }))) if self.sim.now() < until => {}
                other => return Err(self.odd(format!("snapshot {snapshot}"), format!("{other:?}"))),
            }
            self.pass(LOOK)?;
        }
    }
    fn admin(&mut self, op: admin::Op) -> Result<(), Violation> {
        let asked = format!("{op:?}");
        match admin::Op::result(self.ask(self.writer, op)?) {
            Some(Ok(_)) => Ok(()),
            other => Err(self.odd(asked, format!("{other:?}"))),
        }
    }
    /// Waits until the snapshot can be read; false if it was given up, so that the disk goes on without it.
    fn made(&mut self, snapshot: &str) -> Result<bool, Violation> {
        let until = self.sim.now() + PATIENCE;
        loop {
            let list = admin::Op::SnapshotList { volume: None };
            let Some(Ok(admin::Reply::Snapshots(all))) = admin::Op::result(self.ask(self.writer, list)?) else {
                return Err(self.odd("list", "no list"));
            };
            match all.iter().find(|s| *s.name == *snapshot) {
                None => return Ok(false),
                Some(s) if s.made => return Ok(true),
                Some(_) if self.sim.now() > until => return Err(self.odd(snapshot, "is not made")),
                Some(_) => self.pass(LOOK)?,
            }
        }
    }
    /// Attaches the disk or the snapshot, and reads it whole.
    fn contents(&mut self, name: &str, sectors: u64) -> Result<(VolumeId, Vec<Payload>), Violation> {
        let info = match volume::Op::result(self.ask(self.writer, volume::Op::Attach { name: name.into() })?) {
            Some(Ok(volume::Reply::Attached(info))) if info.size == sectors * u64::from(SECTOR) => info,
            other => return Err(self.odd(format!("attach {name}"), format!("{other:?}"))),
        };
        let mut all = Vec::new();
        for first in (0..sectors).step_by(PIECE as usize) {
            let len = PIECE.min(sectors - first) as u32 * SECTOR;
            let read = volume::Op::Read { volume: info.id, offset: first * u64::from(SECTOR), len };
            match volume::Op::result(self.ask(self.writer, read)?) {
                Some(Ok(volume::Reply::Data(data))) if data.len() == len => {
                    all.extend((0..data.sectors()).map(|i| data.slice(i, 1)))
                }
                other => return Err(self.odd(format!("read {name}"), format!("{other:?}"))),
            }
        }
        self.holes(name, info.id, &all)?;
        Ok((info.id, all))
    }
    /// What is not allocated is zero.
    fn holes(&mut self, name: &str, volume: VolumeId, contents: &[Payload]) -> Result<(), Violation> {
        let sector = u64::from(SECTOR);
        let (mut offset, end) = (0, contents.len() as u64 * sector);
        while offset < end {
            let op = volume::Op::BlockStatus { volume, offset, len: end - offset };
            let extents = match volume::Op::result(self.ask(self.writer, op)?) {
                Some(Ok(volume::Reply::Extents(extents))) if !extents.is_empty() => extents,
                other => return Err(self.odd(format!("allocation of {name}"), format!("{other:?}"))),
            };
            for e in extents {
                let hole = offset / sector..(offset + e.len).min(end) / sector;
                let mut written = hole.filter(|s| !e.mapped && contents[*s as usize].identity(0) != 0);
                if let Some(sector) = written.next() {
                    let (found, expected) = (0, contents[sector as usize].identity(0));
                    return Err(Violation::Copy { name: format!("holes of {name}"), sector, found, expected });
                }
                offset += e.len;
            }
        }
        Ok(())
    }
    fn write_to(&mut self, volume: VolumeId, contents: &mut [Payload]) -> Result<(), Violation> {
        for _ in 0..WRITES {
            let count = self.rng.between(1, self.plan.longest.min(contents.len() as u64));
            let first = self.rng.below(contents.len() as u64 - count + 1);
            let (data, offset) = (self.value(count), first * u64::from(SECTOR));
            for (i, sector) in contents[first as usize..][..count as usize].iter_mut().enumerate() {
                *sector = data.slice(i as u32, 1);
            }
            match volume::Op::result(self.ask(self.writer, volume::Op::Write { volume, offset, data, fua: true })?) {
                Some(Ok(volume::Reply::Done)) => {}
                other => return Err(self.odd("write to a clone", format!("{other:?}"))),
            }
        }
        Ok(())
    }
}

fn joined(sectors: &[Payload]) -> Payload {
    let bytes: Vec<u8> = sectors.iter().flat_map(|s| s.to_bytes().to_vec()).collect();
    Payload::Bytes(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(n: u8) -> Payload {
        Payload::Bytes(vec![n; SECTOR as usize].into())
    }

    #[test]
    fn contents_of_two_times_are_torn() {
        let mut w = Writes::default();
        w.called(1, 0, &value(1));
        w.answered(1);
        w.called(2, 1, &value(2));
        w.answered(2);
        // Overwrites sector 0, then sector 1.
        w.called(3, 0, &value(3));
        w.called(4, 1, &value(4));
        w.answered(3);
        let torn = |a, b| w.torn(&[value(a), value(b)]);
        assert_eq!((torn(1, 2), torn(3, 2), torn(3, 4), torn(1, 4)), (None, None, None, None), "both were under way");
        w.called(5, 1, &value(5));
        let torn = |a, b| w.torn(&[value(a), value(b)]);
        assert_eq!((torn(3, 5), torn(1, 5)), (None, Some((1, 0))), "the third write ended before the fifth began");
        assert_eq!(w.torn(&[Payload::zero(1), value(5)]), None, "zeroes are of no known time");
    }
}
