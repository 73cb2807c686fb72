use std::collections::VecDeque;

use proptest::prelude::*;
use rackweave_core::{Rng, Span, Time};

use super::*;

const LANES: u32 = 4;
const ALL: [(SchedKind, bool); 6] = [
    (SchedKind::Fifo, false),
    (SchedKind::Fifo, true),
    (SchedKind::Deadline, false),
    (SchedKind::Deadline, true),
    (SchedKind::Kyber, false),
    (SchedKind::Kyber, true),
];

fn read(at_us: u64, net_us: u64, lane: u32, what: u32) -> Item<u32> {
    let (enqueued_at, net) = (Time(at_us * 1000), Span::from_micros(net_us));
    Item { enqueued_at, net, kind: Kind::Read, lane, place: u64::from(what), what }
}
fn write(at_us: u64, what: u32) -> Item<u32> {
    Item { kind: Kind::Write, ..read(at_us, 0, 0, what) }
}
fn drawn(rng: &mut Rng, now: Time, what: u32) -> Item<u32> {
    let kind = if rng.chance(0.4) { Kind::Write } else { Kind::Read };
    let net = if kind == Kind::Read { Span::from_micros(20 + rng.below(900)) } else { Span::ZERO };
    Item { enqueued_at: now, net, kind, lane: rng.below(u64::from(LANES)) as u32, place: rng.below(1 << 20), what }
}
fn done(item: &Item<u32>, started_at: Time) -> Done {
    Done { kind: item.kind, enqueued_at: item.enqueued_at, net: item.net, started_at }
}

proptest! {
    /// Every item goes to its lane exactly once, and the number of waiting items stays within the bound.
    #[test]
    fn nothing_is_lost_or_made_up(seed: u64, which in 0..ALL.len(), limit in 1usize..200) {
        let (kind, coordinated) = ALL[which];
        let cfg = SchedConfig { limit, ..SchedConfig::new(kind, coordinated) };
        let mut s = Sched::new(cfg, LANES);
        let mut rng = Rng::new(seed);
        let (mut now, mut waiting, mut under_way) = (Time::ZERO, vec![false; 3000], VecDeque::new());
        for what in 0..3000u32 {
            now += Span::from_micros(rng.below(60));
            let item = drawn(&mut rng, now, what);
            let room = s.len() < limit;
            match s.push(item) {
                Ok(()) => { prop_assert!(room); waiting[what as usize] = true }
                Err(back) => { prop_assert!(!room); prop_assert_eq!(back.what, what) }
            }
            if rng.chance(0.6) {
                let lane = rng.below(u64::from(LANES)) as u32;
                let room = Room { reads: rng.chance(0.9), writes: rng.chance(0.7) };
                if let Some(item) = s.pop(now, lane, room) {
                    prop_assert!(item.kind == Kind::Write || item.lane == lane);
                    let may = if item.kind == Kind::Read { room.reads } else { room.writes };
                    prop_assert!(may);
                    prop_assert!(std::mem::take(&mut waiting[item.what as usize]));
                    under_way.push_back((item, now));
                }
            }
            if under_way.len() > rng.below(40) as usize {
                let (item, started): (Item<u32>, Time) = under_way.pop_front().expect("not empty");
                s.done(now, done(&item, started));
            }
        }
        under_way.drain(..).for_each(|(item, started)| { s.done(now, done(&item, started)); });
        while !s.is_empty() {
            let before = s.len();
            for lane in 0..LANES {
                if let Some(item) = s.pop(now, lane, Room::ANY) {
                    prop_assert!(std::mem::take(&mut waiting[item.what as usize]));
                    s.done(now, done(&item, now));
                }
            }
            prop_assert!(s.len() < before, "something waits that no lane gets");
        }
        prop_assert!(waiting.iter().all(|w| !w));
    }

    /// A coordinated queue yields the item with the largest current Net + Storage + Predict.
    #[test]
    fn coordinated_order_is_that_of_a_search(seed: u64, which in 0usize..3) {
        let kind = [SchedKind::Fifo, SchedKind::Deadline, SchedKind::Kyber][which];
        let mut s = Sched::new(SchedConfig::new(kind, true), 1);
        let mut rng = Rng::new(seed);
        let (mut now, mut all) = (Time(2_000_000), Vec::<Item<u32>>::new());
        for what in 0..600u32 {
            now += Span::from_micros(rng.below(50));
            let item = Item { lane: 0, ..drawn(&mut rng, now, what) };
            all.push(item.clone());
            prop_assert!(s.push(item).is_ok());
            if rng.chance(0.5) && let Some(got) = s.pop(now, 0, Room::ANY) {
                let same = |i: &Item<u32>| kind == SchedKind::Fifo || i.kind == got.kind;
                let prio = |i: &Item<u32>| now.since(i.enqueued_at) + i.net;
                let most = all.iter().filter(|i| same(i)).map(prio).max();
                prop_assert_eq!(Some(prio(&got)), most);
                all.retain(|i| i.what != got.what);
                s.done(now, done(&got, now));
            }
        }
    }

    /// The wait of an item is bounded by the batches that may go before it, however many others arrive.
    #[test]
    fn deadline_starves_nobody(seed: u64, coordinated: bool) {
        let mut s = Sched::new(SchedConfig::new(SchedKind::Deadline, coordinated), 1);
        let mut rng = Rng::new(seed);
        let mut now = Time(5_000_000);
        // One item of each kind lies behind all batches. Then two others arrive for each one that leaves.
        s.push(Item { place: 0, ..read(5_000, 0, 0, 0) }).expect("room");
        s.push(Item { place: 0, ..write(5_000, 1) }).expect("room");
        let (mut gone, mut what) = (0, 2);
        for step in 0.. {
            for _ in 0..2 {
                let item = drawn(&mut rng, now, what);
                let net = Span::ZERO;
                s.push(Item { lane: 0, place: 1 + item.place, net, ..item }).expect("room");
                what += 1;
            }
            now += Span::from_micros(50);
            let got = s.pop(now, 0, Room::ANY).expect("something waits");
            gone += u32::from(got.what < 2);
            if gone == 2 {
                break;
            }
            // The deadline of a write, and the batches that may be under way or go first by then.
            prop_assert!(step < 2750 / 50 + 6 * 16, "not served after {step} others");
        }
    }
}

