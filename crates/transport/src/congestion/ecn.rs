//! Congestion control by the fraction of marked datagrams: DCTCP (Alizadeh et al., SIGCOMM 2010; RFC 8257).
//!
//! Differences:
//! - A round trip's marks shrink the window by their own fraction, not by the smoothed one. With the latter any mark
//!   costs the same, and the longer turns of slow hosts rarely lack one, so that these get less (PN9).
//! - A loss counts only together with marks. A switch with ECN marks long before it drops, so losses without marks are
//!   faults of the network, not of a queue. Heavy loss counts as congestion at a switch without ECN.

use rackweave_core::{Span, Time};

use super::{Acked, Congestion, DATAGRAMS_INITIAL, DATAGRAMS_MIN, Stretch, WINDOW_MAX};

/// Losses that count without marks: more than one in this many, of at least this many datagrams.
const LOSS_HEAVY: u32 = 5;
const LOSS_JUDGED: u32 = 64;

#[derive(Debug)]
pub struct Ecn {
    datagram: u64,
    window: f64,
    slow_start: bool,
    stretch: Stretch,
    received: u32,
    marked: u32,
    /// Datagrams that arrived and were lost since losses were last judged.
    arrived: u32,
    lost: u32,
    /// Whether the last round trip had marks.
    was_marked: bool,
    round_ends: Time,
    reduced: Time,
}

impl Ecn {
    pub fn new(datagram: u64) -> Ecn {
        Ecn {
            datagram,
            window: (DATAGRAMS_INITIAL * datagram) as f64,
            slow_start: true,
            stretch: Stretch::default(),
            received: 0,
            marked: 0,
            arrived: 0,
            lost: 0,
            was_marked: false,
            round_ends: Time::ZERO,
            reduced: Time::ZERO,
        }
    }
    fn scale(&mut self, by: f64) {
        let low = (DATAGRAMS_MIN * self.datagram) as f64;
        self.window = (self.window * by).clamp(low, WINDOW_MAX as f64);
    }
    fn halve(&mut self, now: Time) {
        self.slow_start = false;
        self.reduced = now;
        self.scale(0.5);
    }
    fn round(&mut self, a: &Acked) {
        if self.marked > 0 {
            let share = f64::from(self.marked) / f64::from(self.received.max(self.marked));
            self.slow_start = false;
            self.scale(1.0 - share / 2.0);
        }
        if self.arrived + self.lost >= LOSS_JUDGED {
            if self.lost > (self.arrived + self.lost) / LOSS_HEAVY {
                self.halve(a.now);
            }
            (self.arrived, self.lost) = (0, 0);
        }
        self.was_marked = self.marked > 0;
        (self.received, self.marked) = (0, 0);
        self.round_ends = a.now + Span(self.stretch.turn() as u64);
    }
}

impl Congestion for Ecn {
    fn acked(&mut self, a: &Acked) {
        if let Some((rtt, turn)) = a.rtt {
            self.stretch.add(rtt, turn, a.limited);
        }
        self.received = self.received.saturating_add(a.received);
        self.arrived = self.arrived.saturating_add(a.received);
        self.marked = self.marked.saturating_add(a.marked);
        if a.limited && a.marked == 0 {
            let grow = if self.slow_start { 1.0 } else { self.datagram as f64 / self.window };
            self.window = (self.window + a.bytes as f64 / self.stretch.factor() * grow).min(WINDOW_MAX as f64);
        }
        if a.now >= self.round_ends {
            self.round(a);
        }
    }
    /// RFC 8257 §3.5: a loss halves, once a round trip.
    fn lost(&mut self, now: Time, sent: Time) {
        self.lost = self.lost.saturating_add(1);
        if sent >= self.reduced && (self.marked > 0 || self.was_marked) {
            self.halve(now);
        }
    }
    fn spurious(&mut self, datagrams: u32) {
        self.lost = self.lost.saturating_sub(datagrams);
    }
    fn timed_out(&mut self, now: Time) {
        self.halve(now);
    }
    fn window(&self) -> u64 {
        self.stretch.window(self.window)
    }
}
