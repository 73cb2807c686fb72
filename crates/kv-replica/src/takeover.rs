//! The start of a view. Its primary collects what members know of every undecided put, finds what becomes of each, and has
//! every member force that (`Adopt`) before the view is active. Only then it decides.
//!
//! # What a member's knowledge proves
//! Let *a* be the last active view, and a *witness* a member of *a* with the same drive. *Holding* an epoch means to be a
//! member of its view, or to have fetched from an active view's primary later.
//!
//! 1. A put gets a timestamp only when every member of the view has forced it to its log (rule 28). A decision leaves the
//!    log in one atomic write with its effect. A witness that neither has the put in its log nor has seen it decided
//!    therefore proves that *a* did not commit it.
//! 2. Before *a* decided, all its members forced the same undecided puts, their standing included ([`Standing`]). Each
//!    witness alone therefore knows all puts that were undecided when *a* began. What is not among them, and what *a* did not
//!    decide, is finished, or was never committed.
//! 3. Every view has a witness: it covers the epoch of *a*, and nobody fetches that from a later active view.
//! 4. A key's next timestamp waits until every member has applied the last. Members of one view therefore differ by at most
//!    one version of each key; its put is in the log of those that lack it, and those that have it marked it durably
//!    until the primary said that all have it.
//! 5. A decision of a view before *a* that is not known as finished or [`Standing::Committed`] to the witnesses was a lost
//!    primary's. It reached no client, and no get showed it.
//! 6. Marked versions, and those of taken-over puts, are committed again in this epoch. Where a lost member's state differs
//!    from that of the others, the others therefore have a version of an epoch that it does not hold: it fetches that
//!    when it returns, and a hand-off has it too.
//!
//! # Decisions
//! The *ending* of a put is the decision of the greatest epoch that a member knows. The first row that fits counts.
//!
//! | the put | becomes |
//! |---|---|
//! | was committed in *a*, and its version is overwritten: all have applied it | finished |
//! | was committed in *a* | committed again, with its result |
//! | was aborted in *a* or later | aborted |
//! | some witness does not have it in its log (1, 2): it has an ending | finished, with that ending |
//! | … it has none | aborted |
//! | a witness has it as committed by an earlier primary | committed again, with its result |
//! | all witnesses have it as pending: it wrote the primary's version of its key | committed again |
//! | … any other (5) | committed anew, and judged anew |
//! | all witnesses have it as new: it has an ending | finished: a repetition that came late |
//! | … it has none | committed anew: the lost primary may have committed it |
//!
//! A batch is one put: it is *overwritten* as soon as one of its versions is, as all members have applied it then. What is left of
//! it and may be missing on lost members is committed again as a put of these keys.
//!
//! A put that is committed anew may fail its conditions where a lost primary judged that they hold, and applied it alone. Of one
//! key, another put has been committed there since: conditions depend on versions alone, never on a clock ([`crate::expiry`]). Of a batch, that other put may be of another of its keys: the versions of all
//! keys that it changes are committed again before it is judged, so that a lost member has all of them to fetch. The lost primary
//! itself may lead a later view. It may then have the batch's version of only some of its keys, as it has fetched later ones of the others. It
//! commits none of those again: the batch is judged.
//!
//! Puts that are committed again precede the others of their key, in the order of their first timestamps.
//!
//! A member takes all puts of a client's earlier runs for finished once it has recorded one of a later run. While a put of an
//! earlier run is undecided, an aborted one of a later run therefore leaves the logs without a record, and its client repeats it.
//!
//! NICE aborts what is locked on all members and committed on none; the primary that died may have committed and answered
//! that. Views that never became active may have adopted the same findings on some members. That changes nothing: each
//! finding stays true while no view decides.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rackweave_core::{Epoch, Incarnation, NodeId};

use crate::clients::{Admission, Ending, Finished, replaces};
use crate::lead::{InFlight, Lead, Phase};
use crate::msg::{Attempt, Body, Ended, Known, KnownEnd};
use crate::record::{self, VersionRecord};
use crate::replica::{Adopted, Ctx, Findings, Forced, Logged, NOBODY, Replica, aborted};
use crate::room::{AGAIN, put_bytes};
use crate::trace::{
    ABORTED_UNLOGGED, ASSEMBLED, COMMITTED_ANEW, FOUND_FINISHED, RECOMMITTED, SUPERSEDED, TAKEN_OVER, TOO_FEW,
};
use crate::types::{
    Change, Commit, Condition, Expires, Item, Origin, PAGE_MAX, Put, PutId, Standing, Timestamp, Undecided, Verdict,
    page,
};

