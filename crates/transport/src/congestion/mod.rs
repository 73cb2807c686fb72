//! Congestion control behind one interface (PN8): how many bytes may be on the way on one connection in one class.

mod delay;
mod ecn;
mod fixed;

use std::fmt::Debug;

use rackweave_core::{Span, Time};

use crate::config::Algorithm;

/// What an acknowledgement tells.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    pub now: Time,
    /// Bytes newly acknowledged.
    pub bytes: u64,
    /// Round trip without the hosts' time, if this acknowledgement measured one.
    pub rtt: Option<Span>,
    pub smoothed: Span,
    /// Lowest seen lately.
    pub rtt_min: Span,
    /// Of the datagrams acknowledged, those counted by the receiver and those marked by a switch.
    pub received: u32,
    pub marked: u32,
    /// Whether the window held the sender back since the last acknowledgement.
    pub limited: bool,
}

/// One algorithm. Its state is all it knows; it reads no clock.
pub trait Congestion: Debug + Send {
    fn acked(&mut self, a: &Acked);
    /// `sent` is when the lost datagram left: one reduction a round trip counts what is lost of it.
    fn lost(&mut self, now: Time, sent: Time);
    /// Nothing was heard for the retransmission time.
    fn timed_out(&mut self, now: Time);
    /// Bytes that may be on the way.
    fn window(&self) -> u64;
}

/// Never fewer than two datagrams are on the way (RFC 5681's loss window would stop acknowledgements riding along).
const DATAGRAMS_MIN: u64 = 2;
/// First window, datagrams (RFC 6928).
const DATAGRAMS_INITIAL: u64 = 10;
/// No window grows beyond this: the largest bandwidth-delay product of the racks meant here, 100 Gb/s × 1 ms, rounded up.
const WINDOW_MAX: u64 = 16 << 20;

/// A fresh state for a connection whose largest datagram is `datagram` bytes.
pub fn new(algorithm: Algorithm, datagram: usize) -> Box<dyn Congestion> {
    let datagram = datagram as u64;
    match algorithm {
        Algorithm::Delay => Box::new(delay::Delay::new(datagram)),
        Algorithm::Ecn => Box::new(ecn::Ecn::new(datagram)),
        Algorithm::Fixed { window } => Box::new(fixed::Fixed::new(u64::from(window).max(datagram))),
    }
}
