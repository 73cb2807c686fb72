//! The start of a view. Its primary learns of every undecided put from all members, and decides on each:
//!
//! | what members know | decision |
//! |---|---|
//! | one applied it, and the primary holds nothing newer of its key | commit it again first, with its result |
//! | it is finished, and was overwritten | drop the record |
//! | one recorded an abort | abort |
//! | no member of the last active view has it undecided | abort, or drop the record of a finished one |
//! | for each epoch in which it may have been committed, a member that holds the epoch never logged it | abort |
//! | otherwise | collect all logs and commit it as a new put |
//!
//! A put commits only when every member of its view has logged it, so the fifth row aborts nothing that was committed.
//! NICE aborts what is locked on all members and committed on none; the primary that died may have committed and
//! answered that.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::{Epoch, NodeId};

use crate::clients::Admission;
use crate::lead::{InFlight, Lead, Phase, Queue};
use crate::msg::{Body, Known};
use crate::replica::{Ctx, Replica, aborted};
use crate::trace::{ABORTED_UNLOGGED, ASSEMBLED, COMMITTED_ANEW, FOUND_FINISHED, RECOMMITTED, TAKEN_OVER, TOO_FEW};
use crate::types::{Change, Decision, Epochs, Put, PutId, Timestamp, Verdict};

/// What becomes of a taken-over put.
enum Fate {
    Abort,
    Again(Decision),
    Forget,
    Anew,
}

impl Fate {
    /// A version that an earlier primary committed precedes everything else of its key, conditions that failed included:
    /// their judgement came after it.
    fn order(&self) -> u8 {
        match self {
            Fate::Again(Decision::Commit { verdict: Verdict::Applied, .. }) => 0,
            Fate::Again(_) => 1,
            _ => 2,
        }
    }
}

impl Replica {
    /// This node is the primary of a new view.
    pub fn take_over(&mut self, ctx: &mut Ctx) {
        let filling = self.fill.is_some();
        self.lead = Some(Lead::new(if filling { Phase::Filling } else { Phase::Collecting }));
        if !filling {
            self.collect(ctx);
        }
    }

    /// The primary has fetched what it lacked.
    pub fn lead_filled(&mut self, ctx: &mut Ctx) {
        let epoch = u64::from(self.epoch().0);
        if let Some(lead) = self.lead.as_mut().filter(|l| l.phase == Phase::Filling) {
            lead.phase = Phase::Collecting;
            self.trace(ctx, ASSEMBLED, epoch);
            self.collect(ctx);
        }
    }

    fn collect(&mut self, ctx: &mut Ctx) {
        self.ask(ctx);
        self.all_reported(ctx);
    }

    /// Sends what is asked to the members that have not answered.
    fn ask(&mut self, ctx: &mut Ctx) {
        let others = self.others(ctx.me);
        let Some(lead) = self.lead.as_mut() else { return };
        lead.asked_at = ctx.now;
        let attempts = || lead.undecided.iter().map(|p| (p.id, p.attempt, p.key.clone())).collect();
        let (body, silent): (Body, Vec<NodeId>) = match lead.phase {
            Phase::Collecting => {
                (Body::Collect, others.into_iter().filter(|n| !lead.reports.contains_key(n)).collect())
            }
            Phase::Querying => {
                let silent = others.into_iter().filter(|n| !lead.evidence.contains_key(n)).collect();
                (Body::Query { attempts: attempts() }, silent)
            }
            Phase::Announcing => (Body::Active, vec![ctx.meta]),
            _ => return,
        };
        silent.into_iter().for_each(|to| self.send(ctx, to, body.clone()));
    }

    pub fn tick_takeover(&mut self, ctx: &mut Ctx) {
        if ctx.now.since(self.lead.as_ref().map_or(ctx.now, |l| l.asked_at)) >= ctx.config.retry {
            self.ask(ctx);
        }
    }

    pub fn on_report(&mut self, ctx: &mut Ctx, from: NodeId, undecided: Vec<Put>) {
        if let Some(lead) = self.lead.as_mut().filter(|l| l.phase == Phase::Collecting) {
            lead.reports.insert(from, undecided);
            self.all_reported(ctx);
        }
    }