/// What becomes of a taken-over put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Abort,
    Finished(Option<Ending>),
    Again(Commit),
    Anew,
}

impl Fate {
    /// Puts that are committed again precede everything else of their key, in their order; conditions that failed were
    /// judged after all of them.
    fn order(&self) -> (u8, Timestamp) {
        match self {
            Fate::Again(c) if c.verdict == Verdict::Applied => (0, c.at),
            Fate::Again(_) => (1, NEVER),
            _ => (2, NEVER),
        }
    }
}

/// What all members know of a put.
struct Evidence {
    /// Its newest version at any member.
    written: Option<Commit>,
    /// The decision of the greatest epoch, as members know it that have no such version.
    ending: Option<Ending>,
    /// The client has its answer, or is in a later run.
    stale: bool,
    /// The witnesses' logs.
    logs: Vec<Option<Standing>>,
}

impl Evidence {
    fn of(known: &BTreeMap<NodeId, Known>, is_witness: impl Fn(NodeId) -> bool) -> Evidence {
        let mut f = Evidence { written: None, ending: None, stale: false, logs: Vec::new() };
        for (n, k) in known {
            match k.end {
                KnownEnd::None => {}
                KnownEnd::Stale => f.stale = true,
                KnownEnd::Written(c) => f.written = f.written.filter(|w| w.at >= c.at).or(Some(c)),
                KnownEnd::Finished(e) => f.ending = f.ending.filter(|known| !replaces(&e, known)).or(Some(e)),
            }
            if is_witness(*n) {
                f.logs.push(k.log);
            }
        }
        f
    }
    /// The decision of the greatest epoch that any member knows.
    fn last(&self) -> Option<Ending> {
        let written = self.written.map(|c| Ending { epoch: c.at.epoch, how: Finished::Committed(c.verdict) });
        self.ending.filter(|e| written.is_none_or(|w| e.epoch >= w.epoch)).or(written)
    }
    fn in_all_logs(&self) -> bool {
        !self.logs.is_empty() && self.logs.iter().all(Option::is_some)
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

    /// Sends the phase's message to the members that have not answered.
    fn ask(&mut self, ctx: &mut Ctx) {
        let others = self.others(ctx.me);
        let Some(lead) = self.lead.as_mut() else { return };
        lead.asked_at = ctx.now;
        if lead.phase == Phase::Announcing {
            return self.send(ctx, ctx.meta, Body::Active);
        }
        others.into_iter().for_each(|to| self.ask_one(ctx, to));
    }

    /// What the member has not answered yet, a message's length of it.
    fn ask_one(&self, ctx: &mut Ctx, to: NodeId) {
        let Some(lead) = self.lead.as_ref() else { return };
        let body = match lead.phase {
            Phase::Collecting => match lead.reports.get(&to) {
                Some((_, true)) => return,
                report => Body::Collect { after: report.and_then(|(list, _)| list.last()).map(|u| u.put.id) },
            },
            Phase::Querying => {
                let from = lead.evidence.get(&to).map_or(0, Vec::len);
                let attempt = |u: &Undecided| {
                    let keys = u.put.changed().cloned().collect();
                    Attempt { id: u.put.id, attempt: u.put.attempt, keys }
                };
                let attempts = page(lead.undecided[from..].iter().map(attempt), Attempt::bytes);
                if attempts.is_empty() {
                    return;
                }
                Body::Query { from: from as u32, attempts }
            }
            Phase::Adopting => {
                let part = lead.adopted.get(&to).copied().unwrap_or(0);
                let Some((undecided, ended)) = lead.parts.get(part as usize).cloned() else { return };
                let last = part as usize + 1 == lead.parts.len();
                Body::Adopt { part, last, undecided, ended }
            }
            Phase::Filling | Phase::Announcing | Phase::Short | Phase::Active => return,
        };
        self.send(ctx, to, body);
    }

    pub fn tick_takeover(&mut self, ctx: &mut Ctx) {
        if ctx.now.since(self.lead.as_ref().map_or(ctx.now, |l| l.asked_at)) >= ctx.config.retry {
            self.ask(ctx);
        }
    }

    pub fn on_collect(&mut self, ctx: &mut Ctx, from: NodeId, after: Option<PutId>) {
        let mut undecided = self.undecided();
        undecided.retain(|u| after.is_none_or(|a| u.put.id > a));
        let fit = page(undecided.iter(), |u| u.bytes()).len();
        let more = fit < undecided.len();
        undecided.truncate(fit);
        self.send(ctx, from, Body::Report { after, undecided, more });
    }

    pub fn on_report(
        &mut self,
        ctx: &mut Ctx,
        from: NodeId,
        after: Option<PutId>,
        undecided: Vec<Undecided>,
        more: bool,
    ) {
        let Some(lead) = self.lead.as_mut().filter(|l| l.phase == Phase::Collecting) else { return };
        let (list, done) = lead.reports.entry(from).or_default();
        if *done || list.last().map(|u| u.put.id) != after {
            return;
        }
        list.extend(undecided);
        *done = !more;
        self.ask_one(ctx, from);
        self.all_reported(ctx);
    }

    fn all_reported(&mut self, ctx: &mut Ctx) {
        let (others, own) = (self.others(ctx.me), self.undecided());
        let Some(lead) = self.lead.as_mut() else { return };
        if others.iter().any(|n| lead.reports.get(n).is_none_or(|(_, done)| !done)) {
            return;
        }
        let mut union: BTreeMap<PutId, Undecided> = BTreeMap::new();
        let reported = std::mem::take(&mut lead.reports).into_values().flat_map(|(list, _)| list);
        for u in own.into_iter().chain(reported) {
            let known = union.entry(u.put.id).or_insert_with(|| u.clone());
            // What an earlier primary found is to be committed counts, whatever late attempts of the client say: of a batch
            // that may be a part ([`Replica::promote`]).
            let rank = |u: &Undecided| (matches!(u.standing, Standing::Committed(_)), u.put.attempt);
            if rank(&u) > rank(known) {
                *known = u;
            }
        }
        lead.undecided = union.into_values().collect();
        lead.phase = Phase::Querying;
        self.ask(ctx);
        self.all_known(ctx);
    }

    pub fn on_evidence(&mut self, ctx: &mut Ctx, from: NodeId, first: u32, known: Vec<Known>) {
        let Some(lead) = self.lead.as_mut().filter(|l| l.phase == Phase::Querying) else { return };
        let list = lead.evidence.entry(from).or_default();
        let fits = list.len() == first as usize && list.len() + known.len() <= lead.undecided.len();
        if fits {
            list.extend(known);
            self.ask_one(ctx, from);
            self.all_known(ctx);
        }
    }

    /// Finds what becomes of each put, once everything is known.
    fn all_known(&mut self, ctx: &mut Ctx) {
        let (me, epoch, others) = (ctx.me, u64::from(self.epoch().0), self.others(ctx.me));
        let Some(lead) = self.lead.as_mut() else { return };
        let asked = lead.undecided.len();
        if others.iter().any(|n| lead.evidence.get(n).map_or(0, Vec::len) < asked) {
            return;
        }
        if others.len() + 1 < ctx.config.min_copies && !mutant!("kv-replica.copies.too-few") {
            lead.phase = Phase::Short;
            self.trace(ctx, TOO_FEW, epoch);
            return;
        }
        let (asked, mut evidence) = (std::mem::take(&mut lead.undecided), std::mem::take(&mut lead.evidence));
        let own = asked.iter().map(|u| self.known_of(u.put.id, u.put.attempt, &changed(&u.put))).collect();
        evidence.insert(me, own);
        let mut fates: Vec<(Put, Fate)> = Vec::new();
        for (i, u) in asked.into_iter().enumerate() {
            let known = evidence.iter().map(|(n, k)| (*n, k[i])).collect();
            let fate = self.fate(ctx, &u.put, &known);
            fates.push((u.put, fate));
        }
        self.promote(&mut fates);
        if !mutant!("kv-replica.takeover.any-order") {
            fates.sort_by_key(|(_, fate)| fate.order());
        }
        let epoch = self.epoch();
        let lead = self.lead.as_mut().expect("it leads");
        let mut undecided_runs: BTreeMap<NodeId, Incarnation> = BTreeMap::new();
        for (put, _) in fates.iter().filter(|(_, fate)| matches!(fate, Fate::Again(_) | Fate::Anew)) {
            let first = undecided_runs.entry(put.id.client).or_insert(put.id.incarnation);
            *first = put.id.incarnation.min(*first);
        }
        // Its record would outdate what the client's earlier run left undecided, at the members that hear of it.
        let outdates = |id: &PutId| {
            let earlier = undecided_runs.get(&id.client).is_some_and(|run| *run < id.incarnation);
            earlier && !mutant!("kv-replica.takeover.outdates-undecided")
        };
        for (put, fate) in fates {
            let ended = |put: &Put, ending| Ended { id: put.id, attempt: put.attempt, ending };
            match fate {
                Fate::Again(c) => lead.undecided.push(Undecided { put, standing: Standing::Committed(c) }),
                Fate::Anew => lead.undecided.push(Undecided { put, standing: Standing::Pending }),
                Fate::Finished(ending) => lead.ended.push(ended(&put, ending)),
                Fate::Abort if outdates(&put.id) => lead.ended.push(ended(&put, None)),
                Fate::Abort => {
                    let how = Finished::Aborted(put.attempt);
                    lead.ended.push(ended(&put, Some(Ending { epoch, how })));
                }
            }
        }
        lead.phase = Phase::Adopting;
        let findings = Findings { parts: 0, undecided: lead.undecided.clone(), ended: lead.ended.clone() };
        lead.parts = parts(&findings);
        self.ask(ctx);
        self.adopt(ctx, findings);
    }

    /// Marked versions: lost members may only have logged them. And those under batches that are committed anew.
    fn promote(&self, fates: &mut Vec<(Put, Fate)>) {
        if mutant!("kv-replica.takeover.no-promotion") {
            return;
        }
        let marked = self.marks.iter().filter(|(key, m)| self.keys.get(key).is_some_and(|v| v.at == m.at));
        let mut keys: BTreeSet<Bytes> = marked.map(|(key, _)| key.clone()).collect();
        let batch = |(p, fate): &&(Put, Fate)| *fate == Fate::Anew && p.items.len() > 1;
        if !mutant!("kv-replica.takeover.no-promotion-under-batches") {
            keys.extend(fates.iter().filter(batch).flat_map(|(p, _)| p.changed().cloned()));
        }
        // A version of a put that is to be judged anew is this member's alone, from when it was a primary and lost. An earlier view's
        // primary has found that the version under it is committed again first, and this one has that as undecided, too.
        let anew: BTreeSet<PutId> = fates.iter().filter(|(_, fate)| *fate == Fate::Anew).map(|(p, _)| p.id).collect();
        let counts = |v: VersionRecord| !anew.contains(&v.by) || mutant!("kv-replica.takeover.promotes-unjudged");
        keys.retain(|key| self.keys.get(key).is_none_or(counts));
        let epoch = self.epoch();
        let mut promoted: BTreeMap<PutId, (Put, Commit)> = BTreeMap::new();
        for (i, key) in (1..).zip(keys) {
            let v = self.keys.get_version(&key);
            let (at, origin) = v.as_ref().map_or((NEVER, Origin::default()), |v| (v.at, v.origin));
            // No put has written it.
            let nobody = PutId { client: NOBODY, incarnation: Incarnation(u64::from(epoch.0)), sequence: i };
            let by = v.as_ref().map_or(nobody, |v| v.by);
            // Or another member has applied a later one.
            let covered = |(p, fate): &(Put, Fate)| match fate {
                Fate::Again(c) => {
                    let writes = c.verdict == Verdict::Applied && p.changed().any(|k| *k == key);
                    writes && (p.id == by || c.at >= at)
                }
                _ => false,
            };
            if fates.iter().any(covered) {
                continue;
            }
            let expires = v.as_ref().and_then(|v| v.expires).map_or(Expires::Never, Expires::At);
            let value = v.and_then(|v| v.value);
            let change = value.map_or(Change::Delete, |value| Change::Set { value, expires });
            let commit = Commit { at, origin, verdict: Verdict::Applied };
            // Of a batch that is partly overwritten: the rest.
            let (put, whole) = promoted.entry(by).or_insert_with(|| (aborted(by, 0), commit));
            whole.at = whole.at.max(at);
            put.items.push(Item { key, condition: Condition::Always, change: Some(change) });
        }
        // Their puts may have been reported by a member that missed the last active view.
        fates.retain(|(p, _)| !promoted.contains_key(&p.id));
        fates.extend(promoted.into_values().map(|(put, commit)| (put, Fate::Again(commit))));
    }

    /// The table above.
    fn fate(&self, ctx: &mut Ctx, put: &Put, known: &BTreeMap<NodeId, Known>) -> Fate {
        let Some(view) = &self.view else { return Fate::Abort };
        let is_witness = |n| view.member(n).is_some_and(|m| m.witness) || mutant!("kv-replica.takeover.any-witness");
        let f = Evidence::of(known, is_witness);
        let last = f.last();
        if let Some(e) = last.filter(|e| e.epoch >= view.active) {
            return self.decided_lately(put, &f, e);
        }
        if f.logs.iter().all(Option::is_none) && mutant!("kv-replica.takeover.old-records") {
            return Fate::Anew;
        }
        if !f.in_all_logs() {
            let admission = self.admission(put.id, put.attempt);
            let fresh = !f.stale && last.is_none() && admission == Admission::Fresh;
            return if fresh { Fate::Abort } else { Fate::Finished(last.filter(|_| !f.stale)) };
        }
        let standing = |wanted: fn(&Standing) -> bool| f.logs.iter().flatten().find(|s| wanted(s));
        if let Some(Standing::Committed(c)) = standing(|s| matches!(s, Standing::Committed(_)))
            && !mutant!("kv-replica.takeover.judged-again")
        {
            return Fate::Again(*c);
        }
        if standing(|s| *s == Standing::Pending).is_some() {
            if let Some(commit) = self.written(put.id, &changed(put)) {
                return Fate::Again(commit);
            }
            if last.is_some() {
                self.trace(ctx, SUPERSEDED, put.id.sequence);
                if mutant!("kv-replica.takeover.superseded-counts") {
                    return Fate::Finished(last);
                }
            }
        } else if (f.stale || last.is_some()) && !mutant!("kv-replica.takeover.repetition-anew") {
            return Fate::Finished(last.filter(|_| !f.stale));
        }
        if mutant!("kv-replica.takeover.abort-locked-everywhere") {
            return Fate::Abort;
        }
        Fate::Anew
    }

    /// Decided in the last active view, or found later never to have been committed.
    fn decided_lately(&self, put: &Put, f: &Evidence, last: Ending) -> Fate {
        match last.how {
            Finished::Aborted(_) => Fate::Abort,
            Finished::Committed(Verdict::ConditionFailed) => {
                let at = Timestamp { epoch: last.epoch, counter: 0 };
                Fate::Again(Commit { at, origin: Origin { at, ms: 0 }, verdict: Verdict::ConditionFailed })
            }
            Finished::Committed(Verdict::Applied) => {
                let newest = |c: &Commit| {
                    let by_it = |key: &Bytes| self.keys.get(key).is_some_and(|v| v.by == put.id);
                    put.changed().all(|key| self.newest(key) <= c.at || by_it(key))
                };
                let overwritten = f.ending.is_some_and(|e| e.epoch == last.epoch);
                let written = f.written.filter(|c| c.at.epoch == last.epoch && !overwritten);
                written.filter(newest).map_or(Fate::Finished(Some(last)), Fate::Again)
            }
        }
    }

    /// A part of the primary's findings.
    pub fn on_adopt(&mut self, ctx: &mut Ctx, part: u32, last: bool, undecided: Vec<Undecided>, ended: Vec<Ended>) {
        let have = self.adopting.parts;
        if self.adopted == Adopted::No && part == have {
            if last && !self.has_room_for(ctx, &undecided) {
                return self.join_without_room(ctx);
            }
            self.adopting.parts += 1;
            self.adopting.undecided.extend(undecided);
            self.adopting.ended.extend(ended);
            if last {
                let findings = std::mem::take(&mut self.adopting);
                self.adopting.parts = findings.parts;
                self.adopt(ctx, findings);
                return;
            }
        }
        // The last counts when it is forced.
        if part < self.adopting.parts && !(last && self.adopted != Adopted::Yes) {
            self.send_adopted(ctx, part);
        }
    }

    /// Whether the findings fit, of which these are the last. A witness has logged them, or owes them room.
    fn has_room_for(&self, ctx: &mut Ctx, undecided: &[Undecided]) -> bool {
        let is_witness = self.view.as_ref().and_then(|v| v.member(ctx.me)).is_some_and(|m| m.witness);
        let bytes = (1 + AGAIN) * self.new_bytes(self.adopting.undecided.iter().chain(undecided));
        is_witness || ctx.space.fits(ctx.space.room.for_findings, bytes) || mutant!("kv-replica.join.without-room")
    }
    /// Bytes of those that are not in this member's log.
    fn new_bytes<'a>(&self, undecided: impl Iterator<Item = &'a Undecided>) -> u64 {
        undecided.filter(|u| !self.logged.contains_key(&u.put.id)).map(|u| put_bytes(&u.put)).sum()
    }

