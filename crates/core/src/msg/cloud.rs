//! Cloud disks: what clients, servers and the metadata role of DiffForward exchange. A packet's [`set`] is the number of the
//! volume, and its [`epoch`] the sender's epoch of that; zero before it knows one.
//!
//! [`set`]: super::Header::set
//! [`epoch`]: super::Header::epoch

use std::fmt;

pub use super::log_pair::LogPair;
use super::{Op, ServiceMessage};
use crate::{DriveId, Epoch, Incarnation, NodeId, Payload, SECTOR, SetId, Time, VolumeId};

/// Most segments of a volume: with their copies they are a small part of a view.
pub const SEGMENTS_MAX: usize = 4096;
/// Most entries of a sub-log, and of a view: each takes up to 48 bytes, so that either fits a body of the wire format.
pub const ENTRIES_MAX: usize = 65_536;
/// Most writes of a batch, and entries of a merge.
pub const WRITES_MAX: usize = 256;
/// Most copies of a segment or an entry.
pub const COPIES_MAX: usize = 9;
/// Most extents of an overlay's answer. A client continues where it ends.
pub const OVERLAID_MAX: usize = 4096;
/// Most earlier generations of a volume: each takes four bytes of a seal.
pub const GENERATIONS_MAX: usize = 1024;

/// How a volume is divided, and how safe its log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub bytes: u64,
    /// Bytes of a segment, each of which has a proxy.
    pub segment: u64,
    /// Bytes of a stripe: segments have stripes in turn.
    pub stripe: u32,
    /// Copies of a log entry: 2, or 1 as in the paper.
    pub log_copies: u8,
    /// As many as the volume had segments when it was created. When it grows they do, so that no stripe changes its segment.
    pub segments: u32,
}

impl Shape {
    /// Of a new volume.
    pub const fn new(bytes: u64, segment: u64, stripe: u32, log_copies: u8) -> Shape {
        let number = bytes.div_ceil(if segment == 0 { 1 } else { segment });
        let segments = if number > u32::MAX as u64 { u32::MAX } else { number as u32 };
        Shape { bytes, segment, stripe, log_copies, segments }
    }
    /// With another size.
    pub fn resized(self, bytes: u64) -> Shape {
        Shape { bytes, ..self }
    }
}

/// Where a volume's stripes are. Each generation has the addresses of a direct volume of this number in the volume's sets. Stripes
/// are written in the current one alone; snapshots and clones share the earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    pub generation: VolumeId,
    /// Earlier generations, the newest first. The last one has every stripe that no later one has.
    pub parents: Vec<VolumeId>,
}

impl Backing {
    /// Of a volume without snapshots.
    pub fn of(generation: VolumeId) -> Backing {
        Backing { generation, parents: Vec::new() }
    }
    /// The backing after a fork, which freezes this one.
    pub fn forked(&self, generation: VolumeId) -> Backing {
        let parents = std::iter::once(self.generation).chain(self.parents.iter().copied()).collect();
        Backing { generation, parents }
    }
    /// Generations from the current one back.
    pub fn chain(&self) -> impl Iterator<Item = VolumeId> {
        std::iter::once(self.generation).chain(self.parents.iter().copied())
    }
}

/// What a reader of a snapshot needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frozen {
    pub shape: Shape,
    pub backing: Backing,
}

/// Position of an entry in a VDisk's log. Serials of one VDisk only increase, over all its epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Serial(pub u64);

impl Serial {
    pub fn next(self) -> Serial {
        Serial(self.0.saturating_add(1))
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

/// Where an entry's data are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub file: u32,
    /// Bytes from the file's begin.
    pub at: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Data,
    Zeroes,
    Discarded,
    /// The client gave the serial up: it has no contents, and never will.
    Void,
}

/// An entry's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryMeta {
    pub id: EntryId,
    pub extent: Extent,
    pub position: Position,
    pub kind: EntryKind,
    pub valid: bool,
}

/// A server of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub drive: DriveId,
}

/// The copies of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The holder that serves it: the segment's proxy.
    pub owner: NodeId,
    /// They have all that was acknowledged.
    pub holders: Vec<NodeId>,
    /// They get every batch, and are filled.
    pub joining: Vec<NodeId>,
}

impl Placement {
    pub fn members(&self) -> impl Iterator<Item = NodeId> {
        self.holders.iter().chain(&self.joining).copied()
    }
}

/// A log entry of an earlier epoch that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopted {
    pub id: EntryId,
    pub extent: Extent,
    pub copies: Vec<NodeId>,
}

