//! The nodes of a rack as the engine runs them: all of them in one process, or one.

use bytes::Bytes;
use rackweave_core::msg::control::DriveTable;
use rackweave_core::{
    BLOCK, DriveId, Effects, Event, Incarnation, Layout, Node, NodeId, NodeKind, RackId, SetId, Time, VssdId,
};
use rackweave_flash::Profile;
use rackweave_kv::replicated::{ClockAhead, KeyService};
use rackweave_meta::Meta;
use rackweave_server::{DriveProblem, Server, VssdStatus};
use rackweave_switch::{Redirect, Switch};
use rackweave_transport::Keys;

use super::control::{PolicyState, SwitchState, Vssd};
use super::engine::Nodes;
use super::policy::{self, PolicyError};
use super::status::Describe;
use super::up::random_u64;
use crate::kernel::{KernelNode, seen};
use crate::stats::OfServer;
use rackweave_config::RackConfig;
use rackweave_config::policy::Policy;
use rackweave_config::racks;
use rackweave_config::switching::DataPlaneKind;
use rackweave_core::NodeName;
use rackweave_device::Shape;
use rackweave_rack::build::{self, BuildError};
use rackweave_rack::clients::Clients;

/// Which nodes of the rack run in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosted {
    /// All nodes, with one gateway.
    All,
    /// One node of a rack with this number of gateways. `drive_of`: for a server, the rack that its drive belongs to.
    One { node: NodeId, gateways: u32, empty: bool, drive_of: Option<RackId> },
}

impl Hosted {
    fn has(self, n: NodeId) -> bool {
        match self {
            Hosted::All => true,
            Hosted::One { node, .. } => n == node,
        }
    }
}

/// What forwards packets.
enum Plane {
    Process(Box<Switch>),
    Kernel(Box<KernelNode>),
}

/// The nodes that run here: metadata service, switches, servers, and the volume client that all gateway sessions share.
pub struct RackNodes {
    layout: Layout,
    hosted: Hosted,
    /// For servers that start again.
    cfg: RackConfig,
    meta: Option<Meta>,
    /// By rack.
    switches: Vec<Option<Plane>>,
    servers: Vec<Option<Server>>,
    /// Drive of each server.
    drives: Vec<DriveId>,
    /// Of each server, the key and value that it keeps until it is started again.
    made: Vec<(&'static str, bool)>,
    /// The volume client and its node.
    client: Option<(NodeId, Clients)>,
    /// The wall clock at time zero, for servers that start again.
    unix_ms_at_zero: u64,
}

impl RackNodes {
    /// All nodes, started; see [`RackNodes::hosting`].
    pub fn new(
        cfg: &RackConfig,
        saved: Vec<(Bytes, Bytes)>,
        nonce: impl FnMut() -> u64,
    ) -> Result<RackNodes, BuildError> {
        RackNodes::hosting(cfg, Hosted::All, saved, nonce)
    }

    /// Nodes, started: `saved` is the metadata service's stored state; `nonce` draws a unique number.
    pub fn hosting(
        cfg: &RackConfig,
        hosted: Hosted,
        saved: Vec<(Bytes, Bytes)>,
        mut nonce: impl FnMut() -> u64,
    ) -> Result<RackNodes, BuildError> {
        let clients = match hosted {
            Hosted::All => 1,
            Hosted::One { gateways, .. } => gateways,
        };
        let layout = racks::layout(cfg, clients);
        let meta = hosted.has(Layout::META).then(|| build::meta(cfg, saved)).transpose()?;
        let known = meta.as_ref().map_or_else(|| (0..cfg.servers_max()).collect(), Meta::servers);
        let mut server = |(i, &node): (u32, &NodeId)| {
            let here = known.contains(&i) && hosted.has(node);
            here.then(|| one_server(cfg, i, nonce(), hosted, DriveId::NONE)).transpose()
        };
        let servers = (0..).zip(layout.ids(NodeKind::Server)).map(&mut server).collect::<Result<_, _>>()?;
        let switch =
            |(rack, node): (u32, NodeId)| hosted.has(node).then(|| Plane::Process(Box::new(build::switch(cfg, rack))));
        let client = (0..).zip(layout.ids(NodeKind::Client)).find(|(_, node)| hosted.has(**node));
        let mut of_client = cfg.clone();
        if matches!(hosted, Hosted::All) {
            // A set crashes as a whole only with this process, and its client crashes with it.
            of_client.client.keep_kib = 0;
        }
        Ok(RackNodes {
            layout: layout.clone(),
            hosted,
            cfg: cfg.clone(),
            meta,
            switches: (0..).zip(layout.switches()).map(switch).collect(),
            made: vec![policy::made_with(cfg); cfg.servers_max() as usize],
            servers,
            drives: vec![DriveId::NONE; cfg.servers_max() as usize],
            client: client.map(|(i, &node)| (node, Clients::new(&of_client, i, nonce()))),
            unix_ms_at_zero: 0,
        })
    }

