//! Keyspaces on a whole rack: made, used and deleted while parts of it fail.

use std::collections::BTreeMap;

use rackweave_core::VssdId;
use rackweave_core::admin::{Isolation, KeyspaceError, KeyspaceInfo};
use rackweave_core::keyspace::Keyspace;

use super::*;

fn with_area(servers: u32) -> RackConfig {
    let mut cfg = config(servers);
    cfg.ssd.size = Size::mib(256);
    cfg.kv.own_channels = 3;
    cfg.validate().expect("sound");
    cfg
}
fn started(cfg: &RackConfig, seed: u64) -> Sim {
    let sim = SimConfig { contents: Contents::Memory, ..SimConfig::new(seed) };
    let mut sim = Sim::new(cfg, sim).expect("sound");
    sim.run_until(Time::ZERO + Span::from_secs(2));
    sim
}
/// Within a minute.
fn administer(sim: &mut Sim, op: admin::Op) -> Result<admin::Reply, admin::Error> {
    let now = sim.now();
    sim.submit(now, 0, Request::new(RequestId(now.0), op));
    for _ in 0..60_000 {
        sim.run_until(sim.now() + Span::from_millis(1));
        if let Some((_, _, reply)) = sim.take_replies().pop() {
            return admin::Op::result(reply.result).expect("of the same API");
        }
    }
    panic!("no answer within a minute");
}
fn create(name: &str, replicas: u32, (isolation, units): (Isolation, u32)) -> admin::Op {
    admin::Op::KeyspaceCreate { name: name.into(), replicas: Some(replicas), isolation, units }
}
fn delete(name: &str) -> admin::Op {
    admin::Op::KeyspaceDelete { name: name.into() }
}
fn info(sim: &mut Sim, name: &str) -> Result<KeyspaceInfo, admin::Error> {
    administer(sim, admin::Op::KeyspaceInfo { name: name.into() }).map(|reply| {
        let admin::Reply::Keyspace(info) = reply else { panic!("{reply:?}") };
        info
    })
}
/// Until every server has the log and every partition serves.
fn serving(sim: &mut Sim, name: &str) -> Keyspace {
    for _ in 0..600 {
        let info = info(sim, name).expect("it exists");
        if info.serves() && info.logs == info.logs_of {
            return info.keyspace();
        }
        sim.run_until(sim.now() + Span::from_millis(100));
    }
    panic!("{name} does not serve within a minute: {:?}", info(sim, name));
}
fn within(k: Keyspace, op: kv::Op) -> kv::Op {
    kv::Op::In { keyspace: k, op: Box::new(op) }
}
fn put(n: u64, v: u64) -> kv::Op {
    let change = Change::Set { value: value(v), expires: Expires::Never };
    kv::Op::Put { key: key(n), condition: Condition::Always, change }
}
fn get(n: u64) -> kv::Op {
    kv::Op::Get { key: key(n), room: u32::MAX, latest: false }
}
fn found(answer: Result<kv::Reply, kv::Error>) -> Option<Bytes> {
    let Ok(kv::Reply::Value { found, .. }) = answer else { panic!("{answer:?}") };
    found.map(|f| f.value)
}
fn blackout(sim: &mut Sim, servers: u32) {
    (0..servers).for_each(|i| _ = sim.power_cut(i, CutOdds { drop: 1.0, tear: 0.0 }));
    (0..servers).for_each(|i| sim.restart(sim.engine().layout().server(i).expect("a server")).expect("starts"));
}

/// Within a second the switch sends gets to the keyspace's own logs, and copies puts to its members.
fn switch_knows(sim: &mut Sim, k: Keyspace) {
    let first = k.id.first_partition().0;
    let logs = |sim: &Sim| -> Vec<VssdId> {
        let all = (0..sim.config().servers).filter_map(|i| sim.server(i));
        all.flat_map(|s| s.keyspace_logs().filter(|(id, _)| *id == k.id).map(|(_, vssd)| vssd)).collect()
    };
    let differs = |sim: &Sim| {
        let (dump, logs) = (sim.switch(0)?.dump(), logs(sim));
        let meta = sim.meta()?;
        let (_, m) = meta.keyspace_memberships().find(|(id, _)| *id == k.id)?;
        (first..first + 64).map(Partition).find(|p| {
            let row = dump.replica.iter().find(|r| r.vssd == p.row(0));
            let peers: Vec<VssdId> = row.iter().flat_map(|r| &r.peers).map(|p| p.vssd).collect();
            let group = dump.rings.iter().find(|r| u32::from(r.prefix.address) == p.multicast().ipv4());
            let behind: Vec<NodeId> = m.view(*p).iter().flat_map(|v| &v.members).map(|m| m.node).collect();
            peers.is_empty()
                || !peers.iter().all(|vssd| logs.contains(vssd))
                || group.is_none_or(|g| g.members != behind)
        })
    };
    sim.run_until(sim.now() + Span::from_secs(1));
    assert_eq!(differs(sim), None, "{k:?}");
}

