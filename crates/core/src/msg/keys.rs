//! Keys: what clients, nodes and the membership service of the key-value store exchange. A packet's [`set`] is the number of
//! its [`Partition`], and its [`epoch`] the sender's epoch of that.
//!
//! [`set`]: super::Header::set
//! [`epoch`]: super::Header::epoch

use bytes::Bytes;

pub use super::epochs::Epochs;
pub use super::fill::{Chunk, Entry, FillPoint};
pub use super::partition::Partition;
use super::{Op, ServiceMessage};
use crate::{DriveId, Epoch, Incarnation, NodeId, Time};

/// Longest key.
pub const KEY_MAX: usize = 4096;
/// Longest value.
pub const VALUE_MAX: usize = 8 << 20;
/// A list of puts, keys or attempts in a message ends with the element whose contents reach this: with the longest element on
/// top it stays below the format's bound of a body.
pub const PAGE_BYTES: usize = 1 << 20;
/// Maximum number of elements of such a list. That many of the shortest elements still fit into a page.
pub const PAGE_MAX: usize = 1024;
/// At least what the fields of a key of a put take in a message besides its contents.
const ITEM_BYTES: usize = 32;
/// Most keys of a put.
pub const ITEMS_MAX: usize = 1024;
/// Most clients in a message: each has up to a few KiB of finished puts.
pub const CLIENTS_PAGE_MAX: usize = 128;
/// Most replicas of a partition (NICE's largest, §6.3).
pub const REPLICAS_MAX: usize = 9;

/// Order of a key's committed puts: the primary's, never a clock's (rule 28). Zero precedes every put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    pub epoch: Epoch,
    pub counter: u64,
}

/// Identity of a put. Its attempts share it: at most one of them is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PutId {
    pub client: NodeId,
    pub incarnation: Incarnation,
    pub sequence: u64,
}

/// When a value is deleted, by the primary's clock. Times are milliseconds since 1970 (UTC).
pub use crate::kv::Expires;

/// The effect of a put on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Set {
        value: Bytes,
        expires: Expires,
    },
    /// Leaves a tombstone.
    Delete,
}

/// When a put takes effect. The primary judges it in the order of timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Always,
    /// The key has no value.
    Absent,
    Present,
    /// The key has a value, first committed at this time.
    VersionIs(Timestamp),
}

impl Condition {
    pub fn holds(&self, current: Option<Timestamp>) -> bool {
        match self {
            Condition::Always => true,
            Condition::Absent => current.is_none(),
            Condition::Present => current.is_some(),
            Condition::VersionIs(first) => current == Some(*first),
        }
    }
}

/// What a put says of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub key: Bytes,
    pub condition: Condition,
    /// `None`: the put depends on the key, and leaves it as it is.
    pub change: Option<Change>,
}

impl Item {
    /// Bytes of its contents.
    pub fn bytes(&self) -> usize {
        self.key.len() + if let Some(Change::Set { value, .. }) = &self.change { value.len() } else { 0 }
    }
}

/// One attempt of a put: of one key, or of several keys of one partition at once. It takes effect if all conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    pub id: PutId,
    pub attempt: u32,
    /// The client has the final answers of all puts with lower sequences.
    pub floor: u64,
    /// Any-k: members inform the client as soon as their log is forced.
    pub early: bool,
    /// By key; no two are of the same key. A put that was aborted has none.
    pub items: Vec<Item>,
}

impl Put {
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.items.iter().map(|i| &i.key)
    }
    /// The keys that it changes.
    pub fn changed(&self) -> impl Iterator<Item = &Bytes> {
        self.items.iter().filter(|i| i.change.is_some()).map(|i| &i.key)
    }
    /// Bytes of its contents.
    pub fn bytes(&self) -> usize {
        self.items.iter().map(Item::bytes).sum()
    }
}

/// What a member's log says of an undecided put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The client sent it in the last active view, or the member missed that view.
    New,
    /// It was undecided when the last view in which this member took part began: a lost member may have applied it.
    Pending,
    /// An earlier primary committed it, and some member may not have applied it.
    Committed(Commit),
}

/// An undecided put in a member's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecided {
    pub put: Put,
    pub standing: Standing,
}

/// When a put was committed first. A take-over commits it again, at a later timestamp; clients know it by this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub at: Timestamp,
    /// The primary's clock then, in milliseconds since 1970. Expiry counts from it.
    pub ms: u64,
}

