//! Every request on three replicas and a network without faults.

use rackweave_core::msg::{IoError, IoReply};
use rackweave_core::volume::Extent;
use rackweave_core::{BlockAddr, Payload, Span};

use crate::cluster::{Cluster, Net, VOLUME};
use rackweave_replica::trace;

fn three() -> Cluster {
    Cluster::new(3, 2, 1, Net::GOOD)
}

fn done(c: &mut Cluster, client: usize, op: u64) -> IoReply {
    assert!(c.run_idle(Span::from_secs(2)), "no answer to {op}");
    c.reply(client, op).cloned().unwrap_or_else(|| panic!("no answer to {op}"))
}

#[test]
fn a_write_is_read_at_every_replica() {
    let mut c = three();
    let w = c.write(0, 0, 8, 8, false);
    assert_eq!(done(&mut c, 0, w), IoReply::Done);
    let want = Payload::elided(4096, 1 << 20);
    for i in 0..3 {
        let r = c.read(1, i, 8, 8);
        assert_eq!(done(&mut c, 1, r), IoReply::Data(want.clone()));
    }
    c.converge(Span::from_secs(1)).unwrap();
}

#[test]
fn a_large_unaligned_write_merges_at_both_ends() {
    let mut c = three();
    for (first, count) in [(0, 128), (3, 128), (130, 5), (7, 2)] {
        let w = c.write(0, 1, first, count, false);
        assert_eq!(done(&mut c, 0, w), IoReply::Done);
    }
    for i in 0..3 {
        let r = c.read(1, i, 0, 128);
        done(&mut c, 1, r);
        let r = c.read(1, i, 120, 20);
        done(&mut c, 1, r);
    }
    assert_eq!(c.history.violation(), None);
    c.converge(Span::from_secs(1)).unwrap();
}

#[test]
fn zeroes_and_status() {
    let mut c = three();
    let w = c.write(0, 0, 0, 128, false);
    done(&mut c, 0, w);
    let z = c.zero(0, 2, 4, 8);
    assert_eq!(done(&mut c, 0, z), IoReply::Done);
    let r = c.read(1, 1, 30, 20);
    let IoReply::Data(d) = done(&mut c, 1, r) else { panic!("no data") };
    assert!(d.identity(0) != 0 && d.identity(2) == 0);
    assert_eq!(c.history.violation(), None);
    let at = |c: &mut Cluster, op| done(c, 1, op);
    let range = rackweave_core::msg::BlockRange { volume: VOLUME, first: 0, count: 16 };
    let s = c.status(1, 1, range);
    let e = |blocks: u64, mapped| Extent { len: blocks * 4096, mapped };
    assert_eq!(at(&mut c, s), IoReply::Extents([e(4, true), e(8, false), e(4, true)].into()));
}

#[test]
fn flush_and_fua_make_durable_on_every_member() {
    let mut c = three();
    let w = c.write(0, 0, 0, 8, false);
    done(&mut c, 0, w);
    let before: Vec<u64> = c.servers.iter().map(|s| s.store().persists).collect();
    let f = c.flush(0, 2);
    assert_eq!(done(&mut c, 0, f), IoReply::Done);
    for (s, b) in c.servers.iter().zip(&before) {
        assert!(s.store().persists > *b);
    }
    let w = c.write(0, 1, 8, 3, true);
    assert_eq!(done(&mut c, 0, w), IoReply::Done);
    for i in 0..3 {
        c.crash(i);
    }
    for i in 0..3 {
        assert_eq!(c.servers[i].store().contents().len(), 2);
    }
}

