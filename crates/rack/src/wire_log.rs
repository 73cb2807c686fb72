//! Guarantees of a rack's network. A node receives what another sent to it, unchanged, once per pair of incarnations,
//! in time, and nothing from before the newest incarnation that it knows. A message that is neither received nor
//! reported as unsent is a violation. No nonce is reused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rackweave_core::admin::SERVERS_MAX;
use rackweave_core::map::{Map, map};
use rackweave_core::msg::cloud::LogPair;
use rackweave_core::msg::keys::Partition;
use rackweave_core::msg::{Body, Op, Packet};
use rackweave_core::{Layout, NodeId, Span, Time};
use rackweave_transport::header::{self, Kind, is_bare};
use rackweave_transport::siphash::siphash24;

/// Time until a message is received or reported as unsent by its sender's network: its deadline of one second, plus the
/// time for which it may be held back.
const SETTLED_AFTER: Span = Span::from_millis(1_100);

/// Longest time for which a stream holds a message: nothing of it was acknowledged for three seconds, and its last
/// retransmission may be two seconds later.
const STREAM_HOLDS: Span = Span::from_secs(5);

const DIGEST_KEY: [u64; 2] = [0x7261_636b, 0x7765_6176];

/// Sender, addressed node, and contents.
type Key = (NodeId, NodeId, u64);

/// Messages of equal bytes.
#[derive(Debug)]
struct Sent {
    /// Number of transmissions by all incarnations, and the time of the last.
    times: u32,
    /// Of those by the last incarnation that sent it, neither received nor reported as unsent.
    open: u32,
    /// The last incarnation that sent it, and all that did: nothing says which of them a received one is of.
    incarnation: u64,
    senders: Vec<u64>,
    at: Time,
    /// Operation and request.
    what: (Op, u64),
    /// Deliveries by receiver and its incarnation.
    delivered: Vec<(NodeId, u64, u32)>,
}

impl Sent {
    fn sent_as(&mut self, incarnation: u64) {
        self.incarnation = incarnation;
        if !self.senders.contains(&incarnation) {
            self.senders.push(incarnation);
        }
    }
    /// The lowest incarnation that a received one may be of, if its receiver knows `newest`.
    fn lowest(&self, newest: u64) -> Option<u64> {
        self.senders.iter().copied().filter(|i| *i >= newest).min()
    }
}

/// One incarnation of a node.
#[derive(Clone, Copy, Debug)]
struct Run {
    began: u64,
    ended: u64,
    /// Newest counter used for sealing.
    counter: u64,
}

#[derive(Debug)]
pub struct Log {
    keyed: bool,
    switches: Vec<NodeId>,
    now: Time,
    /// Latest permitted arrival after a message was sent.
    late_max: Span,
    /// Nodes between which a stream carried bytes, in both orders.
    streams: BTreeSet<(NodeId, NodeId)>,
    /// By node, when an attacker last replayed to it what was recorded, which links may have dropped before.
    replayed: BTreeMap<NodeId, Time>,
    /// Since when the network has been good enough for every message.
    reliable_since: Time,
    sent: Map<Key, Sent>,
    /// By token; and the time when each was sent, in order.
    tokens: Map<u64, Key>,
    ages: VecDeque<(Time, u64)>,
    /// By sender, incarnation and counter: the tag of the received datagram.
    sealed: Map<(NodeId, u64, u64), u64>,
    runs: Map<(NodeId, u64), Run>,
    current: BTreeMap<NodeId, u64>,
    /// By receiver, its incarnation, and sender: the newest incarnation of the sender that was surely received from.
    newest: Map<(NodeId, u64, NodeId), u64>,
    /// Counts starts and ends of nodes, to order them.
    order: u64,
    violation: Option<String>,
}

impl Log {
    pub fn new(keyed: bool, switches: Vec<NodeId>) -> Log {
        Log {
            keyed,
            switches,
            now: Time::ZERO,
            late_max: Span(u64::MAX),
            streams: BTreeSet::new(),
            replayed: BTreeMap::new(),
            reliable_since: Time::MAX,
            sent: map(),
            tokens: map(),
            ages: VecDeque::new(),
            sealed: map(),
            runs: map(),
            current: BTreeMap::new(),
            newest: map(),
            order: 0,
            violation: None,
        }
    }