/// A key's committed state at a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub at: Timestamp,
    pub origin: Origin,
    pub by: PutId,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
    /// By the primary's clock, in milliseconds since 1970.
    pub expires: Option<u64>,
}

/// Result of a committed put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Applied,
    ConditionFailed,
}

/// A commit: its place in the key's order, and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    pub at: Timestamp,
    pub origin: Origin,
    pub verdict: Verdict,
}

impl Commit {
    /// When the value of this change expires.
    pub fn expiry(&self, expires: Expires) -> Option<u64> {
        match expires {
            Expires::Never => None,
            Expires::At(ms) => Some(ms),
            Expires::In(ms) => Some(self.origin.ms.saturating_add(ms)),
        }
    }
}

/// A primary's final word about an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Commit(Commit),
    Abort,
    /// It was decided earlier: the record goes, and nothing else changes.
    Forget,
}

impl Decision {
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Decision::Commit(c) => Some(c.at),
            Decision::Abort | Decision::Forget => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// One of the partition's own nodes.
    Home,
    /// In the place of a lost one.
    Handoff,
    /// Takes part in puts of this view, and leaves with the next.
    Leaving,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub drive: DriveId,
    pub role: Role,
    /// Epochs whose committed puts it holds completely (rule 28a).
    pub holds: Epochs,
    /// Epochs that it has to fetch.
    pub wants: Epochs,
    /// The first epoch of its current stint: it was a member in every view since.
    pub since: Epoch,
    /// It was a member of the last view that became active, with this drive: its log has every put that was undecided
    /// when that view began, and every put that it may have committed.
    pub witness: bool,
}

/// The members of a partition in one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub partition: Partition,
    pub epoch: Epoch,
    pub primary: NodeId,
    /// The last view that became active before this one; zero if none did.
    pub active: Epoch,
    pub members: Vec<Member>,
}

impl View {
    pub fn member(&self, n: NodeId) -> Option<&Member> {
        self.members.iter().find(|m| m.node == n)
    }
    /// The epoch before this view's.
    pub fn last(&self) -> Epoch {
        Epoch(self.epoch.0 - 1)
    }
    /// Whether the member holds what was committed in all earlier epochs.
    pub fn is_full(&self, m: &Member) -> bool {
        m.holds.covers(Epoch(1), self.last())
    }
    /// Members that answer any get.
    pub fn readable(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members.iter().filter(|m| m.role != Role::Leaving && self.is_full(m)).map(|m| m.node)
    }
    /// Members that gets are sent to: those that answer any, and hand-offs, which forward others to the primary.
    pub fn getters(&self) -> impl Iterator<Item = NodeId> + '_ {
        let some = |m: &&Member| m.role == Role::Handoff || m.role == Role::Home && self.is_full(m);
        self.members.iter().filter(some).map(|m| m.node)
    }
}

/// How a put ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    Committed(Verdict),
    /// This attempt and all before it.
    Aborted(u32),
}

/// How a put ended, and in which epoch that was decided. A later epoch's decision replaces an earlier one: the earlier was
/// a lost primary's, which reached no client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    pub epoch: Epoch,
    pub how: Finished,
}

/// A client's finished puts in one partition, by sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedPuts {
    pub client: NodeId,
    pub incarnation: Incarnation,
    pub floor: u64,
    pub finished: Vec<(u64, Ending)>,
}

/// The answer to a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutResult {
    Done(Verdict),
    /// This attempt has no effect, now and later. Another one may be made.
    Aborted,
    /// The client's floor or incarnation says that it is finished: its client has the answer.
    Stale,
    /// A member's store has no room for the put. This attempt has no effect, now and later.
    NoSpace,
}

/// A value, as a get returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub value: Bytes,
    pub version: Timestamp,
    pub expires: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GetResult {
    Value {
        found: Option<Found>,
        /// The member's clock, in milliseconds since 1970: the value has not expired by then.
        now: u64,
    },
    /// The value is longer than the requester has room for.
    NoRoom { bytes: u32 },
    /// This node cannot answer now: no lease, another view, or too many gets wait.
    Refused,
}

/// What a member knows of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its log has this attempt, or a later one.
    pub log: Option<Standing>,
    pub end: KnownEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownEnd {
    /// It knows of no decision.
    None,
    /// The version here of every key that it changes is the put's.
    Written(Commit),
    /// It is decided; here something that it wrote is overwritten, or it wrote nothing.
    Finished(Ending),
    /// The client has its answer, or is in a later run.
    Stale,
}

