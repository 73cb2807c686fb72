//! Allocation of virtual SSDs of all kinds from one drive's free lists.

use rackweave_core::{Rng, VssdId};
use rackweave_flash::Profile;
use rackweave_flash::isolation::{Isolation, ThroughputLevels};
use rackweave_flash::manager::alloc::{AllocVssdError, Allocator, Cut, Free, Units};

const GIB: u64 = 1 << 30;

fn p_ssd() -> Allocator {
    let p = Profile::builtin("p-ssd").expect("built in");
    Allocator::new(Cut::new(p.geometry, 4, p.device_over_provisioning), ThroughputLevels::default(), 8)
}

fn numbers(a: &mut Allocator, id: u32, isolation: Isolation, level: u32, capacity: u64) -> Vec<u32> {
    a.alloc(VssdId(id), isolation, level, capacity).expect("room").numbers.clone()
}

#[test]
fn all_four_kinds_share_one_drive() {
    let mut a = p_ssd();
    assert_eq!(numbers(&mut a, 1, Isolation::Channel, 1, GIB), [0, 1]);
    assert_eq!(numbers(&mut a, 2, Isolation::Die, 0, GIB), [8]);
    assert_eq!(numbers(&mut a, 3, Isolation::Software, 1, GIB), [9 * 4, 10 * 4]);
    assert_eq!(numbers(&mut a, 4, Isolation::None, 0, GIB), [9 * 4 + 1]);
    assert_eq!(a.free(), Free { channels: 13, dies: 1, soft_planes: 5 });
}

#[test]
fn a_vssd_has_what_its_level_or_its_capacity_needs() {
    let mut a = p_ssd();
    // 1 % of a die's 4096 blocks is 41: 1013 stripes of 4 planes × 4 MiB × 4 dies.
    let channel = (1013 * 64) << 20;
    assert_eq!(a.cut().unit_bytes(Isolation::Channel), channel);
    assert_eq!(numbers(&mut a, 1, Isolation::Channel, 0, channel), [0]);
    assert_eq!(numbers(&mut a, 2, Isolation::Channel, 0, channel + 1), [1, 2]);
    assert_eq!(numbers(&mut a, 3, Isolation::Channel, 2, channel + 1), [3, 4, 5, 6]);
}

#[test]
fn the_administrators_mapping_counts() {
    let p = Profile::builtin("p-ssd").expect("built in");
    let levels = ThroughputLevels { channels: vec![3], dies: vec![1, 5], soft_planes: vec![7] };
    let mut a = Allocator::new(Cut::new(p.geometry, 4, 0.01), levels, 64);
    assert_eq!(numbers(&mut a, 1, Isolation::Channel, 0, 1).len(), 3);
    assert_eq!(numbers(&mut a, 2, Isolation::Die, 1, 1).len(), 5);
    assert_eq!(numbers(&mut a, 3, Isolation::Software, 0, 1).len(), 7);
    let e = a.alloc(VssdId(4), Isolation::Die, 2, 1).expect_err("two levels");
    assert_eq!(e, AllocVssdError::Level { level: 2, isolation: Isolation::Die, last: 1 });
    assert_eq!(e.to_string(), "throughput level 2 is not configured: die-isolated vSSDs have levels 0 to 1");
}

#[test]
fn soft_planes_of_one_vssd_lie_on_many_dies_and_two_share_them() {
    let mut a = p_ssd();
    let dies = |n: &[u32]| n.iter().map(|p| p / 4).collect::<std::collections::BTreeSet<_>>();
    let one = numbers(&mut a, 1, Isolation::Software, 4, 1);
    let two = numbers(&mut a, 2, Isolation::Software, 4, 1);
    assert_eq!((one.len(), two.len()), (16, 16));
    assert_eq!(dies(&one), (0..8).collect());
    assert_eq!(dies(&two), (0..8).collect());
    assert_eq!(a.free(), Free { channels: 14, dies: 0, soft_planes: 0 });
}

