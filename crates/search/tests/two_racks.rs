//! Two racks: a switch, a link or a rack is lost, and how the replicas elsewhere react (RB12, RB13, protocol rule 4).

use std::collections::BTreeMap;

use rackweave_config::RackConfig;
use rackweave_config::racks::RacksSection;
use rackweave_core::request::{Operation, Request, RequestId};
use rackweave_core::volume::{self, VolumeInfo};
use rackweave_core::{Layout, NodeId, NodeKind, Payload, Rng, SetId, Span};
use rackweave_rack::sim::{Contents, SimConfig};
use rackweave_replica::trace;
use rackweave_search::check::{History, Outcome};
use rackweave_switch::Counters;

use crate::rig::{Rig, has_rig, small};

struct Racks {
    rig: Rig,
    volume: VolumeInfo,
    /// The volume's home rack, where its sets have two replicas.
    home: u32,
}

has_rig!(Racks);

impl Racks {
    fn new() -> Racks {
        Racks::with(RacksSection { count: 2, far_replicas: None }, 3)
    }
    fn with(racks: RacksSection, replicas: u32) -> Racks {
        Racks::with_client(racks, replicas, RackConfig::default().client.keep_kib)
    }
    fn with_client(racks: RacksSection, replicas: u32, keep_kib: u64) -> Racks {
        let two = racks.count == 2;
        let mut cfg = RackConfig { racks, replicas, ..small(4, 64) };
        cfg.client.keep_kib = keep_kib;
        let mut rig = Rig::new(&cfg, SimConfig { contents: Contents::Memory, ..SimConfig::new(5) });
        let volume = rig.volume("v", 1 << 20);
        let home = volume.sets[0].0 / 2;
        assert!(!two || volume.sets.iter().all(|s| s.0 / 2 == home), "a volume has one home: {:?}", volume.sets);
        Racks { rig, volume, home }
    }
    fn write(&mut self, seed: u64) -> RequestId {
        let (volume, data) = (self.volume.id, Payload::elided(4096, seed << 30));
        self.submit(volume::Op::Write { volume, offset: 0, data, fua: false })
    }
    #[track_caller]
    fn reads(&mut self, seed: u64) {
        let read = volume::Op::Read { volume: self.volume.id, offset: 0, len: 4096 };
        assert_eq!(self.ask(read), Ok(volume::Reply::Data(Payload::elided(4096, seed << 30))));
    }
    /// The rack's servers reach neither the other rack nor the metadata service.
    fn isolate(&mut self, rack: u32, cut: bool) {
        let layout = self.sim.engine().layout();
        let servers = layout.ids(NodeKind::Server).iter().copied();
        let (here, there): (Vec<NodeId>, Vec<NodeId>) = servers.partition(|&n| layout.rack(n) == Some(rack));
        let net = self.sim.engine_mut().net();
        for &n in &here {
            for &other in there.iter().chain([&Layout::META]) {
                net.block(n, other, cut);
                net.block(other, n, cut);
            }
        }
    }
    fn switch(&self, rack: u32) -> NodeId {
        self.sim.engine().layout().switch(rack)
    }
    /// Number of members of the volume's first set.
    fn first(&self) -> usize {
        self.members(self.volume.sets[0].0).len()
    }
    fn until_members(&mut self, what: &str, n: usize) {
        let set = self.volume.sets[0].0;
        self.until(what, |r| r.members(set).len() == n);
    }
    /// Racks of the members, in order.
    fn racks(&self) -> Vec<u32> {
        racks_of(self, self.volume.sets[0].0)
    }
    fn cut_between_racks(&mut self, cut: bool) {
        self.sim.engine_mut().net().cut_between_racks(cut);
    }
}

/// Both switches know of every vSSD of both racks whether it is readable and whether it collects.
fn tables_are_full(r: &Rig) -> bool {
    (0..2).all(|rack| {
        let rows = r.sim.switch(rack).map(|s| s.dump().destination).unwrap_or_default();
        rows.len() == 12 && rows.iter().all(|d| d.readable && d.heard)
    })
}

