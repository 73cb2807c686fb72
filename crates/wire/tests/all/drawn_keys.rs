//! Messages of the key-value store, as the other packets are drawn.

use bytes::Bytes;
use rackweave_core::msg::keys::{
    Attempt, Change, Chunk, Commit, Condition, Decision, Ended, Ending, Entry, Epochs, Expires, FillPoint, Finished,
    FinishedPuts, Found, GetResult, Item, Keys, Known, KnownEnd, Member, Message, Origin, Partition, Put, PutId,
    PutResult, Role, ScanResult, Standing, Timestamp, Undecided, Verdict, Version, View,
};
use rackweave_core::{DriveId, Epoch, Incarnation, NodeId, Time};

use super::Draw;

impl Draw {
    pub(super) fn keys(&mut self) -> Keys {
        let message = match self.below(4) {
            0 => self.of_client(),
            1 => self.of_put(),
            2 => self.of_takeover(),
            _ => self.of_service(),
        };
        Keys(Box::new(message))
    }

    fn option<T>(&mut self, of: impl FnOnce(&mut Draw) -> T) -> Option<T> {
        if self.bool() { Some(of(self)) } else { None }
    }
    fn bytes(&mut self) -> Bytes {
        let n = self.below(40);
        (0..n).map(|_| self.below(256) as u8).collect()
    }
    fn id(&mut self) -> PutId {
        PutId { client: NodeId(self.u32()), incarnation: Incarnation(self.u64()), sequence: self.u64() }
    }
    fn at(&mut self) -> Timestamp {
        Timestamp { epoch: Epoch(self.u32()), counter: self.u64() }
    }
    fn origin(&mut self) -> Origin {
        Origin { at: self.at(), ms: self.u64() }
    }
    fn verdict(&mut self) -> Verdict {
        if self.bool() { Verdict::Applied } else { Verdict::ConditionFailed }
    }
    fn commit(&mut self) -> Commit {
        Commit { at: self.at(), origin: self.origin(), verdict: self.verdict() }
    }
    fn decision(&mut self) -> Decision {
        match self.below(3) {
            0 => Decision::Abort,
            1 => Decision::Commit(self.commit()),
            _ => Decision::Forget,
        }
    }
    fn item(&mut self) -> Item {
        let condition = match self.below(4) {
            0 => Condition::Always,
            1 => Condition::Absent,
            2 => Condition::Present,
            _ => Condition::VersionIs(self.at()),
        };
        let expires = match self.below(3) {
            0 => Expires::Never,
            1 => Expires::At(self.u64()),
            _ => Expires::In(self.u64()),
        };
        let change = match self.below(3) {
            0 => None,
            1 => Some(Change::Set { value: self.bytes(), expires }),
            _ => Some(Change::Delete),
        };
        Item { key: self.bytes(), condition, change }
    }
    fn put(&mut self) -> Put {
        let (id, attempt, floor) = (self.id(), self.u32(), self.u64());
        Put { id, attempt, floor, early: self.bool(), items: self.list(3, Draw::item) }
    }
    fn ending(&mut self) -> Ending {
        let epoch = Epoch(self.u32());
        let how = if self.bool() { Finished::Committed(self.verdict()) } else { Finished::Aborted(self.u32()) };
        Ending { epoch, how }
    }
    fn standing(&mut self) -> Standing {
        match self.below(3) {
            0 => Standing::New,
            1 => Standing::Pending,
            _ => Standing::Committed(self.commit()),
        }
    }
    fn undecided(&mut self) -> Undecided {
        Undecided { put: self.put(), standing: self.standing() }
    }
    fn known(&mut self) -> Known {
        let log = self.option(Draw::standing);
        let end = match self.below(4) {
            0 => KnownEnd::None,
            1 => KnownEnd::Written(self.commit()),
            2 => KnownEnd::Finished(self.ending()),
            _ => KnownEnd::Stale,
        };
        Known { log, end }
    }
    fn epochs(&mut self) -> Epochs {
        let mut e = Epochs::none();
        for _ in 0..self.below(4) {
            let first = self.below(1 << 30) as u32;
            e.add(Epoch(first), Epoch(first + self.below(100) as u32));
        }
        e
    }
    fn of_keys_view(&mut self) -> View {
        let member = |d: &mut Draw| Member {
            node: NodeId(d.u32()),
            incarnation: Incarnation(d.u64()),
            drive: DriveId(d.u64()),
            role: *d.0.pick(&[Role::Home, Role::Handoff, Role::Leaving]),
            holds: d.epochs(),
            wants: d.epochs(),
            since: Epoch(d.u32()),
            witness: d.bool(),
        };
        let (partition, epoch, primary) = (Partition(self.u32()), Epoch(self.u32()), NodeId(self.u32()));
        View { partition, epoch, primary, active: Epoch(self.u32()), members: self.list(3, member) }
    }
    fn point(&mut self) -> FillPoint {
        match self.bool() {
            true => FillPoint::Keys { after: self.option(Draw::bytes) },
            false => FillPoint::Clients { after: self.option(|d| NodeId(d.u32())) },
        }
    }
    fn chunk(&mut self) -> Chunk {
        let version = |d: &mut Draw| Version {
            at: d.at(),
            origin: d.origin(),
            by: d.id(),
            value: d.option(Draw::bytes),
            expires: d.option(Draw::u64),
        };
        let entry =
            |d: &mut Draw| Entry { key: d.bytes(), at: d.at(), version: d.option(version), incomplete: d.bool() };
        let puts = |d: &mut Draw| FinishedPuts {
            client: NodeId(d.u32()),
            incarnation: Incarnation(d.u64()),
            floor: d.u64(),
            finished: d.list(3, |d| (d.u64(), d.ending())),
        };
        Chunk {
            at: self.point(),
            entries: self.list(3, entry),
            clients: self.list(2, puts),
            next: self.option(Draw::point),
            swept: self.at(),
        }
    }