#[test]
fn fifo_goes_by_arrival_and_coordinated_by_prio() {
    let order = |coordinated| {
        let mut f = Fifo::new(SchedConfig::new(SchedKind::Fifo, coordinated), 1);
        for item in [read(100, 50, 0, 0), write(120, 1), read(130, 400, 0, 2), read(140, 10, 0, 3)] {
            f.push(item).expect("room");
        }
        std::iter::from_fn(|| f.pop(Time(200_000), 0, Room::ANY).map(|i| i.what)).collect::<Vec<_>>()
    };
    assert_eq!(order(false), [0, 1, 2, 3]);
    assert_eq!(order(true), [2, 0, 1, 3]);
}

#[test]
fn deadline_sorts_a_batch_and_begins_anew_with_what_is_late() {
    let mut d = Deadline::new(SchedConfig::new(SchedKind::Deadline, false), 1);
    let at = |place: u64, us: u64| Item { place, ..read(us, 0, 0, place as u32) };
    for item in [at(50, 0), at(20, 1), at(90, 2), at(10, 3)] {
        d.push(item).expect("room");
    }
    let mut next = |us: u64| d.pop(Time(us * 1000), 0, Room::ANY).map(|i| i.what);
    // None is late: ascending order. At the end of the order: from the oldest again.
    assert_eq!([next(10), next(10)], [Some(10), Some(20)]);
    assert_eq!([next(10), next(10), next(10)], [Some(50), Some(90), None]);
    d.push(at(70, 20)).expect("room");
    d.push(at(95, 21)).expect("room");
    assert_eq!(d.pop(Time(30_000), 0, Room::ANY).map(|i| i.what), Some(95), "the batch continues upwards");
    assert_eq!(d.pop(Time(30_000), 0, Room::ANY).map(|i| i.what), Some(70));
}

