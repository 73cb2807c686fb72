//! Parameters of the transport between processes of one machine.

use rackweave_core::Span;
use rackweave_transport::Config;

/// Largest datagram between addresses of one machine: the loopback carries 64 KiB in one piece.
const LOOPBACK_DATAGRAM: usize = 65_507;
const LOOPBACK_RETRANSMIT: Span = Span::from_millis(20);
/// Acknowledgements by themselves wake a process that has nothing to do: on one machine, where the next message seldom is
/// lost and the retransmission time is long, they wait longer for one to ride on.
const LOOPBACK_ACK_DELAY: Span = Span::from_millis(4);
const LOOPBACK_ACK_EVERY: u32 = 32;

/// Sets the parameters for a network that is the loopback interface.
pub fn on_one_machine(cfg: &mut Config) {
    // One path, and nothing to measure.
    (cfg.paths, cfg.datagram_bytes_max) = (1, LOOPBACK_DATAGRAM);
    // Datagrams are lost here only when a process does not run for long enough, as with more of them than cores.
    (cfg.retransmit_min, cfg.retransmit_initial) = (LOOPBACK_RETRANSMIT, LOOPBACK_RETRANSMIT);
    (cfg.ack_delay, cfg.ack_every) = (LOOPBACK_ACK_DELAY, LOOPBACK_ACK_EVERY);
}
