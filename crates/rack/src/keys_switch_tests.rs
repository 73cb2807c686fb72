//! Gets of a rack's keys by way of the switch.

use rackweave_config::EgressSection;
use rackweave_core::kv::{self, Change, Condition, Expires};
use rackweave_core::request::{Operation, Request, RequestId};
use rackweave_core::{Layout, NodeId, Rng, Span, Time, VssdId};
use rackweave_kv::replicated::KeyService;
use rackweave_kv_replica::types::Partition;

use super::{ask, config, key, value};
use crate::build;
use crate::sim::{Contents, Sim, SimConfig};
use crate::wire::{Authentication, TransportConfig};

const SERVERS: u32 = 4;

fn rack(seed: u64) -> Sim {
    let sim = SimConfig { contents: Contents::Memory, clients: 2, ..SimConfig::new(seed) };
    let mut sim = Sim::new(&config(SERVERS), sim).expect("sound");
    sim.run_until(Time::ZERO + Span::from_secs(2));
    sim
}
fn put(n: u64, bytes: kv::Expires, data: Vec<u8>) -> kv::Op {
    kv::Op::Put {
        key: key(n),
        condition: Condition::Always,
        change: Change::Set { value: data.into(), expires: bytes },
    }
}
fn get(n: u64) -> kv::Op {
    kv::Op::Get { key: key(n), room: u32::MAX, latest: false }
}
fn service(sim: &Sim, server: u32) -> Option<&KeyService> {
    let (vssd, _) = build::stores(sim.config())[server as usize];
    sim.server(server)?.service(vssd)
}
/// Gets that each server has answered.
fn gets(sim: &Sim) -> Vec<u64> {
    let of = |i| service(sim, i).and_then(KeyService::key_node).map_or(0, |n| n.answered().gets);
    (0..SERVERS).map(of).collect()
}
fn fill(sim: &mut Sim, keys: u64) {
    for n in 0..keys {
        let op = put(n, Expires::Never, value(n % 8).to_vec());
        assert_eq!(ask(sim, op), Ok(kv::Reply::Put(kv::Verdict::Applied)), "put {n}");
    }
}
fn check(sim: &mut Sim, n: u64) {
    let answer = ask(sim, get(n));
    let Ok(kv::Reply::Value { found: Some(found), .. }) = answer else { panic!("get {n}: {answer:?}") };
    assert_eq!(found.value, value(n % 8), "key {n}");
}

#[test]
fn the_switch_chooses_the_member_that_answers_a_get() {
    let mut sim = rack(11);
    fill(&mut sim, 30);
    let (before, answered) = (*sim.switch(0).expect("runs").counters(), gets(&sim));
    for n in (0..120).map(|n| n % 30) {
        check(&mut sim, n);
    }
    let after = *sim.switch(0).expect("runs").counters();
    assert_eq!(after.reads - before.reads, 120, "each came once");
    assert_eq!((after.balanced - before.balanced, after.unknown_vssd), (120, before.unknown_vssd));
    let each: Vec<u64> = gets(&sim).iter().zip(answered).map(|(after, before)| after - before).collect();
    assert!(each.iter().all(|n| *n >= 15), "answers of each server: {each:?}");
}

/// Members to whom the switch copies the partition's puts.
fn group(sim: &Sim, p: Partition) -> Vec<NodeId> {
    let dump = sim.switch(0).map(|s| s.dump()).unwrap_or_default();
    let ring = dump.rings.into_iter().find(|r| u32::from(r.prefix.address) == p.multicast().ipv4());
    ring.map_or(Vec::new(), |r| r.members)
}

