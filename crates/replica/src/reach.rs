//! Members of the view that cannot be reached: the metadata service gets heartbeats of both sides and sees no loss,
//! while no write commits. A waiting member sends an epoch query stamped with a past epoch, which is answered with the
//! current one however busy the flash is (rule 1). Without an answer it reports the member to the metadata service,
//! which decides who leaves the view. A server outside all views queries all members, and reports when it reaches them.

use rackweave_core::msg::{Block, Body, Class, Control, Header, Op as PacketOp, Packet, Peer};
use rackweave_core::{Epoch, NodeId, Time, VssdId};

use crate::op::{Op, OpKind};
use crate::replica::{Cx, Replica};
use crate::store::Store;
use crate::timers::{Timer, Wait};

/// An operation queries unresponsive members after it has waited for this multiple of the first retransmission time.
/// Members that are reachable answer at once, however long other answers take.
const REPETITIONS: u64 = 7;

/// Which members answer.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// By place in the view: time of the first unanswered query.
    requested: Vec<Option<Time>>,
    /// Earliest time of the next query, which serves all operations that wait for the member.
    again_at: Vec<Time>,
    /// Time of the last report to the metadata service.
    told_at: Time,
    /// Outside the view: members that answered since the last queries, as bits.
    reached: u64,
}

impl Op {
    /// Members that it waits for, as bits.
    pub(crate) fn waits_for(&self) -> u64 {
        match &self.kind {
            OpKind::Blocks(b) => b.sent().fold(0, |m, x| m | x.missing),
            OpKind::Range(x) => x.missing,
            OpKind::Flush { missing } | OpKind::Fence { missing, .. } => *missing,
        }
    }
}

impl Replica {
    /// A new view: no member's state is known.
    pub(crate) fn reach_anew(&mut self, now: Time) {
        let n = self.members.len();
        self.repeats.anew(n);
        self.reach = Reach { requested: vec![None; n], again_at: vec![Time::ZERO; n], ..Reach::default() };
        if self.role.is_none() && !self.members.is_empty() {
            self.timers.set(now, Wait::Replay(0), Timer::Reach(self.epoch.0));
        }
    }

    /// An operation was repeated: the members it waits for are queried.
    pub(crate) fn look_for_silent<S: Store>(&mut self, cx: &mut Cx<'_, S>, op: u32) {
        let op = &self.ops[op as usize];
        if cx.now.since(op.sent_at) >= self.cfg.timeouts.retransmit * REPETITIONS {
            let missing = op.waits_for();
            self.request_silent(cx, missing);
        }
    }

    /// Queries them, and reports those that left their first query unanswered.
    pub(crate) fn request_silent<S: Store>(&mut self, cx: &mut Cx<'_, S>, missing: u64) {
        let patience = self.cfg.timeouts.fill * 2;
        for k in Self::bits(missing) {
            // A member counts as silent only after a query: another operation's query may just have been answered.
            let due = self.reach.again_at[k] <= cx.now;
            if due || mutant!("replica.reach.unasked") {
                self.reach.requested[k].get_or_insert(cx.now);
            }
            if due {
                self.reach.again_at[k] = cx.now + self.cfg.timeouts.retransmit;
                self.request_epoch(cx, k);
            }
        }
        if cx.now < self.reach.told_at + self.cfg.timeouts.fill {
            return;
        }
        let late = |requested: &Option<Time>| requested.is_some_and(|at| cx.now.since(at) >= patience);
        let silent = self.reach.requested.iter().zip(&self.members).filter(|(requested, _)| late(requested));
        let silent: Vec<_> = silent.map(|(_, m)| m.vssd).collect();
        if !silent.is_empty() {
            self.reach.told_at = cx.now;
            self.control(cx, Control::Silent { set: self.cfg.set, epoch: self.epoch, silent });
        }
    }

    /// A message in an epoch that is over.
    fn request_epoch<S: Store>(&self, cx: &mut Cx<'_, S>, k: usize) {
        let m = self.members[k];
        let header = Header {
            op: PacketOp::Peer,
            vssd: m.vssd,
            lat: 0,
            class: Class::Silver,
            // Whom the answer is for.
            original_vssd: self.cfg.vssd,
            set: self.cfg.set,
            epoch: Epoch(0),
            incarnation: self.incarnation,
            request: 0,
        };
        cx.fx.send(Packet {
            src: self.cfg.node,
            dst: m.server,
            header,
            body: Body::Block(Block::Peer(Peer::ClientsRequest)),
        });
    }

    /// A member answered something.
    pub(crate) fn answered(&mut self, from: usize) {
        self.reach.requested[from] = None;
    }

    /// Outside the view it got the epoch of this member. An earlier version names the receiver instead.
    pub(crate) fn reached(&mut self, src: NodeId, vssd: VssdId) {
        let member = self.members.iter().position(|m| (m.server, m.vssd) == (src, vssd));
        if let Some(k) = member.or_else(|| self.members.iter().position(|m| m.server == src)) {
            self.reach.reached |= 1 << k;
        }
    }

    /// Outside the view: reports if all members were reached, and queries them again.
    pub(crate) fn reach_timer<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let all = (1u64 << self.members.len()) - 1;
        if std::mem::take(&mut self.reach.reached) == all {
            self.control(cx, Control::Reached { set: self.cfg.set, epoch: self.epoch });
        }
        Self::bits(all).for_each(|k| self.request_epoch(cx, k));
        self.timers.set(cx.now, Wait::Replay(0), Timer::Reach(self.epoch.0));
    }
}