/// Who serves a volume in one epoch (rules 1 and 25).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub volume: VolumeId,
    pub epoch: Epoch,
    /// Counts changes within the epoch: copies that were filled.
    pub revision: u32,
    pub client: NodeId,
    pub client_incarnation: Incarnation,
    /// Every server that answered, in the order of the log's sub-logs.
    pub servers: Vec<Member>,
    pub merger: NodeId,
    pub segments: Vec<Placement>,
    /// Entries of earlier epochs that count; all others are dead for good.
    pub adopted: Vec<Adopted>,
    /// The epoch's first serial.
    pub next: Serial,
    /// Copies of a log entry ([`Shape::log_copies`]).
    pub log_copies: u8,
    /// A snapshot is being made that has what was written up to this serial. Until its fork nothing later reaches the
    /// storage layer (rule 27).
    pub fork: Option<Serial>,
}

impl View {
    pub fn member(&self, n: NodeId) -> Option<&Member> {
        self.servers.iter().find(|m| m.node == n)
    }
    /// The servers that have an entry of this epoch: sub-log `k mod n`, and the next as the second copy.
    pub fn pair(&self, serial: Serial) -> impl Iterator<Item = NodeId> {
        let (n, copies) = (self.servers.len(), usize::from(self.log_copies));
        let first = (serial.0 % n as u64) as usize;
        (0..copies.min(n)).map(move |i| self.servers[(first + i) % n].node)
    }
    /// Whether it can be one of a volume with this number of segments.
    pub fn fits(&self, segments: u32) -> bool {
        let divided = self.segments.len() == segments as usize;
        let logged = self.log_copies > 0 && !self.servers.is_empty() && self.next > Serial(0);
        divided && logged && self.adopted.iter().all(|a| !a.copies.is_empty())
    }
    /// Whether fewer servers of the view have an entry with these copies than an entry of the volume has.
    pub fn is_short(&self, copies: &[NodeId]) -> bool {
        let here = copies.iter().filter(|n| self.member(**n).is_some());
        here.count() < usize::from(self.log_copies)
    }
    /// The servers that have an entry, of whichever epoch.
    pub fn copies(&self, id: EntryId) -> Vec<NodeId> {
        match self.adopted.iter().find(|a| a.id == id) {
            Some(a) => a.copies.clone(),
            None => self.pair(id.serial).collect(),
        }
    }
}

/// A member's copy of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    pub segment: u32,
    /// Number of the last batch.
    pub last: u64,
    pub merged: Serial,
}

/// Number of a stripe of the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stripe(pub u64);

/// Changes that a proxy makes on all copies of its segment at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    pub writes: Vec<Write>,
    /// The last entry that has been merged with this batch.
    pub merged: Serial,
    /// For copies that join: the overlay's part of a stripe.
    pub fill: Vec<Write>,
    /// Stripes that leave the overlay, before the writes: the storage layer has them.
    pub moved: Vec<Stripe>,
}

