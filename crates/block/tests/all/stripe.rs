use proptest::prelude::*;
use rackweave_block::Striping;

proptest! {
    /// Every block has one location, locations are dense, and ranges map to ranges.
    #[test]
    fn blocks_and_places_are_one_to_one(sets in 1u32..6, unit in 1u32..40, blocks in 1u64..600) {
        let s = Striping::new(sets, unit).unwrap();
        let mut next = vec![0u64; sets as usize];
        for b in 0..blocks {
            let (set, local) = s.locate(b);
            for k in 0..sets {
                prop_assert_eq!(s.blocks_before(k, b), next[k as usize]);
            }
            prop_assert_eq!(local, next[set as usize]);
            next[set as usize] += 1;
        }
    }

    /// Pieces cover a range exactly. Each is contiguous in its set, at most one message long, and cut between blocks.
    #[test]
    fn pieces_tile_a_range(sets in 1u32..6, unit in 1u32..40, first in 0u64..5000, count in 1u64..3000) {
        let s = Striping::new(sets, unit).unwrap();
        let (mut at, end) = (first * 512, (first + count) * 512);
        while at < end {
            let p = s.piece(at, end);
            prop_assert_eq!(p.offset, at);
            prop_assert!(p.len > 0 && p.len <= 65_536);
            for i in 0..u64::from(p.len) / 512 {
                let sector = at / 512 + i;
                let (set, local) = s.locate(sector / 8);
                prop_assert_eq!((set, local * 8 + sector % 8), (p.set, p.first_sector + i));
            }
            at += u64::from(p.len);
            prop_assert!(at == end || at % 4096 == 0, "cut inside a block");
        }
        prop_assert_eq!(at, end);
    }
}

#[test]
fn no_sets_is_no_striping() {
    assert_eq!(Striping::new(0, 16), None);
    assert_eq!(Striping::new(3, 0), None);
}
