//! Replicated keys on a whole rack.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_config::{RackConfig, Size};
use rackweave_core::kv::{self, Change, Condition, Expires};
use rackweave_core::request::{Operation, Request, RequestId};
use rackweave_core::{Layout, NodeId, Rng, Span, Time, admin};
use rackweave_kv_replica::types::{Partition, View};
use rackweave_meta::Meta;
use rackweave_sim::{CutOdds, LinkFaults};

use crate::sim::{Contents, Sim, SimConfig, UNIX_MS_AT_ZERO};
use crate::wire::{Authentication, TransportConfig};

#[path = "keyspaces_tests.rs"]
mod keyspaces;
#[path = "keys_switch_tests.rs"]
mod switch;

fn config(servers: u32) -> RackConfig {
    let mut cfg = RackConfig { servers, replicas: 2, ..RackConfig::default() };
    cfg.ssd.profile = "femu".into();
    cfg.ssd.size = Size::mib(128);
    (cfg.kv.channels, cfg.kv.replicas) = (2, 3);
    cfg.validate().expect("sound");
    cfg
}

#[test]
fn puts_are_durable_on_all_servers_of_a_rack() {
    let cfg = config(3);
    let sim = SimConfig { contents: Contents::Memory, ..SimConfig::new(7) };
    let mut sim = Sim::new(&cfg, sim).expect("sound");
    sim.run_until(Time::ZERO + Span::from_secs(5));
    let m = sim.meta().and_then(|m| m.key_membership()).expect("keys");
    let active = (0..64).filter(|p| m.is_active(Partition(*p))).count();
    assert_eq!(active, 64);
    for n in 0..40 {
        let change = Change::Set { value: value(n), expires: Expires::Never };
        let op = kv::Op::Put { key: key(n), condition: Condition::Always, change };
        assert_eq!(ask(&mut sim, op), Ok(kv::Reply::Put(kv::Verdict::Applied)), "put {n}");
    }
    (0..3).for_each(|i| _ = sim.power_cut(i, CutOdds { drop: 1.0, tear: 0.0 }));
    (0..3).for_each(|i| sim.restart(sim.engine().layout().server(i).expect("a server")).expect("starts"));
    for n in 0..40 {
        let answer = ask(&mut sim, kv::Op::Get { key: key(n), room: u32::MAX, latest: false });
        let Ok(kv::Reply::Value { found: Some(found), .. }) = answer else { panic!("get {n}: {answer:?}") };
        assert_eq!(found.value, value(n));
    }
}

/// Every start of a server has another clock, hours apart; its host's wall clock is right.
#[test]
fn values_expire_by_the_wall_clock_whatever_nodes_count_from() {
    let cfg = config(3);
    let offset = Span::from_secs(20_000);
    let sim = SimConfig { contents: Contents::Memory, clocks_restart: true, offset, ..SimConfig::new(3) };
    let mut sim = Sim::new(&cfg, sim).expect("sound");
    sim.run_until(Time::ZERO + Span::from_secs(2));
    for (n, expires) in [(1, Expires::At(UNIX_MS_AT_ZERO + 30_000)), (2, Expires::In(60_000)), (3, Expires::Never)] {
        let op =
            kv::Op::Put { key: key(n), condition: Condition::Always, change: Change::Set { value: value(n), expires } };
        assert_eq!(ask(&mut sim, op), Ok(kv::Reply::Put(kv::Verdict::Applied)));
    }
    for round in 0..3 {
        (0..3).for_each(|i| _ = sim.power_cut(i, CutOdds { drop: 1.0, tear: 0.0 }));
        (0..3).for_each(|i| sim.restart(sim.engine().layout().server(i).expect("a server")).expect("starts"));
        sim.run_until(Time::ZERO + Span::from_secs(10 + 30 * round));
        assert_eq!(there(&mut sim), [round < 1, round < 2, true], "round {round}");
    }
}

