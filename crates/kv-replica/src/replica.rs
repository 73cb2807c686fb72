//! A member's part of one partition: it logs puts, applies decisions, and locks keys against gets meanwhile.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::journal::Journal;
use rackweave_core::{Effects, Epoch, Incarnation, NodeId, Span, Time, TracePoint};

use crate::clients::{Admission, ClientState, Ending, Finished};
use crate::config::Config;
use crate::fill::Fill;
use crate::gets::HeldGet;
use crate::lead::{Lead, Phase};
use crate::msg::{Body, Ended, GetResult, Known, KnownEnd, Packet, PutResult};
use crate::record;
use crate::room::{Mark, Owes, Owing, Space, put_bytes};
use crate::trace::{NO_SPACE, OUTDATED, STOPPED};
use crate::types::{
    Change, Commit, Decision, Item, KEY_MAX, Partition, Put, PutId, Standing, Timestamp, Undecided, Verdict, Version,
    View, is_key,
};
use crate::versions::{KeyVersion, Versions};

/// The continuation of a forced write.
#[derive(Clone, Debug)]
pub(crate) enum Forced {
    Logged { p: Partition, id: PutId, attempt: u32, bytes: u64 },
    Applied { p: Partition, id: PutId, attempt: u32, at: Option<Timestamp>, keys: Vec<Bytes> },
    Adopted { p: Partition, epoch: Epoch, bytes: u64 },
    Chunk { p: Partition, epoch: Epoch, last: bool, bytes: u64 },
    Dropped { p: Partition },
    Swept,
}

/// The node around a replica, while it handles an event.
pub(crate) struct Ctx<'a> {
    pub me: NodeId,
    pub meta: NodeId,
    pub incarnation: Incarnation,
    pub now: Time,
    /// Milliseconds since 1970.
    pub ms: u64,
    pub leased: bool,
    /// Numbers the puts that this node makes itself.
    pub own_puts: &'a mut u64,
    pub config: &'a Config,
    pub journal: &'a mut Journal<Forced>,
    pub space: &'a mut Space,
    pub answered: &'a mut Answered,
    pub fx: &'a mut Effects<Packet>,
}

impl Ctx<'_> {
    /// Whether the node's store has room for the put and what it owes then, and may store it. A full one takes deletions for
    /// longer.
    fn takes(&mut self, put: &Put, (bytes, owes): (u64, u64)) -> bool {
        let sets = put.items.iter().any(|i| matches!(i.change, Some(Change::Set { .. })));
        let room = if sets { self.space.for_puts() } else { self.space.room.for_deletes };
        let fits = self.space.fits(room, bytes + owes);
        if !fits {
            self.fx.trace(NO_SPACE, u64::from(self.me.0), 0);
        }
        fits && put.bytes() <= self.config.value_max + KEY_MAX && put.keys().all(|k| is_key(k))
    }
}

/// Answers to clients since the node began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    pub gets: u64,
    /// As the primary; deletions too.
    pub puts: u64,
    /// As the primary: a member's store is full.
    pub refused: u64,
}

impl Answered {
    fn note(&mut self, answer: &Body) {
        match answer {
            Body::PutReply { result: PutResult::Done(_), .. } => self.puts += 1,
            Body::PutReply { result: PutResult::NoSpace, .. } => self.refused += 1,
            Body::GetReply { result: GetResult::Value { .. } | GetResult::NoRoom { .. }, .. } => self.gets += 1,
            _ => {}
        }
    }
}

/// An undecided put in the log.
#[derive(Clone, Debug)]
pub(crate) struct Logged {
    pub put: Put,
    pub standing: Standing,
    pub forced: bool,
    /// When to ask about it.
    pub doubt_at: Time,
    /// Bytes that are written later, whatever becomes of it.
    pub owes: u64,
}

impl Owes for Logged {
    fn owes(&self) -> u64 {
        self.owes
    }
}

/// How far this member is with [`Body::Adopt`] in its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adopted {
    No,
    /// It is being forced.
    Forcing,
    Yes,
}

