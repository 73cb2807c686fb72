//! The primary of a view: it collects the members' logs, issues timestamps in each key's order, and answers clients.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use rackweave_core::{NodeId, Time};

use crate::clients::{Admission, Ending, Finished};
use crate::msg::{Body, Ended, Known, PutResult};
use crate::replica::{Ctx, NOBODY, Replica, aborted};
use crate::trace::{CONDITION_FAILED, PUT_ABORTED, PUT_COMMITTED, PUT_REPEATED, UNKNOWN_ATTEMPT};
use crate::types::{Commit, Condition, Decision, Origin, Put, PutId, Timestamp, Undecided, Verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It fetches what other members hold and it does not.
    Filling,
    /// It requests the undecided puts of all members, then everything known of each.
    Collecting,
    Querying,
    /// It knows everything, and every member records that.
    Adopting,
    /// It waits until the membership service has recorded that it decides.
    Announcing,
    /// It has fewer members than `min_copies` and decides on nothing.
    Short,
    Active,
}

/// A put on its way to a decision, or a decision on its way to all members.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    pub put: Put,
    pub logged: BTreeSet<NodeId>,
    pub decision: Option<Decision>,
    pub applied: BTreeSet<NodeId>,
    /// An earlier primary committed it with this result: it is committed again, without another judgement.
    pub verdict: Option<(Verdict, Origin)>,
    pub retry_at: Time,
    /// It is aborted because a member has no room for it.
    pub no_space: bool,
}

impl InFlight {
    /// A member that has logged the attempt since then refuses it no more. All may have: the put is in its keys' queues then.
    fn may_be_refused(&self, by: NodeId, attempt: u32) -> bool {
        let has_logged = self.logged.contains(&by) && !mutant!("kv-replica.space.refused-late");
        self.put.attempt == attempt && self.decision.is_none() && !has_logged
    }
}

/// The puts of a key that all members have logged.
#[derive(Default)]
pub(crate) struct Queue {
    /// Its timestamp has left, and some member has not applied it.
    pub current: Option<PutId>,
    pub ready: VecDeque<PutId>,
}

pub(crate) struct Lead {
    pub phase: Phase,
    pub puts: BTreeMap<PutId, InFlight>,
    pub queues: BTreeMap<Bytes, Queue>,
    pub counter: u64,
    /// Acknowledgements that overtook the client's put.
    pub early: BTreeMap<(PutId, u32), BTreeSet<NodeId>>,
    /// What members report, and whether that is all.
    pub reports: BTreeMap<NodeId, (Vec<Undecided>, bool)>,
    pub evidence: BTreeMap<NodeId, Vec<Known>>,
    /// Puts that some member has not seen decided, in a query's order; later those that are to be committed, in the order
    /// in which that begins.
    pub undecided: Vec<Undecided>,
    /// The others.
    pub ended: Vec<Ended>,
    /// Both, as members are to record them.
    pub parts: Vec<(Vec<Undecided>, Vec<Ended>)>,
    /// Number of parts that each member has.
    pub adopted: BTreeMap<NodeId, u32>,
    /// Taken-over puts that an earlier primary may have committed, and some member may not have applied.
    pub taken_over: BTreeSet<PutId>,
    pub asked_at: Time,
    /// Sequences of deletions of expired values, from the oldest under way on.
    pub deletions: VecDeque<u64>,
}

impl Lead {
    pub fn new(phase: Phase) -> Lead {
        Lead {
            phase,
            puts: BTreeMap::new(),
            queues: BTreeMap::new(),
            counter: 0,
            early: BTreeMap::new(),
            reports: BTreeMap::new(),
            evidence: BTreeMap::new(),
            undecided: Vec::new(),
            ended: Vec::new(),
            parts: Vec::new(),
            adopted: BTreeMap::new(),
            taken_over: BTreeSet::new(),
            asked_at: Time::ZERO,
            deletions: VecDeque::new(),
        }
    }
}

impl Lead {
    /// All queues of a put's keys get it in one step: of two puts one precedes the other in each queue that they share, and
    /// none waits for a later one.
    pub fn enqueue(&mut self, id: PutId, keys: &[Bytes]) {
        keys.iter().for_each(|key| self.queues.entry(key.clone()).or_default().ready.push_back(id));
    }
    /// The first put of the key's queue, if it is the first of each of its keys and every member has applied the last put of
    /// each.
    fn next(&self, key: &Bytes) -> Option<PutId> {
        let first = *self.queues.get(key)?.ready.front()?;
        let mut keys = self.puts.get(&first)?.put.keys();
        let is_free = |key: &Bytes| {
            let queue = self.queues.get(key);
            let idle = |q: &Queue| q.current.is_none() || mutant!("kv-replica.order.overtakes");
            queue.is_some_and(|q| idle(q) && q.ready.front() == Some(&first))
        };
        let may = keys.all(is_free) || mutant!("kv-replica.batch.one-queue") && is_free(key);
        may.then_some(first)
    }
    /// The put leaves its queues.
    fn take(&mut self, id: PutId) {
        let keys: Vec<Bytes> = self.puts.get(&id).iter().flat_map(|f| f.put.keys()).cloned().collect();
        for key in keys {
            let queue = self.queues.entry(key).or_default();
            queue.ready.retain(|ready| *ready != id);
            queue.current = Some(id);
        }
    }
}

