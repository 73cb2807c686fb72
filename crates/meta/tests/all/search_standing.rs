//! Faults that stay, one at a time, after all others have ended; and reports that are not so.

use rackweave_core::msg::{Control, Role, View, ViewState};
use rackweave_core::{Epoch, Span, VssdId};

use super::{CALM, LEASE, World};

/// A fault that stays while all else is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Two servers do not reach each other, for less than a lease, or for good.
    ApartOnce,
    Apart,
    AllApart,
    /// One drive has no space, or two have none.
    Full,
    TwoFull,
    /// A drive fails, and does not say so again.
    Failed,
}

impl World {
    /// The set serves, with as many copies as it may have, and loses none that it needs.
    pub(super) fn stand(&mut self) -> Result<(), String> {
        use Standing::*;
        self.calm()?;
        if !self.whole() {
            let newest = self.newest();
            // Without a witness it waits for the operator's decision.
            return if self.damaged { Ok(()) } else { Err(format!("not whole: {newest:?}")) };
        }
        let fault = *self.rng.pick(&[ApartOnce, Apart, AllApart, Full, TwoFull, Failed]);
        *self.stood.entry(format!("{fault:?}")).or_default() += 1;
        let before = (self.written, self.newest(), self.answered.0, self.flushed);
        match fault {
            ApartOnce | Apart => self.apart.push((0, 2)),
            AllApart => self.apart.extend([(0, 1), (0, 2), (1, 2)]),
            Full => self.fill_host(0, true),
            TwoFull => (0..2).for_each(|i| self.fill_host(i, true)),
            Failed => (self.running_mut(0).failed, self.running_mut(0).says_failed) = (true, true),
        }
        self.pass(LEASE / 2)?;
        match fault {
            ApartOnce => self.apart.clear(),
            Failed => self.running_mut(0).says_failed = false,
            _ => {}
        }
        self.calm()?;
        let v = self.newest();
        let members: Vec<VssdId> = v.members.iter().filter(|m| m.role == Role::Member).map(|m| m.vssd).collect();
        let writes = self.answered.0 > before.2 && self.written - self.answered.0 < 1_000;
        let flushes = self.flushed > before.3 && self.written - self.flushed < 1_000;
        let good = members.len() >= usize::from(self.cfg.min_copies)
            && match fault {
                ApartOnce => writes && v == before.1,
                Apart => writes && flushes && members.len() == 2,
                // Nobody reaches another one: nothing is written.
                AllApart => true,
                Full => writes && flushes,
                TwoFull => writes,
                Failed => writes && flushes && !members.contains(&self.servers[0].vssd),
            };
        self.apart.clear();
        if fault == Failed {
            self.begin(0, false);
        }
        if good { Ok(()) } else { Err(format!("{fault:?}: {v:?} after {:?}", before.1)) }
    }
    pub(super) fn newest(&self) -> View {
        self.seen().views.values().next_back().expect("the set has begun").clone()
    }
    fn pass(&mut self, span: Span) -> Result<(), String> {
        let end = self.engine.now() + span;
        while self.engine.now() < end {
            self.step()?;
        }
        Ok(())
    }
    pub(super) fn calm(&mut self) -> Result<(), String> {
        self.pass(CALM)
    }

    /// A report that a recovery is over, of a server that does not lead one, or of an earlier one.
    pub(super) fn misreport(&mut self, i: usize) {
        let Some(v) = self.running(i).and_then(|l| l.view.clone()) else { return };
        if self.rng.chance(0.05) {
            let earlier = self.rng.chance(0.5);
            let epoch = if earlier { Epoch(v.epoch.0.saturating_sub(1)) } else { v.epoch };
            let leads = matches!(v.state, ViewState::Recovering { leader, .. } if leader == self.servers[i].vssd);
            if earlier || !leads {
                self.post(i, Control::Recovered { set: v.set, epoch });
            }
        }
    }
}