/// A new primary's findings, in parts of a message each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub parts: u32,
    pub undecided: Vec<Undecided>,
    pub ended: Vec<Ended>,
}

pub(crate) struct Replica {
    pub p: Partition,
    /// Of which this node is a member.
    pub view: Option<View>,
    /// The newest view that this node knows.
    pub known: Epoch,
    pub keys: Versions,
    pub clients: BTreeMap<NodeId, ClientState>,
    pub logged: Owing<PutId, Logged>,
    /// Decisions that are not durable here yet, with the puts that leave the log. For a new primary these are undecided:
    /// it answers nobody before every member has recorded them.
    pub applying: BTreeMap<(PutId, Option<Timestamp>), Option<Put>>,
    /// Undecided puts of each key.
    pub locks: BTreeMap<Bytes, u32>,
    /// Versions that some member may not have applied, and when to ask.
    pub marks: Owing<Bytes, Mark>,
    /// Whether this member has forced its view's undecided puts: only then it logs others.
    pub adopted: Adopted,
    /// The parts of that which have come.
    pub adopting: Findings,
    pub held: BTreeMap<Bytes, Vec<HeldGet>>,
    pub held_count: usize,
    pub lead: Option<Lead>,
    pub fill: Option<Fill>,
    /// This node has fetched what its view said it lacks.
    pub assembled: bool,
    /// The key that shows that this partition's history is damaged.
    pub stopped: Option<Bytes>,
    /// The membership service has recorded that it stopped.
    pub stop_recorded: bool,
    /// Records that no node needs are being removed.
    pub dropping: bool,
    /// Tombstones up to this time were removed, here or where this member fetched ([`crate::sweep`]).
    pub swept: Timestamp,
    /// When a primary sweeps next.
    pub sweep_at: Time,
}

impl Replica {
    pub fn new(p: Partition) -> Replica {
        Replica {
            p,
            view: None,
            known: Epoch(0),
            keys: Versions::default(),
            clients: BTreeMap::new(),
            logged: Owing::default(),
            applying: BTreeMap::new(),
            locks: BTreeMap::new(),
            marks: Owing::default(),
            adopted: Adopted::No,
            adopting: Findings::default(),
            held: BTreeMap::new(),
            held_count: 0,
            lead: None,
            fill: None,
            assembled: false,
            stopped: None,
            stop_recorded: false,
            dropping: false,
            swept: Timestamp::default(),
            sweep_at: Time::ZERO,
        }
    }
    /// A put found in the log at boot.
    pub fn found(&mut self, Undecided { put, standing }: Undecided) {
        if mutant!("kv-replica.boot.discards-log") {
            return;
        }
        self.lock(&put);
        let owes = self.owes(&put);
        self.logged.insert(put.id, Logged { put, standing, forced: true, doubt_at: Time::ZERO, owes });
    }
    /// A version, found at boot, that some member may not have.
    pub fn found_mark(&mut self, key: Bytes, at: Timestamp) {
        if !mutant!("kv-replica.boot.discards-marks") {
            self.mark(key, at, Time::ZERO);
        }
    }
    pub fn epoch(&self) -> Epoch {
        self.view.as_ref().map_or(Epoch(0), |v| v.epoch)
    }
    pub fn primary(&self) -> Option<NodeId> {
        self.view.as_ref().map(|v| v.primary)
    }
    pub fn leads(&self, me: NodeId) -> bool {
        self.primary() == Some(me)
    }
    pub fn others(&self, me: NodeId) -> Vec<NodeId> {
        let members = self.view.iter().flat_map(|v| &v.members);
        members.map(|m| m.node).filter(|n| *n != me).collect()
    }
    pub fn send(&self, ctx: &mut Ctx, to: NodeId, body: Body) {
        ctx.answered.note(&body);
        ctx.fx.send(Packet { from: ctx.me, to, partition: self.p, epoch: self.epoch(), body });
    }
    pub fn trace(&self, ctx: &mut Ctx, point: TracePoint, b: u64) {
        ctx.fx.trace(point, u64::from(self.p.0), b);
    }
    /// Locks all keys of a put, those of its conditions too.
    pub fn lock(&mut self, put: &Put) {
        let keys = put.keys().take(if mutant!("kv-replica.batch.locks-first") { 1 } else { usize::MAX });
        keys.for_each(|key| *self.locks.entry(key.clone()).or_insert(0) += 1);
    }
    pub fn unlock(&mut self, put: &Put) {
        for key in put.keys() {
            let Some(n) = self.locks.get_mut(key) else { continue };
            *n -= 1;
            if *n == 0 {
                self.locks.remove(key);
            }
        }
    }

