//! Control by the share of marked datagrams: DCTCP (Alizadeh et al., SIGCOMM 2010; RFC 8257).

use rackweave_core::{Span, Time};

use super::{Acked, Congestion, DATAGRAMS_INITIAL, DATAGRAMS_MIN, Stretch, WINDOW_MAX};

/// Weight of the newest round trip in the estimate of the marked share (RFC 8257 §4.2).
const GAIN: f64 = 1.0 / 16.0;

#[derive(Debug)]
pub struct Ecn {
    datagram: u64,
    window: f64,
    slow_start: bool,
    stretch: Stretch,
    /// Estimated share of marked datagrams; 1 at first, as RFC 8257 asks.
    alpha: f64,
    received: u32,
    marked: u32,
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
            alpha: 1.0,
            received: 0,
            marked: 0,
            round_ends: Time::ZERO,
            reduced: Time::ZERO,
        }
    }
    fn scale(&mut self, by: f64) {
        let low = (DATAGRAMS_MIN * self.datagram) as f64;
        self.window = (self.window * by).clamp(low, WINDOW_MAX as f64);
    }
    fn round(&mut self, a: &Acked) {
        if self.received > 0 {
            let share = f64::from(self.marked) / f64::from(self.received);
            self.alpha = (1.0 - GAIN) * self.alpha + GAIN * share.min(1.0);
        }
        if self.marked > 0 {
            self.slow_start = false;
            self.scale(1.0 - self.alpha / 2.0);
        }
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
        if sent >= self.reduced {
            self.slow_start = false;
            self.reduced = now;
            self.scale(0.5);
        }
    }
    fn timed_out(&mut self, now: Time) {
        self.reduced = now;
        self.scale(0.5);
    }
    fn window(&self) -> u64 {
        self.stretch.window(self.window)
    }
}
