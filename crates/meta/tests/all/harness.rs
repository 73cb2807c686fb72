//! A service, its store, and servers scripted by the test.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::admin::{self, OwnUnit};
use rackweave_core::msg::control::{DriveRefusal, DriveTable, LogPlace, SlotTable, VssdLoss, VssdPlace, VssdReport};
use rackweave_core::msg::{Body, Class, Control, Header, LiveVolumes, Op, Packet, Role, ServerHello, View, ViewState};
use rackweave_core::node::StoreWrite;
use rackweave_core::request::Reply;
use rackweave_core::{DriveId, Effects, Epoch, Event, Incarnation, Layout, Node, NodeId, SetId, Span, Time, VssdId};
use rackweave_meta::{LevelConfig, Meta, MetaConfig, OwnConfig, SetConfig};

pub const LEASE: Span = Span::from_millis(1_000);
pub const GIB: u64 = 1 << 30;

/// Slots of each drive.
pub const SLOTS: u8 = 4;

/// The slots of a drive whose first one is in use.
pub fn divided(first: SlotTable) -> Vec<SlotTable> {
    let mut all = vec![SlotTable { vssd: VssdId(0), in_use: false, ..first }; usize::from(SLOTS)];
    all[0] = first;
    all
}

pub fn config() -> MetaConfig {
    let layout = Layout::new(3, 2);
    let member = |i: u32| (VssdId(1 + i * 16), layout.server(i).expect("a server"));
    MetaConfig {
        layout: layout.clone(),
        servers: 3,
        slots: SLOTS,
        own: OwnUnit::ALL.map(|unit| OwnConfig { unit, slots: 0, blocks: Vec::new(), apart: Vec::new() }),
        replicas: 3,
        replace_after: Span::ZERO,
        moves: 2,
        sets: vec![SetConfig { set: SetId(0), members: (0..3).map(member).collect() }],
        lease: LEASE,
        drift_ppm: 1_000,
        min_copies: 2,
        stripe_blocks: 16,
        levels: vec![LevelConfig {
            level: rackweave_core::admin::Isolation::Channel,
            home: 0,
            sets: vec![SetId(0)],
            capacity_bytes: GIB,
        }],
        overcommit: 8.0,
        keys: None,
        keyspaces: Default::default(),
        cloud: None,
    }
}

/// State of a scripted server.
#[derive(Clone, Debug)]
pub struct Scripted {
    pub node: NodeId,
    pub vssd: VssdId,
    pub nonce: u64,
    pub incarnation: Incarnation,
    /// Of the configured set.
    pub view: Option<View>,
    /// Of every set.
    pub views: BTreeMap<SetId, View>,
    pub complete: bool,
    pub volumes: LiveVolumes,
    pub failed: bool,
    pub read_only: bool,
    pub no_room: bool,
    pub drive: DriveId,
    pub losses: Vec<VssdLoss>,
    pub table: DriveTable,
    pub drive_refused: Option<DriveRefusal>,
    /// Sends and receives nothing.
    pub silent: bool,
    pub leased_at: Option<Time>,
    /// Number of the last welcome or lease.
    pub last_received: u64,
    /// Nonce that was last refused.
    pub refused: Option<u64>,
    /// Number of the last plan, and its vSSDs.
    pub plan: (u64, Vec<VssdPlace>),
    /// Number of the last plan of logs, the serial number of the next keyspace, and the logs.
    pub log_plan: (u64, u32, Vec<LogPlace>),
}

pub struct Rack {
    pub cfg: MetaConfig,
    pub meta: Meta,
    pub now: Time,
    pub saved: BTreeMap<Bytes, Bytes>,
    pub servers: Vec<Scripted>,
    /// Packets to nodes other than servers.
    pub heard: Vec<Packet>,
    /// Packets to servers about cloud disks.
    pub to_disks: Vec<Packet>,
    /// To requests of the service's own socket.
    pub replies: Vec<Reply>,
    /// Views in the order they were announced to any server.
    pub announced: Vec<View>,
    /// Writes that the store has not confirmed.
    pub unconfirmed: Vec<StoreWrite>,
    pub hold_store: bool,
    pub stores: usize,
    /// The service crashes at its write of this number, which becomes durable (true) or is lost.
    pub die_at: Option<(usize, bool)>,
    dead: bool,
    next_nonce: u64,
    fx: Effects,
}

