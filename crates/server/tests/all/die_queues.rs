//! What a server holds back before its dies, and the order in which it starts it.

use rackweave_core::device::DeviceOp;
use rackweave_core::{Epoch, Span, Time, Timestamp};
use rackweave_flash::{Admission, FlashOut};
use rackweave_replica::{ReadStart, Store};
use rackweave_sched::{SchedConfig, SchedKind};
use rackweave_server::block::vssd_io::ReadRequest;

use super::rack::contents;
use super::store::{Bench, READ, SCHEDULERS, VSSD, addr};

/// Enough for blocks on all dies that the next pages go to.
const BLOCKS: u32 = 900;

/// A bench with blocks on flash, and those of different pages that lie on one die.
fn bench(kind: SchedKind, coordinated: bool) -> (Bench, Vec<u32>) {
    let mut b = Bench::with(SchedConfig::new(kind, coordinated));
    for block in 0..BLOCKS {
        b.store().put(addr(block), Timestamp::new(Epoch(1), 2, 0), contents(u64::from(block)));
        if block % 36 == 35 {
            b.store().persist(0);
            b.settle();
            b.complete(usize::MAX);
        }
    }
    let places: Vec<_> = (0..BLOCKS)
        .map(|block| {
            let mut place = None;
            b.ssd.read_if(b.now, VSSD, addr(block), 0, &mut FlashOut::new(), |lies| {
                place = Some((lies.die, lies.page));
                Admission::Joins
            });
            place.expect("on flash")
        })
        .collect();
    let die = places[0].0;
    let first = |i: usize| !places[..i].contains(&places[i]);
    let there = (0..BLOCKS).filter(|&i| places[i as usize].0 == die && first(i as usize)).collect();
    (b, there)
}

/// A client's read with this network time.
fn read(b: &mut Bench, block: u32, net_us: u64, offline: bool) {
    b.io.reading_for = Some(ReadRequest { offline, arrived: b.now, net: Span::from_micros(net_us) });
    assert!(matches!(b.store().read(addr(block), 10_000 + u64::from(block)), ReadStart::Pending));
    b.io.reading_for = None;
    b.settle();
}

#[test]
fn the_read_that_is_latest_goes_first_where_network_time_counts() {
    for (kind, coordinated) in SCHEDULERS {
        let (mut b, blocks) = bench(kind, coordinated);
        let blocks = &blocks[..8];
        for (i, &block) in blocks.iter().enumerate() {
            // Each later one spent more time on the network than it arrived later.
            read(&mut b, block, 50 * i as u64, false);
            b.now += Span::from_micros(1);
        }
        b.complete(usize::MAX);
        let order: Vec<u32> = b.answered.iter().map(|t| (t - 10_000) as u32).collect();
        let mut want = blocks.to_vec();
        if coordinated {
            // Two are at the die already.
            want[2..].reverse();
        } else if kind == SchedKind::Deadline {
            want[2..].sort_unstable();
        }
        assert_eq!(order, want, "{kind:?}, coordinated: {coordinated}");
    }
}

#[test]
fn a_die_with_a_long_queue_is_full_and_the_others_are_not() {
    let (mut b, there) = bench(SchedKind::Kyber, true);
    let elsewhere = (0..BLOCKS).find(|&i| b.ssd.die_of(VSSD, addr(i)) != b.ssd.die_of(VSSD, addr(there[0])));
    let elsewhere = elsewhere.expect("there are more dies");
    let mut took = 0;
    while !b.io.die_is_full(addr(there[0]), &b.ssd) {
        b.io.reading_for = Some(ReadRequest { offline: false, arrived: b.now, net: Span::ZERO });
        let block = there[took as usize % there.len()];
        assert!(matches!(b.store().read(addr(block), 10_000 + took), ReadStart::Pending));
        // Reads of a page that arrive together would wait as one.
        b.now += Span(1);
        took += 1;
        assert!(took < 4_096, "never full");
    }
    let all = READ * took;
    assert!(all > Span::from_millis(40) && all < Span::from_millis(60), "{took} reads are 50 ms");
    assert!(!b.io.die_is_full(addr(elsewhere), &b.ssd), "another die's reads go on");
    assert!(!b.io.die_is_full(addr(BLOCKS + 5), &b.ssd), "what is on no die waits for none");
    b.store().put(addr(there[1]), Timestamp::new(Epoch(1), 3, 0), contents(1));
    assert!(!b.io.die_is_full(addr(there[1]), &b.ssd), "the cache has it");
    b.settle();
    b.complete(8);
    assert!(!b.io.die_is_full(addr(there[0]), &b.ssd), "some are done");
}

#[test]
fn a_die_has_no_more_reads_than_it_may_and_offline_ones_wait_behind_all_others() {
    let (mut b, blocks) = bench(SchedKind::Kyber, true);
    let reads = |b: &Bench| b.commands.iter().filter(|c| matches!(c.op, DeviceOp::ReadSlot { .. })).count();
    for &block in &blocks[..4] {
        read(&mut b, block, 900, true);
    }
    for &block in &blocks[4..8] {
        read(&mut b, block, 20, false);
    }
    assert_eq!((reads(&b), b.io.waiting().0), (2, 6));
    while reads(&b) > 0 {
        b.complete(1);
        assert!(reads(&b) <= 2);
    }
    let order: Vec<u32> = b.answered.iter().map(|t| (t - 10_000) as u32).collect();
    let want: Vec<u32> = [&blocks[..2], &blocks[4..8], &blocks[2..4]].concat();
    assert_eq!(order, want);
}

#[test]
fn pages_of_the_cache_wait_for_reads_unless_somebody_waits_for_them() {
    for persist in [false, true] {
        let (mut b, _) = bench(SchedKind::Deadline, true);
        let programs = |b: &Bench| b.commands.iter().filter(|c| matches!(c.op, DeviceOp::Program { .. })).count();
        // Reads wait on every die; in reverse order each is a separate command.
        (0..BLOCKS).rev().for_each(|block| read(&mut b, block, 20, false));
        for block in 0..4 {
            b.store().put(addr(10_000 + block), Timestamp::new(Epoch(1), 2, 0), contents(1));
        }
        b.settle();
        assert_eq!((programs(&b), b.io.waiting().1), (0, 1), "background");
        if persist {
            b.store().persist(7);
            b.settle();
            assert_eq!(programs(&b), 1, "a persist waits for it");
        }
        b.complete(usize::MAX);
        assert_eq!((b.io.cache.dirty(), b.io.cache.pages_under_way(), b.answered.len()), (0, 0, BLOCKS as usize));
        assert_eq!(b.io.waiting(), (0, 0));
    }
}

/// As the cache fills, its pages no longer wait.
#[test]
fn a_full_cache_is_flushed_on_the_write_path() {
    let (mut b, _) = bench(SchedKind::Kyber, true);
    (0..BLOCKS).rev().for_each(|block| read(&mut b, block, 20, false));
    let programs = |b: &Bench| b.commands.iter().filter(|c| matches!(c.op, DeviceOp::Program { .. })).count();
    let mut began = None;
    for block in 0..64 {
        b.store().put(addr(10_000 + block), Timestamp::new(Epoch(1), 2, 0), contents(1));
        b.settle();
        began = began.or((programs(&b) > 0).then_some(b.io.cache.used()));
    }
    assert_eq!(began, Some(49), "of 64, less than a quarter is free");
    assert!(b.now > Time::ZERO);
}
