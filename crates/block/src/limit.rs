//! Limit of a volume: requests and bytes per second, over all its users of this client.

use std::collections::VecDeque;

use rackweave_core::volume::VolumeLimits;
use rackweave_core::{Span, Time};
use rackweave_sched::{Bucket, tokens_in};

/// An unused part of a limit may be used within this time, which bounds a burst.
pub const BURST: Span = Span::from_millis(100);

/// A request that waits: its slot and serial, and its bytes.
pub type Waiting = (u32, u32, u64);

/// Admits requests in the order they come. One may go when neither requests nor bytes are owed: so within any `t` seconds
/// at most the limit × (`t` + [`BURST`]) and one request more.
#[derive(Debug)]
pub struct Limiter {
    requests: Option<Bucket>,
    bytes: Option<Bucket>,
    waiting: VecDeque<Waiting>,
}

impl Limiter {
    pub fn new(limits: VolumeLimits) -> Limiter {
        let mut l = Limiter { requests: None, bytes: None, waiting: VecDeque::new() };
        l.set(limits);
        l
    }
    /// Other limits, from now on.
    pub fn set(&mut self, limits: VolumeLimits) {
        for (bucket, rate) in [(&mut self.requests, limits.iops), (&mut self.bytes, limits.bytes_per_s)] {
            let burst = tokens_in(rate, BURST);
            match bucket {
                _ if rate == 0 => *bucket = None,
                Some(b) if b.rate() == rate => {}
                Some(b) => b.set_rate(rate, burst),
                None => *bucket = Some(Bucket::new(rate, burst, burst)),
            }
        }
    }
    /// Whether a request of this many bytes may go at once; if so it is charged.
    pub fn take(&mut self, now: Time, bytes: u64) -> bool {
        let ready = self.waiting.is_empty() && self.ready(now);
        if ready {
            self.charge(bytes);
        }
        ready
    }
    /// It waits behind the others. True: it is the first.
    pub fn wait(&mut self, w: Waiting) -> bool {
        self.waiting.push_back(w);
        self.waiting.len() == 1
    }
    /// The next of those that wait, if it may go.
    pub fn next(&mut self, now: Time) -> Option<Waiting> {
        if self.waiting.is_empty() || !self.ready(now) {
            return None;
        }
        self.waiting.pop_front()
    }
    /// Charges a request of this many bytes.
    pub fn charge(&mut self, bytes: u64) {
        self.requests.iter_mut().for_each(|b| b.take(1));
        self.bytes.iter_mut().for_each(|b| b.take(bytes));
    }
    /// When the next of those that wait may go.
    pub fn ready_at(&self) -> Option<Time> {
        let at = [&self.requests, &self.bytes].into_iter().flatten().map(Bucket::ready_at).max();
        (!self.waiting.is_empty()).then(|| at.unwrap_or(Time::ZERO))
    }
    fn ready(&mut self, now: Time) -> bool {
        // Both are filled, whether or not the first says no.
        let requests = self.requests.as_mut().is_none_or(|b| b.ready(now));
        self.bytes.as_mut().is_none_or(|b| b.ready(now)) && requests
    }
}
