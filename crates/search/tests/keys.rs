//! Replicated keys on log vSSDs, in a whole rack in virtual time.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_config::RackConfig;
use rackweave_core::kv::{self, Change, Condition, Expires};
use rackweave_core::request::{Operation, RequestId};
use rackweave_core::rng::seeds;
use rackweave_core::trace::Coverage;
use rackweave_core::{Layout, Payload, Span, TracePoint, volume};
use rackweave_kv::replicated::KeyService;
use rackweave_kv_replica::trace as keys_trace;
use rackweave_kv_replica::types::Partition;
use rackweave_rack::build;
use rackweave_rack::sim::{Contents, SimConfig};
use rackweave_search::keys::{Plan, run};
use rackweave_server::trace::{GC_END, GC_START};
use rackweave_sim::LinkFaults;

use crate::rig::{Rig, small};

fn config() -> RackConfig {
    let mut cfg = RackConfig { replicas: 2, ..small(3, 128) };
    (cfg.kv.channels, cfg.kv.replicas) = (2, 3);
    cfg
}
fn rack() -> Rig {
    let mut r = Rig::new(&config(), SimConfig { contents: Contents::Memory, ..SimConfig::new(7) });
    r.until("every partition is active", serves);
    r
}
fn serves(r: &Rig) -> bool {
    let Some(m) = r.sim.meta().and_then(|m| m.key_membership()) else { return false };
    (0..64).all(|p| m.is_active(Partition(p)))
}
fn key(n: u32) -> Bytes {
    format!("key-{n}").into()
}
fn put(n: u32, value: impl Into<Bytes>) -> kv::Op {
    let change = Change::Set { value: value.into(), expires: Expires::Never };
    kv::Op::Put { key: key(n), condition: Condition::Always, change }
}
fn delete(n: u32) -> kv::Op {
    kv::Op::Put { key: key(n), condition: Condition::Always, change: Change::Delete }
}
fn get(r: &mut Rig, n: u32) -> Option<Bytes> {
    match r.ask(kv::Op::Get { key: key(n), room: u32::MAX, latest: false }) {
        Ok(kv::Reply::Value { found, .. }) => found.map(|f| f.value),
        other => panic!("{other:?}"),
    }
}
const APPLIED: Result<kv::Reply, kv::Error> = Ok(kv::Reply::Put(kv::Verdict::Applied));

fn service(r: &Rig, i: u32) -> &KeyService {
    let (vssd, _) = build::stores(r.sim.config())[i as usize];
    r.sim.server(i).and_then(|s| s.service(vssd)).expect("it is on every server")
}

#[test]
fn keys_have_three_replicas_and_survive_the_loss_of_all_power() {
    let mut r = rack();
    assert_eq!(get(&mut r, 1), None);
    for n in 0..100 {
        assert_eq!(r.ask(put(n, format!("value {n}"))), APPLIED);
    }
    assert_eq!(r.ask(delete(7)), APPLIED);
    let large = Bytes::from(vec![9; 60_000]);
    assert_eq!(r.ask(put(200, large.clone())), APPLIED);
    // Volumes share the drives.
    let v = r.volume("v", 1 << 20);
    let (volume, data) = (v.id, Payload::elided(4096, 9));
    let written = r.ask(volume::Op::Write { volume, offset: 0, data: data.clone(), fua: true });
    assert_eq!(written, Ok(volume::Reply::Done));
    for server in 0..3 {
        r.power_cut(server);
    }
    r.sim.crash(Layout::META);
    r.run(Span::from_millis(300));
    r.sim.restart(Layout::META).expect("its own records");
    (0..3).for_each(|server| r.start(server));
    for n in 0..100 {
        let expected = (n != 7).then(|| format!("value {n}").into());
        assert_eq!(get(&mut r, n), expected, "key {n}");
    }
    assert_eq!(get(&mut r, 200), Some(large));
    assert_eq!(r.ask(volume::Op::Read { volume, offset: 0, len: 4096 }), Ok(volume::Reply::Data(data)));
    assert_eq!(r.ask(put(7, "again")), APPLIED);
    for i in 0..3 {
        let keys: usize =
            (0..64).map(|p| service(&r, i).key_node().expect("it runs").versions(Partition(p)).count()).sum();
        assert_eq!(keys, 101, "server {i} has every key, tombstones too");
    }
}

#[test]
fn puts_go_on_without_a_server_which_fetches_them_when_it_returns() {
    let mut r = rack();
    assert_eq!(r.ask(put(1, "one")), APPLIED);
    r.power_cut(1);
    for n in 0..50 {
        assert_eq!(r.ask(put(n, "two")), APPLIED);
    }
    r.start(1);
    let whole = |r: &Rig| {
        let Some(m) = r.sim.meta().and_then(|m| m.key_membership()) else { return false };
        m.views().all(|v| v.readable().count() == 3)
    };
    r.until("all members have everything", whole);
    // Only the returned server is left, and one other.
    r.power_cut(0);
    for n in 0..50 {
        assert_eq!(get(&mut r, n), Some("two".into()));
    }
}