    /// Sets the rack's identity, which the metadata service reports.
    pub fn set_rack(&mut self, rack: RackId) {
        if let Some(meta) = &mut self.meta {
            meta.set_id(rack);
        }
    }
    /// Whether the metadata service, if it runs here, admits the server with this drive.
    ///
    /// # Errors
    /// The difference from what is known of the drive.
    pub fn check_drive(&self, server: NodeId, drive: DriveId, table: &DriveTable) -> Result<(), DriveProblem> {
        let known = |m: &Meta| m.check_drive(server, drive, table);
        Ok(self.meta.as_ref().map_or(Ok(()), known)?)
    }
    /// Whether the metadata service, if it runs here, knows a drive of the server.
    pub fn has_drive(&self, server: u32) -> bool {
        self.meta.as_ref().zip(self.layout.server(server)).is_some_and(|(m, node)| m.has_drive(node))
    }
    /// Uses the kernel data plane for the switch, if it runs here: its process hosts one.
    pub fn switch_in_kernel(&mut self, node: KernelNode) {
        if let Some(switch) = self.switches.iter_mut().flatten().next() {
            *switch = Plane::Kernel(Box::new(node));
        }
    }
    /// Index of a server that runs or ran here.
    fn place(&self, node: NodeId) -> Option<usize> {
        self.layout.index(node, NodeKind::Server).filter(|_| self.hosted.has(node)).map(|i| i as usize)
    }
    /// One more than the greatest number of a server here.
    pub fn servers_known(&self) -> u32 {
        self.servers.iter().rposition(Option::is_some).map_or(0, |i| i as u32 + 1)
    }
    fn at(&self, node: NodeId) -> Option<&Server> {
        self.server(self.layout.index(node, NodeKind::Server)? as usize)
    }
    pub fn server(&self, i: usize) -> Option<&Server> {
        self.servers.get(i)?.as_ref()
    }
    /// The volume client that runs here.
    pub fn client(&self) -> Option<NodeId> {
        self.client.as_ref().map(|c| c.0)
    }
    /// The node that answers administration requests here: the metadata service, or the client, which forwards them.
    pub fn admin(&self) -> Option<NodeId> {
        if self.meta.is_some() { Some(Layout::META) } else { self.client() }
    }
}

fn one_server(cfg: &RackConfig, i: u32, nonce: u64, hosted: Hosted, drive: DriveId) -> Result<Server, BuildError> {
    let mut c = build::server_config(cfg, i, nonce)?;
    c.drive = drive;
    c.empty = matches!(hosted, Hosted::One { empty: true, .. });
    if let Hosted::One { drive_of, .. } = hosted {
        c.drive_of = Some(drive_of);
    }
    build::server_from(c, i)
}

impl Nodes for RackNodes {
    fn handle(&mut self, node: NodeId, now: Time, event: Event, fx: &mut Effects) {
        let Some(NodeName { kind, index }) = self.layout.name(node) else { return };
        let here: Option<&mut dyn Node> = match kind {
            NodeKind::Meta => self.meta.as_mut().map(|n| n as _),
            NodeKind::Switch => self.switches.get_mut(index as usize).and_then(Option::as_mut).map(|n| match n {
                Plane::Process(n) => n.as_mut() as _,
                Plane::Kernel(n) => n.as_mut() as _,
            }),
            NodeKind::Server => self.servers.get_mut(index as usize).and_then(|s| s.as_mut()).map(|s| s as _),
            NodeKind::Client => self.client.as_mut().map(|c| &mut c.1 as _),
        };
        if let Some(n) = here {
            n.handle(now, event, fx);
        }
    }