#[test]
fn a_deadline_that_has_passed_begins_a_batch() {
    let mut d = Deadline::new(SchedConfig::new(SchedKind::Deadline, false), 1);
    let at = |place: u64, us: u64| Item { place, ..read(us, 0, 0, place as u32) };
    d.push(at(500, 0)).expect("room");
    (0..60).for_each(|i| d.push(at(100 + i, 1)).expect("room"));
    let mut batch = |us: u64| {
        let next = || d.pop(Time(us * 1000), 0, Room::ANY).map_or(0, |i| i.what);
        std::iter::repeat_with(next).take(16).collect::<Vec<u32>>()
    };
    assert_eq!(batch(10), (100..116).collect::<Vec<_>>());
    assert_eq!(batch(499), (116..132).collect::<Vec<_>>(), "nothing is late yet");
    // The first to arrive is late, and nothing lies behind it: the batch goes on from the oldest.
    let late: Vec<u32> = std::iter::once(500).chain(132..147).collect();
    assert_eq!(batch(500), late);
}

#[test]
fn deadline_prefers_reads_and_lets_a_write_batch_go_after_two() {
    let mut d = Deadline::new(SchedConfig::new(SchedKind::Deadline, false), 1);
    for i in 0..200 {
        d.push(read(0, 0, 0, i)).expect("room");
        d.push(write(0, 1000 + i)).expect("room");
    }
    let kinds: Vec<Kind> = (0..64).map(|_| d.pop(Time(1000), 0, Room::ANY).expect("waits").kind).collect();
    assert!(kinds[..32].iter().all(|&k| k == Kind::Read));
    assert!(kinds[32..48].iter().all(|&k| k == Kind::Write));
    assert!(kinds[48..].iter().all(|&k| k == Kind::Read));
}

#[test]
fn coordinated_deadline_serves_the_direction_that_is_late() {
    let mut d = Deadline::new(SchedConfig::new(SchedKind::Deadline, true), 1);
    for i in 0..16 {
        d.push(read(2_000, 0, 0, i)).expect("room");
    }
    d.push(write(0, 99)).expect("room");
    // The write is late from 2.75 ms on, the reads from 3.5 ms on.
    assert_eq!(d.pop(Time(2_500_000), 0, Room::ANY).map(|i| i.kind), Some(Kind::Read));
    (0..15).for_each(|_| assert!(d.pop(Time(2_500_000), 0, Room::ANY).is_some()));
    d.push(read(2_500, 0, 0, 20)).expect("room");
    assert_eq!(d.pop(Time(2_800_000), 0, Room::ANY).map(|i| i.kind), Some(Kind::Write));
}

/// Serves one read and one write every 100 µs, for `ms` milliseconds; `took` are their latencies.
fn serve(k: &mut Kyber<u32>, from: Time, ms: u64, took: [Span; 2]) -> Time {
    let (mut now, end) = (from, from + Span::from_millis(ms));
    while now < end {
        for (kind, took) in [Kind::Read, Kind::Write].into_iter().zip(took) {
            assert!(k.at_once(kind), "tokens are left");
            let d = Done { kind, enqueued_at: now, net: Span::ZERO, started_at: now };
            k.done(now + took, d);
        }
        now += Span::from_micros(100);
    }
    now + took[0] + took[1]
}

