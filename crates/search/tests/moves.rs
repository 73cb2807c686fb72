//! vSSDs that move and are recreated, servers that are added and removed (protocol rules 5 and 24, RB13).

use std::collections::BTreeSet;

use rackweave_config::RackConfig;
use rackweave_core::admin::{self, ServerInfo, ServerState};
use rackweave_core::volume;
use rackweave_core::{Payload, Rng, SetId, Span, VolumeId, VssdId};
use rackweave_rack::sim::{Contents, SimConfig};
use rackweave_server::trace;
use rackweave_sim::Breakage;

use crate::rig::{Rig, has_rig, small};

const BLOCKS: u64 = 96;
const BLOCK: u64 = 4096;

struct Rack {
    rig: Rig,
    volume: VolumeId,
    contents: Vec<Payload>,
}

fn config(change: impl FnOnce(&mut RackConfig)) -> RackConfig {
    let mut cfg = RackConfig { replicas: 2, min_copies: 1, ..small(4, 64) };
    (cfg.servers_max, cfg.ssd.spare) = (Some(6), Some(1));
    cfg.repair.replace_after_s = 0;
    change(&mut cfg);
    cfg
}

has_rig!(Rack);

impl Rack {
    /// With a fully written volume.
    fn new(cfg: &RackConfig, seed: u64) -> Rack {
        let sim = SimConfig { contents: Contents::Memory, ..SimConfig::new(seed) };
        let mut rig = Rig::new(cfg, sim);
        let volume = rig.volume("v", BLOCKS * BLOCK).id;
        let mut r = Rack { rig, volume, contents: Vec::new() };
        for block in 0..BLOCKS {
            r.contents.push(Payload::zero(BLOCK as u32));
            r.write(block, block + 1);
        }
        r
    }
    fn write(&mut self, block: u64, stamp: u64) {
        let data = Payload::elided(BLOCK as u32, stamp << 32);
        let op = volume::Op::Write { volume: self.volume, offset: block * BLOCK, data: data.clone(), fua: false };
        assert_eq!(self.ask(op), Ok(volume::Reply::Done));
        self.contents[block as usize] = data;
    }
    fn check(&mut self) {
        for block in 0..BLOCKS {
            let op = volume::Op::Read { volume: self.volume, offset: block * BLOCK, len: BLOCK as u32 };
            let expected = self.contents[block as usize].clone();
            assert_eq!(self.ask(op), Ok(volume::Reply::Data(expected)), "block {block}");
        }
    }
    /// Lets the others notice.
    fn restart(&mut self, server: u32) {
        self.start(server);
        self.run(Span::from_secs(1));
    }
    fn servers(&mut self) -> Vec<ServerInfo> {
        match self.admin(admin::Op::Servers) {
            Ok(admin::Reply::Servers(s)) => s,
            other => panic!("{other:?}"),
        }
    }
    /// The servers' slots, the service's places and the switch's rows agree; the copies of every set are on different
    /// servers.
    fn agree(&mut self) {
        self.run(Span::from_secs(1));
        let mut placed = BTreeSet::new();
        for (set, p) in self.sim.meta().expect("runs").places() {
            assert!(!p.leaving && p.replaces.is_none(), "set {set}: {p:?}");
            placed.insert((p.vssd, p.node));
        }
        for set in 0..4 {
            let on: BTreeSet<u32> = self.members(set).iter().map(|m| m.1).collect();
            assert_eq!(on.len(), 2, "set {set}: {:?}", self.members(set));
        }
        let mut had = BTreeSet::new();
        for i in 0..6 {
            let Some(s) = self.sim.server(i) else { continue };
            had.extend(s.status(self.sim.now()).vssds.iter().map(|v| (v.vssd, self.node(i))));
            s.ssd().check().expect("sound");
        }
        assert_eq!(had, placed);
        let rows: BTreeSet<VssdId> =
            self.sim.switch(0).expect("runs").dump().destination.iter().map(|r| r.vssd).collect();
        assert_eq!(rows, placed.iter().map(|p| p.0).collect());
    }
}

fn resting(r: &Rig) -> bool {
    let rest = r.sim.meta().is_some_and(rackweave_meta::Meta::moves_rest);
    rest && (0..4).all(|s| r.members(s).len() == 2)
}

