//! The control interface that every data plane offers to the writer of its tables.
//!
//! Idempotent: a full state with a generation, then numbered changes. A repeated update changes nothing, an older
//! generation is refused (protocol rule 5), and after a gap the writer sends its full state with a new generation. Two
//! data planes that received the same updates have equal dumps.
//!
//! Rows obey the rules of `create_vssd` and `del_vssd` on both paths: (incarnation, epoch, request) orders them, and
//! the state reported by a vSSD's server survives a rewrite of its row.

use rackweave_core::map::set;
use rackweave_core::msg::{PEERS_MAX, TableError, VssdRow};
use rackweave_core::{Epoch, Incarnation, Time, VssdId};

use crate::pipeline::Counters;
use crate::rings::{Prefix, Ring, RingError};
use crate::tables::Dump;

/// A row as it is announced: `create_vssd` with what its header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    pub vssd: VssdId,
    pub incarnation: Incarnation,
    pub epoch: Epoch,
    pub request: u64,
    pub row: VssdRow,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Create(Announcement),
    /// Of a row that this incarnation of its server, or an earlier one, made.
    Delete {
        vssd: VssdId,
        incarnation: Incarnation,
    },
}

/// A change of NICE's rings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingChange {
    /// A ring that is there is replaced.
    Set(Ring),
    Remove(Prefix),
}

/// Update of a writer of the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// All rows and rings there are; every other one is deleted. Changes that follow are numbered from 1.
    Full {
        generation: u64,
        rows: Vec<Announcement>,
        rings: Vec<Ring>,
    },
    Ring {
        generation: u64,
        number: u64,
        change: RingChange,
    },
    Change {
        generation: u64,
        number: u64,
        change: Change,
    },
}

/// How far a data plane has followed its writer. Zeros: nothing was ever written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub generation: u64,
    pub number: u64,
}

/// Result of a change of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowResult {
    Done,
    /// The row is newer than the change: nothing happened.
    Stale,
    Refused(TableError),
}

/// Result of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    Done,
    /// It had been applied before.
    Again,
    /// The change was older than the row.
    Stale,
}

/// Why an update was refused; the tables are as they were.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError<F: std::error::Error + 'static> {
    #[error("generation {given} is over: this data plane follows {current}")]
    OldGeneration { given: u64, current: u64 },
    #[error("generation {given} has not begun here: send its full state (this data plane follows {current})")]
    UnknownGeneration { given: u64, current: u64 },
    #[error("change {given} of generation {generation}, but {expected} comes next: send the full state again")]
    Gap { generation: u64, given: u64, expected: u64 },
    #[error("{vssd}: {error}")]
    Row { vssd: VssdId, error: TableError },
    #[error("{vssd} is twice in the full state")]
    Twice { vssd: VssdId },
    #[error("ring {}/{}: {error}", prefix.address, prefix.bits)]
    Ring { prefix: Prefix, error: RingError },
    #[error(transparent)]
    Fault(F),
}

/// A data plane: tables, the program over them, and counters.
pub trait DataPlane {
    /// Failure of the data plane itself.
    type Fault: std::error::Error + 'static;

    fn position(&self) -> Position;
    fn set_position(&mut self, position: Position);
    /// Most rows the tables hold.
    fn rows_max(&self) -> u32;
    /// Changes one row by the rules of `create_vssd` and `del_vssd`.
    fn change(&mut self, now: Time, change: &Change) -> Result<RowResult, Self::Fault>;
    /// Changes one ring.
    fn change_ring(&mut self, change: &RingChange) -> Result<Result<(), RingError>, Self::Fault>;
    /// All tables as they are at `now`.
    fn dump(&self, now: Time) -> Result<Dump, Self::Fault>;
    fn counters(&self) -> Result<Counters, Self::Fault>;

    /// Follows the writer of the tables.
    fn apply(&mut self, now: Time, update: &Update) -> Result<Applied, UpdateError<Self::Fault>> {
        match update {
            Update::Full { generation, rows, rings } => self.apply_full(now, *generation, rows, rings),
            Update::Change { generation, number, change } => self.apply_change(now, *generation, *number, change),
            Update::Ring { generation, number, change } => self.apply_ring(*generation, *number, change),
        }
    }

