//! What may be allocated of a range of a VDisk, for NBD's block status.
//!
//! Contents go one way: from the log to an overlay, and from there to the storage layer. So the client looks at its index first,
//! then requests from the proxies what their overlays have, and the caller looks at the storage layer last: what has moved
//! meanwhile is seen where it went. What none of them has was zero at some time during the request. All answers are of one epoch; a new
//! one begins the look anew. If proxies do not answer, as those of an earlier program, all counts as allocated, which is never wrong.

use std::collections::BTreeMap;

use rackweave_core::msg::cloud::Backing;
use rackweave_core::{Effects, SetId, Time};

use crate::client::{Answer, Router, VDisk};
use crate::index::Found;
use crate::msg::{Body, Packet};
use crate::trace::{ALLOCATION_BEGUN_AGAIN, ALLOCATION_GIVEN_UP};
use crate::types::Extent;

/// What the log and the overlays have of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// In no order; they may overlap.
    pub extents: Vec<Extent>,
    /// The answer is about the range before this sector.
    pub end: u64,
    /// Where the rest is: in these sets in turn, in these generations. Without sets all is in `extents`.
    pub sets: Vec<SetId>,
    pub backing: Backing,
}

/// A request of this kind under way.
#[derive(Debug)]
pub(crate) struct Look {
    range: Extent,
    extents: Vec<Extent>,
    end: u64,
    /// Segments whose proxies have not answered, by the number of the message.
    asked: BTreeMap<u64, u32>,
    retry_at: Time,
    give_up_at: Time,
}

impl Look {
    pub fn of(range: Extent, give_up_at: Time) -> Look {
        let (extents, asked, end) = (Vec::new(), BTreeMap::new(), range.end());
        Look { range, extents, end, asked, retry_at: Time::ZERO, give_up_at }
    }
    pub fn is_due(&self, now: Time) -> bool {
        now >= self.retry_at
    }
}

impl<R: Router> VDisk<R> {
    /// Begins a look, or begins it again in a new epoch.
    pub(crate) fn begin_look(&mut self, now: Time, fx: &mut Effects<Packet>, request: u64) {
        let Some(look) = self.looks.get(&request).filter(|_| self.view.is_some()) else { return };
        let (range, give_up_at) = (look.range, look.give_up_at);
        let extents = if mutant!("cloud.allocation.log-last") { Vec::new() } else { self.logged(range) };
        // A range of as many stripes as there are segments has some of each.
        let (segments, stripe) = (u64::from(self.striping.segments()), u64::from(self.striping.stripe()));
        let (first, end) = (range.first / stripe, range.end().div_ceil(stripe));
        let of_range = (first..end.min(first + segments)).map(|s| (s % segments) as u32).collect::<Vec<_>>();
        let asked = of_range.into_iter().map(|s| (self.next_number(), s)).collect();
        if let Some(look) = self.looks.get_mut(&request) {
            *look = Look { extents, asked, ..Look::of(range, give_up_at) };
        }
        self.ask_overlays(now, fx, request);
    }
    /// The parts of a range that are in the log.
    fn logged(&mut self, range: Extent) -> Vec<Extent> {
        let logged = |f: Found| if let Found::Log { part, .. } = f { Some(part) } else { None };
        let found = if mutant!("cloud.allocation.without-log") { Vec::new() } else { self.index.parts(range) };
        found.into_iter().filter_map(logged).collect()
    }
    /// Sends what has not been answered.
    fn ask_overlays(&mut self, now: Time, fx: &mut Effects<Packet>, request: u64) {
        let Some(view) = &self.view else { return };
        let Some(look) = self.looks.get_mut(&request) else { return };
        look.retry_at = now + self.config.retry;
        let range = look.range;
        let of = |(n, segment): (&u64, &u32)| {
            (view.segments[*segment as usize].owner, Body::ReadOverlay { request: *n, segment: *segment, range })
        };
        let out: Vec<_> = look.asked.iter().map(of).collect();
        out.into_iter().for_each(|(owner, body)| self.send(fx, owner, body));
    }
    /// Sends again what is due.
    pub(crate) fn retry_looks(&mut self, now: Time, fx: &mut Effects<Packet>) {
        let due: Vec<u64> = self.looks.iter().filter(|(_, l)| l.is_due(now)).map(|(n, _)| *n).collect();
        for n in due {
            let overdue = self.looks.get(&n).filter(|l| now >= l.give_up_at).map(|l| l.range);
            if let Some(range) = overdue {
                self.looks.remove(&n);
                fx.trace(ALLOCATION_GIVEN_UP, n, 0);
                let (extents, end) = (vec![range], range.end());
                let backing = Backing::of(self.volume);
                self.answer(now, n, Answer::Allocated(Allocated { extents, end, sets: Vec::new(), backing }));
            } else {
                self.ask_overlays(now, fx, n);
            }
        }
    }
    pub(crate) fn begin_looks_again(&mut self, now: Time, fx: &mut Effects<Packet>) {
        for request in self.looks.keys().copied().collect::<Vec<_>>() {
            fx.trace(ALLOCATION_BEGUN_AGAIN, request, 0);
            self.begin_look(now, fx, request);
        }
    }
    pub(crate) fn overlaid(&mut self, now: Time, asked: u64, overlaid: Allocated) {
        let Some((&request, look)) = self.looks.iter_mut().find(|(_, l)| l.asked.contains_key(&asked)) else { return };
        look.asked.remove(&asked);
        let Allocated { extents, end, sets, backing } = overlaid;
        look.end = look.end.min(end);
        if !mutant!("cloud.allocation.without-overlay") {
            look.extents.extend(extents);
        }
        if look.asked.is_empty()
            && let Some(Look { range, mut extents, end, .. }) = self.looks.remove(&request)
        {
            if mutant!("cloud.allocation.log-last") {
                extents.extend(self.logged(range));
            }
            self.answer(now, request, Answer::Allocated(Allocated { extents, end, sets, backing }));
        }
    }
}