    fn count(&self) -> u32 {
        self.layout.nodes()
    }

    fn layout(&self) -> Layout {
        self.layout.clone()
    }

    fn policy(&self) -> Option<PolicyState> {
        let mut otherwise = policy::otherwise(&self.cfg);
        let now = policy::made_with(&self.cfg);
        for (i, made) in self.made.iter().enumerate().filter(|(i, made)| self.server(*i).is_some() && **made != now) {
            let (key, value) = made;
            otherwise.push(format!("{}: {key} = {value} until it is started again", NodeName::server(i as u32)));
        }
        Some(PolicyState { policy: self.cfg.policy.name().into(), otherwise })
    }

    fn set_policy(&mut self, now: Time, policy: Policy) -> Result<Vec<String>, PolicyError> {
        let (cfg, changes) = policy::change(&self.cfg, policy)?;
        let redirect = build::redirect(&cfg);
        for switch in self.switches.iter_mut().flatten() {
            match switch {
                Plane::Kernel(s) => {
                    s.set_redirect(redirect).map_err(|e| PolicyError::InKernel { policy, error: e.to_string() })?;
                }
                Plane::Process(s) => s.set_redirect(redirect),
            }
        }
        let gc = build::gc(&cfg);
        for s in self.servers.iter_mut().flatten() {
            s.set_gc(now, gc);
            s.set_reports_load(redirect == Redirect::Load);
        }
        self.cfg = cfg;
        Ok(changes)
    }

    fn end(&mut self, node: NodeId) {
        if let Some(s) = self.place(node) {
            self.servers[s] = None;
        }
    }

    fn set_drive(&mut self, server: u32, drive: DriveId) {
        let i = server as usize;
        self.drives[i] = drive;
        if let Some(s) = &mut self.servers[i] {
            s.set_drive(drive);
        }
    }

    fn set_unix_ms_at_zero(&mut self, ms: u64) {
        self.unix_ms_at_zero = ms;
        self.servers.iter_mut().flatten().for_each(|s| s.set_unix_ms_at_zero(ms));
    }

    fn set_store_full(&mut self, why: Option<&str>) {
        if let Some(meta) = &mut self.meta {
            meta.set_store_full(why);
        }
    }

    fn set_host_room(&mut self, now: Time, server: u32, room: bool) {
        if let Some(s) = self.servers.get_mut(server as usize).and_then(Option::as_mut) {
            s.set_host_room(now, room);
        }
    }

    fn may_begin(&self, node: NodeId) -> Result<(), BuildError> {
        let server = self.place(node).ok_or(BuildError::NotHere { node })? as u32;
        // If the metadata service is elsewhere, it refuses the server itself.
        match self.meta.as_ref().map(|m| m.is_removed(server)) {
            Some(Some(true)) => Err(BuildError::Removed { server }),
            Some(None) => Err(BuildError::NotAdded { server }),
            Some(Some(false)) | None => Ok(()),
        }
    }

    fn begin(&mut self, node: NodeId) -> Result<(), BuildError> {
        let s = self.place(node).ok_or(BuildError::NotHere { node })?;
        self.made[s] = policy::made_with(&self.cfg);
        let mut server = one_server(&self.cfg, s as u32, random_u64(), self.hosted, self.drives[s])?;
        server.set_unix_ms_at_zero(self.unix_ms_at_zero);
        self.servers[s] = Some(server);
        Ok(())
    }

    fn set_keys(&mut self, keys: &Keys) {
        for switch in self.switches.iter_mut().flatten() {
            if let Plane::Kernel(n) = switch {
                n.set_keys(keys.clone());
            }
        }
    }

