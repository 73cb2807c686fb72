//! Pairs of servers that get one append of a cloud disk, and their address on the multicast ring.

use super::partition::{MULTICAST, SHARES_MAX};
use crate::admin::SERVERS_MAX;
use crate::{Layout, NodeId};

/// The address has the number of a share of a partition's gets, of which none is on the multicast ring.
const SHARE: u32 = 1;

/// Two servers of a rack. Both sub-logs of a burst write are theirs ([`View::pair`]), in either order.
///
/// [`View::pair`]: super::cloud::View::pair
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPair {
    low: u32,
    high: u32,
}

impl LogPair {
    /// `None`: they are not two servers with numbers below [`SERVERS_MAX`].
    pub fn of(a: NodeId, b: NodeId) -> Option<LogPair> {
        let number = |n: NodeId| Some(Layout::server_number(n)).filter(|s| Layout::numbered_server(*s) == n);
        LogPair::of_numbers(number(a)?, number(b)?)
    }
    fn of_numbers(a: u32, b: u32) -> Option<LogPair> {
        let (low, high) = (a.min(b), a.max(b));
        (low < high && high < SERVERS_MAX).then_some(LogPair { low, high })
    }
    /// All pairs of servers with numbers below this.
    pub fn all(servers: u32) -> impl Iterator<Item = LogPair> {
        (0..servers).flat_map(move |low| (low + 1..servers).filter_map(move |high| LogPair::of_numbers(low, high)))
    }
    /// The pair behind an address.
    pub fn of_address(address: NodeId) -> Option<LogPair> {
        let ip = address.ipv4();
        let (number, share) = ((ip & 0xffff) / SHARES_MAX, ip % SHARES_MAX);
        (ip & !0xffff == MULTICAST && share == SHARE && number / SERVERS_MAX < number % SERVERS_MAX)
            .then_some(LogPair { low: number / SERVERS_MAX, high: number % SERVERS_MAX })
    }
    /// The switch copies what is addressed to it to both servers.
    pub fn address(self) -> NodeId {
        let number = self.low * SERVERS_MAX + self.high;
        NodeId::from_ipv4(MULTICAST | (number * SHARES_MAX + SHARE)).unwrap_or_default()
    }
    pub fn members(self) -> [NodeId; 2] {
        [self.low, self.high].map(Layout::numbered_server)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::msg::keys::Partition;

    #[test]
    fn every_pair_has_an_address_of_its_own_which_no_partition_has() {
        let all: Vec<LogPair> = LogPair::all(SERVERS_MAX).collect();
        assert_eq!(all.len(), 64 * 63 / 2);
        let addresses: BTreeSet<NodeId> = all.iter().map(|p| p.address()).collect();
        assert_eq!(addresses.len(), all.len());
        let partitions = |p: u32| Partition(p).multicast();
        assert!((0..Partition::ADDRESSED_MAX).map(partitions).all(|a| LogPair::of_address(a).is_none()));
        for pair in all {
            let [a, b] = pair.members();
            assert!(pair.address().is_ring() && pair.address().first_hop() == Layout::SWITCH);
            assert_eq!(LogPair::of_address(pair.address()), Some(pair));
            assert_eq!((LogPair::of(a, b), LogPair::of(b, a)), (Some(pair), Some(pair)));
        }
    }

    #[test]
    fn what_is_no_pair_has_no_address() {
        let server = Layout::numbered_server;
        assert_eq!(LogPair::of(server(3), server(3)), None);
        assert_eq!(LogPair::of(server(3), Layout::META), None);
        assert_eq!(LogPair::of(server(3), server(SERVERS_MAX)), None);
        let same = NodeId::from_ipv4(MULTICAST | ((5 * SERVERS_MAX + 5) * SHARES_MAX + SHARE)).expect("an address");
        assert_eq!(LogPair::of_address(same), None);
        assert_eq!(LogPair::of_address(Partition(9).unicast(1)), None);
    }
}
