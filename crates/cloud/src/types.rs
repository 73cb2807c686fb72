//! Ranges of a VDisk, serial numbers, and changes of contents.

use std::fmt;

use rackweave_core::{Epoch, Payload};

/// Position of an entry in a VDisk's log. Serials of one VDisk only increase, over all its epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Serial(pub u64);

impl Serial {
    pub fn next(self) -> Serial {
        Serial(self.0 + 1)
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// An entry's identity: the epoch in which it was appended, and its serial. A serial alone is not enough: an entry that a
/// lost server alone has may bear the serial of a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId {
    pub serial: Serial,
    pub generation: Epoch,
}

/// A range of sectors of a VDisk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    pub first: u64,
    pub count: u32,
}

impl Extent {
    pub fn new(first: u64, count: u32) -> Extent {
        Extent { first, count }
    }
    /// One past the last sector.
    pub fn end(self) -> u64 {
        self.first + u64::from(self.count)
    }
    pub fn overlaps(self, other: Extent) -> bool {
        self.first < other.end() && other.first < self.end()
    }
    /// The sectors that both have, if any.
    pub fn common(self, other: Extent) -> Option<Extent> {
        let (first, end) = (self.first.max(other.first), self.end().min(other.end()));
        (first < end).then(|| Extent::new(first, (end - first) as u32))
    }
}

/// New contents of an extent.
#[derive(Clone, Debug)]
pub enum Contents {
    Data(Payload),
    /// Zeroes that keep their room.
    Zeroes,
    /// Zeroes whose room is given back.
    Discarded,
}

impl Contents {
    /// The contents of `part` of `whole`, which has these.
    pub fn part(&self, whole: Extent, part: Extent) -> Contents {
        match self {
            Contents::Data(p) => Contents::Data(p.slice((part.first - whole.first) as u32, part.count)),
            other => other.clone(),
        }
    }
    pub fn payload(&self, count: u32) -> Payload {
        match self {
            Contents::Data(p) => p.clone(),
            Contents::Zeroes | Contents::Discarded => Payload::Zero { sectors: count },
        }
    }
    /// Sectors that it takes in a log or a message.
    pub fn stored(&self) -> u32 {
        match self {
            Contents::Data(p) => p.sectors(),
            Contents::Zeroes | Contents::Discarded => 0,
        }
    }
}

impl PartialEq for Contents {
    fn eq(&self, other: &Contents) -> bool {
        match (self, other) {
            (Contents::Data(a), Contents::Data(b)) => {
                a.sectors() == b.sectors() && (0..a.sectors()).all(|i| a.identity(i) == b.identity(i))
            }
            (Contents::Zeroes, Contents::Zeroes) | (Contents::Discarded, Contents::Discarded) => true,
            _ => false,
        }
    }
}

/// A change of one extent, which lies in one stripe.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub extent: Extent,
    pub contents: Contents,
}