#[test]
fn a_vssd_moves_while_it_is_written_and_its_slot_is_erased() {
    let mut r = Rack::new(&config(|_| ()), 3);
    let (old, from) = r.members(0)[0];
    let to = (0..4).find(|s| !r.members(0).iter().any(|m| m.1 == *s)).expect("of four, two are free");
    let there = r.members(0)[1].1;
    let to_there = admin::Op::VssdMove { vssd: old, to: Some(r.node(there)) };
    let refused = r.admin(to_there).unwrap_err().to_string();
    assert!(refused.contains("already has a copy of the set"), "{refused}");
    let go = admin::Op::VssdMove { vssd: old, to: Some(r.node(to)) };
    assert_eq!(r.admin(go.clone()), Ok(admin::Reply::Done));
    assert_eq!(r.admin(go.clone()), Err(admin::ServerError::Moving { vssd: old, set: SetId(0) }.into()));
    for i in 0..BLOCKS / 2 {
        r.write(i * 2, 1000 + i);
    }
    r.until("the move is done", resting);
    assert_eq!(r.admin(go), Err(admin::ServerError::UnknownVssd { vssd: old }.into()), "ids are not used again");
    let now = r.members(0);
    assert!(
        now.iter().any(|m| m.1 == to && m.0.0 >= rackweave_meta::ids::FIRST_MADE) && now.iter().all(|m| m.1 != from)
    );
    r.agree();
    r.check();
    // The new copy alone has everything, also after a start.
    let volume = r.volume;
    assert_eq!(r.ask(volume::Op::Flush { volume }), Ok(volume::Reply::Done));
    r.power_cut(to);
    r.restart(to);
    r.until("it is back", resting);
    r.power_cut(there);
    r.check();
    r.restart(there);
    r.restart(from);
    r.until("they are back", resting);
    r.agree();
}

/// The old one leaves once the new one has everything.
#[test]
fn a_set_never_has_fewer_members_for_a_move() {
    let mut r = Rack::new(&config(|_| ()), 3);
    let vssd = r.members(0)[0].0;
    assert_eq!(r.admin(admin::Op::VssdMove { vssd, to: None }), Ok(admin::Reply::Done));
    let mut fewest = r.members(0).len();
    for _ in 0..2_000 {
        r.run(Span::from_micros(500));
        fewest = fewest.min(r.members(0).len());
    }
    assert!(r.members(0).iter().all(|m| m.0 != vssd), "it has moved");
    assert_eq!(fewest, 2);
}

#[test]
fn a_lost_server_is_replaced_and_gives_back_what_it_had_when_it_returns() {
    let mut r = Rack::new(&config(|c| c.repair.replace_after_s = 2), 4);
    r.power_cut(1);
    r.run(Span::from_secs(1));
    let there = |r: &Rig, server| (0..4).any(|s| r.members(s).iter().any(|m| m.1 == server));
    assert!(r.servers().iter().all(|s| s.coming == 0), "not before its time");
    r.until("its copies are elsewhere", |r| (0..4).all(|s| r.members(s).len() == 2));
    assert!(!there(&r, 1));
    r.check();
    let rows = r.sim.switch(0).expect("runs").dump().destination.len();
    r.run(Span::from_secs(2));
    assert_eq!(
        (rows, r.sim.switch(0).expect("runs").dump().destination.len()),
        (8, 8),
        "the dead server's rows are gone"
    );
    for block in 0..BLOCKS {
        r.write(block, 2000 + block);
    }
    r.restart(1);
    r.until("it gave back what it had", resting);
    r.agree();
    assert_eq!(r.servers()[1].free, 3, "all of it can be used again");
    r.check();
    // It can take vSSDs again.
    let moved = r.members(0).iter().find(|m| m.1 != 1).expect("elsewhere").0;
    let to = Some(r.node(1));
    assert_eq!(r.admin(admin::Op::VssdMove { vssd: moved, to }), Ok(admin::Reply::Done));
    r.until("the move is done", resting);
    assert!(there(&r, 1));
    r.agree();
    r.check();
}

#[test]
fn a_server_that_comes_back_in_time_is_refreshed_and_keeps_its_vssds() {
    let mut r = Rack::new(&config(|c| c.repair.replace_after_s = 5), 5);
    let before: Vec<_> = (0..4).map(|s| r.members(s)).collect();
    r.power_cut(1);
    for block in 0..BLOCKS {
        r.write(block, 3000 + block);
    }
    r.restart(1);
    r.until("it is a member again", resting);
    r.run(Span::from_secs(6));
    let sorted = |mut v: Vec<(VssdId, u32)>| {
        v.sort_unstable();
        v
    };
    for (s, b) in before.into_iter().enumerate() {
        assert_eq!(sorted(r.members(s as u32)), sorted(b));
    }
    r.check();
}