    fn hosts(&self, node: NodeId) -> bool {
        node.0 < self.layout.nodes() && self.hosted.has(node)
    }
}

impl Describe for RackNodes {
    fn admitted(&self) -> Option<bool> {
        match self.hosted {
            Hosted::All => Some(true),
            Hosted::One { empty, drive_of, .. } => {
                let Some(server) = self.servers.iter().flatten().next() else { return Some(true) };
                let foreign = drive_of.zip(server.rack()).is_some_and(|(found, wanted)| found != wanted);
                let refused = server.drive_refused().is_some();
                // Refused for another reason (it was removed), the server keeps running and serves nothing.
                server.admitted().filter(|taken_in| *taken_in || empty || foreign || refused)
            }
        }
    }
    fn incarnation(&self) -> u64 {
        match self.hosted {
            Hosted::All => 0,
            Hosted::One { .. } => self.servers.iter().flatten().next().map_or(0, |s| s.incarnation().0),
        }
    }
    fn drive_problem(&self) -> Option<DriveProblem> {
        self.servers.iter().flatten().find_map(Server::drive_refused)
    }
    fn check_drive(&self, server: NodeId, drive: DriveId, table: &DriveTable) -> Result<(), DriveProblem> {
        self.check_drive(server, drive, table)
    }
    fn drive_refused(&self, server: u32) -> Option<DriveProblem> {
        self.server(server as usize).and_then(Server::drive_refused)
    }
    fn taken_in(&self, server: u32) -> Option<bool> {
        self.server(server as usize).and_then(Server::admitted)
    }
    fn rack(&self) -> Option<RackId> {
        self.servers.iter().flatten().next().and_then(Server::rack)
    }
    fn clocks_ahead(&self) -> Vec<(u32, Incarnation, ClockAhead)> {
        let of = |(i, (vssd, _)): (u32, (VssdId, SetId))| {
            let node = self.server(i as usize)?.service::<KeyService>(vssd)?.key_node()?;
            Some((i, node.incarnation(), node.clock_ahead()?))
        };
        (0..).zip(build::stores(&self.cfg)).filter_map(of).collect()
    }
    fn vssds(&self, server: NodeId, now: Time) -> Vec<Vssd> {
        let Some(s) = self.at(server) else { return Vec::new() };
        let server = s.status(now);
        server.vssds.iter().map(|vssd| Vssd::of(&OfServer { server: &server, vssd })).collect()
    }

    fn refused(&self, server: NodeId, now: Time) -> Vec<(String, u64)> {
        let Some(s) = self.at(server) else { return Vec::new() };
        type Reason = (&'static str, fn(&VssdStatus) -> u64);
        const REASONS: [Reason; 5] = [
            ("stale_epoch", |v| v.replica.stale_epochs),
            ("not_serving", |v| v.replica.not_serving),
            ("repeated", |v| v.replica.duplicates),
            ("queue_full", |v| v.queue_full),
            ("no_space", |v| v.replica.no_space),
        ];
        let report = s.status(now);
        let sum = |of: fn(&VssdStatus) -> u64| report.vssds.iter().map(of).sum();
        let all = REASONS.map(|(reason, of)| (reason, sum(of))).into_iter().chain([("unknown_vssd", s.misrouted())]);
        all.filter(|r| r.1 > 0).map(|(reason, n)| (reason.into(), n)).collect()
    }

    fn switch(&self) -> Option<SwitchState> {
        let state = |plane: &Plane| match plane {
            Plane::Kernel(n) => n.state(),
            Plane::Process(s) => of_process(s),
        };
        self.switches.iter().flatten().map(state).reduce(SwitchState::with)
    }
}

fn of_process(s: &Switch) -> SwitchState {
    SwitchState {
        data_plane: DataPlaneKind::Process.to_string(),
        redirect: build::redirect_name(s.redirect()).into(),
        rows: s.rows(),
        rows_max: s.rows_max(),
        counters: seen(s.counters().all().chain(s.egress().iter().flat_map(|c| c.all()))),
        ..SwitchState::default()
    }
}

/// The geometry of the rack's device files.
pub fn shape(cfg: &RackConfig) -> Result<Shape, BuildError> {
    let profile: Profile = build::profile(cfg)?;
    let g = profile.geometry;
    Ok(Shape {
        blocks: g.blocks(),
        pages_per_block: g.pages_per_block,
        page_bytes: g.page_bytes,
        meta_bytes: build::meta_bytes(cfg)?.next_multiple_of(u64::from(BLOCK)),
    })
}

#[cfg(test)]
#[path = "rack_tests.rs"]
mod tests;
