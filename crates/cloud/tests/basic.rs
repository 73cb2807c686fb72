//! A cloud disk without faults, and with one.

use rackweave_cloud::Config;
use rackweave_cloud::burst::BurstConfig;
use rackweave_cloud::client::Op;
use rackweave_cloud::config::MergeMode;
use rackweave_cloud::stripe::Shape;
use rackweave_cloud::trace as t;
use rackweave_cloud::types::Extent;
use rackweave_core::Span;

use crate::world::{META, World, quiet};

fn world(config: Config) -> World {
    let shape = Shape::new(64 << 10, 32 << 10, 4096, 2);
    let mut w = World::new(7, config, 4, shape, quiet());
    let c = w.hosts.clients[0];
    assert!(w.attach(c, Span::from_secs(1)), "the first client attaches");
    w
}

#[test]
fn what_was_written_is_read_from_logs_and_proxies() {
    let mut w = world(Config::default());
    let c = w.hosts.clients[0];
    for i in 0..40 {
        let first = i * 7 % 100;
        w.write(c, first, 12);
        w.read(c, first, 20);
        if i % 5 == 0 {
            w.submit(c, Op::Discard { extent: Extent::new(first, 8) });
            w.submit(c, Op::Zeroes { extent: Extent::new(first + 3, 8) });
            w.submit(c, Op::Flush);
        }
        assert!(w.settle(Span::from_millis(200)), "request {i}");
    }
    w.read(c, 0, 128);
    assert!(w.settle(Span::from_millis(200)));
    assert_eq!(w.check(), Ok(()));
    w.until(Span::from_secs(1), |w| w.whole()).expect("whole");
    let all_merged = |w: &World| if w.log_entries() == 0 { Ok(()) } else { Err(w.log_entries().to_string()) };
    w.until(Span::from_secs(1), all_merged).expect("idle time merges the log");
    assert!(w.coverage().get(t::MERGED) > 0 && w.coverage().get(t::RESCHEDULED) > 0);
    w.read(c, 0, 128);
    assert!(w.settle(Span::from_millis(200)));
    assert_eq!(w.check(), Ok(()));
}

/// Both servers get an append that the client sends once.
#[test]
fn an_append_is_sent_once_and_goes_to_each_server_if_the_switch_loses_it() {
    for copied in [1.0, 0.0, 0.5] {
        let mut w = world(Config { by_multicast: true, merge: MergeMode::Never, ..Config::default() });
        let c = w.hosts.clients[0];
        w.burst.set(1.0);
        w.switch.copied.set(copied);
        for i in 0..40 {
            w.write(c, i * 2, 2);
            w.run(Span::from_millis(1));
        }
        assert!(w.settle(Span::from_millis(20)), "copies that arrive: {copied}");
        assert_eq!((w.log_entries(), w.switch.received.get()), (80, 40), "copies that arrive: {copied}");
        assert_eq!(w.coverage().get(t::VOIDED), 0);
        w.read(c, 0, 128);
        assert!(w.settle(Span::from_millis(20)));
        assert_eq!(w.check(), Ok(()));
    }
}

/// As those of an earlier program, which do not know the question.
#[test]
fn all_counts_as_allocated_if_proxies_do_not_answer() {
    let config = Config::default();
    let most = config.give_up * 5;
    let mut w = world(config);
    let c = w.hosts.clients[0];
    w.submit(c, Op::Allocation { extent: Extent::new(0, 64) });
    assert!(w.settle(Span::from_millis(20)));
    assert_eq!((w.holes, w.coverage().get(t::ALLOCATION_GIVEN_UP)), (64, 0), "nothing was written");
    w.hosts.servers.clone().into_iter().for_each(|s| w.crash(s));
    w.submit(c, Op::Allocation { extent: Extent::new(0, 64) });
    assert!(w.settle(most), "without an answer");
    assert_eq!((w.holes, w.coverage().get(t::ALLOCATION_GIVEN_UP)), (64, 1));
}

#[test]
fn a_second_client_fences_the_first_and_finds_its_writes() {
    let mut w = world(Config::default());
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    for i in 0..20 {
        w.write(a, i * 5, 8);
    }
    w.run(Span::from_micros(400));
    assert!(w.attach(b, Span::from_secs(1)));
    w.read(b, 0, 128);
    assert!(w.settle(Span::from_secs(1)));
    assert!(w.client(a).is_some_and(|a| a.is_fenced()) || w.under_way(a) == 0);
    w.write(b, 3, 20);
    assert!(w.settle(Span::from_secs(1)));
    w.read(b, 0, 128);
    assert!(w.settle(Span::from_secs(1)));
    assert_eq!(w.check(), Ok(()));
}

