use std::collections::BTreeMap;

use super::*;

const DRAWN: usize = 200_000;
const RECORDS: u64 = 10_000;

fn drawn(w: Workload) -> Vec<Op> {
    Ycsb::new(w, RECORDS, 5).take(DRAWN).collect()
}

/// Requests of each record, the most popular first.
fn popularity(records: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut counts = BTreeMap::new();
    records.for_each(|r| *counts.entry(r).or_insert(0) += 1);
    let mut by_count: Vec<(u64, u64)> = counts.into_iter().map(|(r, n)| (n, r)).collect();
    by_count.sort_unstable_by(|a, b| b.cmp(a));
    by_count
}

fn about(measured: f64, expected: f64, part: f64) {
    assert!((measured / expected - 1.0).abs() < part, "{measured} where {expected} is expected");
}

#[test]
fn each_workload_has_its_mix() {
    for w in Workload::ALL {
        let ops = drawn(w);
        let share = |f: fn(&Op) -> bool| ops.iter().filter(|o| f(o)).count() as f64 / DRAWN as f64;
        let (read, update) = (share(|o| matches!(o, Op::Read { .. })), share(|o| matches!(o, Op::Update { .. })));
        let (insert, scan) = (share(|o| matches!(o, Op::Insert { .. })), share(|o| matches!(o, Op::Scan { .. })));
        let modify = share(|o| matches!(o, Op::ReadModifyWrite { .. }));
        let expected = match w {
            Workload::A => [0.5, 0.5, 0.0, 0.0, 0.0],
            Workload::B => [0.95, 0.05, 0.0, 0.0, 0.0],
            Workload::C => [1.0, 0.0, 0.0, 0.0, 0.0],
            Workload::D => [0.95, 0.0, 0.05, 0.0, 0.0],
            Workload::E => [0.0, 0.0, 0.05, 0.95, 0.0],
            Workload::F => [0.5, 0.0, 0.0, 0.0, 0.5],
        };
        for (measured, expected) in [read, update, insert, scan, modify].into_iter().zip(expected) {
            assert!((measured - expected).abs() < 0.005 && (expected > 0.0) == (measured > 0.0), "{w:?}: {measured}");
        }
    }
}

#[test]
fn popularity_is_zipfian_and_scattered() {
    let reads = drawn(Workload::C).into_iter().map(|o| if let Op::Read { record } = o { record } else { 0 });
    let p = popularity(reads);
    // The most popular has 1/ζ of all requests, the next one 2^-θ of that.
    about(p[0].0 as f64, DRAWN as f64 / SCATTERED_ZETA, 0.05);
    about(p[1].0 as f64, p[0].0 as f64 * 0.5f64.powf(THETA), 0.05);
    assert!(p.iter().all(|&(_, r)| r < RECORDS));
    let hot: Vec<u64> = p[..10].iter().map(|&(_, r)| r).collect();
    assert!(hot.iter().all(|r| !hot.contains(&(r + 1))), "{hot:?}");
    assert!(hot.iter().any(|r| *r > RECORDS / 2) && hot.iter().any(|r| *r < RECORDS / 2), "{hot:?}");
}

#[test]
fn d_reads_the_latest() {
    let mut y = Ycsb::new(Workload::D, RECORDS, 9);
    let (mut newest, mut tenth, mut reads) = (0u64, 0u64, 0u64);
    for _ in 0..DRAWN {
        let records = y.records();
        match y.next().expect("without end") {
            Op::Read { record } => {
                assert!(record < records);
                reads += 1;
                newest += u64::from(record == records - 1);
                tenth += u64::from(record >= records - records / 10);
            }
            o => assert_eq!(o, Op::Insert { record: records }),
        }
    }
    assert_eq!(y.records(), RECORDS + DRAWN as u64 - reads);
    // ζ of 15,000, half way.
    let zeta: f64 = (1..=15_000).map(term).sum();
    about(newest as f64 / reads as f64, 1.0 / zeta, 0.05);
    let zeta_tenth: f64 = (1..=1_500).map(term).sum();
    about(tenth as f64 / reads as f64, zeta_tenth / zeta, 0.03);
}

#[test]
fn scans_are_of_1_to_100_records() {
    let lengths: Vec<u64> = drawn(Workload::E)
        .iter()
        .filter_map(|o| match o {
            Op::Scan { records, .. } => Some(*records),
            _ => None,
        })
        .collect();
    assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&1), Some(&SCAN_MAX)));
    about(lengths.iter().sum::<u64>() as f64 / lengths.len() as f64, 50.5, 0.01);
}

#[test]
fn a_store_of_one_record() {
    for w in Workload::ALL {
        assert!(Ycsb::new(w, 1, 3).take(1_000).all(|o| !matches!(o, Op::Read { record } if record > 1_000)));
    }
    assert!(Ycsb::new(Workload::C, 1, 3).take(100).all(|o| o == Op::Read { record: 0 }));
}

#[test]
fn keys_are_the_benchmarks() {
    // The first record it loads is `user6284781860667377211`.
    assert_eq!(key(0), 6_284_781_860_667_377_211);
    assert!(key(1).abs_diff(key(0)) > 1 << 32);
}

#[test]
fn a_seed_names_the_operations() {
    let take = |seed| Ycsb::new(Workload::A, 100, seed).take(50).collect::<Vec<_>>();
    assert_eq!(take(1), take(1));
    assert_ne!(take(1), take(2));
}
