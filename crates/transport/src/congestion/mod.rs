//! Congestion control behind one interface (PN8): the number of bytes in flight on one connection in one class.

mod delay;
mod ecn;
mod fixed;

use std::fmt::Debug;

use rackweave_core::{Span, Time};

use crate::config::Algorithm;

/// Contents of an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    pub now: Time,
    /// Bytes newly acknowledged.
    pub bytes: u64,
    /// The round trip, if this acknowledgement measured one: without and with host time.
    pub rtt: Option<(Span, Span)>,
    /// How late datagrams come on a path that reorders: delay that no queue causes, since a queue keeps their order.
    pub late: Span,
    /// Of the acknowledged datagrams: those counted by the receiver, and those marked by a switch.
    pub received: u32,
    pub marked: u32,
    /// Whether the window limited the sender since the last acknowledgement.
    pub limited: bool,
}

/// An algorithm. It knows only its state and reads no clock.
pub trait Congestion: Debug + Send {
    fn acked(&mut self, a: &Acked);
    /// `sent` is when the lost datagram was sent: a reduction covers all losses of its round trip.
    fn lost(&mut self, now: Time, sent: Time);
    /// Datagrams declared lost had arrived.
    fn spurious(&mut self, _datagrams: u32) {}
    /// The retransmission time passed without an acknowledgement.
    fn timed_out(&mut self, now: Time);
    /// Bytes that may be in flight.
    fn window(&self) -> u64;
}

/// At least two datagrams may be in flight (RFC 5681's loss window would keep acknowledgements from riding along).
const DATAGRAMS_MIN: u64 = 2;
/// Initial window in datagrams (RFC 6928).
const DATAGRAMS_INITIAL: u64 = 10;
/// Largest window: the greatest bandwidth-delay product intended here, 100 Gb/s × 1 ms, rounded up.
const WINDOW_MAX: u64 = 16 << 20;

/// Greatest factor by which a host's own time multiplies a window.
const STRETCH_MAX: f64 = 16.0;

/// Time between sending a datagram and reading its acknowledgement that is not the network's. A window covers the
/// network; data held by a slow host is added, so that it gets the same share (PN9).
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    /// Both smoothed, ns.
    network: f64,
    turn: f64,
}

impl Stretch {
    /// Only while the window limits: otherwise acknowledgements are delayed on purpose.
    fn add(&mut self, rtt: Span, turn: Span, limited: bool) {
        if !limited {
            return;
        }
        let (network, turn) = (rtt.0.max(1) as f64, turn.0.max(rtt.0).max(1) as f64);
        let weight = if self.turn == 0.0 { 1.0 } else { 0.125 };
        self.network += (network - self.network) * weight;
        self.turn += (turn - self.turn) * weight;
    }
    /// Time from sending to reading the acknowledgement in ns.
    fn turn(&self) -> f64 {
        self.turn
    }
    fn factor(&self) -> f64 {
        if self.network > 0.0 { (self.turn / self.network).clamp(1.0, STRETCH_MAX) } else { 1.0 }
    }
    fn window(&self, network: f64) -> u64 {
        (network * self.factor()).min(WINDOW_MAX as f64) as u64
    }
}

/// Initial state for a connection whose largest datagram is `datagram` bytes, on paths of `base` when empty.
pub fn new(algorithm: Algorithm, datagram: usize, base: Span) -> Box<dyn Congestion> {
    let datagram = datagram as u64;
    match algorithm {
        Algorithm::Delay => Box::new(delay::Delay::new(datagram, base)),
        Algorithm::Ecn => Box::new(ecn::Ecn::new(datagram)),
        Algorithm::Fixed { window } => Box::new(fixed::Fixed::new(u64::from(window).max(datagram))),
    }
}