/// A rack in one process stands still with its process, and goes on with a wall clock that has not stood.
#[test]
fn time_in_which_a_rack_stood_still_counts_for_values_that_expire() {
    let mut sim = Sim::new(&config(3), SimConfig { contents: Contents::Memory, ..SimConfig::new(4) }).expect("sound");
    sim.run_until(Time::ZERO + Span::from_secs(2));
    for (n, seconds) in [(1, 3_600), (2, 7_200), (3, 8_000)] {
        let change = Change::Set { value: value(n), expires: Expires::In(seconds * 1_000) };
        let op = kv::Op::Put { key: key(n), condition: Condition::Always, change };
        assert_eq!(ask(&mut sim, op), Ok(kv::Reply::Put(kv::Verdict::Applied)));
    }
    let stood = |sim: &mut Sim, seconds: u64| {
        (0..3).for_each(|i| sim.server_mut(i).expect("runs").set_unix_ms_at_zero(UNIX_MS_AT_ZERO + seconds * 1_000));
        sim.run_until(sim.now() + Span::from_secs(1));
    };
    assert_eq!(there(&mut sim), [true; 3]);
    stood(&mut sim, 3_600);
    assert_eq!(there(&mut sim), [false, true, true]);
    assert_eq!(ask(&mut sim, kv::Op::Count), Ok(kv::Reply::Count { keys: 2, expiring: 2 }), "deleted, without a get");
    // A value that was deleted stays deleted, whatever a clock says.
    stood(&mut sim, 0);
    assert_eq!(there(&mut sim), [false, true, true]);
    stood(&mut sim, 7_300);
    assert_eq!(there(&mut sim), [false, false, true]);
}

/// Servers come and go for good while a client puts and gets.
#[test]
fn keys_stay_while_servers_are_added_drained_and_removed() {
    let mut cfg = RackConfig { servers_max: Some(5), ..config(4) };
    cfg.ssd.spare = Some(1);
    cfg.validate().expect("sound");
    let mut sim = Sim::new(&cfg, SimConfig { contents: Contents::Memory, ..SimConfig::new(5) }).expect("sound");
    sim.run_until(Time::ZERO + Span::from_secs(2));
    let mut model = BTreeMap::new();
    let server = |sim: &Sim, i| sim.engine().layout().server(i).expect("a server");
    let (new, old) = (server(&sim, 4), server(&sim, 0));
    put_and_get(&mut sim, &mut model, 0);
    sim.administer(sim.now(), RequestId(1), admin::Op::ServerAdd);
    sim.run_until(sim.now() + Span::from_millis(100));
    sim.restart(new).expect("added");
    until(&mut sim, &mut model, |m| partitions(m, new) > 0 && at_rest(m));
    sim.administer(sim.now(), RequestId(2), admin::Op::ServerDrain { server: old });
    until(&mut sim, &mut model, |m| partitions(m, old) == 0 && at_rest(m) && m.moves_rest());
    sim.administer(sim.now(), RequestId(3), admin::Op::ServerRemove { server: old });
    until(&mut sim, &mut model, |m| m.is_removed(0) == Some(true));
    sim.crash(old);
    (1..5).for_each(|i| _ = sim.power_cut(i, CutOdds { drop: 1.0, tear: 0.0 }));
    (1..5).for_each(|i| sim.restart(server(&sim, i)).expect("starts"));
    put_and_get(&mut sim, &mut model, 7);
}

/// Puts some keys anew, and compares all with the model.
fn put_and_get(sim: &mut Sim, model: &mut BTreeMap<u64, u64>, round: u64) {
    for n in (0..20).filter(|n| round == 0 || (n + round).is_multiple_of(7)) {
        let change = Change::Set { value: value(n + round), expires: Expires::Never };
        let op = kv::Op::Put { key: key(n), condition: Condition::Always, change };
        assert_eq!(ask(sim, op), Ok(kv::Reply::Put(kv::Verdict::Applied)), "put {n} in round {round}");
        model.insert(n, n + round);
    }
    for (&n, &v) in &*model {
        let answer = ask(sim, kv::Op::Get { key: key(n), room: u32::MAX, latest: false });
        let Ok(kv::Reply::Value { found: Some(found), .. }) = answer else { panic!("get {n}: {answer:?}") };
        assert_eq!(found.value, value(v), "key {n} in round {round}");
    }
}
/// Goes on until the metadata service has come so far.
fn until(sim: &mut Sim, model: &mut BTreeMap<u64, u64>, done: impl Fn(&Meta) -> bool) {
    for round in 1..600 {
        put_and_get(sim, model, round % 15);
        sim.run_until(sim.now() + Span::from_millis(50));
        if sim.meta().is_some_and(&done) {
            return;
        }
    }
    panic!("it does not come so far");
}
/// Partitions that the server takes part in.
fn partitions(m: &Meta, server: NodeId) -> usize {
    m.key_membership().map_or(0, |k| k.views().filter(|v| v.member(server).is_some()).count())
}
/// Whether every partition has its replicas, and they have all of it.
fn at_rest(m: &Meta) -> bool {
    let whole = |v: &View| v.members.len() == 3 && v.readable().count() == 3;
    m.key_membership().is_some_and(|k| k.views().all(whole))
}

