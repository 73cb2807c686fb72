//! How many reads each vSSD has before it, as a switch can tell that sees requests go and answers come back: it adds one
//! and takes one off. (RackSched, Zhu et al., OSDI '20, §3.3, keeps such counts in the switch, too.) Packets get lost, so a
//! count is forgotten with age instead of being believed for ever.

use rackweave_core::{Span, Time};

use crate::tables::Slot;

/// A read that is unanswered for between one and two of these counts no more: its answer was lost, or its server is gone.
/// Many times a read that waits for a page move.
pub(crate) const READS_AGE: Span = Span::from_millis(10);

/// Reads sent to one vSSD and not answered yet, by when they were sent.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Number of the span of [`READS_AGE`] that `newer` are of.
    span: u64,
    older: u32,
    newer: u32,
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
        c.older + c.newer
    }
    pub fn sent(&mut self, now: Time, slot: Slot) {
        self.count(slot).at(now).newer += 1;
    }
    /// The answer to what was sent first, or to nothing that is remembered.
    pub fn answered(&mut self, now: Time, slot: Slot) {
        let c = self.count(slot).at(now);
        if c.older > 0 {
            c.older -= 1;
        } else {
            c.newer = c.newer.saturating_sub(1);
        }
    }
    /// The row is another vSSD's, or another life's.
    pub fn forget(&mut self, slot: Slot) {
        *self.count(slot) = Count::default();
    }
}