#[test]
fn with_its_rack_s_switch_lost_a_volume_is_read_in_the_other_rack_and_written_when_two_copies_are_back() {
    let mut r = Racks::new();
    let first = r.write(1);
    assert_eq!(r.wait(first), Ok(volume::Reply::Done));
    r.until("tables are full", tables_are_full);
    let (home, other) = (r.switch(r.home), 1 - r.home);
    r.sim.crash(home);
    r.reads(1);
    let second = r.write(2);
    r.until_members("those at home are out", 1);
    r.run(Span::from_secs(3));
    assert_eq!(r.answer(second), None, "one copy acknowledges nothing alone");
    r.reads(1);
    let rows = r.sim.switch(other).expect("it works").dump().destination;
    let far_heard = rows.iter().filter(|d| d.vssd.rack() == r.home && d.heard).count();
    assert_eq!(far_heard, 0, "what the lost switch told has expired");
    r.sim.restart(home).expect("starts");
    assert_eq!(r.wait(second), Ok(volume::Reply::Done));
    r.reads(2);
    r.until_members("all are members again", 3);
    r.until("tables are full again", tables_are_full);
}

#[test]
fn a_rack_that_reaches_nobody_is_done_without_and_filled_when_it_is_back() {
    let mut r = Racks::new();
    let first = r.write(1);
    assert_eq!(r.wait(first), Ok(volume::Reply::Done));
    r.isolate(1 - r.home, true);
    let begun = r.sim.now();
    let second = r.write(2);
    assert_eq!(r.wait(second), Ok(volume::Reply::Done));
    assert!(r.sim.now().since(begun) >= Span::from_millis(500), "not before the far copies' leases have ended");
    assert_eq!(r.first(), 2);
    r.isolate(1 - r.home, false);
    r.until_members("all are members again", 3);
    let home = r.switch(r.home);
    r.sim.crash(home);
    r.reads(2);
}

#[test]
fn a_client_cut_off_from_one_switch_reads_and_writes_by_the_other() {
    let mut r = Racks::new();
    let first = r.write(1);
    assert_eq!(r.wait(first), Ok(volume::Reply::Done));
    let (client, home) = (r.sim.engine().layout().client(0), r.switch(r.home));
    r.sim.engine_mut().net().block(client, home, true);
    r.reads(1);
    let second = r.write(2);
    assert_eq!(r.wait(second), Ok(volume::Reply::Done));
    r.reads(2);
}

/// Racks of the set's members, in order.
fn racks_of(r: &Rig, set: u32) -> Vec<u32> {
    let mut racks: Vec<u32> = r.members(set).iter().map(|m| m.0.rack()).collect();
    racks.sort_unstable();
    racks
}

/// With the link between racks cut no server loses its lease. The side leaves that the other can do without.
fn writes_go_on_when_the_link_is_cut(far_replicas: u32) {
    let mut r = Racks::with(RacksSection { count: 2, far_replicas: Some(far_replicas) }, 3);
    let first = r.write(1);
    assert_eq!(r.wait(first), Ok(volume::Reply::Done));
    let (begun, all) = (r.sim.now(), r.racks());
    assert_eq!(all.len(), 3);
    r.cut_between_racks(true);
    for seed in 2..6 {
        let write = r.write(seed);
        assert_eq!(r.wait(write), Ok(volume::Reply::Done));
        r.reads(seed);
    }
    assert!(r.sim.now().since(begun) < Span::from_secs(3), "{}", r.sim.now().since(begun));
    let large = if far_replicas == 2 { 1 - r.home } else { r.home };
    assert_eq!(r.racks(), [large, large], "the rack with two copies stays");
    assert!(r.sim.engine().coverage().get(trace::LEASE_EXPIRED) == 0, "nobody lost its lease");
    r.run(Span::from_secs(10));
    assert_eq!(r.racks(), [large, large], "nobody comes back while the link is cut");
    r.cut_between_racks(false);
    let set = r.volume.sets[0].0;
    r.until("all are members again", |r| racks_of(r, set) == all);
    // Writes made without it are there too.
    let rest = r.switch(large);
    r.sim.crash(rest);
    r.reads(5);
}

#[test]
fn writes_go_on_at_home_when_only_the_link_between_the_racks_is_cut() {
    writes_go_on_when_the_link_is_cut(1);
}

#[test]
fn writes_go_on_away_from_home_where_most_copies_are() {
    writes_go_on_when_the_link_is_cut(2);
}

