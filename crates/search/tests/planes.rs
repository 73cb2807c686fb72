//! Volumes on soft-planes of one die: each gets its part of the die's time.

use rackweave_config::RackConfig;
use rackweave_core::admin::{self, OwnUnit, OwnUnits, VolumeCreate};
use rackweave_core::request::{Operation, Request, RequestId};
use rackweave_core::{Payload, Rng, Span, VolumeId, volume};
use rackweave_rack::sim::{Contents, SimConfig};

use crate::rig::{Rig, small};

const MESSAGE: u32 = 64 << 10;
const BLOCK: u64 = 4 << 10;
const SIZE: u64 = 4 << 20;
/// Requests of each volume that are always under way, for each of its soft-planes.
const AT_ONCE: u64 = 16;
const FOR: Span = Span::from_secs(2);
const FIRST: u64 = 1 << 32;
/// Soft-planes of each volume, by its client: all those of one die of each of two servers.
const PLANES: [u32; 3] = [1, 2, 1];

struct Rack {
    rig: Rig,
    volumes: Vec<VolumeId>,
    rng: Rng,
    sent: u64,
}

impl Rack {
    fn new() -> Rack {
        let mut cfg = RackConfig { replicas: 2, min_copies: 2, ..small(2, 8_192) };
        cfg.ssd.own_soft_planes = PLANES.iter().sum();
        let sim = SimConfig { contents: Contents::Discard, clients: 3, ..SimConfig::new(5) };
        let mut rig = Rig::new(&cfg, sim);
        rig.run(Span::from_secs(1));
        let mut r = Rack { rig, volumes: Vec::new(), rng: Rng::new(7), sent: 0 };
        for (client, count) in (0..).zip(PLANES) {
            let own = Some(OwnUnits { unit: OwnUnit::SoftPlane, count, replicas: Some(2) });
            let name: Box<str> = format!("v{client}").into();
            let op = VolumeCreate { name: name.clone(), size: SIZE, isolation: None, own };
            let made = r.rig.admin(admin::Op::VolumeCreate(op));
            assert!(matches!(made, Ok(admin::Reply::Volume(_))), "{made:?}");
            let volume::Reply::Attached(v) = r.ask(client, volume::Op::Attach { name }) else { panic!("not attached") };
            r.volumes.push(v.id);
            for at in 0..SIZE / u64::from(MESSAGE) {
                let data = Payload::elided(MESSAGE, (at + 1) << 32);
                let op = volume::Op::Write { volume: v.id, offset: at * u64::from(MESSAGE), data, fua: false };
                r.ask(client, op);
            }
            r.ask(client, volume::Op::Flush { volume: v.id });
        }
        r
    }
    fn ask(&mut self, client: u32, op: volume::Op) -> volume::Reply {
        let sim = &mut self.rig.sim;
        self.sent += 1;
        sim.submit(sim.now(), client, Request::new(RequestId(FIRST + self.sent), op));
        loop {
            sim.run_until(sim.now() + Span::from_millis(1));
            if let Some((_, _, r)) = sim.take_replies().pop() {
                return volume::Op::result(r.result).expect("of a volume").expect("carried out");
            }
        }
    }
    fn send(&mut self, client: u32) {
        self.sent += 1;
        let (offset, volume) = (self.rng.below(SIZE / BLOCK) * BLOCK, self.volumes[client as usize]);
        let op = volume::Op::Read { volume, offset, len: BLOCK as u32 };
        let id = RequestId((FIRST + self.sent) << 2 | u64::from(client));
        self.rig.sim.submit(self.rig.sim.now(), client, Request::new(id, op));
    }
    /// Reads a second of these volumes, all at once.
    fn reads(&mut self, clients: &[u32]) -> Vec<f64> {
        let begin = self.rig.sim.now();
        let mut counted = vec![0u64; PLANES.len()];
        let mut under_way = 0;
        for &c in clients {
            (0..AT_ONCE * u64::from(PLANES[c as usize])).for_each(|_| self.send(c));
            under_way += AT_ONCE * u64::from(PLANES[c as usize]);
        }
        while under_way > 0 {
            self.rig.sim.run_until(self.rig.sim.now() + Span::from_micros(50));
            let goes_on = self.rig.sim.now() < begin + FOR;
            for (at, _, r) in self.rig.sim.take_replies() {
                let client = (r.id.0 & 3) as u32;
                assert!(volume::Op::result(r.result).expect("of a volume").is_ok());
                counted[client as usize] += u64::from(at < begin + FOR && at >= begin + FOR / 4);
                if goes_on {
                    self.send(client);
                } else {
                    under_way -= 1;
                }
            }
        }
        clients.iter().map(|c| counted[*c as usize] as f64 / (FOR.0 as f64 * 0.75e-9)).collect()
    }
}

#[test]
fn soft_planes_share_a_die_by_weight() {
    let mut r = Rack::new();
    let alone = r.reads(&[0])[0];
    let all = r.reads(&[0, 1, 2]);
    println!("reads a second: {alone:.0} alone; {all:.0?} with {PLANES:?} soft-planes each");
    let each = all.iter().sum::<f64>() / f64::from(PLANES.iter().sum::<u32>());
    for (reads, planes) in all.iter().zip(PLANES) {
        let part = reads / (each * f64::from(planes));
        println!("{planes} soft-planes: {part:.3} of their part");
        assert!((part - 1.0).abs() < 0.05, "{part}");
    }
    assert!((all[0] / alone - 1.0).abs() < 0.05, "the others do not reach it: {alone} alone, {} beside them", all[0]);
}
