//! The key API on a store: conditions, expiry, batches, scans.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rackweave_core::kv::{Change, Condition, Error, Expires, Found, Op, Reply, SCAN_MAX, Verdict, Version};
use rackweave_core::request::{Operation, RequestId};
use rackweave_core::{Rng, VssdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::api::VirtualSsds;
use rackweave_flash::manager::driver::BlockingDrive;
use rackweave_kv::keys::drive::KeyDrive;
use rackweave_kv::store::StoreConfig;

use crate::search::config;

struct Rig {
    drive: Option<KeyDrive<Memory>>,
    vssd: VssdId,
    next: u64,
    now: u64,
}

impl Rig {
    fn new() -> Rig {
        let cfg = config();
        let mut d = BlockingDrive::open(cfg.clone(), Memory::new(cfg.profile.geometry)).expect("a drive");
        let vssd = d.alloc_vssd(Isolation::Channel, 0, 1).expect("room");
        let drive = KeyDrive::open(d, StoreConfig::new(vssd, 1)).map_err(|e| e.1).expect("a store");
        let mut r = Rig { drive: Some(drive), vssd, next: 0, now: 0 };
        r.at(1_000_000);
        r
    }
    fn drive(&mut self) -> &mut KeyDrive<Memory> {
        self.drive.as_mut().expect("open")
    }
    fn at(&mut self, ms: u64) {
        self.now = ms;
        self.drive().set_now(ms);
    }
    fn submit(&mut self, op: Op) -> u64 {
        self.next += 1;
        let id = RequestId(self.next);
        self.drive().submit(id, op);
        id.0
    }
    fn replies(&mut self) -> BTreeMap<u64, Result<Reply, Error>> {
        while self.drive().turn() {}
        let all = self.drive().replies().map(|r| (r.id.0, Op::result(r.result).expect("of keys")));
        all.collect()
    }
    fn ask(&mut self, op: Op) -> Result<Reply, Error> {
        let id = self.submit(op);
        self.replies().remove(&id).expect("answered")
    }
    fn get(&mut self, key: &str) -> Option<Found> {
        match self.ask(Op::Get { key: Bytes::from(key.to_owned()), room: 10_000, latest: false }) {
            Ok(Reply::Value { found, .. }) => found,
            other => panic!("{other:?}"),
        }
    }
    fn value(&mut self, key: &str) -> Option<String> {
        self.get(key).map(|f| String::from_utf8(f.value.to_vec()).expect("text"))
    }
    fn put(&mut self, key: &str, condition: Condition, change: Change) -> Verdict {
        match self.ask(Op::Put { key: Bytes::from(key.to_owned()), condition, change }) {
            Ok(Reply::Put(verdict)) => verdict,
            other => panic!("{other:?}"),
        }
    }
    fn reopen(&mut self) {
        let d = self.drive.take().expect("open").into_drive();
        let memory = d.close().expect("in order");
        let d = BlockingDrive::open(config(), memory).expect("the drive");
        self.drive = Some(KeyDrive::open(d, StoreConfig::new(self.vssd, 1)).map_err(|e| e.1).expect("a store"));
        self.at(self.now);
    }
    fn count(&mut self) -> (u64, u64) {
        match self.ask(Op::Count) {
            Ok(Reply::Count { keys, expiring }) => (keys, expiring),
            other => panic!("{other:?}"),
        }
    }
}

fn set(value: &str) -> Change {
    Change::Set { value: Bytes::from(value.to_owned()), expires: Expires::Never }
}
fn set_until(value: &str, expires: Expires) -> Change {
    Change::Set { value: Bytes::from(value.to_owned()), expires }
}

#[test]
fn conditions_are_judged_on_durable_values() {
    let mut r = Rig::new();
    assert_eq!(r.put("k", Condition::Present, set("a")), Verdict::ConditionFailed);
    assert_eq!(r.put("k", Condition::Absent, set("b")), Verdict::Applied);
    assert_eq!(r.put("k", Condition::Absent, set("c")), Verdict::ConditionFailed);
    let version = r.get("k").expect("there").version;
    assert_eq!(r.put("k", Condition::VersionIs(version), set("d")), Verdict::Applied);
    assert_eq!(r.put("k", Condition::VersionIs(version), set("e")), Verdict::ConditionFailed);
    assert_eq!(r.value("k").as_deref(), Some("d"));
    let version = r.get("k").expect("there").version;
    r.reopen();
    assert_eq!(r.get("k").expect("there").version, version);
    assert_eq!(r.put("k", Condition::VersionIs(version), Change::Delete), Verdict::Applied);
    assert_eq!(r.put("k", Condition::Always, Change::Delete), Verdict::Missing);
    assert_eq!(r.put("k", Condition::Present, Change::Delete), Verdict::ConditionFailed);
}

/// Versions are never issued again, whatever was written, moved or deleted between starts.
#[test]
fn versions_are_unique_over_starts() {
    let mut r = Rig::new();
    let (mut seen, mut last) = (BTreeSet::new(), Version::default());
    for start in 0..12 {
        for i in 0..if start % 3 == 2 { 0 } else { 120 } {
            let key = format!("{}", i % 7);
            r.put(&key, Condition::Always, set(&"v".repeat(900)));
            let version = r.get(&key).expect("there").version;
            assert!(seen.insert(version) && version > last, "{version:?} after {last:?}");
            last = version;
        }
        r.reopen();
    }
}

#[test]
fn many_increments_at_a_time_lose_none() {
    let mut r = Rig::new();
    r.put("n", Condition::Always, set("0"));
    // Each client reads, then changes what it read, and begins again when it was too late.
    let mut clients: BTreeMap<u64, (usize, Option<u64>)> = BTreeMap::new();
    let (mut left, mut conflicts) = ([3; 8], 0);
    let get = || Op::Get { key: "n".into(), room: 100, latest: true };
    for c in 0..left.len() {
        clients.insert(r.submit(get()), (c, None));
    }
    while !clients.is_empty() {
        for (id, reply) in r.replies() {
            let (c, _) = clients.remove(&id).expect("asked");
            match reply.expect("no failure") {
                Reply::Value { found: Some(f), .. } => {
                    let n: u64 = std::str::from_utf8(&f.value).expect("text").parse().expect("a number");
                    let (condition, change) = (Condition::VersionIs(f.version), set(&(n + 1).to_string()));
                    clients.insert(r.submit(Op::Put { key: "n".into(), condition, change }), (c, Some(n)));
                }
                Reply::Put(verdict) => {
                    left[c] -= u64::from(verdict == Verdict::Applied);
                    conflicts += u64::from(verdict == Verdict::ConditionFailed);
                    if left[c] > 0 {
                        clients.insert(r.submit(get()), (c, None));
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(r.value("n").as_deref(), Some("24"));
    assert!(conflicts > 0);
}

#[test]
fn an_expired_value_is_gone_for_good_once_anyone_has_heard_so() {
    let mut r = Rig::new();
    r.put("a", Condition::Always, set_until("1", Expires::In(500)));
    r.put("b", Condition::Always, set_until("2", Expires::At(1_000_700)));
    assert_eq!((r.count(), r.get("a").expect("there").expires), ((2, 2), Some(1_000_500)));
    r.at(1_000_500);
    assert_eq!(r.value("a"), None);
    // Nobody asked for this one: it is there until somebody does.
    r.at(1_000_800);
    assert_eq!(r.count(), (1, 1));
    assert_eq!(r.put("b", Condition::Absent, set("3")), Verdict::Applied);
    // A clock that steps back brings nothing back.
    r.at(1_000_000);
    assert_eq!((r.value("a"), r.value("b").as_deref()), (None, Some("3")));
    r.reopen();
    assert_eq!((r.value("a"), r.value("b").as_deref(), r.count()), (None, Some("3"), (1, 0)));
    // What is expired is not there to be deleted.
    r.put("c", Condition::Always, set_until("4", Expires::In(10)));
    r.at(1_000_020);
    assert_eq!(r.put("c", Condition::Always, Change::Delete), Verdict::Missing);
    r.put("d", Condition::Always, set_until("5", Expires::In(10)));
    r.put("d", Condition::Always, set("6"));
    r.at(1_002_000);
    assert_eq!(r.value("d").as_deref(), Some("6"));
}

#[test]
fn the_sweep_deletes_what_expired_in_an_earlier_run_too() {
    let mut r = Rig::new();
    for i in 0..50 {
        r.put(&format!("gone{i}"), Condition::Always, set_until("x", Expires::In(100 + i)));
        r.put(&format!("kept{i}"), Condition::Always, set("x"));
    }
    r.reopen();
    assert_eq!(r.count(), (100, 0));
    r.at(1_000_120);
    // Before the expiries of an earlier run are known, a deletion looks.
    assert_eq!(r.put("gone0", Condition::Always, Change::Delete), Verdict::Missing);
    for _ in 0..3 {
        r.drive().tick();
        r.replies();
    }
    assert_eq!(r.count(), (79, 29));
    let Ok(Reply::Page { keys, .. }) = r.ask(Op::Scan { cursor: 0, limit: SCAN_MAX }) else { panic!() };
    assert_eq!(keys.len(), 79);
    // Due, and not yet deleted: a scan leaves it out.
    r.at(1_000_200);
    let Ok(Reply::Page { keys, .. }) = r.ask(Op::Scan { cursor: 0, limit: SCAN_MAX }) else { panic!() };
    assert_eq!((keys.len(), r.count()), (50, (79, 29)));
    r.drive().tick();
    r.replies();
    assert_eq!(r.count(), (50, 0));
}

#[test]
fn a_batch_is_whole_or_has_no_effect() {
    let mut r = Rig::new();
    let k = |key: &'static str| Bytes::from(key);
    r.put("a", Condition::Always, set("1"));
    let version = r.get("a").expect("there").version;
    let batch = |conditions: Vec<(Bytes, Condition)>, changes: Vec<(Bytes, Change)>| Op::Batch { conditions, changes };
    let changes = || vec![(k("a"), Change::Delete), (k("b"), set_until("2", Expires::In(5))), (k("c"), set("3"))];
    let first = batch(vec![(k("a"), Condition::VersionIs(version)), (k("d"), Condition::Present)], changes());
    assert_eq!(r.ask(first), Ok(Reply::Put(Verdict::ConditionFailed)));
    assert_eq!((r.value("a").as_deref(), r.value("c")), (Some("1"), None));
    let second = batch(vec![(k("a"), Condition::VersionIs(version)), (k("d"), Condition::Absent)], changes());
    assert_eq!(r.ask(second), Ok(Reply::Put(Verdict::Applied)));
    r.reopen();
    assert_eq!((r.value("a"), r.value("b").as_deref(), r.value("c").as_deref()), (None, Some("2"), Some("3")));
    r.at(1_000_005);
    assert_eq!(r.value("b"), None);
    assert_eq!(r.ask(batch(vec![(k("c"), Condition::Present)], vec![])), Ok(Reply::Put(Verdict::Applied)));
    assert_eq!(r.ask(batch(vec![], vec![])), Ok(Reply::Put(Verdict::Applied)));
    let long = batch(vec![], vec![(k("x"), set(&"v".repeat(5000))), (k("y"), set(&"v".repeat(5000)))]);
    assert!(matches!(r.ask(long), Err(Error::BatchLength { max: 8192, .. })));
    assert_eq!((r.value("x"), r.value("y")), (None, None));
}

#[test]
fn scans_go_on_over_deletions_and_restarts_refuse_old_cursors() {
    let mut r = Rig::new();
    (0..30).for_each(|i| _ = r.put(&format!("k{i:02}"), Condition::Always, set("v")));
    let (mut cursor, mut seen) = (0, Vec::new());
    loop {
        let Ok(Reply::Page { keys, cursor: next }) = r.ask(Op::Scan { cursor, limit: 7 }) else { panic!() };
        seen.extend(keys.iter().map(|k| String::from_utf8(k.to_vec()).expect("text")));
        if let Some(last) = seen.last().cloned() {
            r.put(&last, Condition::Always, Change::Delete);
        }
        r.put(&format!("j{}", seen.len()), Condition::Always, set("new"));
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(seen, (0..30).map(|i| format!("k{i:02}")).collect::<Vec<_>>());
    let Ok(Reply::Page { cursor, .. }) = r.ask(Op::Scan { cursor: 0, limit: 3 }) else { panic!() };
    r.reopen();
    assert_eq!(r.ask(Op::Scan { cursor, limit: 3 }), Err(Error::Cursor { cursor, kept: 4096 }));
}

#[test]
fn bad_input_is_refused_with_its_rule() {
    let mut r = Rig::new();
    let get = |key: Bytes| Op::Get { key, room: 10, latest: false };
    assert_eq!(r.ask(get(Bytes::new())), Err(Error::KeyLength { bytes: 0, max: 1024 }));
    assert_eq!(r.ask(get(vec![b'k'; 1025].into())), Err(Error::KeyLength { bytes: 1025, max: 1024 }));
    // An eighth of a block of 64 KiB, with the heads of record and value, and the key.
    let max = 8192 - 16 - 1 - 8 - 36;
    let put = |n: usize| {
        let change = Change::Set { value: vec![1; n].into(), expires: Expires::Never };
        Op::Put { key: "k".into(), condition: Condition::Always, change }
    };
    assert_eq!(r.ask(put(max + 1)), Err(Error::ValueLength { bytes: max + 1, max }));
    assert_eq!(r.ask(put(max)), Ok(Reply::Put(Verdict::Applied)));
    let Ok(Reply::NoRoom { bytes }) = r.ask(get("k".into())) else { panic!() };
    assert!((max..max + 8).contains(&(bytes as usize)), "{bytes}");
    let all = r.ask(Op::Get { key: "k".into(), room: bytes, latest: false });
    assert!(matches!(all, Ok(Reply::Value { found: Some(f), .. }) if f.value.len() == max));
}

/// Random operations at a time, several in each turn, against a map: of operations on one key the replies are those of
/// some order.
#[test]
fn operations_of_one_turn_agree_with_a_map() {
    for seed in 0..60 {
        let (mut r, mut rng) = (Rig::new(), Rng::new(seed));
        let mut model: BTreeMap<u64, (String, u64)> = BTreeMap::new();
        for step in 0..150u64 {
            r.at(1_000_000 + step * 10);
            let (key, now) = (rng.below(5), r.now);
            model.retain(|_, v| v.1 > now);
            let name = Bytes::from(format!("k{key}"));
            let there = model.contains_key(&key);
            let value = format!("v{step}");
            let ttl = if rng.chance(0.4) { rng.between(1, 200) } else { u64::MAX / 2 };
            let expires = if ttl > 200 { Expires::Never } else { Expires::In(ttl) };
            match rng.below(5) {
                0 => {
                    let found = r.get(&format!("k{key}"));
                    let text = found.map(|f| String::from_utf8(f.value.to_vec()).expect("text"));
                    assert_eq!(text, model.get(&key).map(|v| v.0.clone()), "seed {seed} step {step}");
                }
                1 => {
                    let verdict = r.put(&format!("k{key}"), Condition::Always, Change::Delete);
                    assert_eq!(verdict == Verdict::Applied, there, "seed {seed} step {step}");
                    model.remove(&key);
                }
                2 if rng.chance(0.2) => {
                    r.drive().tick();
                    r.replies();
                }
                2 if rng.chance(0.1) => r.reopen(),
                2 | 3 => {
                    let condition = *rng.pick(&[Condition::Always, Condition::Absent, Condition::Present]);
                    let applies = match condition {
                        Condition::Absent => !there,
                        Condition::Present => there,
                        _ => true,
                    };
                    let verdict = r.put(&format!("k{key}"), condition, set_until(&value, expires));
                    assert_eq!(verdict == Verdict::Applied, applies, "seed {seed} step {step}");
                    if applies {
                        model.insert(key, (value, now.saturating_add(ttl)));
                    }
                }
                _ => {
                    // Two sets in one turn, and a get behind them: the second one counts.
                    let put = |v: &str| Op::Put { key: name.clone(), condition: Condition::Always, change: set(v) };
                    let all = [r.submit(put("first")), r.submit(put(&value))];
                    let replies = r.replies();
                    assert!(all.iter().all(|i| replies[i] == Ok(Reply::Put(Verdict::Applied))));
                    assert_eq!(r.value(&format!("k{key}")), Some(value.clone()));
                    model.insert(key, (value, u64::MAX));
                }
            }
        }
        r.drive().keys().store().check().expect("sound");
        assert!(r.drive().keys().is_idle());
    }
}

/// Operations that follow on each other's changes share a sync, and nobody hears of a change that may be undone.
#[test]
fn a_chain_of_changes_takes_one_sync() {
    let mut r = Rig::new();
    r.put("n", Condition::Always, set("0"));
    let now = |r: &mut Rig, op: Op| {
        let id = r.submit(op);
        let all: BTreeMap<u64, _> =
            r.drive().replies().map(|r| (r.id.0, Op::result(r.result).expect("of keys"))).collect();
        (id, all)
    };
    let commits = r.drive().keys().store().stats().commits;
    let (first, early) = now(&mut r, Op::Put { key: "n".into(), condition: Condition::Always, change: set("0") });
    assert!(early.is_empty());
    let (id, mut found) = now(&mut r, Op::Get { key: "n".into(), room: 100, latest: true });
    let Some(Ok(Reply::Value { found: Some(f), .. })) = found.remove(&id) else { panic!("{found:?}") };
    let (mut version, mut asked) = (f.version, vec![first]);
    for n in 1..=20 {
        let (condition, change) = (Condition::VersionIs(version), set(&n.to_string()));
        let (id, early) = now(&mut r, Op::Put { key: "n".into(), condition, change });
        asked.push(id);
        assert!(early.is_empty(), "before it is durable: {early:?}");
        let (id, mut found) = now(&mut r, Op::Get { key: "n".into(), room: 100, latest: true });
        let Some(Ok(Reply::Value { found: Some(f), .. })) = found.remove(&id) else { panic!("{found:?}") };
        assert_eq!(f.value, n.to_string());
        version = f.version;
    }
    // What is judged by a value that is not durable is not heard of before that is, nor is the value itself.
    let (get, early) = now(&mut r, Op::Get { key: "n".into(), room: 100, latest: false });
    assert!(early.is_empty());
    let put = |condition, change| Op::Put { key: "n".into(), condition, change };
    let (absent, early) = now(&mut r, put(Condition::Absent, set("x")));
    assert!(early.is_empty());
    let (stale, early) = now(&mut r, put(Condition::VersionIs(Version::default()), set("x")));
    assert_eq!(early[&stale], Ok(Reply::Put(Verdict::ConditionFailed)));
    let batch = Op::Batch { conditions: vec![("n".into(), Condition::VersionIs(version))], changes: vec![] };
    let (batch, early) = now(&mut r, batch);
    assert!(early.is_empty());
    let replies = r.replies();
    assert!(asked.iter().all(|id| replies[id] == Ok(Reply::Put(Verdict::Applied))));
    assert!(matches!(&replies[&get], Ok(Reply::Value { found: Some(f), .. }) if f.value == "20"));
    assert_eq!(replies[&absent], Ok(Reply::Put(Verdict::ConditionFailed)));
    assert_eq!(replies[&batch], Ok(Reply::Put(Verdict::Applied)));
    assert_eq!(r.drive().keys().store().stats().commits, commits + 1);
    assert!(r.drive().keys().is_idle());
    r.reopen();
    assert_eq!(r.value("n").as_deref(), Some("20"));
}

/// A change that a full store refuses takes with it whatever follows on it.
#[test]
fn nothing_follows_on_a_refused_change() {
    let mut r = Rig::new();
    let change = || Change::Set { value: vec![7; 7000].into(), expires: Expires::Never };
    let full = (0..2000).find(|i| {
        let key = format!("fill{i}").into();
        r.ask(Op::Put { key, condition: Condition::Always, change: change() }).is_err()
    });
    assert!(full.is_some());
    for round in 0..3 {
        let put = |condition| Op::Put { key: "n".into(), condition, change: change() };
        let first = r.submit(put(Condition::Absent));
        let refused = r.drive().replies().next();
        let version = match refused {
            None => {
                let id = r.submit(Op::Get { key: "n".into(), room: 10_000, latest: true });
                let got = r.drive().replies().find(|r| r.id.0 == id).map(|r| Op::result(r.result));
                match got {
                    Some(Some(Ok(Reply::Value { found: Some(f), .. }))) => Some(f.version),
                    _ => None,
                }
            }
            Some(_) => None,
        };
        let second = version.map(|v| r.submit(put(Condition::VersionIs(v))));
        let replies = r.replies();
        assert!(replies.get(&first).is_none_or(|r| matches!(r, Err(Error::NoSpace { .. }))), "round {round}");
        if let Some(second) = second {
            assert_ne!(replies[&second], Ok(Reply::Put(Verdict::Applied)), "round {round}");
        }
        assert_eq!(r.value("n"), None);
    }
    assert!(r.drive().keys().is_idle());
}
