//! NICE's virtual rings (NICE §3): addresses that stand for the replicas of a part of the keys, and the table of them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use rackweave_core::map::{Map, map};
use rackweave_core::msg::keys::View;
use rackweave_core::{Epoch, Incarnation, NodeId};

use crate::control::RingChange;

/// Most prefixes a data plane holds: 64 Ki nodes with a unicast and a multicast entry each (NI8).
pub const RINGS_MAX: u32 = 131_072;
/// Most members of a ring's group: NICE's largest (§6.3).
pub const MEMBERS_MAX: usize = 9;

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
    #[error("{members} members: 1 to {MEMBERS_MAX} fit")]
    Members { members: usize },
    #[error("{bits} bits: a prefix of an IPv4 address has at most 32")]
    Bits { bits: u8 },
    #[error("{address}/{bits} has bits beyond its prefix")]
    Beyond { address: Ipv4Addr, bits: u8 },
    #[error("{RINGS_MAX} rings are there already")]
    Full,
    #[error("it is twice in the full state")]
    Twice,
}

impl Prefix {
    /// One address.
    pub fn of(address: NodeId) -> Prefix {
        Prefix { address: Ipv4Addr::from(address.ipv4()), bits: 32 }
    }
    pub fn contains(self, address: NodeId) -> bool {
        address.ipv4() & self.mask() == u32::from(self.address)
    }
    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0)
    }
}

impl Ring {
    /// Rings that no data plane accepts.
    pub fn check(&self) -> Result<(), RingError> {
        let Prefix { address, bits } = self.prefix;
        if self.members.is_empty() || self.members.len() > MEMBERS_MAX {
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
    /// Members that a packet of this sender reaches. Any data plane with a 32-bit multiplication chooses the same.
    pub fn reached(&self, from: NodeId) -> &[NodeId] {
        match self.reach {
            Reach::All => &self.members,
            Reach::Share => {
                let hash = from.ipv4().wrapping_mul(0x9e37_79b9);
                let share = ((u64::from(hash) * self.members.len() as u64) >> 32) as usize;
                &self.members[share..=share]
            }
        }
    }
}

/// Rings by prefix. The longest that an address has counts.
#[derive(Clone, Debug, Default)]
pub struct Rings {
    /// By bits, the most first, then by address.
    all: BTreeMap<Reverse<u8>, Map<u32, Ring>>,
    count: u32,
}

impl Rings {
    /// A ring that is there is replaced.
    pub fn set(&mut self, ring: &Ring) -> Result<(), RingError> {
        ring.check()?;
        let of_bits = self.all.entry(Reverse(ring.prefix.bits)).or_insert_with(map);
        let address = u32::from(ring.prefix.address);
        if !of_bits.contains_key(&address) {
            if self.count >= RINGS_MAX {
                return Err(RingError::Full);
            }
            self.count += 1;
        }
        of_bits.insert(address, ring.clone());
        Ok(())
    }
    pub fn remove(&mut self, prefix: Prefix) {
        let of_bits = self.all.get_mut(&Reverse(prefix.bits));
        if of_bits.is_some_and(|r| r.remove(&u32::from(prefix.address)).is_some()) {
            self.count -= 1;
        }
    }
    /// The ring of an address, if any.
    pub fn find(&self, address: u32) -> Option<&Ring> {
        self.all.iter().find_map(|(Reverse(bits), rings)| {
            let mask = u32::MAX.checked_shl(32 - u32::from(*bits)).unwrap_or(0);
            rings.get(&(address & mask))
        })
    }
    /// All of them, by prefix.
    pub fn dump(&self) -> Vec<Ring> {
        let mut all: Vec<Ring> = self.all.values().flat_map(|r| r.values().cloned()).collect();
        all.sort_by_key(|r| r.prefix);
        all
    }
}

/// The newest view of each partition of keys, by the membership service's incarnation and the epoch: its members are
/// behind the partition's address on the multicast ring. Of two keyspaces with an address, the later one's epochs are greater.
#[derive(Clone, Debug, Default)]
pub struct KeyRings(BTreeMap<NodeId, (Incarnation, Epoch)>);

impl KeyRings {
    /// The change that a view makes; `None`: it is an older one.
    pub fn change(&mut self, incarnation: Incarnation, view: &View) -> Option<RingChange> {
        let (address, new) = (view.partition.multicast(), (incarnation, view.epoch));
        let older = self.0.get(&address).is_some_and(|known| new < *known) && !mutant!("switch.ring.older-view");
        if older {
            return None;
        }
        self.0.insert(address, new);
        let prefix = Prefix::of(address);
        let members = view.members.iter().map(|m| m.node).collect();
        let ring = Ring { prefix, reach: Reach::All, members };
        // More members than a group has: their clients send to each of them.
        Some(if ring.check().is_ok() { RingChange::Set(ring) } else { RingChange::Remove(prefix) })
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::DriveId;
    use rackweave_core::msg::keys::{Epochs, Member, Partition, Role};

    use super::*;

    fn view(epoch: u32, members: u32) -> View {
        let member = |n: u32| Member {
            node: NodeId(2 + n),
            incarnation: Incarnation(1),
            drive: DriveId(1),
            role: Role::Home,
            holds: Epochs::none(),
            wants: Epochs::none(),
            since: Epoch(1),
            witness: false,
        };
        let members = (0..members).map(member).collect();
        View { partition: Partition(5), epoch: Epoch(epoch), primary: NodeId(2), active: Epoch(0), members }
    }

    #[test]
    fn the_newest_view_of_the_newest_membership_service_counts() {
        let mut rings = KeyRings::default();
        let prefix = Prefix { address: Ipv4Addr::new(10, 11, 0, 80), bits: 32 };
        let members = |n: u32| (2..2 + n).map(NodeId).collect::<Vec<_>>();
        let set = |n| Some(RingChange::Set(Ring { prefix, reach: Reach::All, members: members(n) }));
        assert_eq!(rings.change(Incarnation(3), &view(7, 3)), set(3));
        assert_eq!(rings.change(Incarnation(3), &view(6, 2)), None, "an older epoch");
        assert_eq!(rings.change(Incarnation(2), &view(9, 2)), None, "an older service");
        assert_eq!(rings.change(Incarnation(3), &view(7, 3)), set(3), "repeated");
        assert_eq!(rings.change(Incarnation(4), &view(7, 2)), set(2), "of a service that lost the other epoch 7");
        assert_eq!(rings.change(Incarnation(4), &view(8, 10)), Some(RingChange::Remove(prefix)), "more than fit");
        let later = View { partition: Partition(5 + Partition::ADDRESSED_MAX), ..view(9, 2) };
        assert_eq!(rings.change(Incarnation(4), &later), set(2), "of a later keyspace with its address");
        assert_eq!(rings.change(Incarnation(4), &view(8, 3)), None, "of the one that is gone");
    }
}
