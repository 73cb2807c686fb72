//! Volumes that share a rack, some of them limited.

use rackweave_config::RackConfig;
use rackweave_config::Size;
use rackweave_core::admin;
use rackweave_core::request::{Op, Operation, Request, RequestId};
use rackweave_core::volume;
use rackweave_core::{Payload, Span, VolumeId};
use rackweave_rack::sim::{Sim, SimConfig};

const MIB: u64 = 1 << 20;
/// Requests that each volume always has in flight.
const DEPTH: usize = 64;

struct Tenants {
    sim: Sim,
    volumes: Vec<VolumeId>,
    next: u64,
}

impl Tenants {
    /// One volume for each entry, with these limits.
    fn new(limits: &[(u64, u64)]) -> Tenants {
        let mut cfg = RackConfig { servers: 3, ..RackConfig::default() };
        cfg.ssd.profile = "femu".into();
        cfg.ssd.size = Size::mib(256);
        let sim = Sim::new(&cfg, SimConfig::new(5)).expect("sound");
        let mut t = Tenants { sim, volumes: Vec::new(), next: 0 };
        for (i, &(iops, bytes_per_s)) in limits.iter().enumerate() {
            let name: Box<str> = format!("v{i}").into();
            t.ask(admin::Op::create(name.clone(), 16 * MIB));
            let limit = admin::Op::VolumeLimit { name: name.clone(), iops: Some(iops), bytes_per_s: Some(bytes_per_s) };
            t.ask(limit);
            match t.ask(volume::Op::Attach { name }) {
                volume::Reply::Attached(v) => t.volumes.push(v.id),
                other => panic!("{other:?}"),
            }
        }
        t
    }
    fn ask<O: Operation>(&mut self, op: O) -> O::Reply {
        let id = self.submit(op);
        for _ in 0..600 {
            self.sim.run_until(self.sim.now() + Span::from_millis(10));
            if let Some((_, _, r)) = self.sim.take_replies().into_iter().find(|(_, _, r)| r.id.0 & ID == id) {
                return O::result(r.result).expect("of the same API").expect("good");
            }
        }
        panic!("request {id} was not answered");
    }
    fn submit(&mut self, op: impl Into<Op>) -> u64 {
        self.next += 1;
        self.sim.submit(self.sim.now(), 0, Request::new(RequestId(self.next), op));
        self.next
    }
    /// A read or a write of 4 KiB of this volume.
    fn io(&mut self, of: usize) {
        self.next += 1;
        let (volume, n) = (self.volumes[of], self.next);
        let offset = n * 2_654_435_761 % (16 * MIB / 4096) * 4096;
        let op = match n % 4 {
            0 => volume::Op::Write { volume, offset, data: Payload::elided(4096, n), fua: false },
            _ => volume::Op::Read { volume, offset, len: 4096 },
        };
        let id = RequestId((of as u64) << 32 | n);
        self.sim.submit(self.sim.now(), 0, Request::new(id, op));
    }
    /// Number of answers for each volume within the span.
    fn run(&mut self, span: Span) -> Vec<u64> {
        let mut done = vec![0; self.volumes.len()];
        let end = self.sim.now() + span;
        for of in 0..done.len() {
            (0..DEPTH).for_each(|_| self.io(of));
        }
        while self.sim.now() < end {
            self.sim.step();
            for (_, _, r) in self.sim.take_replies() {
                assert!(r.result.is_ok(), "{:?}", r.result);
                let of = (r.id.0 >> 32) as usize;
                done[of] += 1;
                self.io(of);
            }
        }
        done
    }
}

const ID: u64 = u32::MAX as u64;

/// Two volumes get their limits, and the third the rest, of a rack at its capacity.
#[test]
fn limited_volumes_get_what_they_were_promised_and_leave_the_rest() {
    let half = Span::from_millis(500);
    let alone = Tenants::new(&[(0, 0)]).run(half)[0];
    // 4,000 requests, and 8,192,000 bytes: 2,000 requests of 4 KiB.
    let shared = Tenants::new(&[(0, 0), (4_000, 0), (0, 8_192_000)]).run(half);
    for (got, each_s) in [(shared[1], 4_000), (shared[2], 2_000)] {
        let most = each_s * 6 / 10 + 1;
        assert!((each_s * 57 / 100..=most).contains(&got), "{got} of {most}, a tenth of a second's worth at once");
    }
    let others = shared[1] + shared[2];
    assert!(alone > 4 * others, "the rack does much more than they may: {alone}, {others}");
    assert!(shared[0] + others * 3 / 2 >= alone, "it lost more than they got: {alone} alone, {shared:?}");
}
