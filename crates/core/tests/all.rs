//! Properties of the small types that everything else builds on.

use bytes::Bytes;
use proptest::prelude::*;
use rackweave_core::{BLOCK, BlockAddr, Epoch, NodeId, Payload, Rng, SECTOR, Summed, Timestamp, VolumeId};

fn bytes(sectors: u32, first: u8) -> Bytes {
    (0..sectors * SECTOR).map(|i| first.wrapping_add((i / SECTOR) as u8)).collect()
}

fn payload() -> impl Strategy<Value = Payload> {
    let sectors = 1u32..24;
    prop_oneof![
        sectors.clone().prop_map(|s| Payload::zero(s * SECTOR)),
        (sectors.clone(), any::<u64>()).prop_map(|(s, seed)| Payload::elided(s * SECTOR, seed)),
        (sectors.clone(), any::<u8>()).prop_map(|(s, b)| Payload::Bytes(bytes(s, b))),
        (sectors.clone(), any::<u8>())
            .prop_map(|(s, b)| Payload::Summed(Summed::on_demand(bytes(s, b)).expect("whole sectors"))),
        proptest::collection::vec(any::<u64>(), 1..24).prop_map(|ids| Payload::Mixed(ids.into())),
    ]
}

fn identities(p: &Payload) -> Vec<u64> {
    (0..p.sectors()).map(|i| p.identity(i)).collect()
}

proptest! {
    #[test]
    fn a_slice_has_the_identities_it_cut(p in payload(), a in 0u32..24, n in 0u32..24) {
        let first = a % p.sectors();
        let count = n % (p.sectors() - first + 1);
        let all = identities(&p);
        let slice = p.slice(first, count);
        prop_assert_eq!(identities(&slice), &all[first as usize..(first + count) as usize]);
        prop_assert_eq!(slice.sum(), slice.crc32c(), "what comes with it is what is computed");
    }

    /// Elided sectors become bytes when joined with real bytes; only then may an identity change.
    #[test]
    fn parts_join_to_their_identities(ps in proptest::collection::vec(payload(), 1..5)) {
        let real = |p: &Payload| p.bytes().is_some();
        prop_assume!(!ps.iter().any(real) || ps.iter().all(|p| real(p) || matches!(p, Payload::Zero { .. })));
        let joined = Payload::concat(&ps);
        let want: Vec<u64> = ps.iter().flat_map(identities).collect();
        prop_assert_eq!(identities(&joined), want);
    }

    #[test]
    fn a_merge_is_the_patch_inside_and_the_base_outside(seed in any::<u64>(), at in 0u32..8, n in 1u32..8, patch_seed in any::<u64>()) {
        let n = n.min(8 - at);
        let base = Payload::elided(BLOCK, seed);
        let patch = Payload::elided(n * SECTOR, patch_seed);
        let mut want = identities(&base);
        want[at as usize..(at + n) as usize].copy_from_slice(&identities(&patch));
        prop_assert_eq!(identities(&base.merged(at, &patch)), want);
    }

    #[test]
    fn integer_order_of_timestamps_is_the_order_of_their_parts(
        a in (0u32..=Timestamp::EPOCH_MAX, 0..=Timestamp::VERSION_MAX, 0u8..=Timestamp::MEMBER_MAX),
        b in (0u32..=Timestamp::EPOCH_MAX, 0..=Timestamp::VERSION_MAX, 0u8..=Timestamp::MEMBER_MAX),
    ) {
        let make = |(e, v, m)| Timestamp::new(Epoch(e), v, m);
        prop_assert_eq!(make(a).cmp(&make(b)), a.cmp(&b));
        let t = make(a);
        prop_assert_eq!((t.epoch().0, t.version(), t.member()), a);
    }

    #[test]
    fn packed_addresses_keep_their_order(a in any::<(u32, u32)>(), b in any::<(u32, u32)>()) {
        let make = |(v, n)| BlockAddr::new(VolumeId(v), n);
        prop_assert_eq!(make(a).pack().cmp(&make(b).pack()), make(a).cmp(&make(b)));
        prop_assert_eq!(BlockAddr::unpack(make(a).pack()), make(a));
    }

    #[test]
    fn a_node_is_found_again_by_its_address(n in 0u32..0xff_fffe) {
        prop_assert_eq!(NodeId::from_ipv4(NodeId(n).ipv4()), Some(NodeId(n)));
    }
}

#[test]
fn an_address_outside_the_rack_names_no_node() {
    assert_eq!(NodeId::from_ipv4(10 << 24), None);
    assert_eq!(NodeId::from_ipv4(0x7f00_0001), None);
    assert_eq!(NodeId(0xff_fffe).ipv4(), 0x0aff_ffff);
    for id in [0xff_ffff, 0x0200_0001, u32::MAX] {
        assert_eq!(NodeId::from_ipv4(NodeId(id).ipv4()), None, "{id:#x}");
    }
}

/// A seed must give the same run forever. Reference: xoshiro256++ seeded by SplitMix64, computed separately.
#[test]
fn the_generator_is_fixed() {
    let mut r = Rng::new(7);
    let first: Vec<u64> = (0..3).map(|_| r.next_u64()).collect();
    assert_eq!(first, [0x0e2c_1a00_2aae_913d, 0x2c0f_c8dd_fa4e_9e14, 0xb7b3_11b3_b0d4_5872]);
    assert_ne!(Rng::stream(7, 1).next_u64(), Rng::stream(7, 2).next_u64());
}

#[test]
fn draws_stay_in_their_range() {
    let mut r = Rng::new(1);
    for _ in 0..10_000 {
        assert!(r.below(3) < 3);
        assert!((5..=9).contains(&r.between(5, 9)));
        assert!((0.0..1.0).contains(&r.unit()));
    }
}
