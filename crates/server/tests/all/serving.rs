use rackweave_core::msg::{IoReply, IoRequest, SectorRange, TRY_SHIFT};
use rackweave_core::{BLOCK, Payload, SECTORS_PER_BLOCK, Span};
use rackweave_flash::Timing;
use rackweave_replica::trace;
use rackweave_sched::{SchedConfig, SchedKind};

use super::rack::{LEASE, Options, Rack, VOLUME, contents};

#[test]
fn boots_to_serving_with_every_replica_a_member() {
    let r = Rack::serving(Options { servers: 4, ..Options::default() });
    for s in r.servers() {
        let report = s.status(r.now());
        assert!(report.recovered && !report.failed && report.incarnation.is_some());
        assert!(report.vssds.iter().all(|v| v.serving && v.epoch.0 == 1));
    }
    assert!(r.now().0 < 2_000_000_000, "took {}", r.now().0);
}

#[test]
fn what_is_written_is_read_from_every_member() {
    let mut r = Rack::serving(Options::default());
    for b in 0..64 {
        assert_eq!(r.write(b % 3, b, contents(u64::from(b))), Some(IoReply::Done));
    }
    for b in 0..64 {
        for member in 0..3 {
            let got = r.read_from(b % 3, member, b, 1);
            assert_eq!(got, Some(IoReply::Data(contents(u64::from(b)))), "block {b} member {member}");
        }
    }
    assert_eq!(r.read(0, 9_999), Payload::zero(BLOCK));
    // Flushed in the background, the cache empties and flash serves.
    r.run(LEASE);
    let report = r.server(0).status(r.now());
    assert!(report.vssds.iter().all(|v| v.cache_used == 0 && v.mapped_bytes() > 0), "{report:?}");
    assert_eq!(r.read(1, 1), contents(1));
    assert!(r.servers().any(|s| s.status(r.now()).vssds.iter().any(|v| v.cache.read_misses > 0)));
    r.assert_nand();
}

#[test]
fn a_read_that_comes_again_while_it_is_under_way_is_read_once() {
    let mut r = Rack::serving(Options::default());
    for b in 0..2 {
        r.write(0, b, contents(u64::from(b)));
    }
    r.flush(0);
    r.run(LEASE);
    let read = |block: u32| {
        let (first, count) = (u64::from(block * SECTORS_PER_BLOCK), SECTORS_PER_BLOCK);
        IoRequest::read(SectorRange { volume: VOLUME, first, count })
    };
    let number = |tries: u64| 7 << 32 | tries << TRY_SHIFT | 3;
    let at_flash = |r: &Rack| {
        let vssds = r.servers().flat_map(|s| s.status(r.now()).vssds);
        vssds.fold((0, 0), |n, v| (n.0 + v.cache.read_misses, n.1 + v.replica.duplicates))
    };
    let before = at_flash(&r);
    (0..4).for_each(|n| r.send_numbered(0, 0, number(n), read(0)));
    r.run(Span::from_millis(50));
    let after = at_flash(&r);
    assert_eq!((after.0 - before.0, after.1 - before.1), (1, 3));
    assert_eq!(r.take_reply(number(0)), Some(IoReply::Data(contents(0))));
    assert!((1..4).all(|n| r.take_reply(number(n)).is_none()), "one answer is for all");
    // No longer in progress: the answer was lost, and the block is read again. Nor is another block the same read.
    r.send_numbered(0, 0, number(4), read(0));
    r.send_numbered(0, 0, number(5), read(1));
    r.run(Span::from_millis(50));
    assert_eq!(r.take_reply(number(4)), Some(IoReply::Data(contents(0))));
    assert_eq!(r.take_reply(number(5)), Some(IoReply::Data(contents(1))));
}

#[test]
fn overwrites_of_dirty_blocks_are_absorbed() {
    let mut r = Rack::serving(Options { timing: Timing::None, ..Options::default() });
    for i in 0..100 {
        assert_eq!(r.write(0, 7, contents(i)), Some(IoReply::Done));
    }
    assert_eq!(r.read(0, 7), contents(99));
    r.run(LEASE);
    assert_eq!(r.read(0, 7), contents(99));
    let v = r.server(0).status(r.now()).vssds[0].clone();
    assert!(v.cache.absorbed > 50, "{v:?}");
}