    fn all_reported(&mut self, ctx: &mut Ctx) {
        let (others, own) = (self.others(ctx.me), self.undecided());
        let Some(lead) = self.lead.as_mut() else { return };
        if others.iter().any(|n| !lead.reports.contains_key(n)) {
            return;
        }
        let mut union: BTreeMap<PutId, Put> = BTreeMap::new();
        for put in own.into_iter().chain(lead.reports.values().flatten().cloned()) {
            let known = union.entry(put.id).or_insert_with(|| put.clone());
            let born = known.born.min(put.born);
            if put.attempt > known.attempt {
                *known = put;
            }
            known.born = born;
        }
        lead.undecided = union.into_values().collect();
        lead.phase = Phase::Querying;
        if lead.undecided.is_empty() {
            self.announce(ctx);
        } else {
            self.ask(ctx);
            self.all_known(ctx);
        }
    }

    pub fn on_evidence(&mut self, ctx: &mut Ctx, from: NodeId, known: Vec<Known>) {
        let asked = self.lead.as_ref().filter(|l| l.phase == Phase::Querying).map(|l| l.undecided.len());
        if asked == Some(known.len())
            && let Some(lead) = self.lead.as_mut()
        {
            lead.evidence.insert(from, known);
            self.all_known(ctx);
        }
    }

    fn all_known(&mut self, ctx: &mut Ctx) {
        let others = self.others(ctx.me);
        if self.lead.as_ref().is_some_and(|l| others.iter().all(|n| l.evidence.contains_key(n))) {
            self.announce(ctx);
        }
    }

    /// Everything is known.
    fn announce(&mut self, ctx: &mut Ctx) {
        let epoch = u64::from(self.epoch().0);
        let short = self.view.as_ref().is_some_and(|v| v.members.len() < ctx.config.min_copies);
        let Some(lead) = self.lead.as_mut() else { return };
        if short && !mutant!("kv-replica.copies.too-few") {
            lead.phase = Phase::Short;
            self.trace(ctx, TOO_FEW, epoch);
            return;
        }
        lead.phase = Phase::Announcing;
        self.ask(ctx);
    }

    /// Decides on what was taken over.
    pub fn on_activated(&mut self, ctx: &mut Ctx) {
        let epoch = u64::from(self.epoch().0);
        let Some(lead) = self.lead.as_mut().filter(|l| l.phase == Phase::Announcing) else { return };
        lead.phase = Phase::Active;
        let undecided = std::mem::take(&mut lead.undecided);
        let deadlines = self.keys.iter().filter_map(|(k, v)| v.expires.map(|t| (t, k.clone())));
        lead.deadlines = deadlines.collect();
        let own = undecided.iter().map(|p| self.known_of(p.id, p.attempt, &p.key)).collect();
        let mut evidence = std::mem::take(&mut self.lead.as_mut().expect("it leads").evidence);
        evidence.insert(ctx.me, own);
        let mut fates: Vec<(Put, Fate)> = Vec::new();
        for (i, put) in undecided.into_iter().enumerate() {
            let known: BTreeMap<NodeId, Known> = evidence.iter().map(|(n, k)| (*n, k[i])).collect();
            let fate = self.fate(&put, &known);
            fates.push((put, fate));
        }
        self.promote(&mut fates);
        self.trace(ctx, TAKEN_OVER, epoch);
        if !mutant!("kv-replica.takeover.any-order") {
            fates.sort_by_key(|(_, fate)| fate.order());
        }
        for (put, fate) in fates {
            self.carry_out(ctx, put, fate);
        }
    }

    /// Versions that this node has applied and lost members may only have logged. Committed in this epoch, they are among
    /// those that such members fetch when they return: their undecided records count no more then.
    fn promote(&self, fates: &mut Vec<(Put, Fate)>) {
        let Some(view) = self.view.as_ref().filter(|_| !mutant!("kv-replica.takeover.no-promotion")) else { return };
        for (key, v) in &self.keys {
            let doubtful = !self.clean || self.marks.contains_key(key);
            // Another member may have applied a later one.
            let known = |(p, fate): &(Put, Fate)| p.id == v.by || p.key == *key && fate.order() == 0;
            if !doubtful || v.at.epoch < view.settled || fates.iter().any(known) {
                continue;
            }
            let change = match &v.value {
                Some(value) => Change::Set { value: value.clone(), ttl: None },
                None => Change::Delete,
            };
            let put = Put { change, born: v.at.epoch, ..aborted(v.by, 0, key.clone()) };
            let decision = Decision::Commit { at: v.at, verdict: Verdict::Applied, expires: v.expires };
            fates.push((put, Fate::Again(decision)));
        }
    }