impl Replica {
    pub fn active(&mut self) -> Option<&mut Lead> {
        self.lead.as_mut().filter(|l| l.phase == Phase::Active)
    }

    /// Whether every decision of an earlier primary has reached every member.
    pub fn settled(&self) -> bool {
        self.lead.as_ref().is_some_and(|l| l.phase == Phase::Active && l.taken_over.is_empty())
    }

    /// A client's put.
    pub fn lead_put(&mut self, ctx: &mut Ctx, put: Put) {
        let Some(lead) = self.active() else { return };
        if lead.puts.contains_key(&put.id) {
            return;
        }
        let full = lead.puts.len() >= ctx.config.puts_max;
        let (id, attempt) = (put.id, put.attempt);
        let admission = self.admission(id, attempt);
        let result = match admission {
            Admission::Fresh if full || self.has_older(id) => return,
            Admission::Fresh => return self.begin(ctx, put),
            Admission::Stale => PutResult::Stale,
            Admission::Finished(Ending { how: Finished::Committed(v), .. }) => PutResult::Done(v),
            Admission::Finished(Ending { how: Finished::Aborted(_), .. }) => PutResult::Aborted,
        };
        self.trace(ctx, PUT_REPEATED, id.sequence);
        self.send(ctx, id.client, Body::PutReply { id, attempt, result });
    }

    /// Whether a put of an earlier run of the client is in flight: the next run's would outdate it.
    fn has_older(&self, id: PutId) -> bool {
        let of_client = |i: &PutId| i.client == id.client && i.incarnation < id.incarnation;
        self.lead.as_ref().is_some_and(|l| l.puts.keys().any(of_client))
    }

    /// Starts collecting the members' logs.
    pub fn begin(&mut self, ctx: &mut Ctx, put: Put) {
        let Some(lead) = self.lead.as_mut() else { return };
        let (id, attempt) = (put.id, put.attempt);
        let logged = lead.early.remove(&(id, attempt)).unwrap_or_default();
        let retry_at = ctx.now + ctx.config.patience(ctx.config.retry, put.bytes());
        let f = InFlight {
            put: put.clone(),
            logged,
            decision: None,
            applied: BTreeSet::new(),
            verdict: None,
            retry_at,
            no_space: false,
        };
        lead.puts.insert(id, f);
        self.log(ctx, put);
    }

    /// A member has forced the attempt to its log.
    pub fn on_logged(&mut self, ctx: &mut Ctx, from: NodeId, id: PutId, attempt: u32) {
        let members = self.others(ctx.me).len() + 1;
        let Some(lead) = self.active() else { return };
        let Some(f) = lead.puts.get_mut(&id).filter(|f| f.put.attempt == attempt) else {
            if lead.early.len() < 256 {
                lead.early.entry((id, attempt)).or_default().insert(from);
            }
            return;
        };
        let new = f.logged.insert(from);
        let all = f.logged.len() == members || mutant!("kv-replica.commit.without-all") && f.logged.contains(&ctx.me);
        if new && all && f.decision.is_none() {
            let keys: Vec<Bytes> = f.put.keys().cloned().collect();
            lead.enqueue(id, &keys);
            if let Some(first) = keys.first() {
                self.advance(ctx, first);
            }
        }
    }

    /// Issues the timestamp of the key's next put, if every member has applied the last put of each of its keys.
    pub fn advance(&mut self, ctx: &mut Ctx, key: &Bytes) {
        let epoch = self.epoch();
        let Some(lead) = self.active() else { return };
        let Some(id) = lead.next(key) else {
            if lead.queues.get(key).is_some_and(|q| q.current.is_none() && q.ready.is_empty()) {
                lead.queues.remove(key);
            }
            return;
        };
        if self.deletes_first(ctx, id) {
            return;
        }
        let Some(lead) = self.lead.as_mut() else { return };
        lead.take(id);
        lead.counter += 1;
        let at = Timestamp { epoch, counter: lead.counter };
        let f = lead.puts.get_mut(&id).expect("what is ready is in flight");
        let (verdict, origin) = f.verdict.unwrap_or_else(|| {
            let judged = if mutant!("kv-replica.batch.judges-first") { 1 } else { usize::MAX };
            let mut items = f.put.items.iter().take(judged);
            let current = |key: &Bytes| self.keys.get(key).filter(|v| v.value.is_some()).map(|v| v.origin.at);
            let holds = items.all(|i| i.condition == Condition::Always || i.condition.holds(current(&i.key)));
            let holds = holds || mutant!("kv-replica.condition.unjudged");
            (if holds { Verdict::Applied } else { Verdict::ConditionFailed }, Origin { at, ms: ctx.ms })
        });
        let commit = Commit { at, origin, verdict };
        self.decide(ctx, id, Decision::Commit(commit));
    }

