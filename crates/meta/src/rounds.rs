//! Wear leveling of a running rack: servers' reports, the balancer's rounds, and swaps as two moves (protocol rule 24).
//!
//! A server has one drive, so rounds within servers swap nothing; the contents are vSSDs. A vSSD's erases are counted
//! by its slot. Erases caused by its own arrival are not part of its rate, because rates are measured anew in each
//! round. A round that was planned and not begun is lost with the service; the next one plans again.

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::admin::{ServerWear, WearStatus};
use rackweave_core::msg::control::VssdWear;
use rackweave_core::{Effects, Incarnation, NodeId, NodeKind, SetId, Span, SsdId, Time, VssdId};

use crate::codec::{self, WearRecord};
use crate::members::Servers;
use crate::node::Meta;
use crate::wear::{Balancer, Swap, WearConfig};

/// Interval at which the rounds' progress is stored, and the most that a restart loses.
const WRITE_EVERY: Span = Span::from_secs(3_600);

/// One move of a swap.
#[derive(Clone, Copy, Debug)]
struct Going {
    vssd: VssdId,
    set: SetId,
    to: NodeId,
}

/// The balancer, and the swaps of its last round.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    cfg: Option<WearConfig>,
    before: Option<WearRecord>,
    balancer: Option<Balancer>,
    /// Last reported erases of each vSSD's slot.
    reported: BTreeMap<VssdId, u64>,
    planned: VecDeque<Swap>,
    going: Vec<Going>,
    swaps: u64,
    given_up: u64,
    write_at: Time,
}

impl Rounds {
    pub(crate) fn resume(&mut self, r: WearRecord) {
        (self.before, self.swaps, self.given_up) = (Some(r), r.swaps, r.given_up);
    }
    fn start(&mut self, now: Time) -> Option<&mut Balancer> {
        let cfg = self.cfg?;
        let before = self.before;
        Some(self.balancer.get_or_insert_with(|| match before {
            Some(r) => Balancer::resumed(cfg, now, r.local_in, r.global_in),
            None => Balancer::new(cfg, now),
        }))
    }
}

impl Meta {
    /// Adds wear leveling between servers.
    #[must_use]
    pub fn balanced(mut self, cfg: WearConfig) -> Meta {
        self.rounds.cfg = Some(cfg);
        self
    }

    /// A server's report: blocks of its drive, their erases, and the erases of each vSSD's blocks.
    pub(crate) fn worn(&mut self, src: NodeId, of: Incarnation, blocks: u64, erases: u64, vssds: &[VssdWear]) {
        if self.servers.server(src).incarnation != of || blocks == 0 {
            return;
        }
        let Some(b) = &mut self.rounds.balancer else { return };
        let Some(ssd) = self.cfg.layout.index(src, NodeKind::Server).map(SsdId) else { return };
        b.worn(ssd, src, erases as f64 / blocks as f64);
        for v in vssds {
            let Some(&(set, place)) = self.by_vssd.get(&v.vssd) else { continue };
            if self.sets[set].places[place].node != src {
                continue;
            }
            b.lie(v.vssd, ssd, 1.0 / f64::from(self.cfg.slots.max(1)));
            let more = v.erases.saturating_sub(self.rounds.reported.insert(v.vssd, v.erases).unwrap_or(v.erases));
            b.erased(v.vssd, more as f64 / blocks as f64);
        }
    }

    /// Plans a round when it is due, and starts one swap at a time.
    pub(crate) fn balance(&mut self, now: Time, fx: &mut Effects) {
        let Some(b) = self.rounds.start(now) else { return };
        let due = now >= b.due_at();
        if due && self.rounds.planned.is_empty() && self.rounds.going.is_empty() {
            self.plan_round(now);
        }
        self.follow();
        if self.rounds.going.is_empty()
            && let Some(swap) = self.rounds.planned.pop_front()
        {
            self.begin_swap(now, swap, fx);
        }
        if now >= self.rounds.write_at {
            self.put_wear(now);
        }
    }

    fn put_wear(&mut self, now: Time) {
        let Some(b) = &self.rounds.balancer else { return };
        let (local_in, global_in) = b.due_in(now);
        let r = WearRecord { local_in, global_in, swaps: self.rounds.swaps, given_up: self.rounds.given_up };
        self.rounds.write_at = now + WRITE_EVERY;
        self.out.put(codec::wear_key(), Some(codec::encode_wear(&r)));
    }

