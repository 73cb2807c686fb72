//! Fields of a datagram that a switch reads and may rewrite: for software switches, and as a reference for others.

use rackweave_core::msg::Op;
use rackweave_core::{NodeId, VssdId};

use crate::header::{HEAD_BYTES, SHORT_HEAD_BYTES, u64_at};

/// A datagram that a switch routes by its tables: `read` or `write`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// Whether it may be redirected.
    pub read: bool,
    pub vssd: VssdId,
    pub source: NodeId,
    pub destination: NodeId,
    /// The packet's request number, by which a switch may spread redirected reads.
    pub request: u64,
}

/// The routing fields, if the switch routes this datagram. The receiver checks the others.
pub fn routed(datagram: &[u8]) -> Option<Routed> {
    if datagram.len() < HEAD_BYTES || !(datagram[0] == Op::Read as u8 || datagram[0] == Op::Write as u8) {
        return None;
    }
    let word = |at: usize| (u64_at(datagram, at) >> 32) as u32;
    Some(Routed {
        read: datagram[0] == Op::Read as u8,
        vssd: VssdId(word(1)),
        source: NodeId(word(12)),
        destination: NodeId(word(16)),
        request: u64_at(datagram, 40),
    })
}

/// A datagram in either form to an address of NICE's rings: a switch copies it to the ring's members.
pub fn to_ring(datagram: &[u8]) -> Option<Routed> {
    let ours = datagram.len() >= SHORT_HEAD_BYTES
        && matches!(datagram[0], 1..=9 | 16)
        && NodeId((u64_at(datagram, 16) >> 32) as u32).is_ring();
    let word = |at: usize| (u64_at(datagram, at) >> 32) as u32;
    ours.then(|| Routed {
        read: false,
        vssd: VssdId(word(1)),
        source: NodeId(word(12)),
        destination: NodeId(word(16)),
        request: 0,
    })
}

/// Rewrites the fields that a switch may: vSSD, destination, and the latency, to which `latency_ns` is added.
///
/// # Panics
/// If neither [`routed`] nor [`to_ring`] accepts the datagram.
pub fn rewrite(datagram: &mut [u8], to: NodeId, vssd: VssdId, latency_ns: u32) {
    let lat = (u64_at(datagram, 5) >> 32) as u32;
    datagram[1..5].copy_from_slice(&vssd.0.to_be_bytes());
    datagram[5..9].copy_from_slice(&lat.saturating_add(latency_ns).to_be_bytes());
    datagram[16..20].copy_from_slice(&to.0.to_be_bytes());
}
