//! How many reads each vSSD has before it: what the switch sent there, less what its server says that it answered
//! (RackSched, Zhu et al., OSDI '20, §3.3, tells a switch of queues in the same way). A server tells every few answers, with
//! a running count, so that nothing is lost with a report and what is on its way is counted, too. Reads get lost: one is
//! forgotten with age, unless its server says that it waits.

use rackweave_core::msg::ReadLoad;
use rackweave_core::{Incarnation, Span, Time};

use crate::tables::Slot;

/// A read that is unanswered for between one and two of these counts no more: it was lost, or its server is gone.
/// Many times a read that waits for a page move.
pub(crate) const READS_AGE: Span = Span::from_millis(10);

/// Reads sent to one vSSD and not answered yet, by when they were sent.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Number of the span of [`READS_AGE`] that `newer` are of.
    span: u64,
    older: u32,
    newer: u32,
    /// The server's life, and the answers that it has counted in it.
    life: Incarnation,
    answered: u64,
    /// It erases, unless it has told otherwise by then.
    erases_until: Time,
}

impl Count {
    fn at(&mut self, now: Time) -> &mut Count {
        let span = now.0 / READS_AGE.0;
        match span.saturating_sub(self.span) {
            0 => {}
            1 => (self.older, self.newer) = (self.newer, 0),
            _ => (self.older, self.newer) = (0, 0),
        }
        self.span = self.span.max(span);
        self
    }
}

/// One for each row of the tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loads(Vec<Count>);

impl Loads {
    fn count(&mut self, slot: Slot) -> &mut Count {
        let i = slot as usize;
        if i >= self.0.len() {
            self.0.resize(i + 1, Count::default());
        }
        &mut self.0[i]
    }
    /// Reads before this vSSD.
    pub fn reads(&mut self, now: Time, slot: Slot) -> u32 {
        let c = self.count(slot).at(now);
        c.older.saturating_add(c.newer)
    }
    /// Whether one of its dies erases.
    pub fn erases(&mut self, now: Time, slot: Slot) -> bool {
        now < self.count(slot).erases_until
    }
    pub fn sent(&mut self, now: Time, slot: Slot) {
        let c = self.count(slot).at(now);
        c.newer = c.newer.saturating_add(1);
    }
    /// A life of the vSSD's server tells. What came late, of this life or an earlier one, says nothing any more.
    pub fn told(&mut self, now: Time, slot: Slot, life: Incarnation, load: ReadLoad) {
        let c = self.count(slot).at(now);
        if life < c.life || life == c.life && load.answered < c.answered {
            return;
        }
        if life > c.life {
            // What an earlier life was sent nobody answers; how much this one was sent before is not known.
            (c.older, c.newer) = (0, 0);
        } else {
            let answers = u32::try_from(load.answered - c.answered).unwrap_or(u32::MAX);
            let left = answers.saturating_sub(c.older);
            c.older = c.older.saturating_sub(answers);
            c.newer = c.newer.saturating_sub(left);
        }
        (c.life, c.answered) = (life, load.answered);
        c.erases_until = if load.erasing { now + READS_AGE } else { Time::ZERO };
        // What waits is as good as sent now.
        let all = c.older.saturating_add(c.newer).max(load.waiting);
        c.newer = c.newer.max(load.waiting);
        c.older = all - c.newer;
    }
    /// The row is another vSSD's, or another life's.
    pub fn forget(&mut self, slot: Slot) {
        *self.count(slot) = Count::default();
    }
}
