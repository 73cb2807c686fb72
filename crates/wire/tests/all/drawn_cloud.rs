//! Messages of cloud disks, as the other packets are drawn.

use rackweave_core::msg::cloud::{
    Adopted, Backing, Batch, Cloud, Contents, EntryId, EntryKind, EntryMeta, Extent, Frozen, Member, Message,
    Placement, Position, ReadResult, SegmentReport, Serial, Shape, Stripe, View, Write,
};
use rackweave_core::{DriveId, Epoch, Incarnation, NodeId, SetId, Time, VolumeId};

use super::Draw;

impl Draw {
    pub(super) fn cloud(&mut self) -> Cloud {
        let message = match self.below(4) {
            0 => self.of_disk(),
            1 => self.of_log(),
            2 => self.of_segment(),
            _ => self.of_epoch(),
        };
        Cloud(Box::new(message))
    }

    fn serial(&mut self) -> Serial {
        Serial(self.u64())
    }
    fn entry_id(&mut self) -> EntryId {
        EntryId { serial: self.serial(), generation: Epoch(self.u32()) }
    }
    fn range_of_sectors(&mut self) -> Extent {
        Extent { first: self.u64() >> 1, count: self.u32() }
    }
    fn contents(&mut self) -> Contents {
        match self.below(3) {
            0 => Contents::Data(self.payload()),
            1 => Contents::Zeroes,
            _ => Contents::Discarded,
        }
    }
    fn cloud_write(&mut self) -> Write {
        Write { extent: self.range_of_sectors(), contents: self.contents() }
    }
    fn meta(&mut self) -> EntryMeta {
        EntryMeta {
            id: self.entry_id(),
            extent: self.range_of_sectors(),
            position: Position { file: self.u32(), at: self.u32() },
            kind: *self.0.pick(&[EntryKind::Data, EntryKind::Zeroes, EntryKind::Discarded, EntryKind::Void]),
            valid: self.bool(),
        }
    }
    fn copies(&mut self) -> Vec<NodeId> {
        self.list(9, |d| NodeId(d.u32()))
    }
    fn drive_id(&mut self) -> DriveId {
        DriveId(self.u64())
    }
    fn incarnation_of_run(&mut self) -> Incarnation {
        Incarnation(self.u64())
    }