/// A put that a new primary found to be finished, or that was never committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub id: PutId,
    pub attempt: u32,
    /// Unless the client has its answer.
    pub ending: Option<Ending>,
}

/// One attempt of a put that a new primary asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub id: PutId,
    pub attempt: u32,
    /// Those that it changes.
    pub keys: Vec<Bytes>,
}

impl Attempt {
    /// Bytes of its contents.
    pub fn bytes(&self) -> usize {
        self.keys.iter().map(|k| k.len() + ITEM_BYTES).sum()
    }
}

/// The result of a scan of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanResult {
    /// Keys with a value, in order, those that have expired and are not deleted included. `more`: others follow.
    Keys {
        keys: Vec<Bytes>,
        more: bool,
    },
    Count {
        keys: u64,
        expiring: u64,
    },
    /// As for a get.
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A client's put, to all members (the multicast ring).
    Put(Box<Put>),
    /// A read of epoch zero came through the switch: whoever may answer in its own view does.
    Get {
        request: u64,
        key: Bytes,
        /// The longest value that the client has memory for.
        room: u32,
    },
    /// Requests the partition's keys after `after`, at most `limit`.
    Scan {
        request: u64,
        after: Option<Bytes>,
        limit: u32,
    },
    /// The number of the partition's keys.
    Count {
        request: u64,
    },
    PutReply {
        id: PutId,
        attempt: u32,
        result: PutResult,
    },
    GetReply {
        request: u64,
        result: GetResult,
    },
    ScanReply {
        request: u64,
        result: ScanResult,
    },
    /// Any-k: the sender has forced the attempt to its log.
    Held {
        id: PutId,
        attempt: u32,
    },
    /// The receiver's epoch is not the sender's, whose view this is.
    Outdated(Option<Box<View>>),

    /// The primary repeats a put to members that have not acknowledged it.
    Prepare(Box<Put>),
    /// The attempt is forced to the sender's log.
    Logged {
        id: PutId,
        attempt: u32,
    },
    /// An earlier primary aborted the attempt, and was lost before all had recorded that; or the client is in a later run.
    Refuse {
        id: PutId,
        attempt: u32,
    },
    /// The sender's store has no room for the put.
    NoRoom {
        id: PutId,
        attempt: u32,
    },
    /// The timestamp, or an abort. `put`: if the receiver may not have it.
    Decide {
        id: PutId,
        attempt: u32,
        decision: Decision,
        put: Option<Box<Put>>,
    },
    /// The decision is forced.
    Applied {
        id: PutId,
        attempt: u32,
        at: Option<Timestamp>,
    },
    /// A decision came for a put that the sender does not have.
    Missing {
        id: PutId,
        attempt: u32,
    },
    /// The sender has logged an attempt and hears no decision.
    Doubt {
        id: PutId,
        attempt: u32,
    },
    /// Every member has forced this commit of these keys: gets may see it.
    Complete {
        keys: Vec<Bytes>,
        at: Timestamp,
    },
    /// The sender has applied this version and does not know whether every member has.
    AskComplete {
        key: Bytes,
        at: Timestamp,
    },
    /// A hand-off does not hold this key in its stint, or a replica holds an expired version.
    ForwardedGet {
        client: NodeId,
        request: u64,
        key: Bytes,
        room: u32,
    },

    /// A new view's primary requests all undecided puts, then what members know of each.
    /// `after`: the last that came.
    Collect {
        after: Option<PutId>,
    },
    Report {
        after: Option<PutId>,
        undecided: Vec<Undecided>,
        more: bool,
    },
    /// `from`: how many attempts precede these.
    Query {
        from: u32,
        attempts: Vec<Attempt>,
    },
    Evidence {
        from: u32,
        known: Vec<Known>,
    },
    /// The primary's findings, which replace the receiver's log before the view decides on anything. Parts are numbered from
    /// zero.
    Adopt {
        part: u32,
        last: bool,
        undecided: Vec<Undecided>,
        ended: Vec<Ended>,
    },
    /// The sender has the part; of the last: it has forced all.
    Adopted {
        part: u32,
    },

    Pull {
        wants: Epochs,
        at: FillPoint,
    },
    Chunk(Box<Chunk>),

    Register {
        incarnation: Incarnation,
        drive: DriveId,
    },
    Registered {
        incarnation: Incarnation,
    },
    /// `serial` grows with each view that the node installs; `views` are those in which it takes part.
    Heartbeat {
        incarnation: Incarnation,
        sent: Time,
        serial: u64,
        views: Vec<(Partition, Epoch)>,
    },
    /// The lease runs from when the heartbeat was sent.
    Lease {
        incarnation: Incarnation,
        sent: Time,
        serial: u64,
    },
    /// From the membership service. To the switch: the members behind the partition's address on the multicast ring. From a
    /// client to that address: the same, for its own network, which delivers to each of them.
    NewView(Box<View>),
    /// The primary of this epoch knows everything, and is about to decide.
    Active,
    /// That is recorded: the primary may decide.
    Activated,
    /// The sender has fetched what was committed in these epochs.
    Filled {
        wants: Epochs,
    },
    /// A member holds a committed version that its primary does not have: the partition stops.
    Fault {
        key: Bytes,
    },
    Lookup,
    /// The sender's store has no room for what it would have to hold as a member.
    Full,
    /// The sender has records of the partition, and takes no part in it.
    Surplus {
        incarnation: Incarnation,
    },
    /// No node needs those records: the receiver counts as one without them.
    Drop {
        incarnation: Incarnation,
    },
    /// From the primary: all members have applied everything that was committed up to this time, and hold everything else.
    /// Tombstones up to it are not needed.
    Sweep {
        upto: Timestamp,
    },
}

