//! Time as nodes see it: nanoseconds since the run began.

use std::fmt;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// An instant in nanoseconds since the run began; virtual and wall clock look the same to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// A duration in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

impl Time {
    pub const ZERO: Time = Time(0);
    /// Later than every instant of a run.
    pub const MAX: Time = Time(u64::MAX);

    /// The span since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    pub const ZERO: Span = Span(0);

    pub const fn from_nanos(n: u64) -> Span {
        Span(n)
    }
    /// The longest span if that is shorter.
    pub const fn from_micros(n: u64) -> Span {
        Span(n.saturating_mul(1_000))
    }
    /// The longest span if that is shorter.
    pub const fn from_millis(n: u64) -> Span {
        Span(n.saturating_mul(1_000_000))
    }
    /// The longest span if that is shorter.
    pub const fn from_secs(n: u64) -> Span {
        Span(n.saturating_mul(1_000_000_000))
    }
    /// Whole and fractional microseconds.
    pub fn as_micros_f64(self) -> f64 {
        self.0 as f64 / 1e3
    }
    /// Whole and fractional seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// `self × num / den`, without intermediate overflow.
    pub fn scale(self, num: u64, den: u64) -> Span {
        Span((u128::from(self.0) * u128::from(num) / u128::from(den.max(1))) as u64)
    }
}

impl Add<Span> for Time {
    type Output = Time;
    fn add(self, s: Span) -> Time {
        Time(self.0.saturating_add(s.0))
    }
}
impl AddAssign<Span> for Time {
    fn add_assign(&mut self, s: Span) {
        *self = *self + s;
    }
}
impl Sub<Span> for Time {
    type Output = Time;
    fn sub(self, s: Span) -> Time {
        Time(self.0.saturating_sub(s.0))
    }
}
impl Add for Span {
    type Output = Span;
    fn add(self, s: Span) -> Span {
        Span(self.0.saturating_add(s.0))
    }
}
impl AddAssign for Span {
    fn add_assign(&mut self, s: Span) {
        *self = *self + s;
    }
}
impl Mul<u64> for Span {
    type Output = Span;
    fn mul(self, k: u64) -> Span {
        Span(self.0.saturating_mul(k))
    }
}
impl Div<u64> for Span {
    type Output = Span;
    fn div(self, k: u64) -> Span {
        Span(self.0 / k)
    }
}
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n < 10_000 => write!(f, "{n} ns"),
            n if n < 10_000_000 => write!(f, "{:.1} µs", n as f64 / 1e3),
            n if n < 10_000_000_000 => write!(f, "{:.1} ms", n as f64 / 1e6),
            n => write!(f, "{:.1} s", n as f64 / 1e9),
        }
    }
}