#[test]
fn servers_are_added_drained_and_removed() {
    let mut r = Rack::new(&config(|_| ()), 6);
    let drain = |r: &mut Rack, i| {
        let server = r.node(i);
        r.admin(admin::Op::ServerDrain { server })
    };
    let remove = |r: &mut Rack, i| {
        let server = r.node(i);
        r.admin(admin::Op::ServerRemove { server })
    };
    let why = remove(&mut r, 2).unwrap_err().to_string();
    assert_eq!(why, "server 2: it still has 2 vSSDs: drain it first (rackweave server drain)");
    assert!(matches!(drain(&mut r, 5), Err(admin::Error::Server(admin::ServerError::UnknownServer { .. }))));
    assert_eq!(drain(&mut r, 2), Ok(admin::Reply::Done));
    r.until("it is empty", |r| resting(r) && (0..4).all(|s| r.members(s).iter().all(|m| m.1 != 2)));
    r.agree();
    let info = r.servers()[2].clone();
    assert_eq!((info.state, info.vssds, info.free), (ServerState::Draining, 0, 3));
    assert_eq!(remove(&mut r, 2), Ok(admin::Reply::Done));
    assert!(matches!(remove(&mut r, 2), Err(admin::Error::Server(admin::ServerError::UnknownServer { .. }))));
    // Three servers have nine slots, eight of them taken: no room for the two of another.
    let why = drain(&mut r, 3).unwrap_err().to_string();
    assert_eq!(why, "server 3: it has 2 vSSDs, and the other servers have room for 0 of them");
    let Ok(admin::Reply::Servers(added)) = r.admin(admin::Op::ServerAdd) else { panic!("added") };
    assert_eq!(added[0].node, r.node(4), "the removed one's number is not used again");
    r.restart(4);
    r.until("it is there", |r| r.sim.server(4).is_some_and(|s| s.admitted() == Some(true)));
    assert_eq!(drain(&mut r, 3), Ok(admin::Reply::Done));
    r.until("it is empty", |r| resting(r) && (0..4).all(|s| r.members(s).iter().all(|m| m.1 != 3)));
    r.agree();
    r.check();
    // Everything known is durable: a restarted service continues with it.
    let meta = rackweave_core::Layout::META;
    r.sim.crash(meta);
    r.sim.restart(meta).expect("its own records");
    r.until("it has heard all", resting);
    let states: Vec<ServerState> = r.servers().iter().map(|s| s.state).collect();
    use ServerState::{Draining, In, Removed};
    assert_eq!(states, [In, In, Removed, Draining, In]);
    r.agree();
    r.check();
    assert!(r.admin(admin::Op::ServerAdd).is_ok());
    let why = r.admin(admin::Op::ServerAdd).unwrap_err().to_string();
    assert!(why.contains("the rack was made for 6 servers"), "{why}");
}

/// Whichever node crashes during a move, and whenever: the move ends, nothing is lost, and no slot is forgotten.
#[test]
fn anyone_may_die_in_the_middle_of_a_move() {
    for seed in 0..24 {
        let mut rng = Rng::new(seed);
        let mut r = Rack::new(&config(|_| ()), seed);
        let (old, from) = r.members(1)[0];
        let to = (0..4).find(|s| !r.members(1).iter().any(|m| m.1 == *s)).expect("of four, two are free");
        let go = admin::Op::VssdMove { vssd: old, to: Some(r.node(to)) };
        assert_eq!(r.admin(go), Ok(admin::Reply::Done));
        r.run(Span::from_micros(rng.below(40_000)));
        let dies = [from, to, r.members(1)[1].1, u32::MAX][rng.below(4) as usize];
        if dies == u32::MAX {
            r.sim.crash(rackweave_core::Layout::META);
            r.run(Span::from_millis(rng.below(1_000)));
            r.sim.restart(rackweave_core::Layout::META).expect("its own records");
        } else {
            r.power_cut(dies);
            r.run(Span::from_millis(rng.below(2_000)));
            r.restart(dies);
        }
        for i in 0..8 {
            r.write(rng.below(BLOCKS), 5000 + i);
        }
        r.until("the move is done", resting);
        r.agree();
        r.check();
        let now = r.members(1);
        assert!(now.iter().any(|m| m.1 == to) && now.iter().all(|m| m.0 != old), "seed {seed}: {now:?}");
    }
}

/// Erasing a returned slot fails with the drive: that is final (protocol rule 12), and not retried.
#[test]
fn a_slot_that_cannot_be_erased_is_not_tried_again() {
    let mut r = Rack::new(&config(|c| c.repair.replace_after_s = 1), 8);
    let (old, from) = r.members(0)[0];
    assert_eq!(r.admin(admin::Op::VssdMove { vssd: old, to: None }), Ok(admin::Reply::Done));
    let released = |r: &Rig| r.sim.engine().coverage().get(trace::VSSD_RELEASED) > 0;
    while !released(&r) {
        r.run(Span::from_micros(50));
    }
    r.sim.disk(from).expect("kept").fail(Breakage::Writes);
    let failed = |r: &Rig| r.sim.server(from).is_some_and(|s| s.status(r.sim.now()).failed);
    r.until("its drive has failed", failed);
    r.until("its other copies are elsewhere", |r| {
        (0..4).all(|s| r.members(s).len() == 2 && r.members(s).iter().all(|m| m.1 != from))
    });
    let before = r.sim.engine().events();
    r.run(Span::from_secs(1));
    let events = r.sim.engine().events() - before;
    assert!(events < 20_000, "{events} events in a second of rest");
    r.check();
}
