//! Credits (protocol rule 9): before an invalidation goes out, its coordinator holds from every member a cache slot
//! per block and a page per block not mapped yet. Totals are cumulative since the epoch began, so that lost,
//! repeated and reordered messages change nothing.
//!
//! A retransmission in a new epoch, or for another coordinator, does not wait: it is spent beyond the grant. The
//! receiver accepts it only if it has a slot that is not promised, and grants it by that.

use rackweave_core::Time;
use rackweave_core::msg::peer::Credit;

use crate::config::{CREDIT_PAGES, CREDIT_SLOTS};

/// State of the recall of a member's unused page credit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Recall {
    #[default]
    No,
    Requested {
        times: u8,
        at: Time,
    },
    /// It gave back what it could; or does not answer, and keeps it.
    Done,
}

/// With one other member, in both directions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    /// Granted to this replica there, and used.
    granted: (u64, u64),
    used: (u64, u64),
    /// Granted to the other here; what of it has surely become part of the store's own counts.
    given: (u64, u64),
    consumed: (u64, u64),
    /// An unanswered request: pages wanted, and its number.
    pub wants: Option<(u32, u64)>,
    pub recall: Recall,
}

impl Account {
    pub fn has(&self, slots: u64, pages: u64) -> bool {
        self.granted.0 >= self.used.0 + slots && self.has_pages(pages)
    }
    /// Gives pages back beyond `keep`, as if they were used.
    pub fn release(&mut self, keep: u64) {
        self.used.1 = self.used.1.max(self.granted.1.saturating_sub(keep));
    }
    pub fn has_pages(&self, pages: u64) -> bool {
        pages == 0 || self.granted.1 >= self.used.1 + pages
    }
    pub fn spend(&mut self, slots: u64, pages: u64) {
        self.used.0 += slots;
        self.used.1 += pages;
    }
    pub fn used(&self) -> (u64, u64) {
        self.used
    }
    /// Whether there is more to spend now.
    pub fn granted(&mut self, c: Credit) -> bool {
        let more = c.slots > self.granted.0 || c.pages > self.granted.1;
        self.granted = (self.granted.0.max(c.slots), self.granted.1.max(c.pages));
        more
    }
    /// Accepted blocks are in the store now.
    pub fn consume(&mut self, slots: u64, pages: u64) {
        self.report_used(self.consumed.0.saturating_add(slots), self.consumed.1.saturating_add(pages));
    }
    /// The other says what it has used, counting nothing still under way.
    pub fn report_used(&mut self, slots: u64, pages: u64) {
        self.consumed = (self.consumed.0.max(slots), self.consumed.1.max(pages));
        self.given = (self.given.0.max(self.consumed.0), self.given.1.max(self.consumed.1));
    }
    /// The message that recalls page credit.
    pub fn recalled(&self) -> Credit {
        Credit { no_space: true, ..self.credit() }
    }
    /// Given and not consumed.
    pub fn outstanding(&self) -> (u64, u64) {
        (self.given.0 - self.consumed.0, self.given.1 - self.consumed.1)
    }
    /// Grants up to the windows, at most half of the available credit (all of it if `need` is that high).
    pub fn top_up(&mut self, available: (u64, u64), windows: (u64, u64), need: (u64, u64)) -> Credit {
        let (slots, pages) = self.outstanding();
        let give = |out: u64, window: u64, available: u64, need: u64| {
            window.max(need).saturating_sub(out).min(if mutant!("replica.credit.overgrant") {
                u64::MAX
            } else {
                (available / 2).max(need.min(available))
            })
        };
        let more = (
            give(slots, windows.0.min(CREDIT_SLOTS), available.0, need.0),
            give(pages, windows.1.min(CREDIT_PAGES), available.1, need.1),
        );
        self.given = (self.given.0.saturating_add(more.0), self.given.1.saturating_add(more.1));
        self.credit()
    }
    fn credit(&self) -> Credit {
        Credit { slots: self.given.0, pages: self.given.1, no_space: false }
    }
}