#[test]
fn soft_planes_are_taken_of_split_dies_before_others_are_split() {
    let mut a = p_ssd();
    // Three vSSDs with one soft-plane on each of eight dies, so that each die has one left.
    for id in 1..=3 {
        assert_eq!(numbers(&mut a, id, Isolation::Software, 3, 1).len(), 8);
    }
    assert_eq!(a.free(), Free { channels: 14, dies: 0, soft_planes: 8 });
    // 16 on eight dies: one of four is on a new die until eight dies have room for two each on average.
    let four = numbers(&mut a, 4, Isolation::Software, 4, 1);
    let free = a.free();
    assert_eq!((four.len(), free.channels), (16, 13), "{free}");
    // A vSSD wider than a stripe takes as many dies as it needs, and no more.
    let five = numbers(&mut a, 5, Isolation::Software, 6, 1);
    let dies: std::collections::BTreeSet<u32> = five.iter().map(|p| p / 4).collect();
    assert_eq!((five.len(), dies.len()), (64, 16), "{dies:?}");
    // The last soft-plane can be allocated.
    let (free, mut id) = (a.free(), 6);
    let mut rest = free.channels * 16 + free.dies * 4 + free.soft_planes;
    while rest > 0 {
        let level = rest.min(32).ilog2();
        numbers(&mut a, id, Isolation::Software, level, 1);
        (rest, id) = (rest - (1 << level), id + 1);
    }
    assert_eq!(a.free(), Free::default());
}

#[test]
fn freed_parts_coalesce() {
    let mut a = p_ssd();
    let fresh = a.free();
    for id in 1..=8 {
        numbers(&mut a, id, Isolation::Die, 0, 1);
    }
    assert_eq!(a.free().channels, 14);
    let e = a.alloc(VssdId(9), Isolation::Channel, 4, 1).expect_err("two are split");
    let text = e.to_string();
    assert!(text.contains("16 channels requested") && text.contains("14 available"), "{text}");
    assert!(text.contains("up to 951737909248 bytes would fit"), "{text}");
    assert!(text.contains("free are 14 channels, 0 dies and 0 soft-planes"), "{text}");
    for id in [3, 1, 2, 4] {
        a.free_vssd(VssdId(id)).expect("there");
    }
    assert_eq!(a.free(), Free { channels: 15, dies: 0, soft_planes: 0 });
    assert_eq!(numbers(&mut a, 10, Isolation::Software, 0, 1), [0]);
    assert_eq!(a.free(), Free { channels: 14, dies: 3, soft_planes: 3 });
    a.free_vssd(VssdId(10)).expect("there");
    (5..=8).for_each(|id| assert!(a.free_vssd(VssdId(id)).is_some()));
    assert_eq!(a.free(), fresh);
    assert_eq!(a.free_vssd(VssdId(5)), None);
    assert_eq!(a.alloc(VssdId(9), Isolation::Channel, 4, 1).map(|u| u.numbers.len()), Ok(16));
}

#[test]
fn nothing_is_given_twice_and_nothing_is_lost() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut a = p_ssd();
        let mut live: Vec<u32> = Vec::new();
        for id in 1..60 {
            let isolation = *rng.pick(&Isolation::ALL);
            let level = rng.below(6) as u32;
            if a.alloc(VssdId(id), isolation, level.min(4), 1 + rng.below(20 * GIB)).is_ok() {
                live.push(id);
            }
            if live.len() > 3 && rng.chance(0.6) {
                let i = rng.below(live.len() as u64) as usize;
                a.free_vssd(VssdId(live.swap_remove(i))).expect("live");
            }
            let mut owned = vec![0u32; 256];
            for &v in &live {
                let Units { isolation, numbers } = a.units(VssdId(v)).expect("live");
                let per = match isolation {
                    Isolation::Channel => 16,
                    Isolation::Die => 4,
                    _ => 1,
                };
                numbers.iter().flat_map(|n| n * per..(n + 1) * per).for_each(|p| owned[p as usize] += 1);
            }
            let free = a.free();
            let free = free.channels * 16 + free.dies * 4 + free.soft_planes;
            assert!(owned.iter().all(|n| *n <= 1), "seed {seed}");
            assert_eq!(owned.iter().sum::<u32>() + free, 256, "seed {seed}");
            // The drive's record restores the same free lists.
            let mut again = p_ssd();
            live.iter()
                .for_each(|v| again.restore(VssdId(*v), a.units(VssdId(*v)).expect("live").clone()).expect("free"));
            assert_eq!(again.free(), a.free(), "seed {seed}");
        }
        live.iter().for_each(|v| assert!(a.free_vssd(VssdId(*v)).is_some()));
        assert_eq!(a.free(), Free { channels: 16, dies: 0, soft_planes: 0 }, "seed {seed}");
    }
}
