//! Gets: any member that holds everything answers, under a lease, unless a put of the key is under way.
//!
//! A member locks a key when it logs a put, and unlocks it when it knows that *every* member has applied the version. One
//! that unlocked on its own application could show a version, and be lost together with the primary; the others have
//! logged it among other puts, and the next primary might commit those first.

use std::ops::Bound;

use bytes::Bytes;
use rackweave_core::kv::SCAN_MAX;
use rackweave_core::{Epoch, NodeId};

use crate::lead::{InFlight, Phase};
use crate::msg::{Body, GetResult, ScanResult};
use crate::record;
use crate::replica::{Ctx, Replica};
use crate::trace::{GET_FORWARDED, GET_HELD, NO_LEASE, NOT_READABLE};
use crate::types::{Found, Role, Timestamp};
use crate::versions::{KeyVersion, Live};

/// Most questions about versions at once.
const ASKS_MAX: usize = 64;

#[derive(Clone, Debug)]
pub(crate) struct HeldGet {
    pub client: NodeId,
    pub request: u64,
    pub key: Bytes,
    pub room: u32,
}

/// Which gets a member answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Serves {
    Any,
    /// Keys committed in its stint, which began with this epoch. It forwards others to the primary.
    Since(Epoch),
    None,
}

impl Replica {
    fn serves(&self, me: NodeId) -> Serves {
        let Some(view) = self.view.as_ref().filter(|_| self.stopped.is_none()) else { return Serves::None };
        let Some(m) = view.member(me) else { return Serves::None };
        match m.role {
            Role::Leaving => Serves::None,
            _ if view.is_full(m) => Serves::Any,
            // A primary that has fetched what it lacked also needs to know what others had logged.
            _ if self.assembled && self.settled() => Serves::Any,
            Role::Handoff if mutant!("kv-replica.handoff.answers-all") => Serves::Any,
            // It forwards to nobody else.
            _ if view.primary == me && !mutant!("kv-replica.handoff.leads-unfilled") => Serves::None,
            Role::Handoff => Serves::Since(m.since),
            Role::Home if mutant!("kv-replica.rejoin.serves-early") => Serves::Any,
            Role::Home => Serves::None,
        }
    }

    pub fn on_get(&mut self, ctx: &mut Ctx, get: HeldGet) {
        if !ctx.leased && !mutant!("kv-replica.lease.skip") {
            self.trace(ctx, NO_LEASE, 0);
            self.answer(ctx, &get, GetResult::Refused);
            return;
        }
        let serves = self.serves(ctx.me);
        if serves == Serves::None {
            self.trace(ctx, NOT_READABLE, 0);
            self.answer(ctx, &get, GetResult::Refused);
            return;
        }
        if self.waits(&get.key) {
            self.hold(ctx, get);
            return;
        }
        self.answer_from(ctx, &get, serves);
    }

    /// Whether a put of the key is under way, or its version may not be on all members.
    fn waits(&self, key: &Bytes) -> bool {
        let locked = self.locks.contains_key(key) && !mutant!("kv-replica.get.while-locked");
        locked || self.marks.contains_key(key)
    }

    /// Every member has forced this version. Whoever has not applied a later one may show it: a later one shows nowhere
    /// before all have applied it.
    pub fn on_complete(&mut self, ctx: &mut Ctx, keys: &[Bytes], at: Timestamp) {
        for key in keys {
            if self.marks.get(key).is_some_and(|m| m.at == at) {
                self.unmark(ctx, key);
            }
            let newest = self.keys.get(key).is_some_and(|v| v.at == at);
            self.serve_held(ctx, key, newest);
        }
    }

    fn unmark(&mut self, ctx: &mut Ctx, key: &Bytes) {
        self.marks.remove(key);
        ctx.journal.later((record::mark_key(self.p, key), None));
    }

    pub fn on_ask_complete(&mut self, ctx: &mut Ctx, from: NodeId, key: Bytes, at: Timestamp) {
        let Some(lead) = self.lead.as_ref().filter(|l| l.phase == Phase::Active) else { return };
        let of_key = lead.puts.values().filter(|f| f.put.keys().any(|k| *k == key));
        let pending = |f: &InFlight| f.decision.and_then(|d| d.at()) == Some(at) || lead.taken_over.contains(&f.put.id);
        let current = self.keys.get(&key).map_or(at <= self.swept, |v| v.at == at);
        if current && !of_key.into_iter().any(pending) {
            self.send(ctx, from, Body::Complete { keys: vec![key], at });
        }
    }

