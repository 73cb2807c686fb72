//! Credits asked for and granted (rule 9).

use rackweave_core::msg::peer::Credit;
use rackweave_core::msg::{IoError, IoReply, Peer};
use rackweave_core::{MESSAGE_MAX, TracePoint};

use crate::op::Waiting;
use crate::replica::{Cx, Replica};
use crate::store::Store;
use crate::timers::{Timer, Wait};

/// Blocks of the largest write, unaligned at both ends.
const NEED_SLOTS: u64 = (MESSAGE_MAX / rackweave_core::BLOCK) as u64 + 1;

/// Whether a write may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    Ok,
    Wait,
    /// Own flash has no room.
    NoSpace,
}

impl Replica {
    /// What neither the store nor a grant has taken, nor a fill asked for.
    fn available<S: Store>(&mut self, cx: &Cx<'_, S>) -> (u64, u64) {
        let free = cx.store.slots_free();
        self.slots_max = self.slots_max.max(free);
        let out = self.accounts.iter().fold((0, 0), |o, a| {
            let (s, p) = a.outstanding();
            (o.0 + s, o.1 + p)
        });
        let coming = self.fill_coming(cx);
        (free.saturating_sub(out.0 + coming.0), cx.store.pages_free().saturating_sub(out.1 + coming.1))
    }

    /// Slots any one member may hold: everyone's equal share of the cache, with one left over.
    fn window(&self) -> u64 {
        self.slots_max / (self.members.len() as u64 + 1)
    }

    /// Takes credit of every other member, and room here; or nothing.
    pub(crate) fn reserve<S: Store>(&mut self, cx: &mut Cx<'_, S>, slots: u64, pages: u64) -> Reserve {
        if self.cfg.faults.forget_credit {
            return Reserve::Ok;
        }
        let (free_slots, free_pages) = self.available(cx);
        if pages > free_pages {
            if pages <= free_pages + cx.store.pages_coming() {
                return Reserve::Wait;
            }
            return Reserve::NoSpace;
        }
        let others = self.others();
        let own_full = slots > free_slots;
        if own_full || Self::bits(others).any(|k| !self.accounts[k].has(slots, pages)) {
            cx.fx.trace(if own_full { TracePoint::CacheFull } else { TracePoint::NoCredit }, slots, pages);
            return Reserve::Wait;
        }
        for k in Self::bits(others) {
            self.accounts[k].spend(slots, pages);
        }
        Reserve::Ok
    }

