//! Replicated keys on a whole rack.

use bytes::Bytes;
use rackweave_config::{RackConfig, Size};
use rackweave_core::kv::{self, Change, Condition, Expires};
use rackweave_core::request::{Operation, Request, RequestId};
use rackweave_core::{Span, Time};
use rackweave_kv_replica::types::Partition;
use rackweave_sim::CutOdds;

use crate::sim::{Contents, Sim, SimConfig};

#[test]
fn puts_are_durable_on_all_servers_of_a_rack() {
    let mut cfg = RackConfig { servers: 3, replicas: 2, ..RackConfig::default() };
    cfg.ssd.profile = "femu".into();
    cfg.ssd.size = Size::mib(128);
    (cfg.kv.channels, cfg.kv.replicas) = (2, 3);
    cfg.validate().expect("sound");
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

fn key(n: u64) -> Bytes {
    format!("key {n}").into()
}
fn value(n: u64) -> Bytes {
    vec![n as u8; 1 + 1_500 * n as usize].into()
}

/// Within a minute.
fn ask(sim: &mut Sim, op: kv::Op) -> Result<kv::Reply, kv::Error> {
    let now = sim.now();
    sim.submit(now, 0, Request::new(RequestId(now.0), op));
    for _ in 0..60_000 {
        sim.run_until(sim.now() + Span::from_millis(1));
        if let Some((_, _, reply)) = sim.take_replies().pop() {
            return kv::Op::result(reply.result).expect("of the same API");
        }
    }
    panic!("no answer");
}