    fn fate(&self, put: &Put, known: &BTreeMap<NodeId, Known>) -> Fate {
        let newest = |d: &Decision| match d {
            Decision::Commit { at, verdict: Verdict::Applied, .. } => {
                self.keys.get(&put.key).is_none_or(|v| v.at <= *at || v.by == put.id)
            }
            Decision::Commit { .. } => true,
            Decision::Abort | Decision::Forget => false,
        };
        let decisions = || known.values().filter_map(|k| if let Known::Decided(d) = k { Some(*d) } else { None });
        if let Some(d) = decisions().filter(newest).max_by_key(|d| d.at()) {
            return Fate::Again(d);
        }
        if known.values().any(|k| *k == Known::Finished) || decisions().any(|d| d.at().is_some()) {
            return Fate::Forget;
        }
        if decisions().next().is_some() {
            return Fate::Abort;
        }
        let witness = |n: &NodeId| self.view.as_ref().and_then(|v| v.member(*n)).is_some_and(|m| m.witness);
        let logged = known.iter().any(|(n, k)| *k == Known::Logged && witness(n));
        if put.born < self.epoch() && !logged && !mutant!("kv-replica.takeover.old-records") {
            let admission = self.clients.get(&put.id.client).map_or(Admission::Fresh, |c| c.admit(put.id, put.attempt));
            return if admission == Admission::Fresh { Fate::Abort } else { Fate::Forget };
        }
        if self.never_committed(put.born, known) || mutant!("kv-replica.takeover.abort-locked-everywhere") {
            return Fate::Abort;
        }
        Fate::Anew
    }

    /// Whether members that hold every epoch in which the put may have been committed never logged it.
    fn never_committed(&self, born: Epoch, known: &BTreeMap<NodeId, Known>) -> bool {
        let Some(view) = &self.view else { return false };
        let mut shown = Epochs::none();
        for m in view.members.iter().filter(|m| known.get(&m.node) == Some(&Known::Never)) {
            if mutant!("kv-replica.takeover.any-witness") {
                return true;
            }
            shown.union(&m.holds);
        }
        born <= view.last() && shown.covers(born, view.last())
    }

    fn carry_out(&mut self, ctx: &mut Ctx, put: Put, fate: Fate) {
        let (id, attempt) = (put.id, put.attempt);
        match fate {
            Fate::Abort => {
                self.trace(ctx, ABORTED_UNLOGGED, id.sequence);
                self.end_attempt(ctx, id, attempt, put.key, Decision::Abort);
            }
            Fate::Forget => {
                self.trace(ctx, FOUND_FINISHED, id.sequence);
                self.end_attempt(ctx, id, attempt, put.key, Decision::Forget);
            }
            Fate::Anew => {
                self.trace(ctx, COMMITTED_ANEW, id.sequence);
                if let Some(lead) = self.lead.as_mut().filter(|_| !mutant!("kv-replica.fill.without-anew")) {
                    lead.taken_over.insert(id);
                }
                self.begin(ctx, put.clone());
                self.others(ctx.me).into_iter().for_each(|to| {
                    self.send(ctx, to, Body::Prepare(Box::new(put.clone())));
                });
            }
            Fate::Again(Decision::Commit { verdict, expires, .. }) => {
                self.trace(ctx, RECOMMITTED, id.sequence);
                self.recommit(ctx, put, verdict, expires);
            }
            Fate::Again(Decision::Abort | Decision::Forget) => {}
        }
    }

    fn recommit(&mut self, ctx: &mut Ctx, put: Put, verdict: Verdict, expires: Option<rackweave_core::Time>) {
        let (id, key) = (put.id, put.key.clone());
        let Some(lead) = self.lead.as_mut() else { return };
        let (logged, applied) = (BTreeSet::new(), BTreeSet::new());
        let retry_at = ctx.now + ctx.config.retry;
        let f = InFlight { put, logged, decision: None, applied, verdict: Some((verdict, expires)), retry_at };
        lead.puts.insert(id, f);
        lead.taken_over.insert(id);
        let queue: &mut Queue = lead.queues.entry(key.clone()).or_default();
        queue.ready.push_back(id);
        self.advance(ctx, &key);
    }
}

/// The time at which a version precedes all others.
pub(crate) const NEVER: Timestamp = Timestamp { epoch: Epoch(0), counter: 0 };