    /// Replaces the log by the primary's findings. Later this member logs other puts too.
    fn adopt(&mut self, ctx: &mut Ctx, Findings { undecided, ended, .. }: Findings) {
        self.adopted = Adopted::Forcing;
        let bytes = self.new_bytes(undecided.iter());
        ctx.space.unforced += bytes;
        let old = self.logged.take();
        let kept: BTreeSet<PutId> = undecided.iter().map(|u| u.put.id).collect();
        let gone = old.keys().filter(|id| !kept.contains(id));
        let mut entries: Vec<(Bytes, Option<Bytes>)> = gone.map(|id| (record::logged_key(self.p, id), None)).collect();
        let mut changed: BTreeSet<NodeId> = BTreeSet::new();
        for Ended { id, ending, .. } in ended {
            if let Some(ending) = ending {
                self.clients.entry(id.client).or_default().finish(id, 0, ending);
                changed.insert(id.client);
            }
        }
        for u in undecided {
            let id = u.put.id;
            if u.standing == Standing::Pending
                && let Some(client) = self.clients.get_mut(&id.client)
            {
                client.reopen(id);
                changed.insert(id.client);
            }
            entries.push((record::logged_key(self.p, &id), Some(record::undecided(&u))));
            self.lock(&u.put);
            let (doubt_at, owes) = (ctx.now + ctx.config.doubt, self.owes(&u.put));
            self.logged.insert(id, Logged { put: u.put, standing: u.standing, forced: true, doubt_at, owes });
        }
        let client = |n: NodeId| (record::client_key(self.p, n), Some(record::client(&self.clients[&n])));
        entries.extend(changed.into_iter().map(client));
        for put in old.into_values().map(|l| l.put) {
            self.unlock(&put);
            put.keys().for_each(|key| self.serve_held(ctx, key, false));
        }
        let epoch = self.epoch();
        ctx.journal.force(ctx.fx, entries, Forced::Adopted { p: self.p, epoch, bytes });
    }