    /// A view of the membership service. Older ones, and those of an earlier run of this node, change nothing.
    pub fn install(&mut self, ctx: &mut Ctx, view: View) -> bool {
        if view.epoch <= self.known {
            return false;
        }
        self.known = view.epoch;
        let me = view.member(ctx.me).filter(|m| m.incarnation == ctx.incarnation).cloned();
        self.lead = None;
        self.keys.keep_deadlines(false);
        self.adopted = Adopted::No;
        self.adopting = Findings::default();
        self.refuse_held(ctx);
        self.fill = None;
        self.assembled = false;
        let Some(me) = me else {
            self.view = None;
            return true;
        };
        let wants = me.wants.minus(&me.holds);
        self.view = Some(view);
        for (_, l) in self.logged.iter_mut() {
            l.doubt_at = ctx.now + ctx.config.doubt;
        }
        if !wants.is_empty() {
            if mutant!("kv-replica.rejoin.discards-evidence") {
                self.logged.take().into_values().for_each(|l| self.unlock(&l.put));
            }
            self.fill = Some(Fill::new(wants));
        }
        if self.leads(ctx.me) {
            self.take_over(ctx);
        }
        true
    }

    /// A message of this partition. `NewView` is the node's matter.
    pub fn on_packet(&mut self, ctx: &mut Ctx, packet: Packet) {
        // Two former members would answer each other for ever, and links that repeat packets multiply the answers.
        let answers_ours = matches!(packet.body, Body::Outdated(_)) && !mutant!("kv-replica.epoch.answers-refusals");
        if self.stopped.is_some() || answers_ours {
            return;
        }
        let current = self.view.is_some() && packet.epoch == self.epoch() || packet.is_routed_read();
        if !current && (!mutant!("kv-replica.epoch.ignore") || self.view.is_none()) {
            self.trace(ctx, OUTDATED, u64::from(packet.epoch.0));
            let newer = self.view.clone().filter(|v| v.epoch > packet.epoch).map(Box::new);
            self.send(ctx, packet.from, Body::Outdated(newer));
            return;
        }
        let from = packet.from;
        match packet.body {
            Body::Put(put) if self.adopted == Adopted::Yes => self.on_put(ctx, *put),
            Body::Get { request, key, room } => self.on_get(ctx, HeldGet { client: from, request, key, room }),
            Body::ForwardedGet { client, request, key, room } => {
                self.on_get(ctx, HeldGet { client, request, key, room });
            }
            Body::Scan { request, after, limit } => self.on_scan(ctx, from, request, after, limit),
            Body::Count { request } => self.on_count(ctx, from, request),
            Body::Prepare(put) if self.adopted == Adopted::Yes && self.has_room(ctx, &put) => self.log(ctx, *put),
            Body::Decide { id, attempt, decision, put } => {
                self.on_decide(ctx, id, attempt, decision, put.map(|p| *p));
            }
            Body::Collect { after } => self.on_collect(ctx, from, after),
            Body::Query { from: first, attempts } => {
                let known = attempts.iter().map(|a| self.known_of(a.id, a.attempt, &a.keys)).collect();
                self.send(ctx, from, Body::Evidence { from: first, known });
            }
            Body::Complete { keys, at } => self.on_complete(ctx, &keys, at),
            Body::Sweep { upto } if Some(from) == self.primary() => _ = self.sweep(ctx, upto),
            Body::AskComplete { key, at } => self.on_ask_complete(ctx, from, key, at),
            Body::Pull { wants, at } => self.on_pull(ctx, from, &wants, at),
            Body::Chunk(chunk) => self.on_chunk(ctx, from, *chunk),
            Body::Logged { id, attempt } => self.on_logged(ctx, from, id, attempt),
            Body::Refuse { id, attempt } => self.on_refuse(ctx, from, id, attempt),
            Body::NoRoom { id, attempt } => self.on_no_room(ctx, from, id, attempt),
            Body::Applied { id, attempt, at } => self.on_applied(ctx, from, id, attempt, at),
            Body::Missing { id, attempt } => self.on_missing(ctx, from, id, attempt),
            Body::Doubt { id, attempt } => self.on_doubt(ctx, from, id, attempt),
            Body::Activated if from == ctx.meta => self.on_activated(ctx),
            Body::Report { after, undecided, more } => self.on_report(ctx, from, after, undecided, more),
            Body::Evidence { from: first, known } => self.on_evidence(ctx, from, first, known),
            Body::Adopt { part, last, undecided, ended } => self.on_adopt(ctx, part, last, undecided, ended),
            Body::Adopted { part } => self.on_adopted(ctx, from, part),
            _ => {}
        }
    }