#[test]
fn a_put_is_sent_once_and_the_switch_copies_it_to_every_member() {
    let transport = TransportConfig {
        one_machine: false,
        datagram_bytes: 1_472,
        authentication: Authentication::Encrypted,
        trains: true,
        damage: 0.0,
    };
    for transport in [None, Some(transport)] {
        let over = transport.is_some();
        let base = SimConfig { contents: Contents::Memory, clients: 2, ..SimConfig::new(14) };
        let mut sim = Sim::new(&config(SERVERS), SimConfig { transport, ..base }).expect("sound");
        sim.run_until(Time::ZERO + Span::from_secs(2));
        // The client learns the views, and its transport the members.
        fill(&mut sim, 64);
        let (before, mut datagrams) = (*sim.switch(0).expect("runs").counters(), 0);
        for n in 0..30 {
            let (began, data) = (sim.now(), value(n % 8));
            datagrams += data.len().div_ceil(1_472) as u64;
            assert_eq!(ask(&mut sim, put(n, Expires::Never, data.to_vec())), Ok(kv::Reply::Put(kv::Verdict::Applied)));
            let took = sim.now().since(began);
            assert!(took < Span::from_millis(8), "put {n} took {took}: it was repeated");
        }
        let after = *sim.switch(0).expect("runs").counters();
        let copied = after.ring_packets - before.ring_packets;
        assert_eq!(after.unknown_ring, before.unknown_ring);
        let each = if over { datagrams..2 * datagrams } else { 30..31 };
        assert!(each.contains(&copied), "{copied} of {each:?} went to a group, over a transport: {over}");
        (0..30).for_each(|n| check(&mut sim, n));
        assert_eq!(sim.network_violation(), None);
    }
}

/// Ports with queues (RB8) see every packet between nodes, those that are addressed to a server too.
#[test]
fn ports_with_queues_forward_what_is_addressed_to_a_server() {
    for racks in [1, 2] {
        let mut cfg = config(SERVERS);
        cfg.racks.count = racks;
        cfg.switch.egress = Some(EgressSection { queue_kib: 10_248, ..EgressSection::of_rate(10_000) });
        cfg.validate().expect("sound");
        let mut sim = Sim::new(&cfg, SimConfig { contents: Contents::Memory, ..SimConfig::new(15) }).expect("sound");
        sim.run_until(Time::ZERO + Span::from_secs(2));
        let unknown = |sim: &Sim| (0..racks).map(|i| sim.switch(i).expect("runs").counters().unknown_vssd).sum::<u64>();
        let before = unknown(&sim);
        fill(&mut sim, 30);
        (0..30).for_each(|n| check(&mut sim, n));
        assert_eq!(ask(&mut sim, kv::Op::Count), Ok(kv::Reply::Count { keys: 30, expiring: 0 }));
        assert_eq!(unknown(&sim), before, "with {racks} racks");
        for i in 0..racks {
            let ports = sim.switch(i).and_then(|s| s.egress()).expect("it has queues");
            assert_eq!((ports.queue_full, ports.too_many_flows), (0, 0), "{ports:?}");
        }
    }
}

/// Rows that the switch has for the shares of a partition.
fn members(sim: &Sim, p: Partition) -> Vec<Vec<NodeId>> {
    let dump = sim.switch(0).map(|s| s.dump()).unwrap_or_default();
    let row = |v: VssdId| dump.replica.iter().find(|r| r.vssd == v);
    let servers = |v| row(v).map_or(Vec::new(), |r| r.peers.iter().map(|p| p.server).collect());
    (0..3).map(|share| servers(p.row(share))).collect()
}
fn readable(sim: &Sim, p: Partition) -> Vec<NodeId> {
    let view = sim.meta().and_then(|m| m.key_membership()).and_then(|k| k.view(p));
    view.map_or(Vec::new(), |v| v.readable().collect())
}