    pub fn forced_adopted(&mut self, ctx: &mut Ctx, epoch: Epoch) {
        if epoch == self.epoch() && self.adopted == Adopted::Forcing {
            self.adopted = Adopted::Yes;
            self.send_adopted(ctx, self.adopting.parts.saturating_sub(1));
        }
    }

    fn send_adopted(&mut self, ctx: &mut Ctx, part: u32) {
        match self.primary() {
            Some(p) if p == ctx.me => self.all_adopted(ctx, true),
            Some(p) => self.send(ctx, p, Body::Adopted { part }),
            None => {}
        }
    }

    pub fn on_adopted(&mut self, ctx: &mut Ctx, from: NodeId, part: u32) {
        let Some(lead) = self.lead.as_mut().filter(|l| l.phase == Phase::Adopting) else { return };
        let have = lead.adopted.entry(from).or_insert(0);
        if part == *have {
            *have += 1;
            self.ask_one(ctx, from);
            self.all_adopted(ctx, false);
        }
    }

    /// Whether every member has forced everything. `own`: this one has just done so.
    fn all_adopted(&mut self, ctx: &mut Ctx, own: bool) {
        let others = self.others(ctx.me);
        let Some(lead) = self.lead.as_mut().filter(|l| l.phase == Phase::Adopting) else { return };
        let all = lead.parts.len() as u32;
        if own {
            lead.adopted.insert(ctx.me, all);
        }
        let has = |n: &NodeId| lead.adopted.get(n) == Some(&all);
        if has(&ctx.me) && (others.iter().all(has) || mutant!("kv-replica.takeover.decides-before-adopted")) {
            lead.phase = Phase::Announcing;
            lead.parts = Vec::new();
            self.ask(ctx);
        }
    }

