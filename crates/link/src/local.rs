//! Transport parameters between processes of one machine.

use rackweave_core::Span;
use rackweave_transport::Config;

/// Largest datagram between addresses of one machine: loopback carries 64 KiB unfragmented.
const LOOPBACK_DATAGRAM: usize = 65_507;
const LOOPBACK_RETRANSMIT: Span = Span::from_millis(20);
/// A separate acknowledgement wakes an idle process. On one machine losses are rare and the retransmission time is
/// long, so acknowledgements wait longer for a datagram to ride on.
const LOOPBACK_ACK_DELAY: Span = Span::from_millis(4);
const LOOPBACK_ACK_EVERY: u32 = 32;

/// Sets the parameters for a network that is only the loopback interface.
pub fn on_one_machine(cfg: &mut Config) {
    // One path, and no MTU to discover.
    (cfg.paths, cfg.datagram_bytes_max) = (1, LOOPBACK_DATAGRAM);
    // Datagrams are lost here only if a process is not scheduled for long, as with more processes than cores.
    (cfg.retransmit_min, cfg.retransmit_initial) = (LOOPBACK_RETRANSMIT, LOOPBACK_RETRANSMIT);
    (cfg.ack_delay, cfg.ack_every) = (LOOPBACK_ACK_DELAY, LOOPBACK_ACK_EVERY);
}