    /// Asks every member that has given too little for whoever is first in the queue (or a recovery).
    pub(crate) fn ask_credit<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        self.credit_queue_prune();
        let head = self.credit_queue.front().and_then(|&r| self.waiting(r));
        let need = match head {
            Some(Waiting::Job { need, .. }) => *need,
            Some(Waiting::Retry { .. }) => (1, 0),
            None if self.recovery.is_some() => (1, 1),
            None => {
                self.credit_ask = 0;
                return;
            }
        };
        if self.credit_ask == 0 {
            self.credit_ask = self.id();
        }
        for k in Self::bits(self.others()) {
            if self.accounts[k].has(need.0, need.1) {
                continue;
            }
            let (used, flying) = (self.accounts[k].used(), self.flying(k));
            let ask = Peer::CreditAsk {
                slots_used: used.0.saturating_sub(flying.0),
                pages_used: used.1.saturating_sub(flying.1),
                want_pages: need.1 as u32,
            };
            self.send(cx, k, self.credit_ask, ask);
        }
        self.timers.set(cx.now, Wait::Retransmit(1), Timer::Credit(self.credit_ask));
    }

    /// Spent at a member by operations it has not answered.
    fn flying(&self, k: usize) -> (u64, u64) {
        self.ops.iter().fold((0, 0), |(s, p), (_, op)| match &op.kind {
            crate::op::OpKind::Blocks(b) if b.unsettled & 1 << k != 0 => (s + b.cost.0, p + b.cost.1),
            _ => (s, p),
        })
    }

    fn credit_queue_prune(&mut self) {
        while self.credit_queue.front().is_some_and(|&r| self.waiting(r).is_none()) {
            self.credit_queue.pop_front();
        }
    }

    /// Lets those waiting go on, in order, while there is enough.
    pub(crate) fn run_credit_queue<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        loop {
            self.credit_queue_prune();
            let Some(&r) = self.credit_queue.front() else { break };
            let (slots, pages) = match self.waiting(r) {
                Some(Waiting::Job { need, .. }) => *need,
                _ => (1, 0),
            };
            let (free_slots, free_pages) = self.available(cx);
            let enough = Self::bits(self.others()).all(|k| self.accounts[k].has(slots, pages));
            // Without pages here it runs as well: into its refusal. Unless some are about to be free.
            let short = pages > free_pages;
            let soon = short && pages <= free_pages + cx.store.pages_coming();
            if soon || (!short && (slots > free_slots || !enough)) {
                break;
            }
            self.credit_queue.pop_front();
            self.wake(r);
            // One at a time: what the next may have is known when this one has begun.
            self.settle_woken(cx);
        }
        if self.credit_queue.is_empty() {
            self.credit_ask = 0;
        }
        self.recovery_go_on(cx);
    }

    fn settle_woken<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        self.settle(cx);
    }

    /// A credit came from a member, alone or with an acknowledgement.
    pub(crate) fn credit_came<S: Store>(&mut self, cx: &mut Cx<'_, S>, from: usize, credit: Credit) {
        let more = self.accounts[from].granted(credit);
        if more && (!self.credit_queue.is_empty() || self.recovery.is_some()) {
            self.run_credit_queue(cx);
        }
    }

    /// The answer to an ask.
    pub(crate) fn credit_granted<S: Store>(&mut self, cx: &mut Cx<'_, S>, from: usize, ask: u64, credit: Credit) {
        self.credit_came(cx, from, credit);
        if !credit.no_space || ask != self.credit_ask {
            return;
        }
        // Only those that need more pages than there are fail.
        let queue = std::mem::take(&mut self.credit_queue);
        for r in queue {
            let starved = match self.waiting(r) {
                Some(Waiting::Job { need, .. }) => need.1 > 0 && !self.accounts[from].has_pages(need.1),
                Some(Waiting::Retry { .. }) => false,
                None => continue,
            };
            if !starved {
                self.credit_queue.push_back(r);
            } else if let Some(Waiting::Job { job, .. }) = self.take_waiter(r) {
                self.no_space(cx, job.asker);
            }
        }
        self.run_credit_queue(cx);
    }

    pub(crate) fn no_space<S: Store>(&mut self, cx: &mut Cx<'_, S>, asker: crate::op::Asker) {
        self.stats.no_space += 1;
        cx.fx.trace(TracePoint::NoSpace, u64::from(self.cfg.set.0), 0);
        self.reply(cx, asker, IoReply::Failed(IoError::NoSpace));
    }

    /// What goes with every acknowledgement.
    pub(crate) fn grant<S: Store>(&mut self, cx: &mut Cx<'_, S>, to: usize) -> Credit {
        self.grant_needed(cx, to, (0, 0))
    }

    fn grant_needed<S: Store>(&mut self, cx: &mut Cx<'_, S>, to: usize, need: (u64, u64)) -> Credit {
        let available = self.available(cx);
        let window = self.window();
        self.accounts[to].top_up(available, window, need)
    }

    pub(crate) fn credit_asked<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        ask: u64,
        used: (u64, u64),
        want_pages: u32,
    ) {
        self.accounts[from].told(used.0, used.1);
        self.accounts[from].wants = Some((want_pages, ask));
        self.answer_ask(cx, from);
    }

    pub(crate) fn answer_credit_asks<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        for k in 0..self.accounts.len() {
            if self.accounts[k].wants.is_some() {
                self.answer_ask(cx, k);
            }
        }
    }

    fn answer_ask<S: Store>(&mut self, cx: &mut Cx<'_, S>, to: usize) {
        let Some((want, ask)) = self.accounts[to].wants else { return };
        let mut credit = self.grant_needed(cx, to, (NEED_SLOTS, u64::from(want)));
        let (slots, pages) = self.accounts[to].outstanding();
        credit.no_space = pages < u64::from(want);
        let coming = cx.store.pages_coming() > 0 || self.makes_room();
        if (slots == 0 && !credit.no_space) || (credit.no_space && coming) {
            // Slots and pages come free by themselves: answered then.
            return;
        }
        self.accounts[to].wants = None;
        self.send(cx, to, ask, Peer::CreditGrant { credit });
    }
}
