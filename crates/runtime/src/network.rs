//! The seam between the event loop and the way to nodes in other processes.

use std::io;
use std::os::fd::RawFd;

use rackweave_core::msg::Packet;
use rackweave_core::{NodeId, Time};
use rackweave_transport::{Keys, PeerStatus};

use crate::clock::Clock;

/// Access of a network to the nodes in this process.
pub trait Local {
    /// Packets for nodes elsewhere, oldest first; they are taken.
    fn take_outbound(&mut self) -> std::vec::Drain<'_, Packet>;
    /// A packet for a node here, which handles it in the next turn of the loop.
    fn deliver(&mut self, p: Packet);
    /// A packet that the switch here forwards at once: what it decided is in [`Local::take_outbound`] afterwards.
    fn pass(&mut self, now: Time, p: Packet);
}

/// How the event loop sends to nodes in other processes and receives from them.
///
/// Times that are passed never decrease. The loop calls [`Network::send`] after each turn, and a method that receives when its
/// descriptor is readable.
pub trait Network {
    /// Readable when [`Network::receive`] has something to do.
    fn datagrams(&self) -> RawFd;
    /// Readable when [`Network::receive_streams`] has something to do.
    fn streams(&self) -> RawFd;
    /// When [`Network::send`] has something to do even if no node sends.
    fn deadline(&self) -> Time;
    /// The clock that arrivals are stamped by.
    fn keep_time_of(&mut self, clock: &Clock);

    /// Takes in a batch of datagrams. False: there was none.
    ///
    /// # Errors
    /// The socket failed for good.
    fn receive(&mut self, now: Time, nodes: &mut dyn Local) -> io::Result<bool>;
    /// Takes in what came by streams.
    ///
    /// # Errors
    /// As [`Network::receive`].
    fn receive_streams(&mut self, now: Time, nodes: &mut dyn Local) -> io::Result<()>;
    /// Sends the nodes' packets, and the network's own.
    ///
    /// # Errors
    /// As [`Network::receive`].
    fn send(&mut self, now: Time, nodes: &mut dyn Local) -> io::Result<()>;

    /// Ids of the cluster's keys, the one that is sent with first.
    fn keys(&self) -> Vec<u8>;
    /// Datagrams are sealed and opened with these from now on.
    fn set_keys(&mut self, keys: Keys);
    /// Nodes that were found to run twice since the last call.
    fn take_twins(&mut self) -> Vec<NodeId>;

    /// State of the peers.
    fn peers(&self) -> Vec<PeerStatus>;
    /// Open sockets.
    fn sockets(&self) -> usize;
    /// Where the times of round trips are taken, in words.
    fn timestamps(&self) -> String;
    /// Every count that is not zero, by name.
    fn counters(&self) -> Vec<(String, u64)>;
}
