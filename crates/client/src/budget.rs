//! Budget of retries. If every unanswered message were sent again, a slow rack would get two requests for each one that
//! it cannot answer in time, and would never recover. Retries are therefore paid for (the retry budgets of Finagle and
//! of gRPC, gRFC A6): each answer pays a fifth of a retry, and fifty per second are free, so that requests never stop.

use rackweave_core::{Span, Time};

/// The price of a repetition, in what an answer brings: Finagle's fifth.
const PRICE: u32 = 5;
/// Repetitions that may be unanswered without bringing anything: what a set's window holds when a server fails.
const MOST: u32 = 128 * PRICE;
/// One retry is free per this time.
const FREE_EVERY: Span = Span::from_millis(20);

#[derive(Debug)]
pub struct Budget {
    held: u32,
    free_at: Time,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { held: MOST, free_at: Time::ZERO }
    }
}

impl Budget {
    /// Whether a message may be sent again now; it is paid for.
    pub fn take(&mut self, now: Time) -> bool {
        if self.held < PRICE && now >= self.free_at {
            self.free_at = now + FREE_EVERY;
            self.held += PRICE;
        }
        let may = self.held >= PRICE;
        self.held -= if may { PRICE } else { 0 };
        may
    }
    /// A message was answered.
    pub fn answered(&mut self) {
        self.held = (self.held + 1).min(MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_a_fifth_of_what_is_answered_and_fifty_a_second() {
        let mut b = Budget::default();
        let spend = |b: &mut Budget, now| (0..1_000_000).take_while(|_| b.take(now)).count();
        // The first free one is among them.
        let mut now = Time::ZERO + Span::from_secs(1);
        assert_eq!(spend(&mut b, now), (MOST / PRICE) as usize + 1);
        (0..40).for_each(|_| b.answered());
        assert_eq!(spend(&mut b, now), 8);
        let free = (0..1_000).filter(|_| {
            now += Span::from_millis(1);
            b.take(now)
        });
        assert_eq!(free.count(), 50);
        (0..1_000_000).for_each(|_| b.answered());
        assert_eq!(spend(&mut b, now), (MOST / PRICE) as usize, "no more than a set's window");
    }
}