#[test]
fn keyspaces_have_keys_of_their_own_through_a_restart_of_everything() {
    let mut sim = started(&with_area(4), 11);
    administer(&mut sim, create("orders", 3, (Isolation::Channel, 1))).expect("made");
    administer(&mut sim, create("sessions", 1, (Isolation::Die, 6))).expect("made");
    let spaces = [serving(&mut sim, "orders"), serving(&mut sim, "sessions"), serving(&mut sim, "default")];
    assert_eq!(spaces.map(|k| (k.id.number(), k.replicas)), [(1, 3), (2, 1), (0, 3)]);
    for n in 0..20 {
        for (i, k) in (0..).zip(spaces) {
            let done = ask(&mut sim, within(k, put(n, (n + i) % 30)));
            assert_eq!(done, Ok(kv::Reply::Put(kv::Verdict::Applied)), "put {n} in {i}");
        }
    }
    blackout(&mut sim, 4);
    sim.crash(Layout::META);
    sim.restart(Layout::META).expect("starts");
    for n in 0..20 {
        for (i, k) in (0..).zip(spaces) {
            let op = if i == 2 { get(n) } else { within(k, get(n)) };
            assert_eq!(found(ask(&mut sim, op)), Some(value((n + i) % 30)), "get {n} in {i}");
        }
    }
    let counted = ask(&mut sim, within(spaces[0], kv::Op::Count));
    assert_eq!(counted, Ok(kv::Reply::Count { keys: 20, expiring: 0 }));
    let mut scanned = Vec::new();
    let mut cursor = 0;
    loop {
        let page = ask(&mut sim, within(spaces[1], kv::Op::Scan { cursor, limit: 7 }));
        let Ok(kv::Reply::Page { keys, cursor: next }) = page else { panic!("{page:?}") };
        scanned.extend(keys);
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    scanned.sort_unstable();
    scanned.dedup();
    assert_eq!(scanned.len(), 20);
}

#[test]
fn a_deleted_keyspace_is_gone_and_another_has_its_number_and_its_flash() {
    let mut sim = started(&with_area(3), 12);
    let mut old = Vec::new();
    for round in 0..4 {
        let name = format!("space-{round}");
        administer(&mut sim, create(&name, 3, (Isolation::Channel, 3))).expect("the flash of the last is free again");
        let k = serving(&mut sim, &name);
        assert_eq!((k.id.number(), k.id.serial()), (1, round + 1));
        for n in 0..10 {
            assert_eq!(found(ask(&mut sim, within(k, get(n)))), None, "round {round}: none of an earlier keyspace's");
            ask(&mut sim, within(k, put(n, u64::from(round)))).expect("room");
        }
        for k in &old {
            assert_eq!(ask(&mut sim, within(*k, get(1))), Err(kv::Error::NoKeyspace), "round {round}");
            assert_eq!(ask(&mut sim, within(*k, put(1, 39))), Err(kv::Error::NoKeyspace), "round {round}");
        }
        assert_eq!(found(ask(&mut sim, within(k, get(1)))), Some(value(u64::from(round))));
        switch_knows(&mut sim, k);
        if round == 0 {
            // Later epochs than the next keyspace's first, if these began at one.
            let away = sim.engine().layout().server(2).expect("a server");
            sim.crash(away);
            sim.run_until(sim.now() + Span::from_secs(2));
            sim.restart(away).expect("starts");
            sim.run_until(sim.now() + Span::from_secs(2));
        }
        if round == 2 {
            // One is away while it is deleted.
            _ = sim.power_cut(1, CutOdds { drop: 1.0, tear: 0.0 });
        }
        assert_eq!(administer(&mut sim, delete(&name)), Ok(admin::Reply::Done));
        if round == 2 {
            sim.restart(sim.engine().layout().server(1).expect("a server")).expect("starts");
            sim.run_until(sim.now() + Span::from_secs(1));
        }
        if round == 1 {
            blackout(&mut sim, 3);
            sim.crash(Layout::META);
            sim.restart(Layout::META).expect("starts");
            sim.run_until(sim.now() + Span::from_secs(2));
        }
        assert!(info(&mut sim, &name).is_err());
        old.push(k);
    }
}

#[test]
fn a_server_that_is_away_gets_the_log_when_it_comes_back() {
    let mut sim = started(&with_area(4), 13);
    _ = sim.power_cut(2, CutOdds { drop: 1.0, tear: 0.0 });
    sim.run_until(sim.now() + Span::from_secs(2));
    administer(&mut sim, create("orders", 3, (Isolation::Channel, 2))).expect("made");
    let mut model = BTreeMap::new();
    for _ in 0..100 {
        let i = info(&mut sim, "orders").expect("it exists");
        if i.serves() {
            assert_eq!((i.logs, i.logs_of), (3, 4));
            break;
        }
        sim.run_until(sim.now() + Span::from_millis(100));
    }
    let k = info(&mut sim, "orders").expect("it exists").keyspace();
    for n in 0..20 {
        assert_eq!(ask(&mut sim, within(k, put(n, n))), Ok(kv::Reply::Put(kv::Verdict::Applied)));
        model.insert(n, n);
    }
    sim.restart(sim.engine().layout().server(2).expect("a server")).expect("starts");
    serving(&mut sim, "orders");
    let back = sim.engine().layout().server(2).expect("a server");
    let of = |m: &Meta| {
        let (_, m) = m.keyspace_memberships().next().expect("one");
        m.views().filter(|v| v.member(back).is_some()).count()
    };
    for round in 0..600 {
        if sim.meta().is_some_and(|m| of(m) > 20) {
            break;
        }
        assert!(round < 599, "it joins the ring");
        sim.run_until(sim.now() + Span::from_millis(100));
    }
    for (n, v) in model {
        assert_eq!(found(ask(&mut sim, within(k, get(n)))), Some(value(v)), "key {n}");
    }
}

#[test]
fn what_a_rack_has_no_room_for_is_refused_by_value_and_rule() {
    let mut sim = started(&with_area(3), 14);
    let mut refused = |op| match administer(&mut sim, op) {
        Err(admin::Error::Keyspace(e)) => e,
        other => panic!("{other:?}"),
    };
    let channel = |n| (Isolation::Channel, n);
    let (isolation, set_aside) = (Isolation::Channel, 3);
    assert_eq!(refused(create("a", 3, channel(4))), KeyspaceError::Room { isolation, units: 4, free: 3, set_aside });
    assert_eq!(refused(create("a", 4, channel(1))), KeyspaceError::Replicas { replicas: 4, most: 3, servers: 3 });
    assert_eq!(refused(create("a", 0, channel(1))), KeyspaceError::Replicas { replicas: 0, most: 3, servers: 3 });
    assert_eq!(refused(create("7", 3, channel(1))), KeyspaceError::BadName { name: "7".into() });
    assert_eq!(refused(create("default", 3, channel(1))), KeyspaceError::Duplicate { name: "default".into() });
    let level = Isolation::None;
    assert_eq!(refused(create("a", 3, (level, 1))), KeyspaceError::Isolation { level });
    assert_eq!(refused(delete("a")), KeyspaceError::Unknown { name: "a".into() });
    assert_eq!(refused(delete("default")), KeyspaceError::First { name: "default".into() });
    administer(&mut sim, create("a", 3, channel(2))).expect("made");
    administer(&mut sim, create("b", 2, channel(1))).expect("made");
    serving(&mut sim, "a");
    serving(&mut sim, "b");
    let without_keys = RackConfig { servers: 3, replicas: 2, ..RackConfig::default() };
    let mut sim = started(&without_keys, 15);
    assert_eq!(administer(&mut sim, create("a", 3, channel(1))), Err(KeyspaceError::NoKeys.into()));
}

/// Answers are those of maps, while keyspaces come and go and parts of the rack fail.
#[test]
fn answers_in_keyspaces_are_those_of_maps_while_parts_of_the_rack_fail() {
    for seed in 0..4 {
        let mut rng = Rng::stream(seed, 0x7370_6163);
        let cfg = with_area(3 + seed as u32 % 2);
        let mut sim = lossy(seed, &cfg);
        let (mut spaces, mut gone, mut made) = (Vec::<(String, Keyspace, BTreeMap<u64, u64>)>::new(), Vec::new(), 0);
        let mut starts = Vec::new();
        for op in 0..300u64 {
            if op % 40 == 20 {
                fail(&mut sim, &mut rng, cfg.servers, &mut starts);
            }
            if op % 50 == 0 {
                // All servers are up: the ring begins with them.
                sim.run_until(sim.now() + Span::from_secs(1));
                for (_, n) in starts.drain(..) {
                    sim.restart(n).expect("starts");
                }
                sim.run_until(sim.now() + Span::from_secs(2));
                if spaces.len() == 3 {
                    let (name, k, _) = spaces.remove(rng.below(3) as usize);
                    assert_eq!(administer(&mut sim, delete(&name)), Ok(admin::Reply::Done));
                    gone.push(k);
                }
                made += 1;
                let name = format!("s{made}");
                administer(&mut sim, create(&name, 2 + made % 2, (Isolation::Channel, 1))).expect("room");
                let k = serving(&mut sim, &name);
                spaces.push((name, k, BTreeMap::new()));
            }
            if let Some(k) = gone.last().filter(|_| op % 25 == 24) {
                let answer = ask_with(&mut sim, within(*k, put(3, 39)), &mut starts);
                assert_eq!(answer, Err(kv::Error::NoKeyspace), "seed {seed}, operation {op}");
            }
            let (n, i) = (rng.below(12), rng.below(spaces.len() as u64) as usize);
            let (name, k, model) = &mut spaces[i];
            if rng.chance(0.5) {
                let answer = ask_with(&mut sim, within(*k, put(n, op % 40)), &mut starts);
                assert_eq!(answer, Ok(kv::Reply::Put(kv::Verdict::Applied)), "seed {seed}, {name}");
                model.insert(n, op % 40);
            } else {
                let answer = found(ask_with(&mut sim, within(*k, get(n)), &mut starts));
                let expected = model.get(&n).map(|v| value(*v));
                assert_eq!(answer, expected, "seed {seed}, operation {op}, key {n} of {name}");
            }
        }
    }
}
