//! The key-value store: clients with a partition's members, members with each other and with the membership service.

use bytes::Bytes;
use rackweave_core::Epoch;
use rackweave_core::msg::Op;
use rackweave_core::msg::keys::{
    Attempt, CLIENTS_PAGE_MAX, Change, Chunk, Commit, Condition, Decision, Ended, Ending, Entry, Epochs, Expires,
    FillPoint, Finished, FinishedPuts, Found, GetResult, ITEMS_MAX, Item, Keys, Known, KnownEnd, Member, Message,
    Origin, PAGE_MAX, Partition, Put, PutId, PutResult, Role, ScanResult, Standing, Timestamp, Undecided, VALUE_MAX,
    Verdict, Version, View,
};

use crate::body::{Codec, Frames};
use crate::codec::{Reader, Wire, Writer, wire_enum, wire_list, wire_struct};
use crate::error::{DecodeError, EncodeError};
use crate::limits::{EPOCH_RANGES_MAX, FINISHED_MAX, MEMBERS_MAX, PARTITIONS_MAX};

impl Codec for Keys {
    const FRAMES: Frames = &[
        (Op::Write, 192..=192),
        (Op::Read, 193..=193),
        (Op::Reply, 194..=197),
        (Op::Peer, 198..=215),
        (Op::Read, 216..=217),
        (Op::Reply, 218..=218),
        (Op::Peer, 219..=220),
        (Op::Control, 224..=236),
    ];

    fn put(&self, op: Op, w: &mut Writer<'_>) {
        if self.0.op() == op { self.0.put(w) } else { w.fail(EncodeError::BodyMismatch { op }) }
    }
    fn get(_: Op, r: &mut Reader<'_>) -> Result<Keys, DecodeError> {
        Ok(Keys(Wire::get(r)?))
    }
}