    /// Advances time. A message that is neither received nor unsent in time is lost.
    pub(crate) fn time(&mut self, now: Time) {
        self.now = now;
        while let Some(&(at, token)) = self.ages.front().filter(|(at, _)| *at + SETTLED_AFTER < now) {
            self.ages.pop_front();
            let Some(key) = self.tokens.remove(&token) else { continue };
            let Some(s) = self.sent.get(&key).filter(|s| s.open > 0 && s.at == at) else { continue };
            if self.current.get(&key.0) == Some(&s.incarnation) {
                let (op, request) = s.what;
                self.violated(|| {
                    format!("{} sent {} {op:?} {request:x} at {at:?}, which is lost without a word", key.0, key.1)
                });
            }
        }
    }
    /// No message may arrive later than `max` after it was sent.
    pub fn arrive_within(&mut self, max: Span) {
        self.late_max = max;
    }
    /// A stream carries bytes between two nodes: it may hold their messages until it is closed because it stalls.
    pub(crate) fn stream_used(&mut self, from: NodeId, to: NodeId) {
        self.streams.extend([(from, to), (to, from)]);
    }
    /// An attacker replays to the node all that was recorded on its way there, dropped or not.
    pub(crate) fn replayed(&mut self, to: NodeId) {
        self.replayed.insert(to, self.now);
    }
    /// Sets whether the network is good enough for every message from now on.
    pub fn reliable(&mut self, reliable: bool) {
        self.reliable_since = if reliable { self.now } else { Time::MAX };
    }

    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }
    /// Records a violation; the first one is kept.
    pub(crate) fn violated(&mut self, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(what());
        }
    }

    /// A node starts an incarnation; the previous one has ended.
    pub(crate) fn begins(&mut self, node: NodeId, incarnation: u64) {
        self.ends(node);
        self.order += 1;
        let run = Run { began: self.order, ended: u64::MAX, counter: 0 };
        if self.runs.insert((node, incarnation), run).is_some() {
            self.violated(|| format!("{node} begins incarnation {incarnation} again"));
        }
        self.current.insert(node, incarnation);
    }
    pub(crate) fn ends(&mut self, node: NodeId) {
        self.order += 1;
        let order = self.order;
        let ended = self.current.remove(&node).and_then(|i| self.runs.get_mut(&(node, i)));
        ended.into_iter().for_each(|run| run.ended = order);
    }

    /// A datagram was sealed: counters must increase within an incarnation.
    pub(crate) fn sealed(&mut self, node: NodeId, incarnation: u64, counter: u64) {
        let counter = counter & ((1 << 56) - 1);
        let Some(run) = self.runs.get_mut(&(node, incarnation)) else {
            return self.violated(|| format!("{node} seals as incarnation {incarnation}, which it never began"));
        };
        let before = std::mem::replace(&mut run.counter, counter);
        if counter <= before {
            self.violated(|| {
                format!("{node}, incarnation {incarnation}, uses nonce {counter} again, or after {before}")
            });
        }
    }

    /// A datagram arrived: no other one may have been sealed with its key and nonce (rule 32). One that a switch
    /// forwarded may be damaged.
    pub(crate) fn arrived(&mut self, from: NodeId, d: &[u8]) {
        let Ok(p) = header::parse(d) else { return };
        if !self.keyed || p.kind == Kind::Bare || p.source != from {
            return;
        }
        let tag = d[p.form.tag_at..][..8].iter().fold(0, |w, b| w << 8 | u64::from(*b));
        let first = *self.sealed.entry((p.source, p.incarnation, p.counter)).or_insert(tag);
        if first != tag {
            let (from, counter) = (p.source, p.counter);
            self.violated(|| format!("two datagrams of {from} have nonce {counter:x}"));
        }
    }

    pub(crate) fn sent(&mut self, incarnation: u64, token: u64, p: &Packet) {
        let Some(digest) = digest(p) else { return };
        let (at, key) = (self.now, (p.src, p.dst, digest));
        let what = (p.header.op, p.header.request);
        let new = || Sent { times: 0, open: 0, incarnation, senders: Vec::new(), at, what, delivered: Vec::new() };
        let s = self.sent.entry(key).or_insert_with(new);
        s.times += 1;
        if s.incarnation != incarnation {
            // Messages in flight from the previous one are lost with it.
            s.open = 0;
        }
        s.sent_as(incarnation);
        s.at = at;
        // Nothing acknowledges a bare one: its node repeats a `gc_op` (rule 16), and the next `load` counts for a lost one.
        if !is_bare(p.header.op as u8) {
            s.open += 1;
            self.tokens.insert(token, key);
            self.ages.push_back((at, token));
        }
    }
    /// The message found no room in a queue, and a refusal is sent in its place: that is subject to the same rules.
    pub(crate) fn replaced(&mut self, token: u64) {
        self.close(token);
    }
    fn close(&mut self, token: u64) -> Option<(Key, &Sent)> {
        let key = self.tokens.remove(&token)?;
        let s = self.sent.get_mut(&key)?;
        s.open = s.open.saturating_sub(1);
        Some((key, s))
    }
    /// The sender's network refused the message, or gave it up.
    pub(crate) fn unsent(&mut self, token: u64) {
        let Some((key, s)) = self.close(token) else { return };
        let (at, (op, request), delivered) = (s.at, s.what, !s.delivered.is_empty());
        // A stream that stalled before may hold messages until its next retransmission, or until it is closed. A message
        // for a switch may go to a server.
        let peer = |&(from, to): &(NodeId, NodeId)| from == key.0 && (to == key.1 || self.switches.contains(&key.1));
        let held = if self.streams.iter().any(peer) { STREAM_HOLDS } else { Span::ZERO };
        if at >= self.reliable_since + held && !delivered {
            self.violated(|| {
                format!("{} gave up {op:?} {request:x} to {} of {at:?}, though few are lost", key.0, key.1)
            });
        }
    }

    /// A packet that had not left its node is sent under a newer incarnation.
    pub(crate) fn goes_as(&mut self, incarnation: u64, p: &Packet) {
        let sent = digest(p).and_then(|d| self.sent.get_mut(&(p.src, p.dst, d)));
        sent.into_iter().for_each(|s| {
            s.sent_as(incarnation);
            s.open = 1;
        });
    }

    pub(crate) fn delivered(&mut self, at: NodeId, incarnation: u64, p: &Packet) {
        let from = p.src;
        let what = || format!("{at} received {:?} {:x} of {from}", p.header.op, p.header.request);
        let Some(digest) = digest(p) else { return };
        // Those go to whichever server the switch chooses.
        let routed = matches!(p.header.op, Op::Read | Op::Write);
        // Those to a group go to all of its members.
        let pairs = (0..SERVERS_MAX).filter_map(|n| LogPair::of(at, Layout::numbered_server(n)).map(LogPair::address));
        let pairs = pairs.filter(|_| matches!(p.body, Body::Cloud(_)));
        let group = std::iter::once(Partition(p.header.set.0).multicast()).chain(pairs);
        let mut by = self.switches.iter().copied().chain(group);
        let by = by.find(|s| routed && self.sent.contains_key(&(from, *s, digest)));
        let to = if self.sent.contains_key(&(from, at, digest)) { at } else { by.unwrap_or(at) };
        // The same message may have gone both ways, and nothing says which way this one came.
        let other = by.filter(|by| *by != to).and_then(|by| self.sent.get_mut(&(from, by, digest)));
        let before = self.newest.get(&(at, incarnation, from)).copied().unwrap_or(0);
        let (others, other) = other.map_or((0, None), |s| {
            s.open = s.open.saturating_sub(1);
            (s.times, s.lowest(before))
        });
        let Some(s) = self.sent.get_mut(&(from, to, digest)) else {
            return self.violated(|| format!("{}, which that did not send to it, or not so", what()));
        };
        // A bare one is a datagram without replay protection: the sequence of a `gc_op` and the count of a `load` provide that
        // (rule 16).
        if is_bare(p.header.op as u8) {
            return;
        }
        s.open = s.open.saturating_sub(1);
        let since = self.replayed.get(&at).map_or(s.at, |replayed| s.at.max(*replayed));
        let (sender, age) = (s.incarnation, self.now.since(since));
        let i = s.delivered.iter().position(|d| (d.0, d.1) == (at, incarnation));
        let i = i.unwrap_or_else(|| {
            s.delivered.push((at, incarnation, 0));
            s.delivered.len() - 1
        });
        s.delivered[i].2 += 1;
        let (got, times) = (s.delivered[i].2, s.times + others);
        if got > times {
            return self.violated(|| format!("{}: {got} times, sent {times} times", what()));
        }
        // The switch may send such a message to another server at any time, for which it is the first; nodes recognize
        // mutations (rule 7).
        let held = if self.streams.contains(&(from, at)) { STREAM_HOLDS } else { Span::ZERO };
        if self.keyed && to == at && age.0 > self.late_max.0.saturating_add(held.0) {
            return self.violated(|| format!("{}, {age} after it was sent", what()));
        }
        // Of equal messages that several incarnations sent, this may be any that the receiver may still accept.
        let Some(lowest) = s.lowest(before).into_iter().chain(other).min() else {
            return self.violated(|| format!("{}, of incarnation {sender}, after one of {before}", what()));
        };
        self.newest.insert((at, incarnation, from), lowest);
        let runs = self.runs.get(&(from, sender)).zip(self.runs.get(&(at, incarnation)));
        if self.keyed && runs.is_some_and(|(sender, receiver)| sender.ended < receiver.began) {
            self.violated(|| format!("{}, of a life that had ended before it began", what()));
        }
    }
}

/// Digest of a packet's guaranteed fields: all that switches do not rewrite. `None` if it has no encoding.
fn digest(p: &Packet) -> Option<u64> {
    let mut bytes = Vec::with_capacity(rackweave_wire::HEADER_BYTES + 128);
    let data = rackweave_wire::encode_apart(p, &mut bytes).ok()?;
    bytes[1..9].fill(0);
    bytes[16..20].fill(0);
    bytes.extend_from_slice(&data);
    Some(siphash24(DIGEST_KEY, &bytes))
}

#[cfg(test)]
#[path = "wire_log_tests.rs"]
mod tests;
