//! Times and numbers of retransmissions. An overloaded network loses packets, and retransmissions load it further; so
//! - the first one waits for longer than answers take, as in RFC 6298 (smoothed round-trip time and four times its
//!   variation, of messages sent once; doubled once for each such wait with a retransmission, until such an answer
//!   arrives), never less than [`crate::Timeouts::retransmit`];
//! - each further one waits twice as long, up to sixteen times, give or take a quarter that is drawn;
//! - the number of retransmissions to each member within one such wait is limited: it grows while they are answered,
//!   and halves when they are not (AIMD). One beyond the limit waits as if it had been sent.

use rackweave_core::{RoundTrip, Span, Time};

/// First and least limit of retransmissions to one member within one wait. A few blocks: less than a port's queue
/// holds.
const WINDOW_FIRST: u32 = 32;
const WINDOW_MIN: u32 = 4;
/// Greatest limit: all operations at once.
const WINDOW_MAX: u32 = crate::config::OPS_MAX as u32;
/// Doublings of the first wait by the measured answer time.
pub(crate) const SLOWEST: u8 = 4;

/// State of the path to one member and back.
#[derive(Clone, Copy, Debug)]
struct Path {
    round_trip: RoundTrip,
    /// Repetitions in one wait, and those in this one since it began.
    window: u32,
    sent: u32,
    since: Time,
    /// Of those sent again: answered and not answered since then.
    answered: u32,
    lost: u32,
}

impl Path {
    const NEW: Path =
        Path { round_trip: RoundTrip::UNKNOWN, window: WINDOW_FIRST, sent: 0, since: Time::ZERO, answered: 0, lost: 0 };
    fn may(&mut self, now: Time, wait: Span) -> bool {
        if now.since(self.since) >= wait {
            self.window = match self.lost {
                0 => self.window.saturating_add(self.answered),
                _ => self.window / 2,
            };
            self.window = self.window.clamp(WINDOW_MIN, WINDOW_MAX);
            (self.since, self.sent, self.answered, self.lost) = (now, 0, 0, 0);
        }
        self.sent < self.window
    }
}

/// The ways to the members of a view, by their place.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    paths: Vec<Path>,
    first: Span,
    /// Doublings of `first`: by the answer time, and for missing answers; since when the latter.
    level: u8,
    silent: u8,
    silent_since: Time,
}

impl Repeats {
    pub fn new(first: Span) -> Repeats {
        Repeats { paths: Vec::new(), first, level: 0, silent: 0, silent_since: Time::ZERO }
    }
    /// A view of this many members, without measurements.
    pub fn anew(&mut self, members: usize) {
        self.paths.clear();
        self.paths.resize(members, Path::NEW);
        (self.level, self.silent) = (0, 0);
    }
    /// How often the first wait is doubled.
    pub fn level(&self) -> u8 {
        self.level.max(self.silent)
    }
    fn wait(&self) -> Span {
        self.first * (1 << self.level())
    }
    /// A message first sent at `sent_at` must be retransmitted.
    pub fn late(&mut self, now: Time, sent_at: Time) {
        if sent_at >= self.silent_since {
            (self.silent, self.silent_since) = ((self.level() + 1).min(SLOWEST), now);
        }
    }
    /// A member answered a message that was sent once, after this time.
    pub fn answered_after(&mut self, member: usize, took: Span) {
        self.paths[member].round_trip.add(took);
        let slowest = self.paths.iter().map(|p| p.round_trip.bound()).max().unwrap_or_default();
        self.silent = 0;
        self.level = (0..SLOWEST).find(|&n| slowest <= self.first * (1 << n)).unwrap_or(SLOWEST);
    }
    /// Something that was sent again was answered, or was not in time.
    pub fn answered(&mut self, member: usize) {
        self.paths[member].answered += 1;
    }
    pub fn lost(&mut self, member: usize) {
        self.paths[member].lost += 1;
    }
    /// Whether one more may go to the member again; it is taken to go.
    pub fn take(&mut self, now: Time, member: usize) -> bool {
        let wait = self.wait();
        let path = &mut self.paths[member];
        let may = path.may(now, wait);
        path.sent += u32::from(may);
        may
    }
    /// Whether one could go to every member of `to`, as bits.
    pub fn free(&mut self, now: Time, to: u64) -> bool {
        let wait = self.wait();
        self.paths.iter_mut().enumerate().all(|(k, p)| to & 1 << k == 0 || p.may(now, wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Span = Span(5_000_000);

    fn repeats() -> Repeats {
        let mut r = Repeats::new(FIRST);
        r.anew(2);
        r
    }
    fn taken(r: &mut Repeats, now: Time, member: usize) -> u32 {
        (0..WINDOW_MAX * 2).take_while(|_| r.take(now, member)).count() as u32
    }

    #[test]
    fn the_first_wait_follows_what_answers_take() {
        let mut r = repeats();
        (0..100).for_each(|_| r.answered_after(1, Span::from_micros(300)));
        assert_eq!(r.level(), 0);
        (0..100).for_each(|_| r.answered_after(1, Span::from_millis(19)));
        assert_eq!(r.level(), 2, "20 ms");
        (0..100).for_each(|_| r.answered_after(1, Span::from_secs(3)));
        assert_eq!(r.level(), SLOWEST);
        (0..100).for_each(|_| r.answered_after(1, Span::from_micros(300)));
        assert_eq!(r.level(), 0);
    }

    #[test]
    fn while_nothing_is_answered_the_first_wait_doubles_once_for_each() {
        let mut r = repeats();
        let mut now = Time::ZERO + FIRST;
        let mut levels = Vec::new();
        for _ in 0..6 {
            // Many were sent before this, and one after it was known.
            let sent_at = now;
            now += FIRST;
            (0..9).for_each(|_| r.late(now, sent_at));
            levels.push(r.level());
        }
        assert_eq!(levels, [1, 2, 3, 4, 4, 4]);
        r.answered_after(0, Span::from_millis(12));
        assert_eq!(r.level(), 3, "12 and 4 times 6 ms");
    }

    #[test]
    fn fewer_go_again_while_they_are_lost_and_more_while_they_are_answered() {
        let mut r = repeats();
        let mut now = Time::ZERO + FIRST;
        assert_eq!(taken(&mut r, now, 0), WINDOW_FIRST);
        assert!(!r.free(now, 0b01) && r.free(now, 0b10), "the other member's are its own");
        let mut counts = Vec::new();
        for lost in [true, true, true, true, true, true, false, false] {
            (0..4).for_each(|_| if lost { r.lost(0) } else { r.answered(0) });
            now += FIRST;
            counts.push(taken(&mut r, now, 0));
        }
        assert_eq!(counts, [16, 8, 4, 4, 4, 4, 8, 12]);
        (0..1_000_000).for_each(|_| r.answered(0));
        assert_eq!(taken(&mut r, now + FIRST, 0), WINDOW_MAX);
    }
}