    pub fn tick_gets(&mut self, ctx: &mut Ctx) {
        if self.leads(ctx.me) {
            if self.settled() {
                // Every member has what earlier primaries committed.
                let epoch = self.epoch();
                let old = self.marks.iter().filter(|(_, m)| m.at.epoch < epoch).map(|(k, _)| k.clone());
                for key in old.collect::<Vec<_>>() {
                    self.unmark(ctx, &key);
                    self.serve_held(ctx, &key, false);
                }
            }
            return;
        }
        let Some(primary) = self.primary() else { return };
        let due = self.marks.iter_mut().filter(|(_, m)| m.ask_at <= ctx.now).take(ASKS_MAX);
        let due: Vec<(Bytes, Timestamp)> = due
            .map(|(k, m)| {
                m.ask_at = ctx.now + ctx.config.retry;
                (k.clone(), m.at)
            })
            .collect();
        for (key, at) in due {
            self.send(ctx, primary, Body::AskComplete { key, at });
        }
    }

    fn hold(&mut self, ctx: &mut Ctx, get: HeldGet) {
        if self.held_count == ctx.config.gets_max {
            self.answer(ctx, &get, GetResult::Refused);
            return;
        }
        self.trace(ctx, GET_HELD, 0);
        self.held_count += 1;
        self.held.entry(get.key.clone()).or_default().push(get);
    }

    /// The key's state is final for now.
    fn answer_from(&mut self, ctx: &mut Ctx, get: &HeldGet, serves: Serves) {
        let version = self.keys.get_version(&get.key);
        let expired = version.as_ref().is_some_and(|v| v.value.is_some() && v.expires.is_some_and(|t| t <= ctx.ms));
        let mine = match serves {
            Serves::Since(epoch) => version.as_ref().is_some_and(|v| v.at.epoch >= epoch),
            _ => true,
        };
        let leads = self.leads(ctx.me);
        if expired && leads {
            self.expire_awaited(ctx, &get.key);
            self.hold(ctx, get.clone());
            return;
        }
        if expired && mutant!("kv-replica.expiry.replica-answers") {
            self.answer(ctx, get, GetResult::Value { found: None, now: ctx.ms });
            return;
        }
        if (expired || !mine) && !leads {
            self.trace(ctx, GET_FORWARDED, 0);
            let HeldGet { client, request, key, room } = get.clone();
            let primary = self.primary().expect("it serves in a view");
            self.send(ctx, primary, Body::ForwardedGet { client, request, key, room });
            return;
        }
        let found = version.and_then(|v| Some(Found { value: v.value?, version: v.origin.at, expires: v.expires }));
        let result = match found {
            Some(f) if f.value.len() > get.room as usize => GetResult::NoRoom { bytes: f.value.len() as u32 },
            found => GetResult::Value { found, now: ctx.ms },
        };
        self.answer(ctx, get, result);
    }

    /// A member that answers any get lists its keys.
    pub fn on_scan(&mut self, ctx: &mut Ctx, from: NodeId, request: u64, after: Option<Bytes>, limit: u32) {
        let mut result = ScanResult::Refused;
        if self.lists(ctx) {
            let start = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let live = self.keys.range((start, Bound::Unbounded)).filter(|v| v.record().value.is_some());
            let mut live = live.map(KeyVersion::key).peekable();
            let keys = live.by_ref().take(limit.min(SCAN_MAX) as usize).map(Bytes::copy_from_slice).collect();
            result = ScanResult::Keys { keys, more: live.peek().is_some() };
        }
        self.send(ctx, from, Body::ScanReply { request, result });
    }
    pub fn on_count(&mut self, ctx: &mut Ctx, from: NodeId, request: u64) {
        let mut result = ScanResult::Refused;
        if self.lists(ctx) {
            let Live { keys, expiring } = self.keys.live();
            result = ScanResult::Count { keys, expiring };
        }
        self.send(ctx, from, Body::ScanReply { request, result });
    }
    fn lists(&self, ctx: &Ctx) -> bool {
        ctx.leased && self.serves(ctx.me) == Serves::Any
    }

    fn answer(&self, ctx: &mut Ctx, get: &HeldGet, result: GetResult) {
        self.send(ctx, get.client, Body::GetReply { request: get.request, result });
    }

    /// Gets that wait for the key. `complete`: they may see this version whatever else is under way; otherwise they wait
    /// until nothing is.
    pub fn serve_held(&mut self, ctx: &mut Ctx, key: &Bytes, complete: bool) {
        let serves = self.serves(ctx.me);
        if !complete && self.waits(key) {
            return;
        }
        let Some(gets) = self.held.remove(key) else { return };
        self.held_count -= gets.len();
        for get in gets {
            if !ctx.leased || serves == Serves::None {
                self.answer(ctx, &get, GetResult::Refused);
            } else {
                self.answer_from(ctx, &get, serves);
            }
        }
    }

    pub fn refuse_held(&mut self, ctx: &mut Ctx) {
        self.held_count = 0;
        for get in std::mem::take(&mut self.held).into_values().flatten() {
            self.answer(ctx, &get, GetResult::Refused);
        }
    }
}