    fn plan_round(&mut self, now: Time) {
        let Some(mut b) = self.rounds.balancer.take() else { return };
        let live = |v: VssdId| self.by_vssd.get(&v).is_some_and(|&(s, p)| !self.sets[s].places[p].leaving);
        b.retain(live);
        self.rounds.reported.retain(|v, _| self.by_vssd.contains_key(v));
        let swaps = b.plan(now, |x, y| self.may_swap(x, y));
        self.rounds.planned = swaps.into();
        self.rounds.balancer = Some(b);
        self.put_wear(now);
    }

    /// Whether neither set has a copy at its target, and both have the same level and rack.
    fn may_swap(&self, x: VssdId, y: VssdId) -> bool {
        let (Some(&(a, i)), Some(&(b, k))) = (self.by_vssd.get(&x), self.by_vssd.get(&y)) else { return false };
        let level = |set: usize| {
            let id = self.sets[set].view.set;
            let level = self.cfg.levels.iter().find(|l| l.sets.contains(&id)).map(|l| l.level);
            (level, self.sets[set].own.map(|o| o.record.unit))
        };
        let on = |set: usize, node: NodeId| self.sets[set].places.iter().any(|p| p.node == node);
        let (from, to) = (self.sets[a].places[i].node, self.sets[b].places[k].node);
        x.rack() == y.rack() && level(a) == level(b) && !on(a, to) && !on(b, from)
    }

    /// Starts both moves or neither: a slot is kept free on either drive (`ssd.spare`), and nothing else moves there.
    fn begin_swap(&mut self, now: Time, swap: Swap, fx: &mut Effects) {
        let place = |v: VssdId| {
            let &(set, k) = self.by_vssd.get(&v)?;
            Some((self.sets[set].view.set, self.sets[set].places[k].node))
        };
        let both = place(swap.hot).zip(place(swap.cold));
        let moves = |v, to| self.may_move(now, v, Some(to)).is_ok();
        let fit = both.filter(|((_, a), (_, b))| {
            moves(swap.hot, *b) && moves(swap.cold, *a) && self.may_swap(swap.hot, swap.cold)
        });
        let Some(((hot_set, hot_on), (cold_set, cold_on))) = fit else {
            self.rounds.given_up += 1;
            return;
        };
        for (vssd, set, to) in [(swap.hot, hot_set, cold_on), (swap.cold, cold_set, hot_on)] {
            if self.move_vssd(now, vssd, Some(to), fx).is_ok() {
                self.rounds.going.push(Going { vssd, set, to });
            }
        }
    }

    /// Tracks pending moves.
    fn follow(&mut self) {
        if self.rounds.going.is_empty() {
            return;
        }
        let mut done = 0;
        let going = std::mem::take(&mut self.rounds.going);
        for g in &going {
            let Some(set) = self.sets.iter().find(|s| s.view.set == g.set) else { continue };
            let old = set.places.iter().find(|p| p.vssd == g.vssd);
            let coming = set.places.iter().any(|p| p.replaces.is_some_and(|r| r.vssd == g.vssd) && !p.leaving);
            let there = set.places.iter().find(|p| p.node == g.to && p.replaces.is_none() && !p.leaving);
            match (old, there) {
                _ if coming => self.rounds.going.push(*g),
                // Its slot is still being erased.
                (Some(old), Some(_)) if old.leaving => self.rounds.going.push(*g),
                (None, Some(new)) => {
                    done += 1;
                    if let Some(b) = &mut self.rounds.balancer {
                        b.renamed(g.vssd, new.vssd);
                    }
                }
                _ => {}
            }
        }
        if self.rounds.going.is_empty() {
            let whole = done == going.len() && done == 2;
            self.rounds.swaps += u64::from(whole);
            self.rounds.given_up += u64::from(!whole);
        } else {
            // Until both have arrived.
            self.rounds.going = going;
        }
    }

    /// Erases per block of the server's drive, if they are reported.
    pub(crate) fn wear_of(&self, node: NodeId) -> Option<f64> {
        self.rounds.balancer.as_ref()?.wear().find(|w| w.0 == node).map(|w| w.1)
    }
    /// State for `status`.
    pub(crate) fn wear_status(&self) -> WearStatus {
        let Some(b) = &self.rounds.balancer else { return WearStatus::default() };
        let server = |(node, wear): (NodeId, f64)| ServerWear { node, milli_erases: (wear * 1e3) as u64 };
        WearStatus {
            balanced: true,
            milli_lambda: (b.imbalance() * 1e3) as u32,
            swaps: self.rounds.swaps,
            given_up: self.rounds.given_up,
            servers: b.wear().map(server).collect(),
        }
    }
}