/// Longest value of the rack, and longest record of its stores.
fn longest(r: &Rig) -> (usize, usize) {
    let max = rackweave_rack::keys::config(&config()).expect("it has keys").value_max;
    (max, service(r, 0).store().expect("it runs").batch_max())
}

#[test]
fn values_that_do_not_fit_the_log_are_refused_by_length() {
    let mut r = rack();
    let (max, record_max) = longest(&r);
    assert!(max > 3 * record_max, "{max} bytes, and records of {record_max}");
    let refused = Err(kv::Error::ValueLength { bytes: max + 1, max });
    assert_eq!(r.ask(put(1, vec![1; max + 1])), refused);
    assert_eq!(r.ask(put(1, vec![1; max])), APPLIED);
    assert_eq!(get(&mut r, 1), Some(vec![1; max].into()));
}

/// A value is in several records of each store, and the whole rack loses power while they are written.
#[test]
fn a_value_in_several_records_is_there_whole_or_not_at_all() {
    let mut r = rack();
    let (max, _) = longest(&r);
    let value = |n: u32| Bytes::from(vec![n as u8; max - 1000 * n as usize]);
    let start = r.sim.now();
    assert_eq!(r.ask(put(1, value(0))), APPLIED);
    let took = r.sim.now().since(start);
    let (mut kept, mut replaced) = (0, 0);
    for n in 1..16 {
        let id = r.submit(put(1, value(n)));
        r.run(took * u64::from(n) / 12);
        (0..3).for_each(|server| r.power_cut(server));
        (0..3).for_each(|server| r.start(server));
        r.until("all nodes run", |r| (0..3).all(|i| service(r, i).key_node().is_some()));
        let found = |i: u32| {
            let node = service(&r, i).key_node().expect("it runs");
            let mut all = (0..64).flat_map(|p| node.versions(Partition(p)));
            all.find(|(k, _)| **k == key(1)).and_then(|(_, v)| v.value.clone())
        };
        for i in 0..3 {
            let found = found(i).expect("it has a value");
            assert!(found == value(n - 1) || found == value(n), "server {i}, round {n}: {} bytes", found.len());
            (kept, replaced) = (kept + u32::from(found == value(n - 1)), replaced + u32::from(found == value(n)));
        }
        assert_eq!(r.wait_kv(id), APPLIED);
        assert_eq!(get(&mut r, 1), Some(value(n)), "round {n}");
    }
    assert!(kept > 0 && replaced > 0, "{kept} kept, {replaced} replaced");
}

#[test]
fn keys_of_other_lengths_are_refused_by_length() {
    let mut r = rack();
    let max = rackweave_kv_replica::types::KEY_MAX;
    for bytes in [0, max + 1] {
        let op = kv::Op::Get { key: vec![1; bytes].into(), room: u32::MAX, latest: false };
        assert_eq!(r.ask(op), Err(kv::Error::KeyLength { bytes, max }));
    }
    let key = Bytes::from(vec![1; max]);
    let change = Change::Set { value: "one".into(), expires: Expires::Never };
    assert_eq!(r.ask(kv::Op::Put { key: key.clone(), condition: Condition::Always, change }), APPLIED);
    let found = r.ask(kv::Op::Get { key, room: u32::MAX, latest: false });
    assert!(matches!(found, Ok(kv::Reply::Value { found: Some(f), .. }) if f.value == "one"));
}

/// Adds one to a key 64 times, 16 at once: the number of failed conditions, and the time.
fn contend(r: &mut Rig, latest: bool) -> (u32, Span) {
    let (n, start) = (u32::from(latest), r.sim.now());
    let read = || kv::Op::Get { key: key(n), room: 9, latest };
    let mut open: BTreeMap<RequestId, u64> = (0..16).map(|_| (r.submit(read()), 0)).collect();
    let (mut begun, mut failed, mut done) = (open.len(), 0, 0);
    while done < 64 {
        r.sim.step();
        for (_, _, reply) in r.sim.take_replies() {
            let Some(wrote) = open.remove(&reply.id) else { continue };
            let next = match kv::Op::result(reply.result) {
                Some(Ok(kv::Reply::Value { found, .. })) => {
                    let old =
                        found.as_ref().map_or(0, |f| u64::from_be_bytes(f.value[..].try_into().expect("a number")));
                    let condition = found.map_or(Condition::Absent, |f| Condition::VersionIs(f.version));
                    let value = Bytes::copy_from_slice(&(old + 1).to_be_bytes());
                    let change = Change::Set { value, expires: Expires::Never };
                    Some((kv::Op::Put { key: key(n), condition, change }, old + 1))
                }
                Some(Ok(kv::Reply::Put(kv::Verdict::ConditionFailed))) => {
                    failed += 1;
                    Some((read(), 0))
                }
                Some(APPLIED) => {
                    done += 1;
                    assert!(wrote > 0);
                    begun += 1;
                    (begun <= 64).then(|| (read(), 0))
                }
                other => panic!("{other:?}"),
            };
            if let Some((op, value)) = next {
                open.insert(r.submit(op), value);
            }
        }
    }
    assert_eq!(get(r, n), Some(Bytes::copy_from_slice(&64u64.to_be_bytes())));
    (failed, r.sim.now().since(start))
}