    fn on_put(&mut self, ctx: &mut Ctx, put: Put) {
        let members = self.view.as_ref().map_or(0, |v| v.members.len());
        if members < ctx.config.min_copies && !mutant!("kv-replica.copies.too-few") || !self.has_room(ctx, &put) {
            return;
        }
        if self.leads(ctx.me) {
            self.lead_put(ctx, put);
        } else if self.logged.len() < ctx.config.puts_max {
            self.log(ctx, put);
        }
    }

    /// Whether this member may log the put, as far as its store's room goes. The primary hears of it otherwise.
    fn has_room(&mut self, ctx: &mut Ctx, put: &Put) -> bool {
        let (id, attempt) = (put.id, put.attempt);
        let new = self.admission(id, attempt) == Admission::Fresh && !self.logged.contains_key(&id);
        // A primary's own puts delete what has expired.
        let own = Some(id.client) == self.primary();
        if !new || own || ctx.takes(put, (put_bytes(put), self.owes(put))) {
            return true;
        }
        match self.primary() {
            Some(p) if p == ctx.me => self.on_no_room(ctx, p, id, attempt),
            Some(p) => self.send(ctx, p, Body::NoRoom { id, attempt }),
            None => {}
        }
        false
    }

    /// Logs a put, and acknowledges it once it is durable.
    pub fn log(&mut self, ctx: &mut Ctx, put: Put) {
        let (id, attempt) = (put.id, put.attempt);
        let earlier = self.logged.get(&id);
        if let Some(l) = earlier.filter(|l| l.put.attempt >= attempt || l.standing != Standing::New) {
            if l.put.attempt == attempt && l.forced && l.standing == Standing::New {
                self.acknowledge(ctx, id, attempt);
            }
            return;
        }
        let locked = earlier.is_some();
        if self.admission(id, attempt) != Admission::Fresh {
            self.refuse(ctx, id, attempt);
            return;
        }
        if !locked {
            self.lock(&put);
        }
        let (bytes, owes) = (put_bytes(&put), self.owes(&put));
        ctx.space.unforced += bytes;
        let undecided = Undecided { put, standing: Standing::New };
        let entry = (record::logged_key(self.p, &id), Some(record::undecided(&undecided)));
        let (put, doubt_at) = (undecided.put, ctx.now + ctx.config.doubt);
        self.logged.insert(id, Logged { put, standing: Standing::New, forced: false, doubt_at, owes });
        ctx.journal.force(ctx.fx, vec![entry], Forced::Logged { p: self.p, id, attempt, bytes });
        if mutant!("kv-replica.log.acknowledged-early") {
            self.acknowledge(ctx, id, attempt);
        }
    }

