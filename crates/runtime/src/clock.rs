//! The rack's clock: the machine's monotonic clock. For a rack in one process, time in which it did not run is left
//! out.
//!
//! All nodes of an embedded rack share one loop. When the machine is suspended, the process stopped, or the loop
//! delayed, every node stops with it: none serves, so no lease has to end. The clock skips such a gap, and leases
//! continue. This does not hold for a node in its own process, because other nodes keep running.

use rackweave_core::{Span, Time};

/// A gap longer than the planned sleep plus this is a standstill; the excess is skipped. Longer than any batch of
/// events takes, much shorter than a lease.
pub const STANDSTILL: Span = Span::from_millis(100);

#[derive(Debug)]
pub struct Clock {
    /// See [`STANDSTILL`]; with [`Span`]'s maximum nothing is skipped.
    standstill: Span,
    /// Machine time of the last reading.
    machine: u64,
    now: Time,
    /// Sum of the skipped gaps.
    skipped: Span,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { standstill: STANDSTILL, machine: machine_nanos(), now: Time(1), skipped: Span::ZERO }
    }
}

impl Clock {
    /// A clock that skips nothing.
    pub fn of_one_node() -> Clock {
        Clock { standstill: Span(u64::MAX), ..Clock::default() }
    }

    /// Reads the clock; the loop has not slept since the last reading.
    pub fn read(&mut self) -> Time {
        self.read_after(Span::ZERO)
    }

    /// Reads the clock after a sleep of at most `planned`.
    pub fn read_after(&mut self, planned: Span) -> Time {
        self.advance(machine_nanos(), planned)
    }

    fn advance(&mut self, machine: u64, planned: Span) -> Time {
        let gap = Span(machine.saturating_sub(self.machine));
        let most = planned + self.standstill;
        let counted = gap.min(most);
        self.skipped += Span(gap.0 - counted.0);
        self.machine = self.machine.max(machine);
        self.now += counted;
        self.now
    }

    pub fn now(&self) -> Time {
        self.now
    }
    /// Machine time (CLOCK_BOOTTIME, ns) at time zero, if nothing was skipped.
    pub fn machine_at_zero(&self) -> u64 {
        self.machine.saturating_sub(self.now.0)
    }
    /// The wall clock at time zero, in milliseconds since 1970, as the host shows it now. It differs from an earlier reading by
    /// [`Clock::skipped`], and by the steps of the host's clock since.
    pub fn unix_ms_at_zero(&self) -> u64 {
        (nanos_of(libc::CLOCK_REALTIME).saturating_sub(self.now.0)) / 1_000_000
    }
    /// Time skipped since the start.
    pub fn skipped(&self) -> Span {
        self.skipped
    }
}

/// CLOCK_BOOTTIME, which also shows suspension as a gap.
fn machine_nanos() -> u64 {
    nanos_of(libc::CLOCK_BOOTTIME)
}

/// Current time of a kernel clock in ns ([`nanos`]).
pub fn nanos_of(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the given structure.
    unsafe { libc::clock_gettime(clock, &mut t) };
    nanos(&t)
}

/// Nanoseconds since the clock's zero, modulo 2⁶⁴ for earlier times, so that differences are right.
pub fn nanos(t: &libc::timespec) -> u64 {
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standstills_are_left_out() {
        let mut c = Clock::default();
        let (start, m) = (c.now(), c.machine);
        assert_eq!(c.advance(m + 1_000, Span::ZERO).since(start), Span(1_000));
        let planned = Span::from_secs(2);
        assert_eq!(c.advance(m + 2_000_001_000, planned).since(start), Span(2_000_001_000));
        assert_eq!(c.skipped(), Span::ZERO);
        let before = c.now();
        c.advance(m + 3_600_000_000_000, Span::from_millis(5));
        assert_eq!(c.now().since(before), Span::from_millis(105));
        assert!(c.skipped() > Span::from_secs(3_500));
    }

    #[test]
    fn one_nodes_clock_leaves_nothing_out() {
        let mut c = Clock::of_one_node();
        let (start, m) = (c.now(), c.machine);
        assert_eq!(c.advance(m + 3_600_000_000_000, Span::ZERO).since(start), Span::from_secs(3_600));
        assert_eq!(c.skipped(), Span::ZERO);
    }
}
