//! Requests for credit, and grants (rule 9).

use rackweave_core::MESSAGE_MAX;
use rackweave_core::msg::peer::Credit;
use rackweave_core::msg::{IoError, IoReply, Peer};

use crate::config::{CREDIT_PAGES, RECALLS_MAX};
use crate::credit::Recall;
use crate::op::Waiting;
use crate::replica::{Cx, Replica};
use crate::store::Store;
use crate::timers::{Timer, Wait};
use crate::trace;

/// Blocks of the largest write, unaligned at both ends.
const NEED_SLOTS: u64 = (MESSAGE_MAX / rackweave_core::BLOCK) as u64 + 1;

/// Number of the messages that recall page credit and return it; no request for credit has it.
const RECALL: u64 = u64::MAX;

/// Whether a write may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    Ok,
    Wait,
    /// Own flash has no room.
    NoSpace,
}

impl Replica {
    /// Space that neither the store nor a grant nor a request of a fill has taken.
    pub(crate) fn available<S: Store>(&mut self, cx: &Cx<'_, S>) -> (u64, u64) {
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
        let mapped = if pages == 0 { u64::MAX } else { 0 };
        self.reserve_beside(cx, slots, pages, mapped)
    }

    /// The same; members in `mapped` need a slot, but no page.
    pub(crate) fn reserve_beside<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        slots: u64,
        pages: u64,
        mapped: u64,
    ) -> Reserve {
        if mutant!("replica.credit.none-needed") {
            return Reserve::Ok;
        }
        let (free_slots, free_pages) = self.available(cx);
        if pages > free_pages && !mutant!("replica.credit.own-pages") {
            if self.expects_pages(cx, self.me, pages, free_pages) {
                return Reserve::Wait;
            }
            self.end_recall();
            return Reserve::NoSpace;
        }
        let others = self.others();
        let own_full = slots > free_slots;
        let there =
            |k: usize| if mapped & 1 << k == 0 && !mutant!("replica.credit.no-pages") { pages.max(1) } else { 0 };
        if own_full || Self::bits(others).any(|k| !self.accounts[k].has(slots, there(k))) {
            cx.fx.trace(if own_full { trace::CACHE_FULL } else { trace::NO_CREDIT }, slots, pages);
            return Reserve::Wait;
        }
        for k in Self::bits(others) {
            self.accounts[k].spend(slots, there(k));
        }
        if pages > 0 {
            self.end_recall();
        }
        Reserve::Ok
    }

    /// Whether pages that are not free now will be: what range records freed, or another member gives back.
    fn expects_pages<S: Store>(&mut self, cx: &mut Cx<'_, S>, asker: usize, pages: u64, free: u64) -> bool {
        pages <= free + cx.store.pages_coming() || self.recall(cx, asker)
    }

    /// Recalls unused page credit from all members but `asker`; whether an answer is still awaited.
    fn recall<S: Store>(&mut self, cx: &mut Cx<'_, S>, asker: usize) -> bool {
        let mut coming = false;
        for k in Self::bits(self.others()).filter(|&k| k != asker) {
            let a = &mut self.accounts[k];
            let times = match a.recall {
                _ if a.outstanding().1 == 0 => continue,
                Recall::Done => continue,
                Recall::No => 0,
                Recall::Requested { times, at } if cx.now.since(at) >= self.cfg.timeouts.retransmit => times,
                Recall::Requested { .. } => {
                    coming = true;
                    continue;
                }
            };
            if times == RECALLS_MAX {
                a.recall = Recall::Done;
                continue;
            }
            a.recall = Recall::Requested { times: times + 1, at: cx.now };
            coming = true;
            let credit = a.recalled();
            cx.fx.trace(trace::CREDIT_RECALLED, k as u64, 0);
            self.send(cx, k, RECALL, Peer::CreditGrant { credit });
        }
        coming
    }

    /// The requests that waited for pages are answered.
    fn end_recall(&mut self) {
        self.accounts.iter_mut().for_each(|a| a.recall = Recall::No);
    }

    /// A member is short of pages: it gets back all credit that no operation here waits for. Part of the wanted credit
    /// is useless, and two members that kept one part each would leave room that neither gets.
    fn release<S: Store>(&mut self, cx: &mut Cx<'_, S>, to: usize) {
        self.credit_queue_prune();
        let keep = self.credit_queue.front().and_then(|&r| self.waiting(r)).map_or(0, |w| w.need().1);
        let keep = if self.accounts[to].has_pages(keep) { keep } else { 0 };
        self.accounts[to].release(keep);
        self.tell_used(cx, to, RECALL, 0);
    }

    fn tell_used<S: Store>(&self, cx: &mut Cx<'_, S>, to: usize, number: u64, want_pages: u64) {
        let (used, flying) = (self.accounts[to].used(), self.flying(to));
        let ask = Peer::CreditRequest {
            slots_used: used.0.saturating_sub(flying.0),
            pages_used: used.1.saturating_sub(flying.1),
            want_pages: want_pages as u32,
        };
        self.send(cx, to, number, ask);
    }

    /// Spends what goes out without waiting for credit: what was sent in a former epoch, or by another, whose credit is
    /// gone. It must end, and never waits for pages that may be given away by then.
    pub(crate) fn owe(&mut self, slots: u64, pages: u64) {
        for k in Self::bits(self.others()) {
            self.accounts[k].spend(slots, pages);
        }
    }

    /// Whether the cache has room for a member's blocks: within its credit, or in slots that are not promised.
    /// Otherwise the member gets the next free ones, and sends again.
    pub(crate) fn has_room<S: Store>(&mut self, cx: &Cx<'_, S>, from: usize, slots: u64) -> bool {
        let credit = self.accounts[from].outstanding().0;
        if slots <= credit || slots - credit <= self.available(cx).0 || mutant!("replica.credit.room-unchecked") {
            return true;
        }
        self.accounts[from].wants.get_or_insert((0, 0));
        false
    }

    /// Requests credit from every member with too little, for the first request in the queue (or a recovery). Returns
    /// those members, as bits.
    pub(crate) fn request_credit<S: Store>(&mut self, cx: &mut Cx<'_, S>) -> u64 {
        self.credit_queue_prune();
        let head = self.credit_queue.front().and_then(|&r| self.waiting(r));
        let need = match head {
            Some(w) => w.need(),
            None if self.recovery.is_some() => (1, 1),
            None => {
                self.credit_ask = 0;
                return 0;
            }
        };
        if self.credit_ask == 0 {
            self.credit_ask = self.id();
        }
        let mut requested = 0;
        for k in Self::bits(self.others()) {
            if self.accounts[k].has(need.0, need.1) {
                continue;
            }
            requested |= 1 << k;
            self.tell_used(cx, k, self.credit_ask, need.1);
        }
        self.timers.set(cx.now, Wait::Retransmit(1), Timer::Credit(self.credit_ask));
        requested
    }

    /// Repeats unanswered requests.
    pub(crate) fn credit_timer<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let requested = self.request_credit(cx);
        self.request_silent(cx, requested);
        self.run_credit_queue(cx);
    }

    /// Spent at a member by operations it has not answered.
    fn flying(&self, k: usize) -> (u64, u64) {
        self.ops.iter().fold((0, 0), |(s, p), (_, op)| match &op.kind {
            crate::op::OpKind::Blocks(b) if b.unsettled & 1 << k != 0 => (s + b.cost.0, p + b.cost.1),
            _ => (s, p),
        })
    }

    /// A request waits for credit, and those that come now would wait behind it.
    pub fn lacks_credit(&self) -> bool {
        self.credit_queue.iter().any(|&r| self.waiting(r).is_some())
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
            let (slots, pages) = self.waiting(r).map_or((1, 0), Waiting::need);
            let (free_slots, free_pages) = self.available(cx);
            let enough = Self::bits(self.others()).all(|k| self.accounts[k].has(slots, pages));
            // Without pages here it runs as well: into its refusal. Unless some are about to be free.
            let short = pages > free_pages;
            let soon = short && self.expects_pages(cx, self.me, pages, free_pages);
            if soon || (!short && (slots > free_slots || !enough)) {
                break;
            }
            self.credit_queue.pop_front();
            self.wake(r);
            // One at a time: what the next may have is known when this one has begun.
            self.settle(cx);
        }
        if self.credit_queue.is_empty() {
            self.credit_ask = 0;
        }
        self.recovery_go_on(cx);
    }

    /// A credit came from a member, alone or with an acknowledgement.
    pub(crate) fn credit_came<S: Store>(&mut self, cx: &mut Cx<'_, S>, from: usize, credit: Credit) {
        let more = self.accounts[from].granted(credit);
        if more && (!self.credit_queue.is_empty() || self.recovery.is_some()) {
            self.run_credit_queue(cx);
        }
    }

    /// Answer to a request.
    pub(crate) fn credit_granted<S: Store>(&mut self, cx: &mut Cx<'_, S>, from: usize, ask: u64, credit: Credit) {
        self.credit_came(cx, from, credit);
        if ask == RECALL {
            return self.release(cx, from);
        }
        if !credit.no_space || ask != self.credit_ask || self.credit_queue.is_empty() {
            // A recovery waits: what it lacks comes with others' tombstones.
            return;
        }
        // Only those that need more pages than there are fail.
        let queue = std::mem::take(&mut self.credit_queue);
        for r in queue {
            let Some(pages) = self.waiting(r).map(|w| w.need().1) else { continue };
            if pages == 0 || self.accounts[from].has_pages(pages) {
                self.credit_queue.push_back(r);
                continue;
            }
            match self.take_waiter(r) {
                Some(Waiting::Job { job, .. }) => self.no_space(cx, job.asker),
                Some(Waiting::Retry { op, .. }) => self.retry_failed(cx, op, IoError::NoSpace),
                None => {}
            }
        }
        self.run_credit_queue(cx);
    }

    pub(crate) fn no_space<S: Store>(&mut self, cx: &mut Cx<'_, S>, asker: crate::op::Requester) {
        self.stats.no_space += 1;
        cx.fx.trace(trace::NO_SPACE, u64::from(self.cfg.set.0), 0);
        self.reply(cx, asker, IoReply::Failed(IoError::NoSpace));
    }

    /// The grant in every acknowledgement.
    pub(crate) fn grant<S: Store>(&mut self, cx: &mut Cx<'_, S>, to: usize) -> Credit {
        self.grant_needed(cx, to, (0, 0))
    }

    fn grant_needed<S: Store>(&mut self, cx: &mut Cx<'_, S>, to: usize, need: (u64, u64)) -> Credit {
        let available = self.available(cx);
        // No member gets spare pages while another one lacks some.
        let short = self.accounts.iter().any(|a| a.recall != Recall::No);
        let windows = (self.window(), if short { 0 } else { CREDIT_PAGES });
        self.accounts[to].top_up(available, windows, need)
    }

    pub(crate) fn credit_requested<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        ask: u64,
        used: (u64, u64),
        want_pages: u32,
    ) {
        self.accounts[from].report_used(used.0, used.1);
        if ask == RECALL {
            self.accounts[from].recall = Recall::Done;
            self.answer_credit_asks(cx);
            return self.run_credit_queue(cx);
        }
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
        if (slots == 0 && !credit.no_space) || (credit.no_space && (coming || self.recall(cx, to))) {
            // Slots and pages come free by themselves, or are given back: answered then.
            return;
        }
        if want > 0 {
            self.end_recall();
        }
        self.accounts[to].wants = None;
        self.send(cx, to, ask, Peer::CreditGrant { credit });
    }
}