    pub fn admission(&self, id: PutId, attempt: u32) -> Admission {
        self.clients.get(&id.client).map_or(Admission::Fresh, |c| c.admit(id, attempt))
    }

    /// The primary aborts too what this member has recorded as aborted, and what a later run of the client outdates.
    fn refuse(&mut self, ctx: &mut Ctx, id: PutId, attempt: u32) {
        let never = match self.admission(id, attempt) {
            Admission::Finished(e) => matches!(e.how, Finished::Aborted(_)),
            Admission::Stale => !mutant!("kv-replica.client.outdates-older"),
            Admission::Fresh => false,
        };
        if let Some(primary) = self.primary().filter(|p| never && *p != ctx.me) {
            self.send(ctx, primary, Body::Refuse { id, attempt });
        }
    }

    fn acknowledge(&mut self, ctx: &mut Ctx, id: PutId, attempt: u32) {
        match self.primary() {
            Some(p) if p == ctx.me => self.on_logged(ctx, p, id, attempt),
            Some(p) => self.send(ctx, p, Body::Logged { id, attempt }),
            None => {}
        }
    }

    pub fn forced_log(&mut self, ctx: &mut Ctx, id: PutId, attempt: u32) {
        let Some(l) = self.logged.get_mut(&id).filter(|l| l.put.attempt == attempt) else { return };
        l.forced = true;
        if l.put.early {
            self.send(ctx, id.client, Body::Held { id, attempt });
        }
        self.acknowledge(ctx, id, attempt);
    }

    /// The primary's final word. A late one changes nothing and is acknowledged again.
    pub fn on_decide(&mut self, ctx: &mut Ctx, id: PutId, attempt: u32, decision: Decision, put: Option<Put>) {
        let at = decision.at();
        if self.applying.contains_key(&(id, at)) {
            return;
        }
        // At most one attempt is committed: whichever is here.
        let ends = |l: &&Logged| l.put.attempt <= attempt || at.is_some();
        let logged = self.logged.get(&id).filter(ends).map(|l| l.put.clone());
        let in_log = logged.is_some();
        match decision {
            Decision::Abort | Decision::Forget => {
                self.abort(ctx, id, attempt, logged, decision == Decision::Abort);
            }
            Decision::Commit(commit) => {
                let Some(contents) = logged.or(put) else {
                    self.without_contents(ctx, id, attempt, commit.at);
                    return;
                };
                self.apply(ctx, &contents, attempt, commit, in_log);
            }
        }
    }

    /// A decision without contents: it was applied, or its put never came.
    fn without_contents(&mut self, ctx: &mut Ctx, id: PutId, attempt: u32, at: Timestamp) {
        if self.admission(id, attempt) != Admission::Fresh {
            self.applied(ctx, id, attempt, Some(at));
        } else if let Some(primary) = self.primary() {
            self.send(ctx, primary, Body::Missing { id, attempt });
        }
    }

    /// `record`: the attempt has no effect for good.
    fn abort(&mut self, ctx: &mut Ctx, id: PutId, attempt: u32, logged: Option<Put>, record: bool) {
        let epoch = self.epoch();
        let client = self.clients.entry(id.client).or_default();
        let recorded = client.admit(id, attempt) != Admission::Fresh;
        if (recorded || !record) && logged.is_none() {
            self.applied(ctx, id, attempt, None);
            return;
        }
        // Only a decision that is new raises the floor: the put's own may be old.
        if record {
            client.finish(id, 0, Ending { epoch, how: Finished::Aborted(attempt) });
        }
        let mut entries = vec![(record::client_key(self.p, id.client), Some(record::client(client)))];
        self.applying.insert((id, None), logged.clone().map(|put| Put { attempt, ..put }));
        if let Some(put) = logged {
            self.logged.remove(&id);
            entries.push((record::logged_key(self.p, &id), None));
            self.unlock(&put);
            put.keys().for_each(|key| self.serve_held(ctx, key, false));
        }
        ctx.journal.force(ctx.fx, entries, Forced::Applied { p: self.p, id, attempt, at: None, keys: Vec::new() });
    }

