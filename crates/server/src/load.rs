//! Reports of a vSSD's pending reads to the switch, which chooses replicas by them: it counts the reads it sent, but
//! answers bypass it.

use rackweave_core::msg::ReadLoad;
use rackweave_core::{Span, Time};

/// Answers between two reports. Few reports cost little, and the switch overestimates the waiting reads by at most this
/// number.
const ANSWERS: u64 = 4;
/// What a collection counts as, in reads, for each die of the vSSD: the replica that does not collect has as many more pending before a read
/// goes to the one that does (`docs/results/rackblox.md` has the sweep).
const COLLECTING_A_DIE: u16 = 1;
/// At the least, which is what a switch takes it for without being told, as one of an earlier program does.
const COLLECTING_DEFAULT: u16 = 8;
/// At the most ([`ReadLoad`]).
const COLLECTING_MAX: u16 = 0x7fff;
/// Longest time between two reports if the counts change. Shorter than the time after which the switch drops reads.
const WITHIN: Span = Span::from_millis(1);

/// Reads of one vSSD, counted as the switch counts them: by request.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    arrived: u64,
    answered: u64,
    /// Value of `answered` in the last report.
    reported: u64,
    report_at: Time,
    /// As last reported.
    erasing: bool,
    /// Since the last [`Load::report`].
    changed: bool,
    /// As in [`ReadLoad`].
    collecting: u16,
}

impl Default for Load {
    fn default() -> Load {
        Load::new()
    }
}

impl Load {
    pub fn new() -> Load {
        Load {
            arrived: 0,
            answered: 0,
            reported: 0,
            report_at: Time::ZERO,
            erasing: false,
            changed: true,
            collecting: 0,
        }
    }
    /// Of a vSSD that reads these many dies.
    pub fn of_dies(dies: u32) -> Load {
        let reads = u16::try_from(dies).unwrap_or(u16::MAX).saturating_mul(COLLECTING_A_DIE).min(COLLECTING_MAX);
        Load { collecting: if reads > COLLECTING_DEFAULT { reads } else { 0 }, ..Load::new() }
    }
    pub fn arrived(&mut self, now: Time) {
        if self.deadline() == Time::MAX {
            self.report_at = now + WITHIN;
        }
        self.arrived += 1;
        self.changed = true;
    }
    pub fn answered(&mut self) {
        self.answered += 1;
        self.changed = true;
    }
    /// Whether there may be news since the last call of [`Load::report`].
    pub fn changed(&self) -> bool {
        self.changed
    }
    /// Whether the last report said that a die erases.
    pub fn erasing(&self) -> bool {
        self.erasing
    }
    fn waiting(&self) -> u64 {
        self.arrived.saturating_sub(self.answered)
    }
    /// When the next report is due.
    pub fn deadline(&self) -> Time {
        if self.waiting() > 0 || self.answered > self.reported { self.report_at } else { Time::MAX }
    }
    /// The due report. `idle`: no request waits here, so a read without an answer (refused, or of an earlier view) will
    /// never get one. `erasing`: a die erases, which is reported at once.
    pub fn report(&mut self, now: Time, idle: impl FnOnce() -> bool, erasing: bool) -> Option<ReadLoad> {
        self.changed = false;
        if self.arrived != self.answered && idle() {
            self.arrived = self.answered;
        }
        if self.answered - self.reported < ANSWERS && now < self.deadline() && erasing == self.erasing {
            return None;
        }
        self.erasing = erasing;
        self.reported = self.answered;
        self.report_at = now + WITHIN;
        let waiting = u32::try_from(self.waiting()).unwrap_or(u32::MAX);
        Some(ReadLoad { answered: self.answered, waiting, erasing, collecting: self.collecting })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Time {
        Time::ZERO + Span::from_micros(us)
    }

    #[test]
    fn every_fourth_answer_is_told_and_the_rest_within_a_millisecond() {
        let mut l = Load::new();
        assert!(l.report(at(0), || true, false).is_none() && l.deadline() == Time::MAX, "no news");
        let mut reported = Vec::new();
        for n in 0..18 {
            l.arrived(at(n));
            l.answered();
            reported.extend(l.report(at(n), || true, false));
        }
        assert_eq!(
            reported,
            [4, 8, 12, 16].map(|answered| ReadLoad { answered, waiting: 0, erasing: false, collecting: 0 })
        );
        assert_eq!(l.deadline(), at(16 + 1_000), "from the first that is not told");
        assert_eq!(
            l.report(l.deadline(), || true, false),
            Some(ReadLoad { answered: 18, waiting: 0, erasing: false, collecting: 0 })
        );
        assert_eq!(l.deadline(), Time::MAX);
    }

    #[test]
    fn a_collection_counts_as_a_read_a_die_if_there_are_more_than_eight() {
        for (dies, reads) in [(1, 0), (4, 0), (8, 0), (16, 16), (32, 32), (1 << 20, 32_767)] {
            let load = Load::of_dies(dies).report(at(1), || true, true).expect("a die erases");
            assert_eq!(load.collecting, reads, "{dies} dies");
        }
    }

    #[test]
    fn that_a_die_erases_is_told_at_once_and_that_it_does_no_more() {
        let mut l = Load::new();
        let reported = |erasing| Some(ReadLoad { answered: 0, waiting: 0, erasing, collecting: 0 });
        assert_eq!(l.report(at(5), || true, true), reported(true));
        assert_eq!(l.report(at(6), || true, true), None);
        assert_eq!(l.report(at(7), || true, false), reported(false));
        assert_eq!((l.report(at(8), || true, false), l.deadline()), (None, Time::MAX));
    }

    #[test]
    fn what_waits_is_told_again_and_again_and_what_was_refused_does_not_wait() {
        let mut l = Load::new();
        (0..3).for_each(|_| l.arrived(at(0)));
        l.answered();
        assert_eq!(l.report(at(999), || false, false), None);
        assert_eq!(
            l.report(at(1_000), || false, false),
            Some(ReadLoad { answered: 1, waiting: 2, erasing: false, collecting: 0 })
        );
        assert_eq!(l.report(at(1_500), || false, false), None);
        assert_eq!(
            l.report(at(2_000), || false, false),
            Some(ReadLoad { answered: 1, waiting: 2, erasing: false, collecting: 0 })
        );
        assert_eq!(l.report(at(2_500), || true, false), None);
        assert_eq!(l.deadline(), Time::MAX, "nothing is here that would be answered");
    }
}
