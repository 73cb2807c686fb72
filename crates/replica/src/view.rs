//! Views: the effect of an epoch change on all pending work.

use rackweave_core::msg::{Role, View, ViewState};
use rackweave_core::{Effects, Incarnation, Time, Timestamp};

use crate::credit::Account;
use crate::op::{BlockState, OpKind, Persist, Purpose};
use crate::replica::{Cx, Replica};
use crate::store::Store;
use crate::timers::{Ref, Timer, Wait};
use crate::trace;

impl Replica {
    /// Installs a newer view; `me` is this server's present incarnation. A view that has another one of it, or none,
    /// ends this replica's part.
    pub fn install<S: Store>(&mut self, now: Time, view: &View, me: Incarnation, store: &mut S, fx: &mut Effects) {
        if view.epoch <= self.epoch || view.set != self.cfg.set || self.failed {
            return;
        }
        let mut cx = Cx { now, store, fx };
        cx.fx.trace(trace::VIEW_INSTALLED, u64::from(view.set.0), u64::from(view.epoch.0));
        self.epoch = view.epoch;
        self.installed_at = now;
        self.recovered = view.recovered;
        self.state = view.state;
        self.incarnation = me;
        let place = view.members.iter().position(|m| {
            m.vssd == self.cfg.vssd && (m.incarnation == me || mutant!("replica.view.other-incarnation"))
        });
        let was = self.role;
        self.role = place.map(|i| view.members[i].role);
        self.me = place.unwrap_or(0);
        self.members.clone_from(&view.members);
        if !mutant!("replica.view.keeps-credit") {
            self.accounts.clear();
        }
        self.accounts.resize(self.members.len(), Account::default());
        self.credit_ask = 0;
        self.range_floor = 0;
        // Every sender in this epoch had all blocks that were Valid before.
        self.forgotten = Timestamp::ZERO;
        self.highest = 0;
        self.complete = false;
        self.fill = None;
        self.recovery = None;
        self.compare.forget();
        match (self.role, view.state) {
            (None, _) => {
                cx.fx.trace(trace::MEMBER_REMOVED, u64::from(view.set.0), u64::from(view.epoch.0));
                self.forget();
            }
            (Some(Role::Shadow), _) => {
                cx.fx.trace(trace::SHADOW_ADDED, u64::from(view.set.0), u64::from(view.epoch.0));
                // Members settle what earlier epochs left unresolved here.
                if !mutant!("replica.shadow.keeps-unresolved") {
                    self.forget();
                }
                if !mutant!("replica.shadow.keeps-dedup") {
                    self.dedup.clear();
                }
                self.start_fill(&mut cx);
            }
            (Some(Role::Member), ViewState::Recovering { leader, .. }) => {
                self.forget();
                if !mutant!("replica.recovery.keeps-doubt") {
                    self.dedup.drop_doubtful();
                }
                if leader == self.cfg.vssd {
                    self.start_recovery(&mut cx);
                }
            }
            (Some(Role::Member), ViewState::Normal) => {
                if was.is_none() {
                    self.forget();
                }
                self.go_on(&mut cx);
            }
        }
        self.reach_anew(now);
        self.settle(&mut cx);
    }

    /// A member before and after: its own operations are sent again in the new epoch, those of departed members are
    /// replayed.
    fn go_on<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        self.loads.retain(|_, l| !matches!(l.purpose, Purpose::Source { .. } | Purpose::Fix));
        self.loads.iter_mut().for_each(|(_, l)| l.lost = 0);
        self.persists.retain(|_, p| matches!(p.1, Persist::Own { .. }) || mutant!("replica.view.keeps-persists"));
        if mutant!("replica.replay.skip") {
            self.skip_replays();
        }
        let others = self.others();
        let slots: Vec<u32> = self.ops.iter().map(|(s, _)| s as u32).collect();
        for slot in slots {
            let round = self.id();
            let op = &mut self.ops[slot as usize];
            op.round = round;
            let mut again = 0;
            match &mut op.kind {
                OpKind::Blocks(b) => {
                    for x in b.blocks.iter_mut().filter(|x| x.state == BlockState::Sent) {
                        x.missing = if mutant!("replica.view.keeps-round") { x.missing & others } else { others };
                        again += 1;
                    }
                    (b.cost, b.unsettled) = ((again, again), if again > 0 { others } else { 0 });
                }
                OpKind::Range(x) => x.missing = others,
                OpKind::Flush { missing } => {
                    *missing = if mutant!("replica.flush.no-restart") { *missing & others } else { others };
                    cx.fx.trace(trace::FLUSH_RESTART, op.id, 0);
                }
                OpKind::Fence { missing, .. } => *missing = others,
            }
            self.owe(again, again);
            self.send_round(cx, slot);
        }
        self.replay_departed(cx);
        self.wake_copies();
        self.run_credit_queue(cx);
        if !self.credit_queue.is_empty() {
            self.request_credit(cx);
        }
    }

    fn still_here(&self, coordinator: Incarnation) -> bool {
        self.members.iter().any(|m| m.incarnation == coordinator && m.role == Role::Member)
    }

    /// The mutant `replica.replay.skip`: operations of departed members count as valid.
    fn skip_replays(&mut self) {
        let left = self.active.entries.iter().filter(|(_, e)| !self.still_here(e.coordinator));
        let mut left: Vec<_> = left.map(|(_, e)| (e.addr, e.version)).collect();
        left.sort_unstable();
        for (a, version) in left {
            self.validate(a, version);
        }
    }

    fn replay_departed<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let mut blocks: Vec<_> = self.active.entries.iter().map(|(s, e)| (e.addr, s as u32, e.id)).collect();
        blocks.sort_unstable();
        for (_, slot, id) in blocks {
            let e = &self.active.entries[slot as usize];
            if e.op.is_some() {
                continue;
            }
            let wait = if self.still_here(e.coordinator) { Wait::Replay(0) } else { Wait::Now };
            self.timers.set(cx.now, wait, Timer::Entry(Ref { slot, id }));
        }
        let ranges: Vec<_> = self.active.ranges.iter().map(|r| (r.id, r.coordinator, r.op.is_some())).collect();
        for (id, coordinator, own) in ranges {
            if !own {
                let wait = if self.still_here(coordinator) { Wait::Replay(0) } else { Wait::Now };
                self.timers.set(cx.now, wait, Timer::Range(id));
            }
        }
    }
}