    fn apply(&mut self, ctx: &mut Ctx, put: &Put, attempt: u32, commit: Commit, in_log: bool) {
        let Commit { at, verdict, origin } = commit;
        let id = put.id;
        let newest = |s: &Replica, key: &Bytes| s.newest(key) < at || mutant!("kv-replica.order.applies-older");
        let recorded = || self.admission(id, attempt) != Admission::Fresh;
        let writes = verdict == Verdict::Applied && put.changed().next().is_some();
        let repeated = if writes { !put.changed().any(|key| newest(self, key)) } else { recorded() };
        if repeated && !in_log {
            self.applied(ctx, id, attempt, Some(at));
            return;
        }
        let client = self.clients.entry(id.client).or_default();
        client.finish(id, put.floor, Ending { epoch: at.epoch, how: Finished::Committed(verdict) });
        let mut entries = vec![(record::client_key(self.p, id.client), Some(record::client(client)))];
        if self.logged.remove(&id).is_some() {
            entries.push((record::logged_key(self.p, &id), None));
        }
        let applied: Vec<&Item> = put.items.iter().filter(|i| writes && newest(self, &i.key)).collect();
        for Item { key, change, .. } in applied {
            let (value, expires) = match change {
                Some(Change::Set { value, expires }) => (Some(value.clone()), commit.expiry(*expires)),
                Some(Change::Delete) => (None, None),
                None => continue,
            };
            let version = Version { at, origin, by: id, value, expires };
            let version = KeyVersion::new(self.p, key, &version);
            entries.push(version.change());
            self.keys.insert(version);
            if !mutant!("kv-replica.get.before-all-applied") {
                self.mark(key.clone(), at, ctx.now + ctx.config.doubt);
                entries.push((record::mark_key(self.p, key), Some(record::mark(at))));
            }
            if mutant!("kv-replica.batch.applies-first") {
                break;
            }
        }
        if in_log {
            self.unlock(put);
        }
        self.applying.insert((id, Some(at)), Some(Put { attempt, ..put.clone() }));
        let keys = put.keys().cloned().collect();
        let then = Forced::Applied { p: self.p, id, attempt, at: Some(at), keys };
        ctx.journal.force(ctx.fx, entries, then);
        if mutant!("kv-replica.apply.acknowledged-early") {
            self.applied(ctx, id, attempt, Some(at));
        }
    }

    fn applied(&mut self, ctx: &mut Ctx, id: PutId, attempt: u32, at: Option<Timestamp>) {
        match self.primary() {
            Some(p) if p == ctx.me => self.on_applied(ctx, p, id, attempt, at),
            Some(p) => self.send(ctx, p, Body::Applied { id, attempt, at }),
            None => {}
        }
    }

    pub fn forced_decision(&mut self, ctx: &mut Ctx, id: PutId, attempt: u32, at: Option<Timestamp>, keys: &[Bytes]) {
        self.applying.remove(&(id, at));
        self.applied(ctx, id, attempt, at);
        keys.iter().for_each(|key| self.serve_held(ctx, key, false));
    }

    /// Puts whose decision is not durable here, by identity.
    pub fn undecided(&self) -> Vec<Undecided> {
        let logged = self.logged.values().map(|l| Undecided { put: l.put.clone(), standing: l.standing });
        let applying = self.applying.values().flatten().filter(|_| !mutant!("kv-replica.takeover.volatile-decisions"));
        let applying = applying.map(|put| Undecided { put: put.clone(), standing: Standing::New });
        let mut all: Vec<Undecided> = logged.chain(applying).collect();
        all.sort_by_key(|u| u.put.id);
        all
    }

    /// Everything that this member knows of an attempt, for the primary of a new view.
    pub fn known_of(&self, id: PutId, attempt: u32, changed: &[Bytes]) -> Known {
        let log = self.logged.get(&id).filter(|l| l.put.attempt >= attempt).map(|l| l.standing);
        let end = match (self.written(id, changed), self.admission(id, attempt)) {
            (Some(commit), _) => KnownEnd::Written(commit),
            (None, Admission::Finished(ending)) => KnownEnd::Finished(ending),
            (None, Admission::Stale) => KnownEnd::Stale,
            (None, Admission::Fresh) => KnownEnd::None,
        };
        Known { log, end }
    }

