//! Prediction of idle times (RackBlox §3.5.1, RB5): the next gap between requests is predicted as `T_i = α·T_real(i−1)
//! + (1−α)·T_pred(i−1)`.

use rackweave_core::{Span, Time};

/// Collection starts this long after the request that opened the gap, which is answered by then, even from flash.
const SETTLED: Span = Span::from_millis(2);

/// The predictor.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    alpha: f64,
    over: Span,
    last: Time,
    /// Predicted length of the gap that began with the last request, in nanoseconds.
    predicted: f64,
}

impl Idle {
    /// `alpha` in (0, 1]; a gap longer than `over` is idle.
    pub fn new(alpha: f64, over: Span) -> Idle {
        Idle { alpha, over, last: Time::ZERO, predicted: 0.0 }
    }
    /// Changes the parameters of [`Idle::new`].
    pub fn set(&mut self, alpha: f64, over: Span) {
        (self.alpha, self.over) = (alpha, over);
    }
    /// A request arrived.
    #[inline]
    pub fn request(&mut self, now: Time) {
        self.predicted = self.with_gap(now.since(self.last).0 as f64);
        self.last = now;
    }
    fn with_gap(&self, real: f64) -> f64 {
        self.alpha * real + (1.0 - self.alpha) * self.predicted
    }
    /// When the current gap begins to count as idle. A gap counts at least with its length so far (assumed: the paper
    /// predicts only at requests, and would never find an unused vSSD idle).
    pub fn from(&self) -> Time {
        let over = self.over.0 as f64;
        if self.predicted > over {
            return self.last + SETTLED;
        }
        let gap = (over - (1.0 - self.alpha) * self.predicted) / self.alpha;
        self.last + Span(gap as u64 + 1).max(SETTLED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Time {
        Time(n * 1_000_000)
    }

    #[test]
    fn the_next_gap_is_smoothed_from_the_last_ones() {
        let mut idle = Idle::new(0.5, Span::from_millis(30));
        idle.request(ms(100));
        // 0.5 × 100 ms.
        assert_eq!((idle.predicted, idle.from()), (50e6, ms(102)));
        idle.request(ms(110));
        // 0.5 × 10 + 0.5 × 50 = 30, which is not over 30; a gap of 30 ms is.
        assert_eq!((idle.predicted, idle.from()), (30e6, ms(140) + Span(1)));
        idle.request(ms(112));
        // 0.5 × 2 + 0.5 × 30 = 16, so that a gap of 44 ms makes it 30.
        assert_eq!((idle.predicted, idle.from()), (16e6, ms(156) + Span(1)));
        let mut last_alone = Idle::new(1.0, Span::from_millis(30));
        last_alone.request(ms(100));
        last_alone.request(ms(101));
        assert_eq!((last_alone.predicted, last_alone.from()), (1e6, ms(131) + Span(1)));
    }
}
