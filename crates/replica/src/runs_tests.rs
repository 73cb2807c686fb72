use rackweave_core::{Rng, VolumeId};

use super::*;

fn run(volume: u32, first: u32, count: u32, version: u64, mapped: bool) -> ScanEntry {
    ScanEntry { addr: BlockAddr::new(VolumeId(volume), first), count, version: Timestamp(version), mapped }
}

/// Random runs of two volumes.
fn drawn(rng: &mut Rng) -> Vec<ScanEntry> {
    let mut out = Vec::new();
    for volume in 1..3 {
        let mut at = rng.below(4) as u32;
        while at < 60 {
            let mapped = rng.chance(0.5);
            let count = if mapped { 1 } else { rng.between(1, 9) as u32 };
            out.push(run(volume, at, count, rng.between(1, 3), mapped));
            at += count + rng.below(3) as u32;
        }
    }
    out
}

fn state(list: &[ScanEntry], a: u64) -> Option<(u64, bool)> {
    list.iter().find(|e| e.addr.pack() <= a && a < end_of(e)).map(|e| (e.version.0, e.mapped))
}

/// The merge cuts runs wherever one of the lists has a boundary. It yields each listed block once, in order, and no
/// other.
#[test]
fn segments_show_each_block_of_every_list_once() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let lists: Vec<Vec<ScanEntry>> = (0..rng.between(1, 3)).map(|_| drawn(&mut rng)).collect();
        let until = BlockAddr::new(VolumeId(2), rng.below(70) as u32);
        let views: Vec<&[ScanEntry]> = lists.iter().map(Vec::as_slice).collect();
        let mut seen = Vec::new();
        segments(&views, until, |s| {
            for i in 0..u64::from(s.count) {
                let a = s.first.pack() + i;
                let of: Vec<_> = s.of.iter().map(|e| e.map(|e| (e.version.0, e.mapped))).collect();
                assert_eq!(of, views.iter().map(|l| state(l, a)).collect::<Vec<_>>(), "seed {seed}, {a:x}");
                seen.push(a);
            }
        });
        let volumes = [1, 2].map(|v| BlockAddr::new(VolumeId(v), 0).pack());
        let all = volumes.iter().flat_map(|v| *v..v + 80);
        let held: Vec<u64> = all.filter(|&a| a < until.pack() && views.iter().any(|l| state(l, a).is_some())).collect();
        assert_eq!(seen, held, "seed {seed}");
    }
}

/// A digest does not depend on the cuts of a scan or on the layout of records, but on everything else.
#[test]
fn digests_tell_contents_and_nothing_else() {
    let of = |runs: &[ScanEntry]| {
        let mut d = Digest::default();
        runs.iter().for_each(|e| d.add(e));
        d.end()
    };
    let whole = [run(1, 0, 100, 5, false), run(1, 100, 1, 6, true), run(1, 101, 9, 5, false)];
    let cut = [
        run(1, 0, 40, 5, false),
        run(1, 40, 60, 5, false),
        whole[1],
        run(1, 101, 1, 5, false),
        run(1, 102, 8, 5, false),
    ];
    assert_eq!(of(&whole), of(&cut));
    let others = [
        vec![run(1, 0, 99, 5, false), whole[1], whole[2]],
        vec![run(1, 1, 99, 5, false), whole[1], whole[2]],
        vec![run(1, 0, 100, 4, false), whole[1], whole[2]],
        vec![whole[0], run(1, 100, 1, 6, false), whole[2]],
        vec![whole[0], whole[1]],
        vec![run(2, 0, 100, 5, false), whole[1], whole[2]],
        vec![],
    ];
    for other in &others {
        assert_ne!(of(&whole), of(other), "{other:?}");
    }
}

#[test]
fn stretches_that_touch_are_joined_and_runs_out_of_order_refused() {
    let s = |a: u32, b: u32| (BlockAddr::new(VolumeId(1), a), BlockAddr::new(VolumeId(1), b));
    assert_eq!(joined(vec![s(5, 9), s(0, 2), s(2, 4), s(6, 7), s(9, 11)]), [s(0, 4), s(5, 11)]);
    let inside = |runs: &[ScanEntry]| are_runs_of(runs, s(10, 50));
    assert!(inside(&[run(1, 10, 5, 1, false), run(1, 15, 1, 1, true), run(1, 20, 30, 1, false)]));
    for bad in [
        vec![run(1, 9, 5, 1, false)],
        vec![run(1, 49, 2, 1, false)],
        vec![run(1, 10, 0, 1, false)],
        vec![run(1, 10, 2, 1, true)],
        vec![run(1, 12, 5, 1, false), run(1, 16, 1, 1, true)],
        vec![run(0, 10, 5, 1, false)],
        vec![run(2, 10, 1, 1, true)],
    ] {
        assert!(!inside(&bad), "{bad:?}");
    }
    assert!(!are_runs_of(&[run(1, u32::MAX, 2, 1, false)], (BlockAddr::default(), END)), "it spans two volumes");
}
