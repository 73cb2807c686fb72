//! Two racks: a switch, a link or a rack is lost, and what the replicas elsewhere do about it (RB12, RB13, protocol rule 4).

use rackweave_core::request::{ReplyData, RequestId, RequestOp, VolumeInfo};
use rackweave_core::{Layout, NodeId, Payload, Span};
use rackweave_rack::RackConfig;
use rackweave_rack::racks::RacksSection;
use rackweave_rack::sim::{Contents, SimConfig};

use crate::rig::{Rig, small};

struct Racks {
    rig: Rig,
    volume: VolumeInfo,
    /// Of the volume: its sets have two replicas there.
    home: u32,
}

impl std::ops::Deref for Racks {
    type Target = Rig;
    fn deref(&self) -> &Rig {
        &self.rig
    }
}

impl std::ops::DerefMut for Racks {
    fn deref_mut(&mut self) -> &mut Rig {
        &mut self.rig
    }
}

impl Racks {
    fn new() -> Racks {
        let racks = RacksSection { count: 2, far_replicas: None };
        let cfg = RackConfig { racks, ..small(4, 64) };
        let mut rig = Rig::new(&cfg, SimConfig { contents: Contents::Memory, ..SimConfig::new(5) });
        let volume = rig.volume("v", 1 << 20);
        let home = volume.sets[0].0 / 2;
        assert!(volume.sets.iter().all(|s| s.0 / 2 == home), "a volume has one home: {:?}", volume.sets);
        Racks { rig, volume, home }
    }
    fn write(&mut self, seed: u64) -> RequestId {
        let (volume, data) = (self.volume.id, Payload::elided(4096, seed << 30));
        self.submit(RequestOp::Write { volume, offset: 0, data, fua: false })
    }
    #[track_caller]
    fn reads(&mut self, seed: u64) {
        let read = RequestOp::Read { volume: self.volume.id, offset: 0, len: 4096 };
        assert_eq!(self.ask(read), Ok(ReplyData::Data(Payload::elided(4096, seed << 30))));
    }
    /// Servers of the rack reach neither the other's nor the metadata service.
    fn isolate(&mut self, rack: u32, cut: bool) {
        let layout = self.sim.engine().layout();
        let servers = (0..layout.servers).map(|i| layout.server(i));
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
    /// Members of the volume's first set.
    fn first(&self) -> usize {
        self.members(self.volume.sets[0].0).len()
    }
    fn until_members(&mut self, what: &str, n: usize) {
        let set = self.volume.sets[0].0;
        self.until(what, |r| r.members(set).len() == n);
    }
}

/// Both switches know of every vSSD of both racks that it is readable and whether it collects.
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
    assert_eq!(r.wait(first), Ok(ReplyData::Done));
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
    assert_eq!(r.wait(second), Ok(ReplyData::Done));
    r.reads(2);
    r.until_members("all are members again", 3);
    r.until("tables are full again", tables_are_full);
}

#[test]
fn a_rack_that_reaches_nobody_is_done_without_and_filled_when_it_is_back() {
    let mut r = Racks::new();
    let first = r.write(1);
    assert_eq!(r.wait(first), Ok(ReplyData::Done));
    r.isolate(1 - r.home, true);
    let begun = r.sim.now();
    let second = r.write(2);
    assert_eq!(r.wait(second), Ok(ReplyData::Done));
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
    assert_eq!(r.wait(first), Ok(ReplyData::Done));
    let (client, home) = (r.sim.engine().layout().client(0), r.switch(r.home));
    r.sim.engine_mut().net().block(client, home, true);
    r.reads(1);
    let second = r.write(2);
    assert_eq!(r.wait(second), Ok(ReplyData::Done));
    r.reads(2);
}