#[test]
fn kyber_throttles_the_domain_that_is_well_while_the_other_misses_its_target_and_lets_it_back() {
    let cfg = SchedConfig::new(SchedKind::Kyber, false);
    let mut k = Kyber::<u32>::new(cfg, 1);
    let depth = |k: &Kyber<u32>, kind| k.depth(kind).expect("it has tokens").0;
    let now = serve(&mut k, Time::ZERO, 300, [Span::from_micros(100), Span::from_micros(500)]);
    assert_eq!((depth(&k, Kind::Read), depth(&k, Kind::Write)), (256, 128), "both domains meet their targets");
    // Reads take twice their target, writes a sixth of theirs: each round cuts the tokens of writes to a quarter.
    let now = serve(&mut k, now, 150, [Span::from_micros(1_500), Span::from_micros(500)]);
    assert_eq!((depth(&k, Kind::Read), depth(&k, Kind::Write)), (256, 32));
    let now = serve(&mut k, now, 400, [Span::from_micros(1_500), Span::from_micros(500)]);
    assert_eq!((depth(&k, Kind::Read), depth(&k, Kind::Write)), (256, 1));
    // The writes now wait for each other and miss their target: they get tokens back.
    serve(&mut k, now, 800, [Span::from_micros(100), Span::from_millis(7)]);
    assert_eq!((depth(&k, Kind::Read), depth(&k, Kind::Write)), (1, 128), "reads meet their target");
}

#[test]
fn kyber_starts_no_more_than_it_has_tokens_and_says_when_there_are_some() {
    let mut k = Kyber::<u32>::new(SchedConfig::new(SchedKind::Kyber, false), 2);
    for i in 0..300 {
        k.push(read(0, 0, 0, i)).expect("room");
    }
    let started = std::iter::from_fn(|| k.pop(Time(1), 0, Room::ANY)).count();
    assert_eq!(started, 256);
    assert!(!k.at_once(Kind::Read));
    assert!(k.at_once(Kind::Write), "writes have their own tokens");
    let d = Done { kind: Kind::Read, enqueued_at: Time::ZERO, net: Span::ZERO, started_at: Time(1) };
    assert!(k.done(Time(100), d), "a waiting item may go");
    assert!(k.pop(Time(100), 0, Room::ANY).is_some());
}

#[test]
fn kyber_takes_turns_in_batches() {
    let mut k = Kyber::<u32>::new(SchedConfig::new(SchedKind::Kyber, false), 1);
    for i in 0..60 {
        k.push(read(0, 0, 0, i)).expect("room");
        k.push(write(0, i)).expect("room");
    }
    let kinds: Vec<Kind> = (0..48).map(|_| k.pop(Time(1), 0, Room::ANY).expect("waits").kind).collect();
    let reads = |part: &[Kind]| part.iter().all(|&k| k == Kind::Read);
    assert!(reads(&kinds[..16]) && reads(&kinds[24..40]));
    assert!(kinds[16..24].iter().chain(&kinds[40..]).all(|&k| k == Kind::Write));
}

/// Coordinated Kyber counts the network time of a request.
#[test]
fn network_time_counts_towards_the_target_of_a_coordinated_kyber() {
    let after = |coordinated| {
        let mut k = Kyber::<u32>::new(SchedConfig::new(SchedKind::Kyber, coordinated), 1);
        // Writes miss their target for a while, so the reads lose tokens.
        let mut now = serve(&mut k, Time::ZERO, 500, [Span::from_micros(100), Span::from_millis(20)]);
        for _ in 0..20_000 {
            assert!(k.at_once(Kind::Read));
            let done = Done { kind: Kind::Read, enqueued_at: now, net: Span::from_millis(3), started_at: now };
            now += Span::from_micros(90);
            k.done(now, done);
        }
        k.depth(Kind::Read).expect("it has tokens").0
    };
    // A domain that misses its target gets more tokens.
    assert!(after(false) < 256);
    assert_eq!(after(true), 256);
}

#[test]
fn the_targets_are_the_papers() {
    let us = |kind, coordinated| {
        let c = SchedConfig::new(kind, coordinated);
        (c.read_target.0 / 1000, c.write_target.0 / 1000)
    };
    assert_eq!((us(SchedKind::Deadline, false), us(SchedKind::Deadline, true)), ((500, 1_750), (1_500, 2_750)));
    assert_eq!((us(SchedKind::Kyber, false), us(SchedKind::Kyber, true)), ((750, 3_000), (1_750, 4_000)));
}

#[test]
fn an_absurd_latency_is_clamped() {
    assert_eq!(clamp_lat(1_000), Span::from_micros(1));
    assert_eq!(clamp_lat(u32::MAX), NET_MAX);
}