    pub(super) fn shape(&mut self) -> Shape {
        let (bytes, segment, stripe) = (self.u64(), self.u64(), self.u32());
        Shape { bytes, segment, stripe, log_copies: self.u32() as u8, segments: self.u32() }
    }
    fn backing(&mut self) -> Backing {
        Backing { generation: VolumeId(self.u32()), parents: self.list(3, |d| VolumeId(d.u32())) }
    }
    pub(super) fn frozen(&mut self) -> Frozen {
        Frozen { shape: self.shape(), backing: self.backing() }
    }
    fn of_disk(&mut self) -> Message {
        let depth = self.u32();
        match self.below(10) {
            0 => Message::Append { serial: self.serial(), write: self.cloud_write(), closed: self.serial(), depth },
            1 => Message::Void { serial: self.serial() },
            2 => Message::Write { sequence: self.u64(), floor: self.u64(), write: self.cloud_write(), depth },
            3 => Message::ReadLog { request: self.u64(), id: self.entry_id(), part: self.range_of_sectors(), depth },
            4 => Message::ReadStore { request: self.u64(), part: self.range_of_sectors(), depth },
            5 => Message::Status { closed: self.serial(), depth },
            6 => Message::ReadOverlay { request: self.u64(), segment: depth, range: self.range_of_sectors() },
            7 => {
                let extents = self.list(3, Draw::range_of_sectors);
                let sets = self.list(3, |d| SetId(d.u32()));
                Message::Overlaid { request: self.u64(), extents, end: self.u64(), sets, backing: self.backing() }
            }
            8 => Message::Attach { incarnation: self.incarnation_of_run() },
            _ => Message::Lookup { incarnation: self.incarnation_of_run() },
        }
    }
    fn of_log(&mut self) -> Message {
        match self.below(10) {
            0 => Message::Appended { serial: self.serial() },
            1 => Message::AppendFull { serial: self.serial() },
            2 => Message::Voided { serial: self.serial() },
            3 => Message::Written { sequence: self.u64() },
            4 => Message::Head { head: self.serial() },
            5 => Message::Outdated,
            6 => Message::Traverse { round: self.u64(), from: self.serial(), to: self.serial() },
            7 => Message::Traversed { round: self.u64(), metas: self.list(4, Draw::meta), bytes: self.u64() },
            8 => {
                let entries = self.list(4, Draw::entry_id);
                Message::Invalidate { round: self.u64(), entries, head: self.serial() }
            }
            _ => Message::Invalidated { round: self.u64() },
        }
    }
    fn of_segment(&mut self) -> Message {
        let segment = self.u32();
        match self.below(7) {
            0 => {
                let (writes, fill) = (self.list(3, Draw::cloud_write), self.list(1, Draw::cloud_write));
                let moved = self.list(3, |d| Stripe(d.u64()));
                let batch = Batch { writes, merged: self.serial(), fill, moved };
                Message::Replicate { segment, number: self.u64(), batch, joins: self.bool() }
            }
            1 => Message::Replicated { segment, number: self.u64() },
            2 => Message::Merge { segment, entries: self.list(3, |d| (d.serial(), d.cloud_write())) },
            3 => Message::Merged { segment, merged: self.serial() },
            4 => Message::Filled { segment, node: NodeId(self.u32()) },
            _ => {
                let result = match self.below(4) {
                    0 => ReadResult::Data(self.contents()),
                    1 => ReadResult::Outdated,
                    2 => ReadResult::Unreadable,
                    _ => ReadResult::Incomplete,
                };
                Message::ReadReply { request: self.u64(), result }
            }
        }
    }
    fn of_epoch(&mut self) -> Message {
        let incarnation = self.incarnation_of_run();
        match self.below(10) {
            0 => Message::Register { incarnation, drive: self.drive_id() },
            1 => Message::Registered { incarnation },
            2 => {
                let views = self.list(4, |d| (VolumeId(d.u32()), Epoch(d.u32()), d.u32()));
                Message::Heartbeat { incarnation, sent: Time(self.u64()), views }
            }
            3 => Message::Lease { incarnation, sent: Time(self.u64()) },
            4 => {
                let sets = self.list(3, |d| SetId(d.u32()));
                Message::Seal { shape: self.shape(), sets, backing: self.backing(), flattens: self.bool() }
            }
            5 => {
                let metas = self.list(4, Draw::meta);
                let report = |d: &mut Draw| SegmentReport { segment: d.u32(), last: d.u64(), merged: d.serial() };
                Message::Sealed { incarnation, drive: self.drive_id(), metas, segments: self.list(4, report) }
            }
            6 => Message::View(Box::new(self.cloud_view())),
            7 => Message::Gone,
            8 => Message::Fenced { incarnation },
            _ => Message::Drained { segment: self.u32() },
        }
    }
    fn cloud_view(&mut self) -> View {
        let member =
            |d: &mut Draw| Member { node: NodeId(d.u32()), incarnation: d.incarnation_of_run(), drive: d.drive_id() };
        let placement = |d: &mut Draw| Placement { owner: NodeId(d.u32()), holders: d.copies(), joining: d.copies() };
        let adopted = |d: &mut Draw| Adopted { id: d.entry_id(), extent: d.range_of_sectors(), copies: d.copies() };
        View {
            volume: VolumeId(self.u32()),
            epoch: Epoch(self.u32()),
            revision: self.u32(),
            client: NodeId(self.u32()),
            client_incarnation: self.incarnation_of_run(),
            servers: self.list(4, member),
            merger: NodeId(self.u32()),
            segments: self.list(3, placement),
            adopted: self.list(3, adopted),
            next: self.serial(),
            log_copies: self.u32() as u8,
            fork: self.bool().then(|| self.serial()),
        }
    }
}
