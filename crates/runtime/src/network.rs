//! The seam between the event loop and the network to nodes in other processes.

use std::io;
use std::os::fd::RawFd;

use rackweave_core::msg::Packet;
use rackweave_core::{NodeId, Time};
use rackweave_transport::{Keys, PeerStatus};

use crate::clock::Clock;

/// Access of a network to the nodes in this process.
pub trait Local {
    /// Takes the packets for nodes elsewhere, oldest first.
    fn take_outbound(&mut self) -> std::vec::Drain<'_, Packet>;
    /// Delivers a packet to a node here, which handles it in the next turn of the loop.
    fn deliver(&mut self, p: Packet);
    /// Lets the switch here forward a packet at once; the result is then in [`Local::take_outbound`].
    fn pass(&mut self, now: Time, p: Packet);
}

/// The event loop's way to send to nodes in other processes and to receive from them.
///
/// Times that are passed never decrease. The loop calls [`Network::send`] after each turn, and a receiving method when
/// its descriptor is readable.
pub trait Network {
    /// Readable when [`Network::receive`] has work.
    fn datagrams(&self) -> RawFd;
    /// Readable when [`Network::receive_streams`] has work.
    fn streams(&self) -> RawFd;
    /// When [`Network::send`] has work even if no node sends.
    fn deadline(&self) -> Time;
    /// Sets the clock that timestamps arrivals.
    fn keep_time_of(&mut self, clock: &Clock);

    /// Takes in a batch of datagrams. False if there was none.
    ///
    /// # Errors
    /// The socket failed for good.
    fn receive(&mut self, now: Time, nodes: &mut dyn Local) -> io::Result<bool>;
    /// Takes in what arrived on streams.
    ///
    /// # Errors
    /// As [`Network::receive`].
    fn receive_streams(&mut self, now: Time, nodes: &mut dyn Local) -> io::Result<()>;
    /// Sends the nodes' packets, and the network's own.
    ///
    /// # Errors
    /// As [`Network::receive`].
    fn send(&mut self, now: Time, nodes: &mut dyn Local) -> io::Result<()>;

    /// Ids of the cluster keys, the sending key first.
    fn keys(&self) -> Vec<u8>;
    /// Sets the keys that seal and open datagrams.
    fn set_keys(&mut self, keys: Keys);
    /// Nodes found to run twice since the last call.
    fn take_twins(&mut self) -> Vec<NodeId>;

    /// State of the peers.
    fn peers(&self) -> Vec<PeerStatus>;
    /// Open sockets.
    fn sockets(&self) -> usize;
    /// The source of round-trip timestamps, as text.
    fn timestamps(&self) -> String;
    /// Every non-zero counter, by name.
    fn counters(&self) -> Vec<(String, u64)>;
}
