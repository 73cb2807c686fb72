//! Pending reads of each vSSD: the reads sent there, less the answers that its server reports (as queues are reported
//! to a switch in RackSched, Zhu et al., OSDI '20, §3.3). A server reports after every few answers, with a cumulative
//! count, so a lost report costs nothing and reads in flight are counted as well. Lost reads expire, unless the server
//! reports that they wait.

use rackweave_core::msg::ReadLoad;
use rackweave_core::{Incarnation, Span, Time};

use crate::tables::Slot;

/// A read that is unanswered for between one and two of these does not count: it was lost, or its server has ended.
/// Many times the wait for a page move.
pub(crate) const READS_AGE: Span = Span::from_millis(10);

/// Reads sent to one vSSD and not answered yet, by when they were sent.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Number of the span of [`READS_AGE`] that `newer` are of.
    span: u64,
    older: u32,
    newer: u32,
    /// The server's incarnation, and the answers that it has counted in it.
    incarnation: Incarnation,
    answered: u64,
    /// Counts as erasing until then, or until another report.
    erases_until: Time,
    /// What its collection counts as, as last reported; zero: it was not.
    collecting: u16,
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
    /// What its collection counts as, if its server has said so.
    pub fn collecting(&mut self, slot: Slot) -> Option<u32> {
        Some(self.count(slot).collecting).filter(|c| *c > 0).map(u32::from)
    }
    pub fn sent(&mut self, now: Time, slot: Slot) {
        let c = self.count(slot).at(now);
        c.newer = c.newer.saturating_add(1);
    }
    /// A report of an incarnation of the vSSD's server. A late one, of this or an earlier incarnation, is ignored.
    pub fn report(&mut self, now: Time, slot: Slot, incarnation: Incarnation, load: ReadLoad) {
        let c = self.count(slot).at(now);
        if incarnation < c.incarnation || incarnation == c.incarnation && load.answered < c.answered {
            return;
        }
        if incarnation > c.incarnation {
            // Reads sent to an earlier incarnation get no answer; the number sent to this one before is unknown.
            (c.older, c.newer) = (0, 0);
        } else {
            let answers = u32::try_from(load.answered - c.answered).unwrap_or(u32::MAX);
            let left = answers.saturating_sub(c.older);
            c.older = c.older.saturating_sub(answers);
            c.newer = c.newer.saturating_sub(left);
        }
        (c.incarnation, c.answered) = (incarnation, load.answered);
        c.collecting = load.collecting;
        c.erases_until = if load.erasing { now + READS_AGE } else { Time::ZERO };
        // Waiting reads count as sent now.
        let all = c.older.saturating_add(c.newer).max(load.waiting);
        c.newer = c.newer.max(load.waiting);
        c.older = all - c.newer;
    }
    /// The row is another vSSD's, or another incarnation's.
    pub fn forget(&mut self, slot: Slot) {
        *self.count(slot) = Count::default();
    }
}