    /// Sends a decision to all members, this one included.
    pub fn decide(&mut self, ctx: &mut Ctx, id: PutId, decision: Decision) {
        let others = self.others(ctx.me);
        let Some(f) = self.lead.as_mut().and_then(|l| l.puts.get_mut(&id)) else { return };
        f.decision = Some(decision);
        f.retry_at = ctx.now + ctx.config.patience(ctx.config.retry, f.put.bytes());
        let (attempt, put) = (f.put.attempt, f.put.clone());
        for to in others {
            self.send(ctx, to, Body::Decide { id, attempt, decision, put: None });
        }
        self.on_decide(ctx, id, attempt, decision, Some(put));
    }

    pub fn on_refuse(&mut self, ctx: &mut Ctx, from: NodeId, id: PutId, attempt: u32) {
        let Some(lead) = self.active().filter(|l| !l.taken_over.contains(&id)) else { return };
        if lead.puts.get(&id).is_some_and(|f| f.may_be_refused(from, attempt)) {
            self.decide(ctx, id, Decision::Abort);
        }
    }

    /// A member's store has no room for the attempt. The client hears of it once every member has recorded the abort: a member
    /// may have logged the attempt, and room for it may come later.
    pub fn on_no_room(&mut self, ctx: &mut Ctx, from: NodeId, id: PutId, attempt: u32) {
        let fresh = self.admission(id, attempt) == Admission::Fresh && !self.has_older(id);
        let begins_late = self.logged.contains_key(&id);
        let Some(lead) = self.active().filter(|l| !l.taken_over.contains(&id)) else { return };
        let (is_known, undecided) = match lead.puts.get(&id) {
            Some(f) => (true, f.may_be_refused(from, attempt)),
            None => (false, false),
        };
        if mutant!("kv-replica.space.answered-without-abort") {
            let result = PutResult::NoSpace;
            return self.send(ctx, id.client, Body::PutReply { id, attempt, result });
        }
        if undecided {
            self.decide(ctx, id, Decision::Abort);
        } else if !is_known && fresh && !begins_late {
            self.end_attempt(ctx, id, attempt, Decision::Abort);
        } else {
            return;
        }
        if let Some(f) = self.lead.as_mut().and_then(|l| l.puts.get_mut(&id)) {
            f.no_space = true;
        }
    }

    /// A member has forced the decision.
    pub fn on_applied(&mut self, ctx: &mut Ctx, from: NodeId, id: PutId, attempt: u32, at: Option<Timestamp>) {
        let members = self.others(ctx.me).len() + 1;
        let Some(lead) = self.active() else { return };
        let Some(f) = lead.puts.get_mut(&id).filter(|f| f.put.attempt == attempt) else { return };
        if f.decision.is_none_or(|d| d.at() != at) {
            return;
        }
        f.applied.insert(from);
        let early = mutant!("kv-replica.answer.before-all-applied");
        if f.applied.len() == members || early || at.is_none() && mutant!("kv-replica.abort.not-everywhere") {
            self.complete(ctx, id);
        }
    }

    /// Every member has the decision: the client is answered, and the key's next put follows.
    fn complete(&mut self, ctx: &mut Ctx, id: PutId) {
        let Some(lead) = self.lead.as_mut() else { return };
        let Some(f) = lead.puts.remove(&id) else { return };
        lead.taken_over.remove(&id);
        let (attempt, keys) = (f.put.attempt, f.put.keys().cloned().collect::<Vec<Bytes>>());
        let (result, point) = match f.decision {
            Some(Decision::Commit(Commit { verdict: Verdict::Applied, .. })) => {
                (PutResult::Done(Verdict::Applied), PUT_COMMITTED)
            }
            Some(Decision::Commit(c)) => (PutResult::Done(c.verdict), CONDITION_FAILED),
            // The record of a finished put was dropped: its own result counts.
            _ => match self.finished_as(id, attempt) {
                PutResult::Aborted if f.no_space => (PutResult::NoSpace, PUT_ABORTED),
                result => (result, PUT_ABORTED),
            },
        };
        for key in &keys {
            let queue = self.lead.as_mut().and_then(|l| l.queues.get_mut(key));
            if let Some(queue) = queue.filter(|q| q.current == Some(id)) {
                queue.current = None;
            }
        }
        self.trace(ctx, point, id.sequence);
        if ![ctx.me, NOBODY].contains(&id.client) {
            self.send(ctx, id.client, Body::PutReply { id, attempt, result });
        }
        if let Some(Decision::Commit(Commit { at, .. })) = f.decision {
            for to in self.others(ctx.me) {
                self.send(ctx, to, Body::Complete { keys: keys.clone(), at });
            }
            self.on_complete(ctx, &keys, at);
        }
        keys.iter().for_each(|key| self.advance(ctx, key));
    }

