//! Cloud disks: clients with log servers and proxies, servers with each other and with the metadata role.

use rackweave_core::msg::Op;
use rackweave_core::msg::cloud::{
    Adopted, Backing, Batch, COPIES_MAX, Cloud, Contents, ENTRIES_MAX, EntryId, EntryKind, EntryMeta, Extent,
    GENERATIONS_MAX, Member, Message, OVERLAID_MAX, Placement, Position, ReadResult, SEGMENTS_MAX, SegmentReport,
    Serial, Shape, Stripe, View, WRITES_MAX, Write,
};
use rackweave_core::{Epoch, NodeId, VolumeId};

use crate::body::{Codec, Frames};
use crate::codec::{Reader, Wire, Writer, wire_enum, wire_list, wire_struct};
use crate::error::{DecodeError, EncodeError};
use crate::limits::{SERVERS_MAX, VOLUMES_MAX};

impl Codec for Cloud {
    const FRAMES: Frames = &[
        (Op::Write, 136..=138),
        (Op::Read, 139..=140),
        (Op::Read, 157..=157),
        (Op::Reply, 141..=147),
        (Op::Reply, 158..=158),
        (Op::Peer, 148..=156),
        (Op::Control, 160..=172),
    ];

    fn put(&self, op: Op, w: &mut Writer<'_>) {
        if self.0.op() == op { self.0.put(w) } else { w.fail(EncodeError::BodyMismatch { op }) }
    }
    fn get(_: Op, r: &mut Reader<'_>) -> Result<Cloud, DecodeError> {
        Ok(Cloud(Wire::get(r)?))
    }
}

impl Wire for Serial {
    fn put(&self, w: &mut Writer<'_>) {
        self.0.put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Serial, DecodeError> {
        Ok(Serial(u64::get(r)?))
    }
}

impl Wire for Stripe {
    fn put(&self, w: &mut Writer<'_>) {
        self.0.put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Stripe, DecodeError> {
        Ok(Stripe(u64::get(r)?))
    }
}

/// Sectors from the first on. The last one has a number.
impl Wire for Extent {
    fn put(&self, w: &mut Writer<'_>) {
        self.first.put(w);
        self.count.put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Extent, DecodeError> {
        let offset = r.offset();
        let (first, count) = (u64::get(r)?, u32::get(r)?);
        match first.checked_add(count.into()) {
            Some(_) => Ok(Extent { first, count }),
            None => Err(DecodeError::BadExtent { first, count, offset }),
        }
    }
}

impl Wire for Placement {
    fn put(&self, w: &mut Writer<'_>) {
        self.owner.put(w);
        put_nodes(&self.holders, w);
        put_nodes(&self.joining, w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Placement, DecodeError> {
        Ok(Placement { owner: Wire::get(r)?, holders: get_nodes(r)?, joining: get_nodes(r)? })
    }
}

impl Wire for Adopted {
    fn put(&self, w: &mut Writer<'_>) {
        self.id.put(w);
        self.extent.put(w);
        put_nodes(&self.copies, w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Adopted, DecodeError> {
        Ok(Adopted { id: Wire::get(r)?, extent: Wire::get(r)?, copies: get_nodes(r)? })
    }
}

const COPIES: &str = "copies";

fn put_nodes(nodes: &[NodeId], w: &mut Writer<'_>) {
    if w.count(COPIES, nodes.len(), COPIES_MAX as u32) {
        nodes.iter().for_each(|n| n.put(w));
    }
}
fn get_nodes(r: &mut Reader<'_>) -> Result<Vec<NodeId>, DecodeError> {
    let count = r.count(COPIES, COPIES_MAX as u32, 4)?;
    (0..count).map(|_| NodeId::get(r)).collect()
}

wire_struct!(Shape { bytes, segment, stripe, log_copies, segments });
wire_struct!(Backing { generation, parents });
wire_list!(VolumeId, "generations", GENERATIONS_MAX as u32, 4);
wire_struct!(EntryId { serial, generation });
wire_list!(EntryId, "entries", ENTRIES_MAX as u32, 12);
wire_list!(Extent, "extents of an overlay", OVERLAID_MAX as u32, 12);
wire_enum!(Contents, "contents of a write", { 0 => Data(data), 1 => Zeroes, 2 => Discarded });
wire_struct!(Write { extent, contents });
wire_list!(Write, "writes", WRITES_MAX as u32, 13);
wire_list!((Serial, Write), "merged entries", WRITES_MAX as u32, 21);
wire_list!(Stripe, "stripes", WRITES_MAX as u32, 8);
wire_struct!(Batch { merged, writes, fill, moved });
wire_enum!(EntryKind, "kind of entry", { 0 => Data, 1 => Zeroes, 2 => Discarded, 3 => Void });
wire_struct!(Position { file, at });
wire_struct!(EntryMeta { id, extent, position, kind, valid });
wire_list!(EntryMeta, "entries", ENTRIES_MAX as u32, 34);
wire_struct!(SegmentReport { segment, last, merged });
wire_list!(SegmentReport, "segments", SEGMENTS_MAX as u32, 20);
wire_enum!(ReadResult, "result of a read", { 0 => Data(contents), 1 => Outdated, 2 => Incomplete, 3 => Unreadable });
wire_struct!(Member { node, incarnation, drive });
wire_list!(Member, "servers", SERVERS_MAX, 20);
wire_list!(Placement, "segments", SEGMENTS_MAX as u32, 12);
wire_list!(Adopted, "adopted entries", ENTRIES_MAX as u32, 28);
wire_struct!(View {
    volume,
    epoch,
    revision,
    client,
    client_incarnation,
    servers,
    merger,
    segments,
    adopted,
    next,
    log_copies,
    fork,
});
wire_list!((VolumeId, Epoch, u32), "volumes", VOLUMES_MAX, 12);

wire_enum!(Message, "message of cloud disks", {
    136 => Append { serial, closed, depth, write },
    137 => Void { serial },
    138 => Write { sequence, floor, depth, write },
    139 => ReadLog { request, id, part, depth },
    140 => ReadStore { request, part, depth },
    141 => Appended { serial },
    142 => AppendFull { serial },
    143 => Voided { serial },
    144 => Written { sequence },
    145 => ReadReply { request, result },
    146 => Head { head },
    147 => Outdated,
    148 => Replicate { segment, number, joins, batch },
    149 => Replicated { segment, number },
    150 => Traverse { round, from, to },
    151 => Traversed { round, metas, bytes },
    152 => Merge { segment, entries },
    153 => Merged { segment, merged },
    154 => Invalidate { round, entries, head },
    155 => Invalidated { round },
    156 => Status { closed, depth },
    157 => ReadOverlay { request, segment, range },
    158 => Overlaid { request, extents, end, sets, backing },
    160 => Register { incarnation, drive },
    161 => Registered { incarnation },
    162 => Heartbeat { incarnation, sent, views },
    163 => Lease { incarnation, sent },
    164 => Seal { shape, sets, backing, flattens },
    165 => Sealed { incarnation, drive, metas, segments },
    166 => View(view),
    167 => Gone,
    168 => Filled { segment, node },
    169 => Attach { incarnation },
    170 => Lookup { incarnation },
    171 => Fenced { incarnation },
    172 => Drained { segment },
});