#[test]
fn a_fence_refuses_older_writers_everywhere() {
    let mut c = three();
    let f = c.fence(1, 0, 2);
    assert_eq!(done(&mut c, 1, f), IoReply::Done);
    for i in 0..3 {
        let w = c.write(0, i, 0, 8, false);
        assert_eq!(done(&mut c, 0, w), IoReply::Failed(IoError::Fenced { attach: 2 }));
    }
    c.attach = 2;
    let w = c.write(1, 1, 0, 8, false);
    assert_eq!(done(&mut c, 1, w), IoReply::Done);
    let f = c.fence(0, 2, 1);
    assert_eq!(done(&mut c, 0, f), IoReply::Failed(IoError::Fenced { attach: 2 }));
}

#[test]
fn a_mutation_comes_again_and_is_only_answered() {
    let mut c = three();
    let first = c.write(0, 0, 0, 8, false);
    done(&mut c, 0, first);
    let hold = c.write(0, 0, 64, 8, false);
    let second = c.write(0, 0, 0, 8, false);
    done(&mut c, 0, second);
    done(&mut c, 0, hold);
    for i in 0..3 {
        c.again(0, first, i);
        c.run_for(Span::from_millis(10));
    }
    let r = c.read(1, 1, 0, 8);
    assert_eq!(done(&mut c, 1, r), IoReply::Data(Payload::elided(4096, 3 << 20)));
    assert!(c.count(trace::DUPLICATE_MUTATION) >= 3);
}

#[test]
fn no_page_credit_is_no_space_and_nothing_is_sent() {
    let mut c = three();
    for s in &mut c.servers {
        s.store().pages = 40;
    }
    let mut full = 0;
    for b in 0..60 {
        let before = c.count(trace::WRITE_START);
        let w = c.write(0, 0, b * 8, 8, false);
        match done(&mut c, 0, w) {
            IoReply::Failed(IoError::NoSpace) => {
                full += 1;
                assert_eq!(c.count(trace::WRITE_START), before);
            }
            r => assert_eq!(r, IoReply::Done),
        }
    }
    assert!((20..60).contains(&full), "{full} of 60 refused");
    let held = c.servers[1].store().contents().len();
    assert!(held <= 40);
    // An overwrite needs no page, reads are served, and a trim frees pages.
    let w = c.write(0, 0, 0, 8, false);
    assert_eq!(done(&mut c, 0, w), IoReply::Done);
    let z = c.zero(0, 1, 0, 20);
    assert_eq!(done(&mut c, 0, z), IoReply::Done);
    let w = c.write(0, 0, 59 * 8, 8, false);
    assert_eq!(done(&mut c, 0, w), IoReply::Done);
}

#[test]
fn a_small_cache_makes_writes_wait_and_not_fail() {
    let mut c = three();
    for s in &mut c.servers {
        s.store().slots = 96;
    }
    let ops: Vec<u64> = (0..64).map(|i| c.write(0, i % 3, i as u64 * 128, 128, false)).collect();
    assert!(c.run_idle(Span::from_secs(20)));
    for op in ops {
        assert_eq!(c.reply(0, op), Some(&IoReply::Done));
    }
}

#[test]
fn malformed_requests_are_refused() {
    let mut c = three();
    for (first, count) in [(0, 0), (0, 129), (u64::MAX, 2), (u64::from(u32::MAX) * 8, 8)] {
        let r = c.read(0, 0, first, count);
        assert_eq!(done(&mut c, 0, r), IoReply::Failed(IoError::Malformed));
    }
}

#[test]
fn a_corrupt_block_is_healed_by_another_member() {
    let mut c = three();
    let w = c.write(0, 0, 0, 8, false);
    done(&mut c, 0, w);
    let a = BlockAddr::new(VOLUME, 0);
    c.servers[1].store().corrupt.insert(a);
    let r = c.read(1, 1, 0, 4);
    assert_eq!(done(&mut c, 1, r), IoReply::Data(Payload::elided(2048, 1 << 20)));
    assert!(c.servers[1].store().corrupt.is_empty());
    for s in &mut c.servers {
        s.store().corrupt.insert(a);
    }
    let r = c.read(1, 1, 0, 4);
    assert_eq!(done(&mut c, 1, r), IoReply::Failed(IoError::Corrupt));
}