impl Rack {
    pub fn new(cfg: MetaConfig) -> Rack {
        let servers = cfg.sets[0].members.iter().enumerate().map(|(i, &(vssd, node))| Scripted {
            node,
            vssd,
            nonce: 0,
            incarnation: Incarnation(0),
            view: None,
            views: BTreeMap::new(),
            complete: false,
            volumes: LiveVolumes::default(),
            failed: false,
            read_only: false,
            no_room: false,
            drive: DriveId(0x100 + i as u64),
            losses: Vec::new(),
            table: DriveTable::default(),
            drive_refused: None,
            silent: false,
            leased_at: None,
            last_received: 0,
            refused: None,
            plan: (0, Vec::new()),
            log_plan: (0, 0, Vec::new()),
        });
        let mut rack = Rack {
            meta: Meta::new(cfg.clone(), Vec::new()).expect("good configuration"),
            now: Time(1),
            saved: BTreeMap::new(),
            servers: servers.collect(),
            heard: Vec::new(),
            to_disks: Vec::new(),
            replies: Vec::new(),
            announced: Vec::new(),
            unconfirmed: Vec::new(),
            hold_store: false,
            stores: 0,
            die_at: None,
            dead: false,
            next_nonce: 100,
            fx: Effects::new(),
            cfg,
        };
        rack.event(Event::Timer);
        rack
    }

    /// The service crashes and restarts from its durable state. Its clock restarts.
    pub fn restart_meta(&mut self) {
        self.unconfirmed.clear();
        (self.die_at, self.dead) = (None, false);
        let saved = self.saved.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        self.meta = Meta::new(self.cfg.clone(), saved).expect("its own records");
        self.event(Event::Timer);
    }

    pub fn event(&mut self, e: Event) {
        if self.dead {
            return;
        }
        let mut fx = std::mem::take(&mut self.fx);
        fx.clear();
        self.meta.handle(self.now, e, &mut fx);
        for w in fx.stores.drain(..) {
            self.stores += 1;
            self.unconfirmed.push(w);
        }
        if let Some((at, durable)) = self.die_at
            && self.stores >= at
        {
            self.dead = true;
            if durable {
                self.apply();
            }
        }
        let packets: Vec<Packet> = fx.packets.drain(..).collect();
        self.replies.append(&mut fx.replies);
        self.fx = fx;
        packets.into_iter().for_each(|p| self.deliver(p));
        if !self.hold_store && !self.dead {
            self.confirm();
        }
    }

    /// Makes all writes durable.
    pub fn confirm(&mut self) {
        while !self.unconfirmed.is_empty() {
            self.confirm_one();
        }
    }
    /// Makes the oldest write durable.
    pub fn confirm_one(&mut self) {
        let tag = self.apply();
        self.event(Event::Stored { tag });
    }
    fn apply(&mut self) -> u64 {
        let StoreWrite { tag, entries } = self.unconfirmed.remove(0);
        for (k, v) in entries {
            match v {
                Some(v) => self.saved.insert(k, v),
                None => self.saved.remove(&k),
            };
        }
        tag
    }

    fn deliver(&mut self, p: Packet) {
        if matches!(p.body, Body::Cloud(_)) {
            return self.to_disks.push(p);
        }
        let Some(s) = self.servers.iter_mut().find(|s| s.node == p.dst) else {
            self.heard.push(p);
            return;
        };
        let Body::Control(c) = p.body else { return };
        if matches!(c, Control::ServerWelcome { .. } | Control::Lease { .. }) && !s.silent {
            s.last_received = s.last_received.max(p.header.request);
        }
        let mut views = Vec::new();
        match c {
            Control::ServerWelcome { nonce, incarnation, volumes } if nonce == s.nonce => {
                s.incarnation = incarnation;
                s.volumes = volumes;
            }
            Control::ServerRefused { nonce } => s.refused = Some(nonce),
            Control::DriveRefused { why, .. } => s.drive_refused = Some(*why),
            Control::Lease { views: v, .. } => {
                views = v;
                s.leased_at = Some(self.now);
            }
            Control::NewView(v) => views.push(*v),
            Control::Vssds { plan, vssds, .. } => s.plan = (plan, vssds),
            Control::Logs { plan, next_serial, logs, .. } => s.log_plan = (plan, next_serial, logs),
            _ => {}
        }
        for v in views {
            if self.announced.last().is_none_or(|a| *a != v) {
                self.announced.push(v.clone());
            }
            if s.silent || s.views.get(&v.set).is_some_and(|have| have.epoch >= v.epoch) {
                continue;
            }
            s.views.insert(v.set, v.clone());
            if v.set == SetId(0) {
                (s.view, s.complete) = (Some(v), false);
            }
        }
    }

    pub fn control(&mut self, src: NodeId, incarnation: Incarnation, request: u64, c: Control) {
        let header = Header { class: Class::Gold, incarnation, request, ..Header::new(Op::Control) };
        self.event(Event::Packet(Packet { src, dst: Layout::META, header, body: Body::Control(c) }));
    }

