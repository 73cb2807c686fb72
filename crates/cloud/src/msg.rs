//! Messages between clients, servers and the metadata role.

use rackweave_core::msg::HEADER_BYTES;
use rackweave_core::{DriveId, Epoch, Incarnation, NodeId, SECTOR, Time, VolumeId};

use crate::log::Meta;
use crate::types::{Contents, EntryId, Extent, Serial, Write};
use crate::view::View;

/// A message. `epoch`: the sender's of the volume; zero before it knows one.
#[derive(Clone, Debug, PartialEq)]
pub struct Packet {
    pub from: NodeId,
    pub to: NodeId,
    pub volume: VolumeId,
    pub epoch: Epoch,
    pub body: Body,
}

/// A member's copy of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    pub segment: u32,
    /// Number of the last batch.
    pub last: u64,
    pub merged: Serial,
}

/// Changes that a proxy makes on all copies of its segment at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    pub writes: Vec<Write>,
    /// The last entry that has been merged with this batch.
    pub merged: Serial,
    /// For copies that join: whole stripes.
    pub fill: Vec<Write>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ReadResult {
    Data(Contents),
    Outdated,
    Incomplete,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Body {
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
    /// From now on the server refuses other epochs, and reports what it has.
    Seal,
    Sealed {
        incarnation: Incarnation,
        drive: DriveId,
        metas: Vec<Meta>,
        segments: Vec<SegmentReport>,
    },
    View(Box<View>),
    /// A proxy has filled a copy.
    Filled {
        segment: u32,
        node: NodeId,
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
        metas: Vec<Meta>,
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

impl Packet {
    /// Bytes of the packet on a modelled link.
    pub fn bytes(&self) -> u32 {
        let of = |w: &Write| w.contents.stored() * SECTOR + 16;
        HEADER_BYTES
            + match &self.body {
                Body::Append { write, .. } | Body::Write { write, .. } => of(write),
                Body::ReadReply { result: ReadResult::Data(c), .. } => c.stored() * SECTOR,
                Body::Replicate { batch, .. } => batch.writes.iter().chain(&batch.fill).map(of).sum(),
                Body::Merge { entries, .. } => entries.iter().map(|(_, w)| of(w) + 8).sum(),
                Body::Sealed { metas, .. } | Body::Traversed { metas, .. } => 36 * metas.len() as u32,
                Body::View(view) => 64 + 32 * view.adopted.len() as u32,
                _ => 0,
            }
    }
}
