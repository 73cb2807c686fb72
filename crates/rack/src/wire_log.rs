//! What a rack's network must keep: a node receives what another sent to it, unchanged, once in each pair of lives, and nothing of a
//! life before the newest one it knows; no nonce comes twice.

use std::collections::BTreeMap;

use rackweave_core::map::{Map, map};
use rackweave_core::msg::{Op, Packet};
use rackweave_core::{Layout, NodeId, Time};
use rackweave_transport::siphash::siphash24;

const DIGEST_KEY: [u64; 2] = [0x7261_636b, 0x7765_6176];

/// Messages of equal bytes.
#[derive(Debug)]
struct Sent {
    /// How often it was sent, by the newest incarnation that sent it, and when last.
    times: u32,
    incarnation: u64,
    at: Time,
    /// By receiver and its incarnation: how often it was delivered.
    delivered: Vec<(NodeId, u64, u32)>,
}

/// One incarnation of a node.
#[derive(Clone, Copy, Debug)]
struct Life {
    began: u64,
    ended: u64,
    /// Newest counter that was sealed with.
    counter: u64,
}

#[derive(Debug)]
pub struct Log {
    keyed: bool,
    /// By sender, the node it was sent to, and contents.
    sent: Map<(NodeId, NodeId, u64), Sent>,
    lives: Map<(NodeId, u64), Life>,
    current: BTreeMap<NodeId, u64>,
    /// By receiver, its incarnation, and sender: the newest incarnation of the sender that it received from.
    newest: Map<(NodeId, u64, NodeId), u64>,
    /// Counts lives that began or ended: the order of both.
    order: u64,
    violation: Option<String>,
}

impl Log {
    pub fn new(keyed: bool) -> Log {
        Log { keyed, sent: map(), lives: map(), current: BTreeMap::new(), newest: map(), order: 0, violation: None }
    }

    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }
    /// The first one stays.
    pub(crate) fn violated(&mut self, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(what());
        }
    }

    /// A node begins an incarnation; the one before has ended.
    pub(crate) fn begins(&mut self, node: NodeId, incarnation: u64) {
        self.ends(node);
        self.order += 1;
        let life = Life { began: self.order, ended: u64::MAX, counter: 0 };
        if self.lives.insert((node, incarnation), life).is_some() {
            self.violated(|| format!("{node} begins incarnation {incarnation} again"));
        }
        self.current.insert(node, incarnation);
    }
    pub(crate) fn ends(&mut self, node: NodeId) {
        self.order += 1;
        let order = self.order;
        let ended = self.current.remove(&node).and_then(|i| self.lives.get_mut(&(node, i)));
        ended.into_iter().for_each(|life| life.ended = order);
    }

    /// A datagram was sealed: counters only grow in an incarnation.
    pub(crate) fn sealed(&mut self, node: NodeId, incarnation: u64, counter: u64) {
        let counter = counter & ((1 << 56) - 1);
        let Some(life) = self.lives.get_mut(&(node, incarnation)) else {
            return self.violated(|| format!("{node} seals as incarnation {incarnation}, which it never began"));
        };
        let before = std::mem::replace(&mut life.counter, counter);
        if counter <= before {
            self.violated(|| {
                format!("{node}, incarnation {incarnation}, uses nonce {counter} again, or after {before}")
            });
        }
    }

    pub(crate) fn sent(&mut self, now: Time, incarnation: u64, p: &Packet) {
        let Some(digest) = digest(p) else { return };
        let new = || Sent { times: 0, incarnation, at: now, delivered: Vec::new() };
        let s = self.sent.entry((p.src, p.dst, digest)).or_insert_with(new);
        s.times += 1;
        (s.incarnation, s.at) = (incarnation, now);
    }

    /// A packet that had not left its node goes as a newer incarnation.
    pub(crate) fn goes_as(&mut self, incarnation: u64, p: &Packet) {
        let sent = digest(p).and_then(|d| self.sent.get_mut(&(p.src, p.dst, d)));
        sent.into_iter().for_each(|s| s.incarnation = incarnation);
    }

    pub(crate) fn delivered(&mut self, at: NodeId, incarnation: u64, p: &Packet) {
        let from = p.src;
        let what = || format!("{at} received {:?} {:x} of {from}", p.header.op, p.header.request);
        let Some(digest) = digest(p) else { return };
        // Those go to whichever server the switch chooses.
        let by_switch = matches!(p.header.op, Op::Read | Op::Write) && !self.sent.contains_key(&(from, at, digest));
        let to = if by_switch { Layout::SWITCH } else { at };
        let Some(s) = self.sent.get_mut(&(from, to, digest)) else {
            return self.violated(|| format!("{}, which that did not send to it, or not so", what()));
        };
        // A `gc_op` is a datagram without protection from replays: its own sequence is that (rule 16).
        if p.header.op == Op::GcOp {
            return;
        }
        let sender = s.incarnation;
        let i = s.delivered.iter().position(|d| (d.0, d.1) == (at, incarnation));
        let i = i.unwrap_or_else(|| {
            s.delivered.push((at, incarnation, 0));
            s.delivered.len() - 1
        });
        s.delivered[i].2 += 1;
        let (got, times) = (s.delivered[i].2, s.times);
        if got > times {
            return self.violated(|| format!("{}: {got} times, sent {times} times", what()));
        }
        let newest = self.newest.entry((at, incarnation, from)).or_insert(sender);
        let before = *newest;
        *newest = before.max(sender);
        if sender < before {
            return self.violated(|| format!("{}, of incarnation {sender}, after one of {before}", what()));
        }
        let lives = self.lives.get(&(from, sender)).zip(self.lives.get(&(at, incarnation)));
        if self.keyed && lives.is_some_and(|(sender, receiver)| sender.ended < receiver.began) {
            self.violated(|| format!("{}, of a life that had ended before it began", what()));
        }
    }

    /// Messages sent before `until` that never arrived, and one of them. Those that nobody repeats are left out.
    pub fn lost(&self, until: Time) -> Option<(u64, String)> {
        let missing = |s: &Sent| s.at < until && s.delivered.iter().map(|d| d.2).sum::<u32>() < s.times;
        let mut lost: Vec<_> = self.sent.iter().filter(|(_, s)| missing(s)).collect();
        lost.sort_by_key(|(key, s)| (s.at, **key));
        let ((from, to, _), s) = lost.first()?;
        Some((lost.len() as u64, format!("{from} to {to} at {:?}", s.at)))
    }
}

/// Of what the transport has to keep of a packet: all but what switches rewrite. None: it has no bytes.
fn digest(p: &Packet) -> Option<u64> {
    let mut bytes = Vec::with_capacity(rackweave_wire::HEADER_BYTES + 128);
    let data = rackweave_wire::encode_apart(p, &mut bytes).ok()?;
    bytes[1..9].fill(0);
    bytes[16..20].fill(0);
    bytes.extend_from_slice(&data);
    Some(siphash24(DIGEST_KEY, &bytes))
}