impl Batch {
    /// Bytes of its contents.
    pub fn bytes(&self) -> u64 {
        self.writes.iter().chain(&self.fill).map(|w| u64::from(w.contents.stored() * SECTOR)).sum()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum ReadResult {
    Data(Contents),
    /// The entry does not count: the reader reads again by its index as it is then.
    Outdated,
    /// The entry has not been appended yet.
    Incomplete,
    /// No member of the replica set has a sound copy.
    Unreadable,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    // Servers and the metadata role.
    Register {
        incarnation: Incarnation,
        drive: DriveId,
    },
    Registered {
        incarnation: Incarnation,
    },
    /// `views`: epoch and revision of each volume.
    Heartbeat {
        incarnation: Incarnation,
        sent: Time,
        views: Vec<(VolumeId, Epoch, u32)>,
    },
    Lease {
        incarnation: Incarnation,
        sent: Time,
    },
    /// From now on the server refuses other epochs, and reports what it has. A server that does not know the volume has
    /// nothing of it.
    /// `sets`: those that its contents are on, by `backing`. `flattens`: proxies copy all stripes to the current generation.
    Seal {
        shape: Shape,
        sets: Vec<SetId>,
        backing: Backing,
        flattens: bool,
    },
    Sealed {
        incarnation: Incarnation,
        drive: DriveId,
        metas: Vec<EntryMeta>,
        segments: Vec<SegmentReport>,
    },
    View(Box<View>),
    /// The volume was deleted: the server drops what it has of it.
    Gone,
    /// A proxy has filled a copy.
    Filled {
        segment: u32,
        node: NodeId,
    },
    /// All that a segment has of the snapshot that is being made is in the storage layer; or, while the volume is flattened, the current
    /// generation has all of the segment's stripes.
    Drained {
        segment: u32,
    },
    // Clients and the metadata role.
    Attach {
        incarnation: Incarnation,
    },
    /// A client that has attached looks for its volume's view.
    Lookup {
        incarnation: Incarnation,
    },
    Fenced {
        incarnation: Incarnation,
    },
    // Clients and log servers. `closed`: up to this serial every entry is on all its copies, or given up there.
    Append {
        serial: Serial,
        write: Write,
        closed: Serial,
        depth: u32,
    },
    Appended {
        serial: Serial,
    },
    AppendFull {
        serial: Serial,
    },
    Void {
        serial: Serial,
    },
    Voided {
        serial: Serial,
    },
    ReadLog {
        request: u64,
        id: EntryId,
        part: Extent,
        depth: u32,
    },
    ReadReply {
        request: u64,
        result: ReadResult,
    },
    // Clients and proxies.
    ReadStore {
        request: u64,
        part: Extent,
        depth: u32,
    },
    Write {
        sequence: u64,
        floor: u64,
        write: Write,
        depth: u32,
    },
    Written {
        sequence: u64,
    },
    /// What may be allocated of a segment's part of `range` without the storage layer's knowledge.
    ReadOverlay {
        request: u64,
        segment: u32,
        range: Extent,
    },
    /// In order, and all before the sector `end`. The rest is in these sets, as `backing` says.
    Overlaid {
        request: u64,
        extents: Vec<Extent>,
        end: u64,
        sets: Vec<SetId>,
        backing: Backing,
    },
    // Proxies and the other copies. `joins`: copies that have nothing yet begin with this number.
    Replicate {
        segment: u32,
        number: u64,
        batch: Batch,
        joins: bool,
    },
    Replicated {
        segment: u32,
        number: u64,
    },
    // Mergers, log servers and proxies.
    Traverse {
        round: u64,
        from: Serial,
        to: Serial,
    },
    Traversed {
        round: u64,
        metas: Vec<EntryMeta>,
        bytes: u64,
    },
    Merge {
        segment: u32,
        entries: Vec<(Serial, Write)>,
    },
    Merged {
        segment: u32,
        merged: Serial,
    },
    Invalidate {
        round: u64,
        entries: Vec<EntryId>,
        head: Serial,
    },
    Invalidated {
        round: u64,
    },
    // Mergers and clients.
    Status {
        closed: Serial,
        depth: u32,
    },
    Head {
        head: Serial,
    },
    /// The receiver's epoch is old.
    Outdated,
}

impl Message {
    /// The operation in the packet's header.
    pub fn op(&self) -> Op {
        match self {
            Message::ReadLog { .. } | Message::ReadStore { .. } | Message::ReadOverlay { .. } => Op::Read,
            Message::Append { .. } | Message::Void { .. } | Message::Write { .. } => Op::Write,
            Message::Appended { .. }
            | Message::AppendFull { .. }
            | Message::Voided { .. }
            | Message::ReadReply { .. }
            | Message::Written { .. }
            | Message::Overlaid { .. }
            | Message::Head { .. }
            | Message::Outdated => Op::Reply,
            Message::Register { .. }
            | Message::Registered { .. }
            | Message::Heartbeat { .. }
            | Message::Lease { .. }
            | Message::Seal { .. }
            | Message::Sealed { .. }
            | Message::View(_)
            | Message::Gone
            | Message::Filled { .. }
            | Message::Drained { .. }
            | Message::Attach { .. }
            | Message::Lookup { .. }
            | Message::Fenced { .. } => Op::Control,
            _ => Op::Peer,
        }
    }
    /// Bytes of its contents and long lists on a modelled link.
    pub fn bytes(&self) -> u32 {
        let of = |w: &Write| w.contents.stored() * SECTOR + 16;
        match self {
            Message::Append { write, .. } | Message::Write { write, .. } => of(write),
            Message::ReadReply { result: ReadResult::Data(c), .. } => c.stored() * SECTOR,
            Message::Replicate { batch, .. } => batch.writes.iter().chain(&batch.fill).map(of).sum(),
            Message::Merge { entries, .. } => entries.iter().map(|(_, w)| of(w) + 8).sum(),
            Message::Sealed { metas, .. } | Message::Traversed { metas, .. } => 36 * metas.len() as u32,
            Message::Overlaid { extents, .. } => 12 * extents.len() as u32,
            Message::View(view) => 64 + 32 * view.adopted.len() as u32,
            _ => 0,
        }
    }
}

/// A message of this service. Boxed: most are longer than those of blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Cloud(pub Box<Message>);

impl ServiceMessage for Cloud {
    fn bytes(&self) -> u32 {
        self.0.bytes()
    }
    fn answers_read(&self) -> bool {
        matches!(*self.0, Message::ReadReply { .. })
    }
    fn replicates(&self) -> bool {
        matches!(*self.0, Message::Replicate { .. })
    }
}
