//! Credits (protocol rule 9): before an invalidation goes out, its coordinator holds from every member a cache slot
//! per block and a page per block not mapped yet. Totals are cumulative since the epoch began, so that lost,
//! repeated and reordered messages change nothing.

use rackweave_core::msg::peer::Credit;

use crate::config::{CREDIT_PAGES, CREDIT_SLOTS};

/// With one other member, in both directions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    /// Granted to this replica there, and used.
    granted: (u64, u64),
    used: (u64, u64),
    /// Granted to the other here; what of it has surely become part of the store's own counts.
    given: (u64, u64),
    consumed: (u64, u64),
    /// An unanswered ask: pages wanted, and its number.
    pub wants: Option<(u32, u64)>,
}

impl Account {
    pub fn has(&self, slots: u64, pages: u64) -> bool {
        self.granted.0 - self.used.0 >= slots && self.granted.1 - self.used.1 >= pages
    }
    pub fn has_pages(&self, pages: u64) -> bool {
        self.granted.1 - self.used.1 >= pages
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
        self.consumed.0 = (self.consumed.0 + slots).min(self.given.0);
        self.consumed.1 = (self.consumed.1 + pages).min(self.given.1);
    }
    /// The other says what it has used of what was given, counting nothing still under way.
    pub fn told(&mut self, slots: u64, pages: u64) {
        self.consumed.0 = self.consumed.0.max(slots).min(self.given.0);
        self.consumed.1 = self.consumed.1.max(pages).min(self.given.1);
    }
    /// Given and not consumed.
    pub fn outstanding(&self) -> (u64, u64) {
        (self.given.0 - self.consumed.0, self.given.1 - self.consumed.1)
    }
    /// Grants up to the window, at most half of what is available (all of it if `need` asks for that much).
    pub fn top_up(&mut self, available: (u64, u64), window: u64, need: (u64, u64)) -> Credit {
        let (slots, pages) = self.outstanding();
        let give = |out: u64, window: u64, available: u64, need: u64| {
            window.max(need).saturating_sub(out).min((available / 2).max(need.min(available)))
        };
        self.given.0 += give(slots, window.min(CREDIT_SLOTS), available.0, need.0);
        self.given.1 += give(pages, CREDIT_PAGES, available.1, need.1);
        Credit { slots: self.given.0, pages: self.given.1, no_space: false }
    }
}