    fn of_client(&mut self) -> Message {
        match self.below(13) {
            0 => Message::Put(Box::new(self.put())),
            1 => Message::Get { request: self.u64(), key: self.bytes(), room: self.u32() },
            2 => {
                let result = match self.below(4) {
                    0 => PutResult::Done(self.verdict()),
                    1 => PutResult::Aborted,
                    2 => PutResult::NoSpace,
                    _ => PutResult::Stale,
                };
                Message::PutReply { id: self.id(), attempt: self.u32(), result }
            }
            3 => {
                let found = |d: &mut Draw| Found { value: d.bytes(), version: d.at(), expires: d.option(Draw::u64) };
                let result = GetResult::Value { found: self.option(found), now: self.u64() };
                Message::GetReply { request: self.u64(), result }
            }
            4 => Message::GetReply { request: self.u64(), result: GetResult::Refused },
            5 => Message::Held { id: self.id(), attempt: self.u32() },
            6 => Message::Outdated(self.option(|d| Box::new(d.of_keys_view()))),
            7 => Message::GetReply { request: self.u64(), result: GetResult::NoRoom { bytes: self.u32() } },
            8 => Message::Scan { request: self.u64(), after: self.option(Draw::bytes), limit: self.u32() },
            9 => Message::Count { request: self.u64() },
            10 => {
                let result = match self.below(2) {
                    0 => ScanResult::Keys { keys: self.list(3, Draw::bytes), more: self.bool() },
                    _ => ScanResult::Count { keys: self.u64(), expiring: self.u64() },
                };
                Message::ScanReply { request: self.u64(), result }
            }
            11 => Message::ScanReply { request: self.u64(), result: ScanResult::Refused },
            _ => {
                let (client, request) = (NodeId(self.u32()), self.u64());
                Message::ForwardedGet { client, request, key: self.bytes(), room: self.u32() }
            }
        }
    }
    fn of_put(&mut self) -> Message {
        let (id, attempt) = (self.id(), self.u32());
        match self.below(10) {
            9 => Message::NoRoom { id, attempt },
            0 => Message::Prepare(Box::new(self.put())),
            1 => Message::Logged { id, attempt },
            2 => Message::Refuse { id, attempt },
            3 => {
                let put = self.option(|d| Box::new(d.put()));
                Message::Decide { id, attempt, decision: self.decision(), put }
            }
            4 => Message::Applied { id, attempt, at: self.option(Draw::at) },
            5 => Message::Missing { id, attempt },
            6 => Message::Doubt { id, attempt },
            7 => Message::Complete { keys: self.list(3, Draw::bytes), at: self.at() },
            _ => Message::AskComplete { key: self.bytes(), at: self.at() },
        }
    }
    fn of_takeover(&mut self) -> Message {
        let part = self.u32();
        match self.below(9) {
            0 => Message::Collect { after: self.option(Draw::id) },
            1 => Message::Report {
                after: self.option(Draw::id),
                undecided: self.list(3, Draw::undecided),
                more: self.bool(),
            },
            2 => {
                let attempt = |d: &mut Draw| Attempt { id: d.id(), attempt: d.u32(), keys: d.list(3, Draw::bytes) };
                Message::Query { from: part, attempts: self.list(3, attempt) }
            }
            3 => Message::Evidence { from: part, known: self.list(3, Draw::known) },
            4 => {
                let ended = |d: &mut Draw| Ended { id: d.id(), attempt: d.u32(), ending: d.option(Draw::ending) };
                let (undecided, ended) = (self.list(2, Draw::undecided), self.list(2, ended));
                Message::Adopt { part, last: self.bool(), undecided, ended }
            }
            5 => Message::Adopted { part },
            7 => Message::Sweep { upto: self.at() },
            6 => Message::Pull { wants: self.epochs(), at: self.point() },
            _ => Message::Chunk(Box::new(self.chunk())),
        }
    }
    fn of_service(&mut self) -> Message {
        let (incarnation, sent, serial) = (Incarnation(self.u64()), Time(self.u64()), self.u64());
        match self.below(13) {
            0 => Message::Register { incarnation, drive: DriveId(serial) },
            1 => Message::Registered { incarnation },
            2 => {
                let views = self.list(3, |d| (Partition(d.u32()), Epoch(d.u32())));
                Message::Heartbeat { incarnation, sent, serial, views }
            }
            3 => Message::Lease { incarnation, sent, serial },
            4 => Message::NewView(Box::new(self.of_keys_view())),
            5 => Message::Active,
            6 => Message::Activated,
            7 => Message::Filled { wants: self.epochs() },
            8 => Message::Fault { key: self.bytes() },
            9 => Message::Full,
            10 => Message::Surplus { incarnation },
            11 => Message::Drop { incarnation },
            _ => Message::Lookup,
        }
    }
}