#[test]
fn of_two_copies_none_goes_on_alone_and_both_do_when_the_link_is_mended() {
    let mut r = Racks::with(RacksSection { count: 2, far_replicas: Some(1) }, 2);
    let first = r.write(1);
    assert_eq!(r.wait(first), Ok(volume::Reply::Done));
    r.cut_between_racks(true);
    let second = r.write(2);
    r.run(Span::from_secs(5));
    assert_eq!((r.answer(second), r.racks()), (None, vec![0, 1]), "one copy acknowledges nothing alone");
    r.cut_between_racks(false);
    assert_eq!(r.wait(second), Ok(volume::Reply::Done));
    r.reads(2);
}

#[test]
fn a_set_in_one_rack_does_without_the_one_that_a_peer_does_not_reach() {
    let mut r = Racks::with(RacksSection { count: 1, far_replicas: None }, 3);
    let set = r.volume.sets[0];
    let servers: Vec<NodeId> = {
        let view = r.sim.meta().and_then(|m| m.view(set)).expect("a set");
        view.members.iter().map(|m| m.server).collect()
    };
    let cut = |r: &mut Racks, cut: bool| {
        let net = r.sim.engine_mut().net();
        net.block(servers[0], servers[1], cut);
        net.block(servers[1], servers[0], cut);
    };
    cut(&mut r, true);
    for seed in 1..5 {
        let write = r.write(seed);
        assert_eq!(r.wait(write), Ok(volume::Reply::Done));
        r.reads(seed);
    }
    r.until_members("one left", 2);
    let view = r.sim.meta().and_then(|m| m.view(set)).expect("a set");
    assert!(view.members.iter().all(|m| m.server != servers[1]), "of equals the first stay: {view:?}");
    cut(&mut r, false);
    r.until_members("all are members again", 3);
    r.reads(4);
}

/// Acknowledged, unflushed writes are still read after the member that was left alone in the view lost power;
/// `comes_back` says when the rack that was cut off returns.
fn what_was_answered_outlives_a_member_left_alone(comes_back: ComesBack) {
    let mut r = Racks::with_client(RacksSection { count: 2, far_replicas: None }, 3, 0);
    let (home, volume) = (r.home, r.volume.id);
    for (block, seed) in [(0, 1), (1, 7)] {
        let data = Payload::elided(4096, seed << 30);
        let write = volume::Op::Write { volume, offset: block * 4096, data, fua: false };
        assert_eq!(r.ask(write), Ok(volume::Reply::Done));
    }
    r.isolate(home, true);
    r.until_members("those at home are out", 1);
    assert_eq!(r.racks(), [1 - home]);
    let second = r.write(2);
    if comes_back == ComesBack::BeforeTheCrash {
        r.isolate(home, false);
        let set = SetId(r.volume.sets[0].0);
        let being_filled = |r: &Rig| r.sim.meta().and_then(|m| m.view(set)).is_some_and(|v| v.members.len() > 1);
        while !being_filled(&r) {
            r.run(Span::from_micros(100));
        }
        assert_eq!(r.first(), 1);
    }
    let far: Vec<u32> = (0..4).filter(|&i| r.sim.engine().layout().rack(r.node(i)) == Some(1 - home)).collect();
    far.iter().for_each(|&i| r.power_cut(i));
    if comes_back == ComesBack::BeforeTheCrashed {
        r.isolate(home, false);
        r.run(Span::from_secs(2));
    }
    far.iter().for_each(|&i| r.start(i));
    if comes_back == ComesBack::AfterTheCrashed {
        r.run(Span::from_secs(2));
        assert_eq!(r.racks(), [1 - home], "it does not go on with what it has on flash");
        r.isolate(home, false);
    }
    if comes_back == ComesBack::Never {
        // Those at home also lose their memory, so that flash counts.
        for i in (0..4).filter(|i| !far.contains(i)) {
            r.power_cut(i);
            r.start(i);
        }
        r.isolate(home, false);
    }
    r.until_members("all are members again", 3);
    if comes_back == ComesBack::Never {
        assert_eq!(r.ask(volume::Op::Flush { volume }), Err(volume::Error::Lost { volume }));
        return;
    }
    assert_eq!(r.wait(second), Ok(volume::Reply::Done));
    r.reads(2);
    let block = volume::Op::Read { volume, offset: 4096, len: 4096 };
    assert_eq!(r.ask(block), Ok(volume::Reply::Data(Payload::elided(4096, 7 << 30))));
    assert_eq!(r.ask(volume::Op::Flush { volume }), Ok(volume::Reply::Done), "nothing was lost");
}