/// Keys and values. A count of bytes as four bytes, then the bytes.
impl Wire for Bytes {
    fn put(&self, w: &mut Writer<'_>) {
        if w.count("bytes of a key or value", self.len(), VALUE_MAX as u32) {
            w.bytes(self);
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<Bytes, DecodeError> {
        let len = r.count("bytes of a key or value", VALUE_MAX as u32, 1)?;
        r.shared_bytes(len)
    }
}

wire_struct!(PutId { client, incarnation, sequence });
wire_struct!(Timestamp { epoch, counter });
wire_struct!(Origin { at, ms });
wire_enum!(Expires, "expiry", { 0 => Never, 1 => At(ms), 2 => In(ms) });
wire_enum!(Condition, "condition", { 0 => Always, 1 => Absent, 2 => Present, 3 => VersionIs(first) });
wire_enum!(Change, "change", { 0 => Delete, 1 => Set { value, expires } });
wire_struct!(Item { key, condition, change });
wire_list!(Item, "keys of a put", ITEMS_MAX as u32, 6);
wire_list!(Bytes, "keys", ITEMS_MAX as u32, 4);
wire_struct!(Put { id, attempt, floor, early, items });
wire_enum!(Verdict, "verdict", { 0 => Applied, 1 => ConditionFailed });
wire_struct!(Commit { at, origin, verdict });
wire_enum!(Decision, "decision", { 0 => Abort, 1 => Commit(commit), 2 => Forget });
wire_enum!(Standing, "standing", { 0 => New, 1 => Pending, 2 => Committed(commit) });
wire_struct!(Undecided { put, standing });
wire_list!(Undecided, "undecided puts", PAGE_MAX as u32, 38);
wire_enum!(Finished, "ending", { 0 => Committed(verdict), 1 => Aborted(attempt) });
wire_struct!(Ending { epoch, how });
wire_list!((u64, Ending), "finished puts", FINISHED_MAX, 14);
wire_struct!(FinishedPuts { client, incarnation, floor, finished });
wire_list!(FinishedPuts, "clients", CLIENTS_PAGE_MAX as u32, 24);
wire_struct!(Ended { id, attempt, ending });
wire_list!(Ended, "ended puts", PAGE_MAX as u32, 25);
wire_struct!(Attempt { id, attempt, keys });
wire_list!(Attempt, "attempts", PAGE_MAX as u32, 28);
wire_enum!(KnownEnd, "known ending", { 0 => None, 1 => Written(commit), 2 => Finished(ending), 3 => Stale });
wire_struct!(Known { log, end });
wire_list!(Known, "findings", PAGE_MAX as u32, 2);
wire_struct!(Version { at, origin, by, value, expires });
wire_struct!(Entry { key, at, version, incomplete });
wire_list!(Entry, "keys", PAGE_MAX as u32, 18);
wire_enum!(FillPoint, "point of a fill", { 0 => Keys { after }, 1 => Clients { after } });
/// The time of the last sweep follows if there was one: a program of the previous version reads a chunk without it, and drops one with it.
impl Wire for Chunk {
    fn put(&self, w: &mut Writer<'_>) {
        self.at.put(w);
        self.entries.put(w);
        self.clients.put(w);
        self.next.put(w);
        if self.swept != Timestamp::default() {
            self.swept.put(w);
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<Chunk, DecodeError> {
        let (at, entries, clients, next) = (Wire::get(r)?, Wire::get(r)?, Wire::get(r)?, Wire::get(r)?);
        let (offset, left) = (r.offset(), r.left());
        let swept = if left > 0 { Wire::get(r)? } else { Timestamp::default() };
        if left > 0 && swept == Timestamp::default() {
            return Err(DecodeError::Trailing { offset, left });
        }
        Ok(Chunk { at, entries, clients, next, swept })
    }
}
wire_struct!(Found { value, version, expires });
wire_enum!(PutResult, "put result", { 0 => Done(verdict), 1 => Aborted, 2 => Stale, 3 => NoSpace });
wire_enum!(GetResult, "get result", { 0 => Value { found, now }, 1 => Refused, 2 => NoRoom { bytes } });
wire_enum!(ScanResult, "scan result", { 0 => Keys { keys, more }, 1 => Refused, 2 => Count { keys, expiring } });
wire_enum!(Role, "role", { 0 => Home, 1 => Handoff, 2 => Leaving });
wire_struct!(Member { node, incarnation, drive, role, holds, wants, since, witness });
wire_list!(Member, "members", MEMBERS_MAX, 34);
wire_struct!(View { partition, epoch, primary, active, members });
wire_list!((u32, u32), "ranges of epochs", EPOCH_RANGES_MAX, 8);
wire_list!((Partition, Epoch), "views", PARTITIONS_MAX, 8);

impl Wire for Partition {
    fn put(&self, w: &mut Writer<'_>) {
        self.0.put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Partition, DecodeError> {
        Ok(Partition(u32::get(r)?))
    }
}

/// Ranges, sorted and apart.
impl Wire for Epochs {
    fn put(&self, w: &mut Writer<'_>) {
        self.ranges().to_vec().put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Epochs, DecodeError> {
        let offset = r.offset() + 4;
        let ranges: Vec<(u32, u32)> = Wire::get(r)?;
        let mut epochs = Epochs::none();
        for (i, &(first, last)) in ranges.iter().enumerate() {
            let after = i.checked_sub(1).map_or(0, |i| ranges[i].1.saturating_add(2));
            if first < after || last < first {
                return Err(DecodeError::BadEpochs { first, last, offset: offset + 8 * i });
            }
            epochs.add(Epoch(first), Epoch(last));
        }
        Ok(epochs)
    }
}

wire_enum!(Message, "key-value message", {
    192 => Put(put),
    193 => Get { request, key, room },
    194 => PutReply { id, attempt, result },
    195 => GetReply { request, result },
    196 => Held { id, attempt },
    197 => Outdated(view),
    198 => Prepare(put),
    199 => Logged { id, attempt },
    200 => Refuse { id, attempt },
    201 => Decide { id, attempt, decision, put },
    202 => Applied { id, attempt, at },
    203 => Missing { id, attempt },
    204 => Doubt { id, attempt },
    205 => Complete { keys, at },
    206 => AskComplete { key, at },
    207 => ForwardedGet { client, request, key, room },
    208 => Collect { after },
    209 => Report { after, undecided, more },
    210 => Query { from, attempts },
    211 => Evidence { from, known },
    212 => Adopt { part, last, undecided, ended },
    213 => Adopted { part },
    214 => Pull { wants, at },
    215 => Chunk(chunk),
    216 => Scan { request, after, limit },
    217 => Count { request },
    218 => ScanReply { request, result },
    219 => NoRoom { id, attempt },
    220 => Sweep { upto },
    224 => Register { incarnation, drive },
    225 => Registered { incarnation },
    226 => Heartbeat { incarnation, sent, serial, views },
    227 => Lease { incarnation, sent, serial },
    228 => NewView(view),
    229 => Active,
    230 => Activated,
    231 => Filled { wants },
    232 => Fault { key },
    233 => Lookup,
    234 => Full,
    235 => Surplus { incarnation },
    236 => Drop { incarnation },
});
