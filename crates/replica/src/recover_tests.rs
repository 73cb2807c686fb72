//! The copies of a block that a recovery may adopt.

use rackweave_core::{Epoch, VolumeId};

use super::*;

const ALL: u64 = 0b111;

fn ts(n: u64) -> Timestamp {
    if n == 0 { Timestamp::ZERO } else { Timestamp::new(Epoch(1), n, 0) }
}

/// The members' copies: holder, version, and whether the block is mapped. A member that is not listed has no record.
fn held(all: &[(usize, u64, bool)]) -> Held {
    all.iter().map(|&(holder, v, mapped)| Copy { version: ts(v), holder, mapped }).collect()
}

/// Holders of the copies that may be adopted, with versions, in order.
fn taken(all: &[(usize, u64, bool)], witnesses: u64) -> Vec<(usize, Timestamp)> {
    let newest = ts(all.iter().map(|h| h.1).max().unwrap_or(0));
    takeable(held(all), newest, ALL, witnesses).into_iter().map(|c| (c.holder, c.version)).collect()
}

#[test]
fn nothing_below_what_every_witness_has_is_taken() {
    // All members are witnesses: anything down to the oldest of their versions, or zero if one has no record.
    assert_eq!(taken(&[(0, 7, true), (1, 5, true), (2, 5, true)], ALL), [(0, ts(7)), (1, ts(5)), (2, ts(5))]);
    assert_eq!(taken(&[(0, 7, true), (1, 5, true)], ALL), [(0, ts(7)), (1, ts(5)), (2, ts(0))]);
    // A member that lost records: its older or missing copy does not lower the floor.
    assert_eq!(taken(&[(0, 7, true), (1, 5, true)], 0b001), [(0, ts(7))]);
    // Its newer copy counts.
    assert_eq!(taken(&[(0, 7, true), (1, 9, true)], 0b001), [(1, ts(9)), (0, ts(7))]);
    // Without witnesses the floor is unknown: only the newest version.
    assert_eq!(taken(&[(0, 7, true), (1, 9, true), (2, 9, true)], 0), [(1, ts(9)), (2, ts(9))]);
}

#[test]
fn what_no_witness_has_any_trace_of_is_zero() {
    // The block may have been zeroed; the witness forgets that record with the last older copy.
    assert_eq!(taken(&[(1, 5, true)], 0b001), [(0, ts(0))]);
    assert_eq!(taken(&[(1, 5, true)], 0b101), [(0, ts(0)), (2, ts(0))]);
    assert_eq!(taken(&[(1, 5, true), (2, 5, true)], 0b101), [(1, ts(5)), (2, ts(5)), (0, ts(0))]);
}

#[test]
fn what_all_have_needs_no_repair_and_zeroes_beside_each_other_are_one() {
    let addr = |block| BlockAddr { volume: VolumeId(3), block };
    let entry = |block, v, mapped| ScanEntry { addr: addr(block), count: 1, version: ts(v), mapped };
    let fixes = |runs: &[Vec<ScanEntry>; 3]| {
        let runs: Vec<(usize, Box<[ScanEntry]>)> = runs.iter().map(|r| r.clone().into()).enumerate().collect();
        fixes(&runs, crate::runs::END, (ALL, ALL))
    };
    let mut runs = [(); 3].map(|()| vec![entry(1, 5, true)]);
    assert_eq!(fixes(&runs), []);
    runs[0].extend([entry(2, 6, false), entry(3, 6, false)]);
    runs[1].push(entry(2, 5, true));
    runs[2].push(entry(4, 7, true));
    let Fix::Copy { copies, mapped, newest, .. } = &fixes(&runs)[1] else { panic!("a copy") };
    assert_eq!((copies.len(), *mapped, *newest), (3, 0b100, ts(7)));
    let zero = Fix::Zero(BlockRange { volume: VolumeId(3), first: 2, count: 2 });
    assert_eq!(fixes(&runs)[0], zero);
}