#[test]
fn a_flush_programs_what_is_dirty_and_concurrent_flushes_share_a_sync() {
    let mut r = Rack::serving(Options::default());
    for b in 0..3 {
        r.write(0, b, contents(1));
    }
    let ids: Vec<u64> = (0..16).map(|_| r.send(0, 0, IoRequest::Flush { volume: VOLUME })).collect();
    r.run(Span::from_millis(200));
    for id in ids {
        assert_eq!(r.take_reply(id), Some(IoReply::Done));
    }
    for s in r.servers() {
        let report = s.status(r.now());
        let v = report.vssds.iter().find(|v| v.set.0 == 0).expect("it has set 0");
        assert!(v.cache_dirty == 0 && v.mapped_bytes() == 3 * u64::from(BLOCK), "{v:?}");
        assert!(v.cache.syncs >= 1 && v.cache.syncs < 16, "{} syncs", v.cache.syncs);
    }
    // Nothing new: nothing to sync.
    let before = r.server(0).status(r.now()).vssds[0].cache.syncs;
    assert_eq!(r.flush(0), Some(IoReply::Done));
    assert_eq!(r.server(0).status(r.now()).vssds[0].cache.syncs, before);
}

#[test]
fn a_forced_write_is_on_flash_everywhere_when_acknowledged() {
    let mut r = Rack::serving(Options::default());
    let io = r.write_request(5, contents(5), true);
    assert_eq!(r.ask(0, 0, &io, Span::from_secs(1)), Some(IoReply::Done));
    for s in r.servers() {
        let report = s.status(r.now());
        let v = report.vssds.iter().find(|v| v.set.0 == 0).expect("it has set 0");
        assert_eq!((v.cache_dirty, v.mapped_bytes(), v.cache.syncs), (0, u64::from(BLOCK), 1));
    }
}

#[test]
fn zeroed_blocks_read_as_zeroes_from_cache_and_flash() {
    let mut r = Rack::serving(Options::default());
    for b in 0..32 {
        r.write(0, b, contents(9));
    }
    r.flush(0);
    for b in 32..40 {
        r.write(0, b, contents(9));
    }
    assert_eq!(r.zero(0, 8, 28), Some(IoReply::Done));
    for b in 0..40 {
        let want = if (8..36).contains(&b) { Payload::zero(BLOCK) } else { contents(9) };
        assert_eq!(r.read(0, b), want, "block {b}");
    }
    let range = rackweave_core::msg::BlockRange { volume: VOLUME, first: 0, count: 40 };
    let Some(IoReply::Extents(e)) = r.ask(0, 0, &IoRequest::status(range), Span::from_secs(1)) else {
        panic!("no extents")
    };
    let e: Vec<_> = e.iter().map(|x| (x.len / u64::from(BLOCK), x.mapped)).collect();
    assert_eq!(e[0], (8, true));
}

#[test]
fn an_expired_lease_stops_serving() {
    let mut r = Rack::serving(Options::default());
    r.write(0, 1, contents(1));
    r.stop_meta();
    r.run(LEASE * 2);
    assert!(r.servers().all(|s| s.status(r.now()).vssds.iter().all(|v| !v.serving)));
    let range = SectorRange { volume: VOLUME, first: 0, count: 8 };
    assert_eq!(r.ask(0, 0, &IoRequest::read(range), Span::from_secs(1)), None);
    assert!(r.count(trace::LEASE_EXPIRED) >= 3);
    // The service returns, and nothing was lost.
    r.start_meta();
    r.until(Span::from_secs(5), |r| r.all_members());
    assert_eq!(r.read(0, 1), contents(1));
    assert_eq!(r.view(0).epoch.0, 1);
}

/// With the scheduler that holds nothing back; the others hold back per die.
#[test]
fn reads_beyond_the_devices_queue_depth_wait() {
    let took = |queue_depth| {
        let sched = SchedConfig::new(SchedKind::Fifo, false);
        let options = Options { queue_depth: Some(queue_depth), ssd_bytes: 1 << 30, sched, ..Options::default() };
        let mut r = Rack::serving(options);
        // Twice: the first pages of all wait for one erase and go to one die together.
        for _ in 0..2 {
            for b in 0..64 {
                assert_eq!(r.write(0, b, contents(u64::from(b))), Some(IoReply::Done));
            }
            // From flash, not from the cache.
            r.run(LEASE);
        }
        let begun = r.now();
        let read = |b: u64| IoRequest::read(SectorRange { volume: VOLUME, first: b * 8, count: 8 });
        let mut left: Vec<u64> = (0..64).map(|b| r.send(0, 0, read(b))).collect();
        while !left.is_empty() {
            r.step();
            left.retain(|&id| r.take_reply(id).is_none());
        }
        r.now().0 - begun.0
    };
    let (one, many) = (took(1), took(64));
    assert!(one >= 64 * 75_000, "one at a time takes at least 64 senses of 75 us, not {one} ns");
    assert!(many * 2 < one, "{many} ns with 64 at a time, {one} ns with one");
}