#[test]
fn changes_that_depend_on_the_old_value_take_turns() {
    let mut r = rack();
    let (with, without) = (contend(&mut r, true), contend(&mut r, false));
    println!("with turns {with:?}, without {without:?}");
    assert!(with.0 == 0 && without.0 > 64, "failed conditions: {} with turns, {} without", with.0, without.0);
    assert!(with.1 * 2 < without.1, "{} with turns, {} without", with.1, without.1);
    // Requesters that vanish after their gets hold up others for a moment each.
    let read = kv::Op::Get { key: key(1), room: 9, latest: true };
    let ids: Vec<RequestId> = (0..3).map(|_| r.submit(read.clone())).collect();
    let start = r.sim.now();
    ids.into_iter().for_each(|id| assert!(r.wait_kv(id).is_ok()));
    assert!(r.sim.now().since(start) < Span::from_millis(60));
}

/// Every packet comes again, up to three seconds later.
#[test]
fn a_late_copy_of_a_put_changes_nothing() {
    let mut r = rack();
    let late = LinkFaults { duplicate: 1.0, duplicate_extra_ns: 3_000_000_000, ..LinkFaults::NONE };
    r.sim.engine_mut().net().set_faults(late);
    for n in 0..10 {
        assert_eq!(r.ask(put(n, "one")), APPLIED);
    }
    r.sim.engine_mut().net().set_faults(LinkFaults::NONE);
    let server = r.node(0);
    r.sim.crash(server);
    r.start(0);
    for n in 0..10 {
        assert_eq!(get(&mut r, n), Some("one".into()));
        assert_eq!(r.ask(put(n, "two")), APPLIED);
    }
    let late = |r: &Rig| {
        let seen = r.sim.engine().coverage();
        seen.get(keys_trace::PUT_REPEATED) + seen.get(keys_trace::OUTDATED)
    };
    let before = late(&r);
    r.run(Span::from_secs(4));
    assert!(late(&r) > before, "none came late");
    for n in 0..10 {
        assert_eq!(get(&mut r, n), Some("two".into()));
    }
}

/// Seeds of the search; `RACKWEAVE_SEEDS` and `RACKWEAVE_FIRST_SEED` choose others.
const SEEDS: std::ops::Range<u64> = 0..8;

#[test]
fn keys_stay_linearizable_and_durable_on_a_rack_through_all_faults() {
    let (mut coverage, mut full, mut compactions) = (Coverage::default(), 0, 0);
    let (mut keyspaces, mut too_late) = (0, 0);
    let seeds = seeds(SEEDS);
    for seed in seeds.clone() {
        let plan = Plan::draw(seed);
        let report = run(&plan);
        assert_eq!(report.violation, None, "RACKWEAVE_FIRST_SEED={seed} RACKWEAVE_SEEDS=1: {plan:?}");
        coverage.merge(&report.coverage);
        (full, compactions) = (full + report.full, compactions + report.compactions);
        (keyspaces, too_late) = (keyspaces + report.keyspaces, too_late + report.too_late);
    }
    let count = seeds.clone().count();
    println!("{count} seeds: {full} full, {compactions} compactions, {keyspaces} keyspaces, {too_late} too late");
    if seeds == SEEDS {
        assert!(full > 0 && compactions > 0, "{full} full, {compactions} compactions");
        let needed = [
            GC_START,
            GC_END,
            keys_trace::NO_SPACE,
            keys_trace::TAKEN_OVER,
            keys_trace::SHRUNK,
            keys_trace::RETURNED,
            keys_trace::PUT_COMMITTED,
        ];
        let missing: Vec<TracePoint> = needed.into_iter().filter(|p| coverage.get(*p) == 0).collect();
        assert_eq!(missing, [], "situations that never occurred");
    }
}

/// What a member fetched into its nearly full log took the room of deletions, which nothing could make again.
#[test]
fn a_member_that_fetches_leaves_room_for_deletions() {
    assert_eq!(run(&Plan::draw(300_089)).violation, None);
}

#[test]
fn a_seed_of_keys_has_one_run() {
    let plan = Plan::draw(1);
    let (a, b) = (run(&plan), run(&plan));
    assert_eq!((a.hash, a.violation), (b.hash, b.violation));
}