    /// The view is active: the primary commits what was taken over, and answers the clients of what has ended.
    pub fn on_activated(&mut self, ctx: &mut Ctx) {
        let epoch = u64::from(self.epoch().0);
        let Some(lead) = self.lead.as_mut().filter(|l| l.phase == Phase::Announcing) else { return };
        lead.phase = Phase::Active;
        let (undecided, ended) = (std::mem::take(&mut lead.undecided), std::mem::take(&mut lead.ended));
        self.keys.keep_deadlines(true);
        self.trace(ctx, TAKEN_OVER, epoch);
        for Ended { id, attempt, ending } in ended {
            // An abort without a record: the attempt may still come. Its client repeats it.
            let recorded = self.admission(id, attempt) != Admission::Fresh;
            let is_abort = !recorded || ending.is_some_and(|e| matches!(e.how, Finished::Aborted(_)));
            self.trace(ctx, if is_abort { ABORTED_UNLOGGED } else { FOUND_FINISHED }, id.sequence);
            let result = self.finished_as(id, attempt);
            let answers = recorded || mutant!("kv-replica.takeover.answers-unrecorded");
            if answers && ![ctx.me, NOBODY].contains(&id.client) {
                self.send(ctx, id.client, Body::PutReply { id, attempt, result });
            }
        }
        let keys: BTreeSet<Bytes> = undecided.iter().flat_map(|u| u.put.keys().cloned()).collect();
        for u in undecided {
            self.resume(ctx, u);
        }
        keys.iter().for_each(|key| self.advance(ctx, key));
    }