impl Message {
    /// The operation in the packet's header.
    pub fn op(&self) -> Op {
        match self {
            Message::Get { .. } | Message::Scan { .. } | Message::Count { .. } => Op::Read,
            Message::Put(_) => Op::Write,
            Message::PutReply { .. }
            | Message::GetReply { .. }
            | Message::ScanReply { .. }
            | Message::Held { .. }
            | Message::Outdated(_) => Op::Reply,
            Message::Register { .. }
            | Message::Registered { .. }
            | Message::Heartbeat { .. }
            | Message::Lease { .. }
            | Message::NewView(_)
            | Message::Active
            | Message::Activated
            | Message::Filled { .. }
            | Message::Fault { .. }
            | Message::Lookup
            | Message::Full
            | Message::Surplus { .. }
            | Message::Drop { .. } => Op::Control,
            _ => Op::Peer,
        }
    }
    /// Bytes of its contents on a modelled link.
    pub fn bytes(&self) -> u32 {
        let contents = match self {
            Message::Put(p) | Message::Prepare(p) | Message::Decide { put: Some(p), .. } => p.bytes(),
            Message::GetReply { result: GetResult::Value { found: Some(f), .. }, .. } => f.value.len(),
            Message::ScanReply { result: ScanResult::Keys { keys, .. }, .. } => keys.iter().map(Bytes::len).sum(),
            Message::Report { undecided, .. } | Message::Adopt { undecided, .. } => {
                undecided.iter().map(Undecided::bytes).sum()
            }
            Message::Chunk(c) => c.entries.iter().map(Entry::bytes).sum(),
            _ => 0,
        };
        contents as u32
    }
}

/// The beginning of a list that a message takes.
pub fn page<T>(items: impl Iterator<Item = T>, bytes: impl Fn(&T) -> usize) -> Vec<T> {
    let mut sum = 0;
    let mut fits = |item: &T| {
        let fits = sum < PAGE_BYTES;
        sum += bytes(item);
        fits
    };
    items.take_while(|item| fits(item)).take(PAGE_MAX).collect()
}

/// A message of this service. Boxed: most are longer than those of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys(pub Box<Message>);

impl Undecided {
    /// Bytes of its contents.
    pub fn bytes(&self) -> usize {
        self.put.bytes() + self.put.items.len() * ITEM_BYTES
    }
}

impl Keys {
    /// The view, if it is one.
    pub fn new_view(&self) -> Option<&View> {
        match &*self.0 {
            Message::NewView(view) => Some(view),
            _ => None,
        }
    }
}

impl ServiceMessage for Keys {
    fn bytes(&self) -> u32 {
        self.0.bytes()
    }
    fn answers_read(&self) -> bool {
        matches!(*self.0, Message::GetReply { .. } | Message::ScanReply { .. })
    }
    fn replicates(&self) -> bool {
        matches!(*self.0, Message::Prepare(_) | Message::Decide { .. })
    }
}