    /// The commit of a put whose version is the one of every key that it changes.
    pub fn written(&self, id: PutId, changed: &[Bytes]) -> Option<Commit> {
        let version = |key: &Bytes| self.keys.get(key).filter(|v| v.by == id);
        let v = changed.first().and_then(version)?;
        let commit = Commit { at: v.at, origin: v.origin, verdict: Verdict::Applied };
        let all = changed.iter().all(|key| version(key).is_some()) || mutant!("kv-replica.batch.partly-written");
        all.then_some(commit)
    }

    /// When [`Replica::tick`] may have something to do.
    pub fn tick_at(&self, now: Time, ms: u64, tick: Span) -> Time {
        if self.view.is_none() || self.stopped.is_some() {
            return Time::MAX;
        }
        let leads_on = self.lead.as_ref().is_some_and(|l| l.phase != Phase::Active || !l.puts.is_empty());
        let logged = !self.logged.is_empty() || !self.marks.is_empty();
        if leads_on || logged || self.fill.is_some() {
            return now + tick;
        }
        if self.lead.is_none() {
            return Time::MAX;
        }
        let expiry =
            self.keys.deadlines().next().map(|(at, _)| now + Span::from_millis(at.saturating_sub(ms)).max(tick));
        let sweep = self.keys.has_tombstones().then(|| self.sweep_at.max(now + tick));
        expiry.into_iter().chain(sweep).min().unwrap_or(Time::MAX)
    }

    pub fn tick(&mut self, ctx: &mut Ctx) {
        if self.view.is_none() || self.stopped.is_some() {
            return;
        }
        self.tick_fill(ctx);
        self.tick_gets(ctx);
        if self.leads(ctx.me) {
            self.tick_lead(ctx);
            return;
        }
        let Some(primary) = self.primary() else { return };
        let due: Vec<(PutId, u32)> = self
            .logged
            .iter_mut()
            .filter(|(_, l)| l.doubt_at <= ctx.now)
            .map(|(_, l)| {
                l.doubt_at = ctx.now + ctx.config.doubt;
                (l.put.id, l.put.attempt)
            })
            .collect();
        for (id, attempt) in due {
            self.send(ctx, primary, Body::Doubt { id, attempt });
        }
    }

    /// A member holds a committed version that its primary does not have: nobody decides which is right.
    pub fn stop(&mut self, ctx: &mut Ctx, key: Bytes) {
        if self.stopped.is_none() {
            self.trace(ctx, STOPPED, 0);
            self.refuse_held(ctx);
            self.stopped = Some(key);
            self.report_stop(ctx);
        }
    }

    /// The membership service has recorded that the partition stopped.
    pub fn on_stop_recorded(&mut self, ctx: &mut Ctx, key: Bytes) {
        self.stop_recorded = true;
        self.stop(ctx, key);
    }

    /// Repeated with each heartbeat until it is recorded: the member keeps its place in the view, and the others answer gets.
    pub fn report_stop(&self, ctx: &mut Ctx) {
        if let Some(key) = self.stopped.clone().filter(|_| self.has_stop_to_report()) {
            let to = ctx.meta;
            self.send(ctx, to, Body::Fault { key });
        }
    }
    pub fn has_stop_to_report(&self) -> bool {
        self.stopped.is_some() && !self.stop_recorded && self.view.is_some()
    }
}

/// In place of a client, for tombstones of keys that no put has written.
pub(crate) const NOBODY: NodeId = NodeId(u32::MAX);

/// Stands for an attempt whose contents do not matter any more.
pub(crate) fn aborted(id: PutId, attempt: u32) -> Put {
    Put { id, attempt, floor: 0, early: false, items: Vec::new() }
}