    /// All members have logged it already.
    fn resume(&mut self, ctx: &mut Ctx, Undecided { put, standing }: Undecided) {
        let (id, keys) = (put.id, put.keys().cloned().collect::<Vec<Bytes>>());
        let logged = self.view.iter().flat_map(|v| &v.members).map(|m| m.node).collect();
        let verdict: Option<(Verdict, Origin)> = match standing {
            Standing::Committed(c) => Some((c.verdict, c.origin)),
            Standing::New | Standing::Pending => None,
        };
        self.trace(ctx, if verdict.is_some() { RECOMMITTED } else { COMMITTED_ANEW }, id.sequence);
        let Some(lead) = self.lead.as_mut() else { return };
        let retry_at = ctx.now + ctx.config.patience(ctx.config.retry, put.bytes());
        let f = InFlight { put, logged, decision: None, applied: BTreeSet::new(), verdict, retry_at, no_space: false };
        if verdict.is_some() || !mutant!("kv-replica.fill.without-anew") {
            lead.taken_over.insert(id);
        }
        lead.puts.insert(id, f);
        lead.enqueue(id, &keys);
    }
}

fn changed(put: &Put) -> Vec<Bytes> {
    put.changed().cloned().collect()
}

/// The findings in messages, of which there is at least one.
fn parts(all: &Findings) -> Vec<(Vec<Undecided>, Vec<Ended>)> {
    let (mut undecided, mut ended) = (all.undecided.iter(), all.ended.chunks(PAGE_MAX));
    let mut parts = Vec::new();
    loop {
        let page = page(undecided.as_slice().iter().cloned(), Undecided::bytes);
        undecided = undecided.as_slice()[page.len()..].iter();
        let part = (page, ended.next().map(<[Ended]>::to_vec).unwrap_or_default());
        if part.0.is_empty() && part.1.is_empty() && !parts.is_empty() {
            return parts;
        }
        parts.push(part);
    }
}

/// The time at which a version precedes all others.
pub(crate) const NEVER: Timestamp = Timestamp { epoch: Epoch(0), counter: 0 };