    pub fn report(&self, i: usize) -> Vec<VssdReport> {
        let s = &self.servers[i];
        let epoch = s.view.as_ref().map_or(Epoch(0), |v| v.epoch);
        vec![VssdReport {
            vssd: s.vssd,
            set: SetId(0),
            epoch,
            complete: s.complete,
            failed: s.failed,
            read_only: s.read_only,
            no_room: s.no_room,
        }]
    }

    /// Starts the server and registers it.
    pub fn start(&mut self, i: usize) {
        self.next_nonce += 1;
        let s = &mut self.servers[i];
        (s.nonce, s.incarnation, s.view, s.complete, s.silent) = (self.next_nonce, Incarnation(0), None, false, false);
        s.views.clear();
        self.hello(i);
    }
    pub fn hello(&mut self, i: usize) {
        let (node, nonce, vssds) = (self.servers[i].node, self.servers[i].nonce, self.report(i));
        self.control(
            node,
            Incarnation(0),
            0,
            Control::ServerHello(Box::new(ServerHello {
                nonce,
                drive: self.servers[i].drive,
                empty: false,
                losses: self.servers[i].losses.clone(),
                table: self.servers[i].table.clone(),
                vssds,
            })),
        );
    }
    /// Before the first of a run, the drive table gets its incarnation, and the service is informed.
    pub fn heartbeat(&mut self, i: usize) {
        let s = &mut self.servers[i];
        if !s.silent && s.table.digest != 0 && s.table.known < s.incarnation {
            (s.table.generation, s.table.known) = (s.table.generation + 1, s.incarnation);
            self.hello(i);
        }
        let s = &self.servers[i];
        if !s.silent {
            let (node, incarnation, last_received, vssds) = (s.node, s.incarnation, s.last_received, self.report(i));
            self.control(node, incarnation, last_received, Control::Heartbeat { sequence: self.now.0, vssds });
        }
    }
    /// A client requests the map; returns the number of members of the set in the answer.
    pub fn map_asked(&mut self) -> Option<usize> {
        let client = self.cfg.layout.client(0);
        self.heard.clear();
        self.next_nonce += 1;
        let request = self.next_nonce;
        self.control(client, Incarnation(1), request, Control::MapRequest { generation: 0 });
        self.heard.iter().find_map(|p| match &p.body {
            Body::Control(Control::Map(m)) if p.header.request == request => Some(m.sets[0].members.len()),
            _ => None,
        })
    }
    /// Advances time; every server that is not silent sends a heartbeat each tenth of a lease, and shadows are filled.
    pub fn run(&mut self, span: Span) {
        let end = self.now + span;
        while self.now < end {
            self.now += LEASE / 10;
            self.event(Event::Timer);
            for i in 0..self.servers.len() {
                self.heartbeat(i);
            }
        }
    }
    pub fn fill_shadows(&mut self) {
        for s in &mut self.servers {
            let me = s.view.iter().flat_map(|v| &v.members).find(|m| m.vssd == s.vssd);
            s.complete = me.is_some_and(|m| m.role == Role::Shadow && m.incarnation == s.incarnation);
        }
    }
    pub fn start_all(&mut self) {
        (0..self.servers.len()).for_each(|i| self.start(i));
    }
    pub fn view(&self) -> &View {
        self.meta.view(SetId(0)).expect("the set is configured")
    }
    /// Roles by server: 'M', 'S', '-'; then 'R' if recovering.
    pub fn roles(&self) -> String {
        let role = |s: &Scripted| match self.view().members.iter().find(|m| m.vssd == s.vssd).map(|m| m.role) {
            Some(Role::Member) => 'M',
            Some(Role::Shadow) => 'S',
            None => '-',
        };
        let mut roles: String = self.servers.iter().map(role).collect();
        if self.view().state != ViewState::Normal {
            roles.push('R');
        }
        roles
    }
    pub fn admin_unanswered(&mut self, request: u64, op: admin::Op) {
        self.control(self.cfg.layout.client(0), Incarnation(77), request, Control::Admin(Box::new(op)));
    }
    pub fn admin(&mut self, request: u64, op: admin::Op) -> Result<admin::Reply, admin::Error> {
        self.heard.clear();
        self.admin_unanswered(request, op);
        self.heard
            .iter()
            .find_map(|p| match &p.body {
                Body::Control(Control::AdminReply(r)) if p.header.request == request => Some(r.clone()),
                _ => None,
            })
            .expect("an answer")
            .map(|d| *d)
            .map_err(|e| *e)
    }
}
