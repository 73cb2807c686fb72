//! Consistent hashing at the sizes of NICE's claims.

use std::collections::BTreeMap;

use rackweave_core::NodeId;
use rackweave_kv_replica::hash::{Ring, RingError, partition};
use rackweave_kv_replica::types::Partition;

fn ring(nodes: u32, bits: u32, points: u32, replicas: usize) -> Ring {
    let mut ring = Ring::new(bits, points, replicas).expect("in range");
    (0..nodes).for_each(|n| ring.add(NodeId(n)));
    ring
}

fn homes(ring: &Ring) -> Vec<Vec<NodeId>> {
    ring.partitions().map(|p| ring.home(p)).collect()
}

/// Joins a node: the share of the partitions' places that move, and of the primaries.
fn join(nodes: u32, bits: u32, points: u32) -> (f64, f64) {
    let mut ring = ring(nodes, bits, points, 3);
    let before = homes(&ring);
    let new = NodeId(nodes);
    ring.add(new);
    let after = homes(&ring);
    let (mut places, mut primaries) = (0, 0);
    for (b, a) in before.iter().zip(&after) {
        let moved: Vec<&NodeId> = a.iter().filter(|n| !b.contains(n)).collect();
        assert!(moved.iter().all(|n| **n == new), "only the new node takes places: {b:?} {a:?}");
        places += moved.len();
        primaries += usize::from(a[0] != b[0]);
    }
    ring.remove(new);
    assert_eq!(homes(&ring), before, "and gives them back");
    (places as f64 / (3 * before.len()) as f64, primaries as f64 / before.len() as f64)
}

#[test]
fn a_join_moves_its_share_at_64_and_4096_nodes() {
    for (nodes, bits, points) in [(64, 14, 128), (4096, 16, 16)] {
        let share = 1.0 / f64::from(nodes + 1);
        let (places, primaries) = join(nodes, bits, points);
        assert!(places > share * 0.4 && places < share * 1.8, "{nodes} nodes: {places}, a share is {share}");
        assert!(primaries < share * 2.5, "{nodes} nodes: {primaries}");
    }
}

#[test]
fn each_node_is_primary_of_some_and_secondary_of_others() {
    let ring = ring(15, 10, 64, 3);
    let (mut first, mut other) = (BTreeMap::new(), BTreeMap::new());
    for home in homes(&ring) {
        assert_eq!(home.len(), 3);
        *first.entry(home[0]).or_insert(0) += 1;
        home[1..].iter().for_each(|n| *other.entry(*n).or_insert(0) += 1);
    }
    assert_eq!((first.len(), other.len()), (15, 15));
    assert!(first.values().all(|n| (30..140).contains(n)), "{first:?}");
}

#[test]
fn nine_replicas_and_fewer_nodes_than_replicas() {
    assert_eq!(ring(12, 6, 8, 9).home(Partition(5)).len(), 9);
    assert_eq!(ring(2, 6, 8, 3).home(Partition(5)).len(), 2);
    assert_eq!(Ring::new(6, 8, 10).err(), Some(RingError::Replicas { replicas: 10 }));
    assert_eq!(Ring::new(21, 8, 3).err(), Some(RingError::Bits { bits: 21 }));
    assert_eq!(Ring::new(6, 0, 3).err(), Some(RingError::Points { points: 0 }));
}

#[test]
fn keys_spread_over_the_partitions() {
    let mut counts = [0u32; 64];
    (0..64_000u32).for_each(|i| counts[partition(format!("user{i}").as_bytes(), 6).0 as usize] += 1);
    assert!(counts.iter().all(|n| (850..1150).contains(n)), "{counts:?}");
    assert_eq!(partition(b"any", 0), Partition(0));
}
