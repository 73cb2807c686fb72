//! A rack in virtual time with a client: common parts of directed tests of whole racks.

use rackweave_config::RackConfig;
use rackweave_config::Size;
use rackweave_core::admin;
use rackweave_core::msg::{Packet, Role};
use rackweave_core::request::{Op, Operation, Outcome, Request, RequestId};
use rackweave_core::volume::{self, VolumeInfo};
use rackweave_core::{Layout, NodeId, SetId, Span, VssdId, kv};
use rackweave_rack::engine::RackEngine;
use rackweave_rack::sim::{Sim, SimConfig};
use rackweave_sim::CutOdds;

/// Answer of the volume API.
pub type Answer = Result<volume::Reply, volume::Error>;

pub struct Rig {
    pub sim: Sim,
    next: u64,
    answers: Vec<(RequestId, Outcome)>,
}

/// Gives the operations of a rig to a type with a field `rig`.
macro_rules! has_rig {
    ($rack:ty) => {
        impl std::ops::Deref for $rack {
            type Target = $crate::rig::Rig;
            fn deref(&self) -> &$crate::rig::Rig {
                &self.rig
            }
        }
        impl std::ops::DerefMut for $rack {
            fn deref_mut(&mut self) -> &mut $crate::rig::Rig {
                &mut self.rig
            }
        }
    };
}
pub(crate) use has_rig;

/// Servers with small drives of profile `femu`.
pub fn small(servers: u32, mib: u64) -> RackConfig {
    let mut cfg = RackConfig { servers, ..RackConfig::default() };
    cfg.ssd.profile = "femu".into();
    cfg.ssd.size = Size::mib(mib);
    cfg
}

/// From now on packets that match are lost.
pub fn lose(r: &mut Rig, lost: impl FnMut(&Packet) -> bool + 'static) {
    match r.sim.engine_mut() {
        RackEngine::Packets(engine) => engine.lose(lost),
        RackEngine::Datagrams(_) => panic!("packets only"),
    }
}

impl Rig {
    pub fn new(cfg: &RackConfig, sim: SimConfig) -> Rig {
        cfg.validate().expect("good configuration");
        Rig { sim: Sim::new(cfg, sim).expect("sound"), next: 0, answers: Vec::new() }
    }
    pub fn run(&mut self, span: Span) {
        self.sim.run_until(self.sim.now() + span);
        self.answers.extend(self.sim.take_replies().into_iter().map(|(_, _, r)| (r.id, r.result)));
    }
    pub fn submit(&mut self, op: impl Into<Op>) -> RequestId {
        self.submit_from(0, op)
    }
    fn submit_from(&mut self, client: u32, op: impl Into<Op>) -> RequestId {
        self.next += 1;
        let id = RequestId(self.next);
        self.sim.submit(self.sim.now(), client, Request::new(id, op));
        id
    }
    pub fn answer(&self, id: RequestId) -> Option<Answer> {
        self.answers.iter().find(|a| a.0 == id).and_then(|a| volume::Op::result(a.1.clone()))
    }
    /// Waits at most a minute.
    pub fn wait(&mut self, id: RequestId) -> Answer {
        self.wait_for::<volume::Op>(id)
    }
    fn wait_for<O: Operation>(&mut self, id: RequestId) -> Result<O::Reply, O::Error> {
        for _ in 0..60_000 {
            self.run(Span::from_millis(1));
            if let Some(at) = self.answers.iter().position(|a| a.0 == id) {
                return O::result(self.answers.swap_remove(at).1).expect("of the same API");
            }
        }
        panic!("request {id:?} was not answered");
    }
    /// Waits at most a minute.
    pub fn wait_admin(&mut self, id: RequestId) -> Result<admin::Reply, admin::Error> {
        self.wait_for::<admin::Op>(id)
    }
    /// Waits at most a minute.
    pub fn wait_kv(&mut self, id: RequestId) -> Result<kv::Reply, kv::Error> {
        self.wait_for::<kv::Op>(id)
    }
    pub fn ask<O: Operation>(&mut self, op: O) -> Result<O::Reply, O::Error> {
        let id = self.submit(op);
        self.wait_for::<O>(id)
    }
    /// Of another client than the first.
    pub fn ask_from<O: Operation>(&mut self, client: u32, op: O) -> Result<O::Reply, O::Error> {
        let id = self.submit_from(client, op);
        self.wait_for::<O>(id)
    }
    pub fn admin(&mut self, op: admin::Op) -> Result<admin::Reply, admin::Error> {
        self.ask(op)
    }
    /// Creates and attaches a volume.
    pub fn volume(&mut self, name: &str, size: u64) -> VolumeInfo {
        self.admin(admin::Op::create(name, size)).expect("created");
        match self.ask(volume::Op::Attach { name: name.into() }) {
            Ok(volume::Reply::Attached(v)) => *v,
            other => panic!("{other:?}"),
        }
    }
    pub fn node(&self, server: u32) -> NodeId {
        self.sim.engine().layout().server(server).expect("a server")
    }
    /// Unsynced changes are lost.
    pub fn power_cut(&mut self, server: u32) {
        self.sim.power_cut(server, CutOdds { drop: 1.0, tear: 0.0 });
    }
    pub fn start(&mut self, server: u32) {
        let n = self.node(server);
        self.sim.restart(n).expect("starts");
    }
    /// Members of the set, except shadows: vSSD and server number.
    pub fn members(&self, set: u32) -> Vec<(VssdId, u32)> {
        let Some(view) = self.sim.meta().and_then(|m| m.view(SetId(set))) else { return Vec::new() };
        let members = view.members.iter().filter(|m| m.role == Role::Member);
        members.map(|m| (m.vssd, Layout::server_number(m.server))).collect()
    }
    /// Runs at most a minute.
    pub fn until(&mut self, what: &str, done: impl Fn(&Rig) -> bool) {
        for _ in 0..6_000 {
            if done(self) {
                return;
            }
            self.run(Span::from_millis(10));
        }
        panic!("never: {what}");
    }
}