#[derive(Clone, Copy, PartialEq)]
enum ComesBack {
    BeforeTheCrash,
    BeforeTheCrashed,
    AfterTheCrashed,
    Never,
}

#[test]
fn a_member_left_alone_that_crashes_is_done_without() {
    what_was_answered_outlives_a_member_left_alone(ComesBack::BeforeTheCrashed);
}

#[test]
fn a_member_left_alone_that_crashed_waits_for_those_cut_off() {
    what_was_answered_outlives_a_member_left_alone(ComesBack::AfterTheCrashed);
}

#[test]
fn a_member_left_alone_crashes_while_it_fills_another() {
    what_was_answered_outlives_a_member_left_alone(ComesBack::BeforeTheCrash);
}

#[test]
fn a_set_of_which_all_crashed_after_one_was_left_alone_recovers_from_flash() {
    what_was_answered_outlives_a_member_left_alone(ComesBack::Never);
}

/// Random reads and writes while vSSDs collect regardless of others. Returns reads that left their rack, and reads
/// without an idle replica.
fn reads_while_both_at_home_collect(far_reads: Option<bool>) -> (u64, u64) {
    const WRITE: u64 = 64 << 10;
    let mut cfg = RackConfig { racks: RacksSection { count: 2, far_replicas: Some(1) }, ..small(4, 32) };
    (cfg.gc.soft_percent, cfg.gc.regular_percent, cfg.switch.far_reads) = (41, 40, far_reads);
    let mut r = Rig::new(&cfg, SimConfig { contents: Contents::Memory, ..SimConfig::new(6) });
    let volume = r.volume("v", 4 << 20);
    let (mut rng, mut history, mut open) = (Rng::new(9), History::new(), BTreeMap::new());
    let mut reads = 0;
    for n in 0..4_000u64 {
        let id = RequestId(n << 1 | 1 << 40);
        let now = r.sim.now();
        history.at(now);
        if n % 4 == 0 {
            let offset = rng.below(volume.size / WRITE) * WRITE;
            let data = Payload::elided(WRITE as u32, (n + 1) << 32);
            open.insert(id, history.write(0, volume.id, offset / 512, &data, true, volume.attach));
            r.sim.submit(now, 0, Request::new(id, volume::Op::Write { volume: volume.id, offset, data, fua: true }));
        } else {
            let offset = rng.below(volume.size / 4096) * 4096;
            open.insert(id, history.read(volume.id, offset / 512, 8));
            r.sim.submit(now, 0, Request::new(id, volume::Op::Read { volume: volume.id, offset, len: 4096 }));
        }
        r.sim.run_until(now + Span::from_micros(250));
        for (at, _, reply) in r.sim.take_replies() {
            history.at(at);
            let op = open.remove(&reply.id).expect("asked");
            match volume::Op::result(reply.result).expect("of the volume API").expect("nothing fails") {
                volume::Reply::Data(data) => {
                    reads += 1;
                    history.answered(op, Outcome::Data(&data));
                }
                _ => history.answered(op, Outcome::Done),
            }
        }
    }
    assert!(reads > 2_500, "{reads} reads were answered");
    history.check(|_, _| volume.sets[0]).unwrap_or_else(|e| panic!("{e}"));
    let both = |of: fn(&Counters) -> u64| (0..2).map(|rack| of(r.sim.switch(rack).expect("works").counters())).sum();
    (both(|c| c.redirects_far), both(|c| c.all_collecting))
}

#[test]
fn reads_of_what_collects_at_home_come_back_right_from_the_other_rack() {
    let (far, nobody) = reads_while_both_at_home_collect(None);
    assert!(far > 50, "{far} reads left their rack, {nobody} found nobody idle");
    let (none, stayed) = reads_while_both_at_home_collect(Some(false));
    assert!(none == 0 && stayed > nobody, "{none} left though they were not to, {stayed} found nobody idle");
}