/// A store that is full refuses puts, answers gets, and has room again after deletions.
#[test]
fn a_full_rack_refuses_puts_with_an_error_and_deletions_make_room() {
    let mut sim = Sim::new(&config(3), SimConfig { contents: Contents::Memory, ..SimConfig::new(6) }).expect("sound");
    sim.run_until(Time::ZERO + Span::from_secs(2));
    let put = |n: u64| {
        let change = Change::Set { value: vec![n as u8; 60_000].into(), expires: Expires::Never };
        kv::Op::Put { key: key(n), condition: Condition::Always, change }
    };
    let mut stored = 0;
    let refused = loop {
        match ask(&mut sim, put(stored)) {
            Ok(kv::Reply::Put(kv::Verdict::Applied)) => stored += 1,
            other => break other,
        }
        assert!(stored < 2_000, "far more than there is room for");
    };
    assert_eq!(refused, Err(kv::Error::NoSpace { bytes: 60_000 + key(stored).len() }));
    assert!(stored > 50, "full after {stored}");
    for n in 0..stored {
        let answer = ask(&mut sim, kv::Op::Get { key: key(n), room: u32::MAX, latest: false });
        let Ok(kv::Reply::Value { found: Some(found), .. }) = answer else { panic!("get {n}: {answer:?}") };
        assert_eq!(found.value, vec![n as u8; 60_000], "key {n}");
    }
    for n in 0..20 {
        let op = kv::Op::Put { key: key(n), condition: Condition::Always, change: Change::Delete };
        assert_eq!(ask(&mut sim, op), Ok(kv::Reply::Put(kv::Verdict::Applied)), "delete {n}");
    }
    for n in 0..10 {
        assert_eq!(ask(&mut sim, put(n)), Ok(kv::Reply::Put(kv::Verdict::Applied)), "put {n} after deletions");
    }
    (0..3).for_each(|i| _ = sim.power_cut(i, CutOdds { drop: 1.0, tear: 0.0 }));
    (0..3).for_each(|i| sim.restart(sim.engine().layout().server(i).expect("a server")).expect("starts"));
    let get = |n: u64| kv::Op::Get { key: key(n), room: u32::MAX, latest: false };
    for (n, there) in [(0, true), (15, false), (stored, false), (stored - 1, true)] {
        let answer = ask(&mut sim, get(n));
        assert!(
            matches!(&answer, Ok(kv::Reply::Value { found, .. }) if found.is_some() == there),
            "get {n}: {answer:?}"
        );
    }
}

/// Which of the keys 1 to 3 have their value.
fn there(sim: &mut Sim) -> [bool; 3] {
    [1, 2, 3].map(|n| {
        let answer = ask(sim, kv::Op::Get { key: key(n), room: u32::MAX, latest: false });
        let Ok(kv::Reply::Value { found, .. }) = answer else { panic!("get {n}: {answer:?}") };
        found.inspect(|f| assert_eq!(f.value, value(n))).is_some()
    })
}

fn key(n: u64) -> Bytes {
    format!("key {n}").into()
}
fn value(n: u64) -> Bytes {
    vec![n as u8; 1 + 1_500 * n as usize].into()
}

/// Within a minute.
fn ask(sim: &mut Sim, op: kv::Op) -> Result<kv::Reply, kv::Error> {
    ask_with(sim, op, &mut Vec::new())
}