#[test]
fn the_switch_knows_those_that_hold_everything_after_each_change() {
    let mut sim = rack(12);
    fill(&mut sim, 60);
    let lost = sim.engine().layout().server(1).expect("a server");
    let agree = |sim: &Sim| {
        (0..64).map(Partition).for_each(|p| {
            let mut known = members(sim, p).concat();
            known.sort();
            known.dedup();
            let mut expected = readable(sim, p);
            expected.sort();
            assert_eq!(known, expected, "{p}");
            let view = sim.meta().and_then(|m| m.key_membership()).and_then(|k| k.view(p)).expect("a view");
            let behind: Vec<NodeId> = view.members.iter().map(|m| m.node).collect();
            assert_eq!(group(sim, p), behind, "{p}");
        });
    };
    agree(&sim);
    sim.crash(lost);
    sim.run_until(sim.now() + Span::from_secs(3));
    agree(&sim);
    assert!((0..64).all(|p| !members(&sim, Partition(p)).concat().contains(&lost)));
    sim.restart(lost).expect("starts");
    sim.run_until(sim.now() + Span::from_secs(5));
    agree(&sim);
    assert!((0..64).any(|p| members(&sim, Partition(p)).concat().contains(&lost)), "it serves again");
    // Without a switch puts and gets go to members; with one that has lost its table too, and through it after a second.
    sim.crash(Layout::SWITCH);
    fill(&mut sim, 10);
    (0..10).for_each(|n| check(&mut sim, n));
    sim.restart(Layout::SWITCH).expect("starts");
    (0..10).for_each(|n| check(&mut sim, n));
    sim.run_until(sim.now() + Span::from_secs(1));
    agree(&sim);
    let before = *sim.switch(0).expect("runs").counters();
    (0..10).for_each(|n| check(&mut sim, n));
    let after = *sim.switch(0).expect("runs").counters();
    assert_eq!((after.balanced - before.balanced, after.unknown_vssd), (10, before.unknown_vssd));
}

/// The latency below which all but one of a thousand are.
fn p999(mut all: Vec<Span>) -> Span {
    all.sort_unstable();
    all[all.len() - 1 - all.len() / 1000]
}

/// Gets of keys that are not written, in an open loop, while other keys are overwritten until stores compact.
#[test]
fn gets_avoid_a_store_that_compacts_and_are_as_fast_as_without() {
    let mut sim = rack(13);
    fill(&mut sim, 40);
    let mut rng = Rng::new(13);
    let (mut next, mut puts, mut idle, mut busy) = (1u64 << 40, 0u32, Vec::new(), Vec::new());
    // Requests under way: when they began, and whether a store compacted then; `None` is a put.
    let mut open: Vec<(RequestId, Option<(Time, bool)>)> = Vec::new();
    let (mut by_compacting, mut answered) = (0, gets(&sim));
    for round in 0..400_000u64 {
        if busy.len() >= 4_000 && idle.len() >= 4_000 {
            break;
        }
        let now = sim.now();
        let compacts: Vec<bool> =
            (0..SERVERS).map(|i| service(&sim, i).is_some_and(|s| s.store().is_some_and(|s| s.compacting()))).collect();
        let any = compacts.iter().any(|c| *c) && !compacts.iter().all(|c| *c);
        if round.is_multiple_of(2) {
            next += 1;
            open.push((RequestId(next), Some((now, any))));
            sim.submit(now, 0, Request::new(RequestId(next), get(rng.below(40))));
        }
        if puts < 4 {
            next += 1;
            puts += 1;
            open.push((RequestId(next), None));
            let op = put(1_000 + rng.below(60), Expires::Never, vec![round as u8; 30_000]);
            sim.submit(now, 1, Request::new(RequestId(next), op));
        }
        sim.run_until(now + Span::from_micros(100));
        for (at, _, reply) in sim.take_replies() {
            let i = open.iter().position(|(id, _)| *id == reply.id).expect("asked");
            let (_, of) = open.swap_remove(i);
            assert!(matches!(kv::Op::result(reply.result), Some(Ok(_))), "refused");
            match of {
                None => puts -= 1,
                Some((start, true)) => busy.push(at.since(start)),
                Some((start, false)) => idle.push(at.since(start)),
            }
        }
        let after = gets(&sim);
        let of_busy = |i: &usize| any && compacts[*i];
        by_compacting += (0..SERVERS as usize).filter(of_busy).map(|i| after[i] - answered[i]).sum::<u64>();
        answered = after;
    }
    assert!(
        busy.len() >= 4_000 && idle.len() >= 4_000,
        "{} while stores compact, {} otherwise",
        busy.len(),
        idle.len()
    );
    let share = by_compacting as f64 / busy.len() as f64;
    let (busy, idle) = (p999(busy), p999(idle));
    assert!(share < 0.05, "{share} of the gets went to a store that compacts");
    assert!(busy.0 as f64 <= 1.1 * idle.0 as f64, "P99.9 {busy} while a store compacts, {idle} otherwise");
}
