//! Two racks: a switch, a link or a rack is lost, and what the replicas elsewhere do about it (RB12, RB13, protocol rule 4).

use rackweave_core::msg::Role;
use rackweave_core::request::{AdminOp, ReplyData, Request, RequestError, RequestId, RequestOp, VolumeInfo};
use rackweave_core::{Layout, NodeId, Payload, Span};
use rackweave_rack::RackConfig;
use rackweave_rack::config::Size;
use rackweave_rack::racks::RacksSection;
use rackweave_rack::sim::{Contents, Sim, SimConfig};

struct Racks {
    sim: Sim,
    next: u64,
    answers: Vec<(RequestId, Result<ReplyData, RequestError>)>,
    volume: Option<VolumeInfo>,
    /// Of the volume: its sets have two replicas there.
    home: u32,
}

impl Racks {
    fn new() -> Racks {
        let racks = RacksSection { count: 2, far_replicas: None };
        let mut cfg = RackConfig { servers: 4, racks, ..RackConfig::default() };
        cfg.ssd.profile = "femu".into();
        cfg.ssd.size = Size::mib(64);
        let sim = Sim::new(&cfg, SimConfig { contents: Contents::Memory, ..SimConfig::new(5) }).expect("sound");
        let mut r = Racks { sim, next: 0, answers: Vec::new(), volume: None, home: 0 };
        r.ask(RequestOp::Admin(AdminOp::VolumeCreate { name: "v".into(), size: 1 << 20 })).expect("created");
        match r.ask(RequestOp::Attach { name: "v".into() }) {
            Ok(ReplyData::Attached(v)) => r.volume = Some(v),
            other => panic!("{other:?}"),
        }
        let sets = r.volume().sets.clone();
        r.home = sets[0].0 / 2;
        assert!(sets.iter().all(|s| s.0 / 2 == r.home), "a volume has one home: {sets:?}");
        r
    }
    fn volume(&self) -> &VolumeInfo {
        self.volume.as_ref().expect("attached")
    }
    fn run(&mut self, span: Span) {
        self.sim.run_until(self.sim.now() + span);
        self.answers.extend(self.sim.take_replies().into_iter().map(|(_, _, r)| (r.id, r.result)));
    }
    fn submit(&mut self, op: RequestOp) -> RequestId {
        self.next += 1;
        let id = RequestId(self.next);
        self.sim.submit(self.sim.now(), 0, Request { id, op });
        id
    }
    fn answer(&self, id: RequestId) -> Option<&Result<ReplyData, RequestError>> {
        self.answers.iter().find(|a| a.0 == id).map(|a| &a.1)
    }
    fn wait(&mut self, id: RequestId) -> Result<ReplyData, RequestError> {
        for _ in 0..3_000 {
            self.run(Span::from_millis(10));
            if let Some(r) = self.answer(id) {
                return r.clone();
            }
        }
        panic!("request {id:?} was not answered");
    }
    fn ask(&mut self, op: RequestOp) -> Result<ReplyData, RequestError> {
        let id = self.submit(op);
        self.wait(id)
    }
    fn write(&mut self, seed: u64) -> RequestId {
        let data = Payload::elided(4096, seed << 30);
        self.submit(RequestOp::Write { volume: self.volume().id, offset: 0, data, fua: false })
    }
    #[track_caller]
    fn reads(&mut self, seed: u64) {
        let read = RequestOp::Read { volume: self.volume().id, offset: 0, len: 4096 };
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
    fn members(&self) -> usize {
        let view = self.sim.meta().and_then(|m| m.view(self.volume().sets[0])).expect("a set");
        view.members.iter().filter(|m| m.role == Role::Member).count()
    }
    fn until(&mut self, what: &str, done: impl Fn(&Racks) -> bool) {
        for _ in 0..2_000 {
            if done(self) {
                return;
            }
            self.run(Span::from_millis(10));
        }
        panic!("never: {what}");
    }
    /// Both switches know of every vSSD of both racks that it is readable and whether it collects.
    fn tables_are_full(&self) -> bool {
        (0..2).all(|rack| {
            let rows = self.sim.switch(rack).map(|s| s.dump().destination).unwrap_or_default();
            rows.len() == 12 && rows.iter().all(|d| d.readable && d.heard)
        })
    }
}

#[test]
fn with_its_rack_s_switch_lost_a_volume_is_read_in_the_other_rack_and_written_when_two_copies_are_back() {
    let mut r = Racks::new();
    let first = r.write(1);
    assert_eq!(r.wait(first), Ok(ReplyData::Done));
    r.until("tables are full", Racks::tables_are_full);
    let (home, other) = (r.switch(r.home), 1 - r.home);
    r.sim.crash(home);
    r.reads(1);
    let second = r.write(2);
    r.until("those at home are out", |r| r.members() == 1);
    r.run(Span::from_secs(3));
    assert_eq!(r.answer(second), None, "one copy acknowledges nothing alone");
    r.reads(1);
    let rows = r.sim.switch(other).expect("it works").dump().destination;
    let far_heard = rows.iter().filter(|d| d.vssd.rack() == r.home && d.heard).count();
    assert_eq!(far_heard, 0, "what the lost switch told has expired");
    r.sim.restart(home).expect("starts");
    assert_eq!(r.wait(second), Ok(ReplyData::Done));
    r.reads(2);
    r.until("all are members again", |r| r.members() == 3);
    r.until("tables are full again", Racks::tables_are_full);
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
    assert_eq!(r.members(), 2);
    r.isolate(1 - r.home, false);
    r.until("all are members again", |r| r.members() == 3);
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