/// A rack whose links lose and repeat packets; every other seed's with the transport.
fn lossy(seed: u64, cfg: &RackConfig) -> Sim {
    let transport = TransportConfig {
        one_machine: false,
        datagram_bytes: 1_472,
        authentication: Authentication::Tags,
        trains: true,
        damage: 0.001,
    };
    let transport = (seed % 2 == 1).then_some(transport);
    let base = SimConfig { contents: Contents::Memory, drift_ppm: 300, clocks_restart: true, ..SimConfig::new(seed) };
    let mut sim = Sim::new(cfg, SimConfig { transport, ..base }).expect("sound");
    sim.run_until(Time::ZERO + Span::from_secs(2));
    let links = LinkFaults { loss: 0.01, duplicate: 0.02, duplicate_extra_ns: 40_000_000, ..LinkFaults::NONE };
    sim.engine_mut().net().set_faults(links);
    sim
}

/// One client at a time, so that each answer is known; what fails starts again while it waits.
#[test]
fn answers_are_those_of_a_map_while_parts_of_the_rack_fail() {
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let cfg = config(3 + seed as u32 % 2);
        let mut sim = lossy(seed, &cfg);
        let mut model: BTreeMap<u64, Option<u64>> = BTreeMap::new();
        let mut starts = Vec::new();
        for op in 0..400u64 {
            if op % 40 == 20 {
                fail(&mut sim, &mut rng, cfg.servers, &mut starts);
            }
            let n = rng.below(12);
            if rng.chance(0.5) {
                let put = rng.chance(0.8).then_some(op);
                let change = match put {
                    Some(op) => Change::Set { value: value(op % 40), expires: Expires::Never },
                    None => Change::Delete,
                };
                let op = kv::Op::Put { key: key(n), condition: Condition::Always, change };
                let answer = ask_with(&mut sim, op, &mut starts);
                assert!(matches!(answer, Ok(kv::Reply::Put(_))), "seed {seed}: {answer:?}");
                model.insert(n, put.map(|op| op % 40));
            } else {
                let get = kv::Op::Get { key: key(n), room: u32::MAX, latest: false };
                let answer = ask_with(&mut sim, get, &mut starts);
                let Ok(kv::Reply::Value { found, .. }) = answer else { panic!("seed {seed}: {answer:?}") };
                let expected = model.get(&n).copied().flatten().map(value);
                assert_eq!(found.map(|f| f.value), expected, "seed {seed}, operation {op}, key {n}");
            }
        }
    }
}

/// A server, all servers, the switch or the metadata service fails, and starts again within a second.
fn fail(sim: &mut Sim, rng: &mut Rng, servers: u32, starts: &mut Vec<(Time, NodeId)>) {
    let at = sim.now() + Span::from_millis(rng.between(1, 900));
    let one = rng.below(u64::from(servers)) as u32;
    let (of, node) = match rng.below(6) {
        0..=2 => (one..one + 1, None),
        3 => (0..servers, None),
        4 => (0..0, Some(Layout::SWITCH)),
        _ => (0..0, Some(Layout::META)),
    };
    for i in of {
        let n = sim.engine().layout().server(i).expect("a server");
        if sim.alive(n) {
            sim.power_cut(i, CutOdds { drop: 0.7, tear: 0.2 });
            starts.push((at, n));
        }
    }
    if let Some(n) = node.filter(|n| sim.alive(*n)) {
        sim.crash(n);
        starts.push((at, n));
    }
}

/// As [`ask`], while nodes start again.
fn ask_with(sim: &mut Sim, op: kv::Op, starts: &mut Vec<(Time, NodeId)>) -> Result<kv::Reply, kv::Error> {
    let now = sim.now();
    sim.submit(now, 0, Request::new(RequestId(now.0), op));
    for _ in 0..60_000 {
        sim.run_until(sim.now() + Span::from_millis(1));
        let now = sim.now();
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(starts).into_iter().partition(|s: &(Time, NodeId)| s.0 <= now);
        *starts = later;
        due.into_iter().for_each(|(_, n)| sim.restart(n).expect("starts"));
        if let Some((_, _, reply)) = sim.take_replies().pop() {
            return kv::Op::result(reply.result).expect("of the same API");
        }
    }
    panic!("no answer within a minute");
}