#[test]
fn every_server_may_be_lost_at_any_time() {
    for victim in 0..4 {
        let mut w = world(Config::default());
        let c = w.hosts.clients[0];
        for i in 0..30 {
            w.write(c, i * 11 % 110, 10);
            if i == 15 {
                w.crash(w.hosts.servers[victim]);
            }
            w.run(Span::from_micros(300));
        }
        assert!(w.settle(Span::from_secs(2)), "the others go on without {victim}");
        w.read(c, 0, 128);
        assert!(w.settle(Span::from_secs(1)));
        w.start_server(w.hosts.servers[victim]);
        w.until(Span::from_secs(2), |w| w.whole()).expect("it is back");
        w.read(c, 0, 128);
        assert!(w.settle(Span::from_secs(1)));
        assert_eq!(w.check(), Ok(()));
    }
}

/// The detector decides, and nothing is merged, so that the log shows what it was given.
#[test]
fn detected_bursts_go_to_logs_and_steady_writes_to_proxies() {
    let config = Config { merge: MergeMode::Never, ..Config::default() };
    let shape = Shape::new(2 << 20, 1 << 20, 64 << 10, 2);
    let mut w = World::new(7, config, 4, shape, quiet());
    w.detection =
        Some(BurstConfig { bucket: Span::from_millis(10), window: Span::from_millis(100), ..BurstConfig::PAPER });
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    assert!(w.attach(a, Span::from_secs(1)));
    // 4 MB/s in the first half of the disk. The threshold is the traffic of 50 ms: 50 such writes.
    let steady = |w: &mut World, ms: u64| {
        for i in 0..ms {
            w.write(a, i * 8 % 2048, 8);
            w.run(Span::from_millis(1));
        }
    };
    steady(&mut w, 250);
    assert!(w.settle(Span::from_millis(50)));
    assert_eq!(w.log_entries(), 0, "steady writes");
    for i in 0..100 {
        w.write(a, 2048 + i * 8, 8);
    }
    steady(&mut w, 100);
    assert!(w.settle(Span::from_millis(50)));
    // The index's filter may send a steady write to the log, too.
    let bursts = |w: &World| w.log_entries() as u64 / 2 - w.coverage().get(t::RESCHEDULED);
    let detected = bursts(&w);
    assert!((40..=60).contains(&detected), "half of the burst: {detected}");
    steady(&mut w, 100);
    assert!(w.settle(Span::from_millis(50)));
    assert_eq!(bursts(&w), detected, "steady writes again");
    let entries = w.log_entries();
    // The second client builds its index of the entries.
    assert!(w.attach(b, Span::from_secs(1)));
    w.read(b, 0, 2048);
    w.read(b, 2048, 2048);
    assert!(w.settle(Span::from_millis(200)));
    assert_eq!((w.log_entries(), w.check()), (entries, Ok(())));
}

#[test]
fn servers_drop_all_records_of_a_deleted_volume() {
    let mut w = world(Config { merge: MergeMode::Never, ..Config::default() });
    let c = w.hosts.clients[0];
    for i in 0..60 {
        w.write(c, i * 2, 8);
    }
    assert!(w.settle(Span::from_secs(1)) && w.log_entries() > 0);
    let records = |w: &World, s| w.engine.saved(s).len();
    assert!(w.hosts.servers.iter().all(|s| records(&w, *s) > 10), "each has a part");
    w.crash(META);
    w.deleted = true;
    w.start_meta();
    let s = w.hosts.servers[1];
    // One is stopped in the middle, and goes on when it is back.
    w.until(
        Span::from_secs(1),
        |w| if w.coverage().get(t::FORGOTTEN) > 1 { Ok(()) } else { Err("they keep it".into()) },
    )
    .expect("servers hear that it is gone");
    w.crash(s);
    w.start_server(s);
    let left = |w: &World| w.hosts.servers.iter().map(|s| records(w, *s)).sum::<usize>();
    let none = |w: &World| if left(w) == 0 { Ok(()) } else { Err(format!("{} records are left", left(w))) };
    w.until(Span::from_secs(2), none).expect("all is dropped");
    w.until(Span::from_secs(1), |w| {
        if w.client(c).is_some_and(|c| c.is_fenced()) { Ok(()) } else { Err("it goes on".into()) }
    })
    .expect_err("an idle client hears of it with its next request");
    w.read(c, 0, 8);
    w.settle(Span::from_secs(1));
    assert!(w.client(c).is_some_and(|c| c.is_fenced()));
}