    #[doc(hidden)]
    fn apply_full(
        &mut self,
        now: Time,
        generation: u64,
        rows: &[Announcement],
        rings: &[Ring],
    ) -> Result<Applied, UpdateError<Self::Fault>> {
        let current = self.position().generation;
        if generation < current && !mutant!("switch.writer.older-generation") {
            return Err(UpdateError::OldGeneration { given: generation, current });
        }
        if generation == current && current != 0 {
            return Ok(Applied::Again);
        }
        let mut named = set();
        for a in rows {
            check_row(a.vssd, &a.row).map_err(|error| UpdateError::Row { vssd: a.vssd, error })?;
            if !named.insert(a.vssd) {
                return Err(UpdateError::Twice { vssd: a.vssd });
            }
            if named.len() > self.rows_max() as usize {
                let error = TableError::Full { rows: self.rows_max() };
                return Err(UpdateError::Row { vssd: a.vssd, error });
            }
        }
        let mut prefixes = set();
        for r in rings {
            let twice = if prefixes.insert(r.prefix) { Ok(()) } else { Err(RingError::Twice) };
            let room = if prefixes.len() > crate::rings::RINGS_MAX as usize { Err(RingError::Full) } else { Ok(()) };
            let checked = r.check().and(twice).and(room);
            checked.map_err(|error| UpdateError::Ring { prefix: r.prefix, error })?;
        }
        let old = self.dump(now).map_err(UpdateError::Fault)?;
        for gone in old.rings.iter().map(|r| r.prefix).filter(|p| !prefixes.contains(p)) {
            let _ = self.change_ring(&RingChange::Remove(gone)).map_err(UpdateError::Fault)?;
        }
        for r in rings {
            let set = self.change_ring(&RingChange::Set(r.clone())).map_err(UpdateError::Fault)?;
            set.map_err(|error| UpdateError::Ring { prefix: r.prefix, error })?;
        }
        for old in old.destination {
            if !named.contains(&old.vssd) {
                let gone = Change::Delete { vssd: old.vssd, incarnation: Incarnation(u64::MAX) };
                self.change(now, &gone).map_err(UpdateError::Fault)?;
            }
        }
        for a in rows {
            // A row its server has announced anew since stays as it is.
            self.change(now, &Change::Create(a.clone())).map_err(UpdateError::Fault)?;
        }
        self.set_position(Position { generation, number: 0 });
        Ok(Applied::Done)
    }

    #[doc(hidden)]
    fn apply_change(
        &mut self,
        now: Time,
        generation: u64,
        number: u64,
        change: &Change,
    ) -> Result<Applied, UpdateError<Self::Fault>> {
        if !self.comes_next(generation, number)? {
            return Ok(Applied::Again);
        }
        let result = self.change(now, change).map_err(UpdateError::Fault)?;
        let vssd = match change {
            Change::Create(a) => a.vssd,
            Change::Delete { vssd, .. } => *vssd,
        };
        if let RowResult::Refused(error) = result {
            return Err(UpdateError::Row { vssd, error });
        }
        self.set_position(Position { generation, number });
        Ok(if result == RowResult::Stale { Applied::Stale } else { Applied::Done })
    }

    #[doc(hidden)]
    fn apply_ring(
        &mut self,
        generation: u64,
        number: u64,
        change: &RingChange,
    ) -> Result<Applied, UpdateError<Self::Fault>> {
        if !self.comes_next(generation, number)? {
            return Ok(Applied::Again);
        }
        let (RingChange::Set(Ring { prefix, .. }) | RingChange::Remove(prefix)) = *change;
        let result = self.change_ring(change).map_err(UpdateError::Fault)?;
        result.map_err(|error| UpdateError::Ring { prefix, error })?;
        self.set_position(Position { generation, number });
        Ok(Applied::Done)
    }

    /// Whether the change is the next one; false if it was applied before.
    #[doc(hidden)]
    fn comes_next(&self, generation: u64, number: u64) -> Result<bool, UpdateError<Self::Fault>> {
        let Position { generation: current, number: last } = self.position();
        if generation < current {
            return Err(UpdateError::OldGeneration { given: generation, current });
        }
        if generation > current || current == 0 {
            return Err(UpdateError::UnknownGeneration { given: generation, current });
        }
        if number > last + 1 && !mutant!("switch.writer.gap") {
            return Err(UpdateError::Gap { generation, given: number, expected: last + 1 });
        }
        Ok(number > last)
    }
}

/// Rows that no table accepts, whatever its contents.
pub fn check_row(vssd: VssdId, row: &VssdRow) -> Result<(), TableError> {
    if vssd.0 == 0 {
        return Err(TableError::ZeroId);
    }
    if row.peers.len() > PEERS_MAX {
        return Err(TableError::TooManyPeers { peers: row.peers.len() as u32 });
    }
    Ok(())
}