    pub fn finished_as(&self, id: PutId, attempt: u32) -> PutResult {
        match self.admission(id, attempt) {
            Admission::Finished(Ending { how: Finished::Committed(v), .. }) => PutResult::Done(v),
            Admission::Stale => PutResult::Stale,
            _ => PutResult::Aborted,
        }
    }

    pub fn on_missing(&mut self, ctx: &mut Ctx, from: NodeId, id: PutId, attempt: u32) {
        let Some(f) = self.active().and_then(|l| l.puts.get(&id)) else { return };
        let Some(decision) = f.decision.filter(|_| f.put.attempt == attempt) else { return };
        let put = Some(Box::new(f.put.clone()));
        self.send(ctx, from, Body::Decide { id, attempt, decision, put });
    }

    /// A member has an attempt without a decision. One that the primary does not know is aborted.
    pub fn on_doubt(&mut self, ctx: &mut Ctx, from: NodeId, id: PutId, attempt: u32) {
        let admission = self.admission(id, attempt);
        let own_logged = self.logged.contains_key(&id);
        let Some(lead) = self.active() else { return };
        if lead.puts.contains_key(&id) {
            return;
        }
        if admission == Admission::Fresh {
            // One in the primary's own log begins when its time has come. The end of one of a client's later run would
            // outdate those in flight.
            if own_logged || self.has_older(id) && !mutant!("kv-replica.client.outdates-older") {
                return;
            }
            self.trace(ctx, UNKNOWN_ATTEMPT, id.sequence);
            self.end_attempt(ctx, id, attempt, Decision::Abort);
        } else {
            self.send(ctx, from, Body::Decide { id, attempt, decision: Decision::Forget, put: None });
        }
    }

    /// Ends an attempt on all members; the client hears of it then.
    pub fn end_attempt(&mut self, ctx: &mut Ctx, id: PutId, attempt: u32, decision: Decision) {
        let Some(lead) = self.lead.as_mut() else { return };
        let put = aborted(id, attempt);
        let (logged, applied) = (BTreeSet::new(), BTreeSet::new());
        let f = InFlight { put, logged, decision: None, applied, verdict: None, retry_at: ctx.now, no_space: false };
        lead.puts.insert(id, f);
        self.decide(ctx, id, decision);
    }

    pub fn tick_lead(&mut self, ctx: &mut Ctx) {
        self.tick_takeover(ctx);
        self.expire_due(ctx);
        self.sweep_due(ctx);
        let others = self.others(ctx.me);
        let Some(lead) = self.active() else { return };
        let mut messages = Vec::new();
        for (id, f) in lead.puts.iter_mut().filter(|(_, f)| f.retry_at <= ctx.now) {
            f.retry_at = ctx.now + ctx.config.patience(ctx.config.retry, f.put.bytes());
            let has = if f.decision.is_some() { &f.applied } else { &f.logged };
            for to in others.iter().filter(|n| !has.contains(n)) {
                let put = Box::new(f.put.clone());
                let body = match f.decision {
                    Some(decision) if decision.at().is_none() => {
                        Body::Decide { id: *id, attempt: f.put.attempt, decision, put: None }
                    }
                    Some(decision) => Body::Decide { id: *id, attempt: f.put.attempt, decision, put: Some(put) },
                    None => Body::Prepare(put),
                };
                messages.push((*to, body));
            }
        }
        for (to, body) in messages {
            self.send(ctx, to, body);
        }
        self.begin_late(ctx);
    }

    /// Puts in the primary's own log that it has not begun: they arrived while it took over.
    fn begin_late(&mut self, ctx: &mut Ctx) {
        let late = self.logged.values().filter(|l| l.forced && l.doubt_at <= ctx.now).map(|l| l.put.clone());
        for put in late.collect::<Vec<_>>() {
            let (id, attempt) = (put.id, put.attempt);
            if self.active().is_none_or(|l| l.puts.contains_key(&id)) {
                continue;
            }
            let admission = self.admission(id, attempt);
            if admission != Admission::Fresh {
                self.end_attempt(ctx, id, attempt, Decision::Forget);
            } else if !self.has_older(id) {
                self.begin(ctx, put);
            }
        }
    }
}
