//! NICE's virtual rings (NICE §3): addresses that stand for the replicas of a part of the keys.

use std::net::Ipv4Addr;

use rackweave_core::NodeId;

use crate::layout::REPLICAS_MAX;

/// Most prefixes a data plane holds: 64 Ki nodes with a unicast and a multicast entry each (NI8).
pub const RINGS_MAX: u32 = 131_072;

/// The first `bits` bits of a ring's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    pub address: Ipv4Addr,
    pub bits: u8,
}

/// Which members a packet for a ring's address reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All (puts).
    All,
    /// The one whose share of the clients the sender's address is in (gets; NICE's client partitioning).
    Share,
}

/// A prefix's replica group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    pub prefix: Prefix,
    pub reach: Reach,
    pub members: Vec<NodeId>,
}

/// Why a ring was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    #[error("{members} members: 1 to {REPLICAS_MAX} fit")]
    Members { members: usize },
    #[error("{bits} bits are no prefix of an IPv4 address")]
    Bits { bits: u8 },
    #[error("{address}/{bits} has bits beyond its prefix")]
    Beyond { address: Ipv4Addr, bits: u8 },
}

impl Prefix {
    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0)
    }
}

impl Ring {
    /// What no data plane takes.
    pub fn check(&self) -> Result<(), RingError> {
        let Prefix { address, bits } = self.prefix;
        if self.members.is_empty() || self.members.len() > REPLICAS_MAX {
            return Err(RingError::Members { members: self.members.len() });
        }
        if bits > 32 {
            return Err(RingError::Bits { bits });
        }
        if u32::from(address) & !self.prefix.mask() != 0 {
            return Err(RingError::Beyond { address, bits });
        }
        Ok(())
    }
}
