//! Injects the faults of a plan.

use rackweave_core::node::Trace;
use rackweave_core::{Layout, NodeId, NodeKind, SetId, Span};
use rackweave_server::trace as server_trace;

use super::volumes::Passing;
use super::{Agenda, Run};
use crate::fault::plan::Fault;
use crate::fault::report::Failure;
use crate::fault::sets::Loss;
use crate::fault::trace;

/// From the start of a collection to the crash that waited for it: the switch is informed, and the victim is not done.
const TRAP_DELAY: Span = Span::from_micros(300);

impl Fault {
    pub fn is_fault(&self) -> bool {
        !matches!(
            self,
            Fault::Steal { .. }
                | Fault::Fill { .. }
                | Fault::Empty { .. }
                | Fault::Move { .. }
                | Fault::Drain { .. }
                | Fault::Add
                | Fault::Rekey
                | Fault::Create { .. }
                | Fault::Grow { .. }
                | Fault::Delete { .. }
        )
    }
}

impl Run<'_> {
    pub(super) fn begin(&mut self, i: usize) {
        let fault = self.plan.faults[i].fault;
        let over = match fault {
            Fault::Crash { down_ms, .. } | Fault::RackCrash { down_ms } => {
                self.servers_down(&self.fault_servers(i), false);
                Some(down_ms)
            }
            Fault::PowerCut { down_ms, .. } => {
                self.servers_down(&self.fault_servers(i), true);
                Some(down_ms)
            }
            Fault::SetPowerCut { down_ms, .. } => {
                let members = self.fault_servers(i);
                self.servers_down(&members, true);
                // Those must restart, whichever servers are members by then.
                self.hit.insert(i, members);
                Some(down_ms)
            }
            Fault::RackPowerCut { down_ms } => {
                self.rack_down(i);
                Some(down_ms)
            }
            Fault::StandStill { damaged, replaced, permille, down_ms } => {
                if self.is_edited() || !(self.down.is_empty() && self.watch.all_full(&self.sim)) {
                    return;
                }
                self.rack_down(i);
                self.damage(damaged, replaced, permille);
                Some(down_ms)
            }
            Fault::LastCopies { server, down_ms } => {
                if self.is_edited() || !(self.down.is_empty() && self.watch.all_full(&self.sim)) {
                    return;
                }
                self.rack_down(i);
                let servers = self.plan.params.servers;
                (1..self.plan.params.copies).for_each(|k| self.sim.replace_disk((server + k) % servers));
                Some(down_ms)
            }
            Fault::Edit { down_ms, .. } => {
                if !self.begin_edit(i) {
                    return;
                }
                Some(down_ms)
            }
            Fault::OneRackPowerCut { rack, down_ms } => {
                self.servers_down(&self.fault_servers(i), true);
                self.node_down(self.switch_node(rack));
                Some(down_ms)
            }
            Fault::SwitchLost { rack, down_ms } => {
                self.node_down(self.switch_node(rack));
                Some(down_ms)
            }
            Fault::SwitchRestart { down_ms } => {
                self.node_down(Layout::SWITCH);
                Some(down_ms)
            }
            Fault::MetaRestart { down_ms } => {
                self.node_down(Layout::META);
                Some(down_ms)
            }
            Fault::ClientRestart { client, down_ms } => {
                self.client_down(client);
                Some(down_ms)
            }
            _ => self.begin_on_links(i),
        };
        self.stats.faults_done += u64::from(fault.is_fault());
        if let Some(ms) = over {
            self.plan_at(self.sim.now() + Span::from_millis(ms), Agenda::Over(i));
        }
    }

    /// All servers, switches and the metadata service lose power.
    fn rack_down(&mut self, i: usize) {
        self.servers_down(&self.fault_servers(i), true);
        self.sim.engine().layout().switches().for_each(|s| self.node_down(s));
        self.node_down(Layout::META);
    }

    /// Faults of links and contents, and those with two steps.
    fn begin_on_links(&mut self, i: usize) -> Option<u64> {
        let fault = self.plan.faults[i].fault;
        match fault {
            Fault::Isolate { ms, .. }
            | Fault::Cut { ms, .. }
            | Fault::Sever { ms, .. }
            | Fault::SeverRack { ms, .. }
            | Fault::CutRacks { ms }
            | Fault::Mute { ms, .. } => {
                self.cut(fault, true);
                Some(ms)
            }
            Fault::BlindPowerCut { down_ms, ms, .. } => {
                self.cut(fault, true);
                self.servers_down(&self.fault_servers(i), true);
                self.plan_at(self.sim.now() + Span::from_millis(down_ms), Agenda::Back(i));
                Some(ms.max(down_ms))
            }
            Fault::HalfCrash { cut_ms, .. } => {
                self.cut(fault, true);
                self.plan_at(self.sim.now() + Span::from_millis(cut_ms), Agenda::Crash(i));
                None
            }
            Fault::Late { from, to, extra_ms, ms } => {
                self.late(from, to, Span::from_millis(extra_ms));
                Some(ms)
            }
            Fault::Noise { links, ms } => {
                self.sim.engine_mut().net().set_faults(links);
                Some(ms)
            }
            Fault::DarkPaths { permille, ms } => {
                self.darken(permille);
                Some(ms)
            }
            Fault::NarrowPaths { bytes, ms } => {
                self.narrow(bytes as usize);
                Some(ms)
            }
            Fault::TornCheckpoint { server, down_ms } => {
                self.servers_down(&self.fault_servers(i), true);
                self.corrupt_checkpoint(server % self.plan.params.servers);
                Some(down_ms)
            }
            Fault::BreakDevice { server, how, ms } => self.break_device(server, how).then_some(ms),
            Fault::CrashCollecting { .. } => {
                self.traps.push_back(i);
                None
            }
            _ => {
                self.begin_at_once(fault);
                None
            }
        }
    }

    /// Faults without a duration, and requests of an operator or a client.
    fn begin_at_once(&mut self, fault: Fault) {
        match fault {
            Fault::Replay { node } => self.replay(node),
            Fault::Forge { node } => self.forge(node),
            Fault::LoseCounter { node } => self.lose_counter(node),
            Fault::Rekey => self.begin_rekey(),
            Fault::Corrupt { server } => self.corrupt(server),
            Fault::Move { .. } | Fault::Drain { .. } | Fault::Add => self.word(fault),
            Fault::Fill { client } => self.fill_on(client, 0),
            Fault::Empty { client } => self.empty(client),
            Fault::Create { client } => self.pass(client, Passing::Create, false),
            Fault::Grow { client } => self.pass(client, Passing::Grow, false),
            Fault::Delete { client, force } => self.pass(client, Passing::Delete, force),
            Fault::Steal { client } => {
                let shared = self.shared();
                if self.attached[client as usize][shared].is_none() {
                    self.try_attach(client, shared);
                }
            }
            _ => {}
        }
    }

    pub(super) fn over(&mut self, i: usize) -> Result<(), Failure> {
        match self.plan.faults[i].fault {
            Fault::Crash { .. }
            | Fault::PowerCut { .. }
            | Fault::SetPowerCut { .. }
            | Fault::RackCrash { .. }
            | Fault::TornCheckpoint { .. }
            | Fault::CrashCollecting { .. }
            | Fault::HalfCrash { .. } => {
                for s in self.fault_servers(i) {
                    self.node_up(self.node_of(s))?;
                }
            }
            Fault::RackPowerCut { .. } | Fault::StandStill { .. } | Fault::LastCopies { .. } => {
                self.node_up(Layout::META)?;
                for switch in self.sim.engine().layout().switches() {
                    self.node_up(switch)?;
                }
                for s in self.fault_servers(i) {
                    self.node_up(self.node_of(s))?;
                }
            }
            Fault::OneRackPowerCut { rack, .. } => {
                self.node_up(self.switch_node(rack))?;
                for s in self.fault_servers(i) {
                    self.node_up(self.node_of(s))?;
                }
            }
            Fault::Edit { .. } => self.next_of_edit(i)?,
            Fault::SwitchLost { rack, .. } => self.node_up(self.switch_node(rack))?,
            Fault::SwitchRestart { .. } => self.node_up(Layout::SWITCH)?,
            Fault::MetaRestart { .. } => self.node_up(Layout::META)?,
            Fault::ClientRestart { client, .. } => self.client_up(client)?,
            f @ (Fault::Isolate { .. }
            | Fault::Cut { .. }
            | Fault::Sever { .. }
            | Fault::SeverRack { .. }
            | Fault::CutRacks { .. }
            | Fault::Mute { .. }
            | Fault::BlindPowerCut { .. }) => self.cut(f, false),
            Fault::BreakDevice { how, .. } => self.mend_device(i, how)?,
            Fault::Late { from, to, .. } => self.late(from, to, Span::ZERO),
            Fault::Noise { .. } => self.sim.engine_mut().net().set_faults(self.plan.params.links),
            Fault::DarkPaths { .. } => self.darken(0),
            Fault::NarrowPaths { .. } => self.narrow(usize::MAX),
            Fault::Replay { .. }
            | Fault::Forge { .. }
            | Fault::Corrupt { .. }
            | Fault::LoseCounter { .. }
            | Fault::Rekey
            | Fault::Steal { .. }
            | Fault::Fill { .. }
            | Fault::Empty { .. }
            | Fault::Move { .. }
            | Fault::Drain { .. }
            | Fault::Create { .. }
            | Fault::Grow { .. }
            | Fault::Delete { .. }
            | Fault::Add => {}
        }
        Ok(())
    }

    pub(super) fn fault_servers(&self, i: usize) -> Vec<u32> {
        let n = self.plan.params.servers;
        match self.plan.faults[i].fault {
            Fault::Crash { server, .. }
            | Fault::PowerCut { server, .. }
            | Fault::HalfCrash { server, .. }
            | Fault::TornCheckpoint { server, .. }
            | Fault::BreakDevice { server, .. }
            | Fault::BlindPowerCut { server, .. } => vec![server % n],
            Fault::SetPowerCut { .. } | Fault::CrashCollecting { .. } if self.hit.contains_key(&i) => {
                self.hit[&i].clone()
            }
            Fault::SetPowerCut { set, .. } => {
                let view = self.sim.meta().and_then(|m| m.view(SetId(set % n)));
                let now = view.map(|v| v.members.iter().map(|m| m.server).collect::<Vec<_>>()).unwrap_or_default();
                let sets = rackweave_rack::plan::sets(self.sim.config());
                let made = || sets[(set % n) as usize].members.iter().map(|m| m.1).collect();
                let on: Vec<NodeId> = if now.is_empty() { made() } else { now };
                on.into_iter().map(Layout::server_number).collect()
            }
            Fault::CrashCollecting { .. } => Vec::new(),
            Fault::OneRackPowerCut { rack, .. } => self.servers_of(rack),
            _ => (0..n).collect(),
        }
    }

    fn switch_node(&self, rack: u32) -> NodeId {
        let layout = self.sim.engine().layout();
        layout.switch(rack % layout.racks())
    }
    fn servers_of(&self, rack: u32) -> Vec<u32> {
        let layout = self.sim.engine().layout();
        let rack = Some(rack % layout.racks());
        (0..).zip(layout.ids(NodeKind::Server)).filter(|(_, n)| layout.rack(**n) == rack).map(|(i, _)| i).collect()
    }
    /// The server of this number, which a plan may have drawn: modulo the number of servers.
    pub(super) fn node_of(&self, server: u32) -> NodeId {
        let layout = self.sim.engine().layout();
        let servers = layout.ids(NodeKind::Server);
        servers[server as usize % servers.len()]
    }

    pub(super) fn servers_down(&mut self, servers: &[u32], power: bool) {
        for (set, loss) in self.watch.crashing(&self.sim, servers) {
            let crash = match loss {
                Loss::Unflushed => self.history.set_crashed(set),
                Loss::Unanswered => self.history.view_crashed(set),
            };
            self.plan_at(self.sim.now() + self.under_way_max(), Agenda::Silent { crash });
        }
        for &s in servers {
            let n = self.node_of(s);
            if self.sim.alive(n) && self.sim.disk(s).is_some_and(|d| d.programs_under_way()) {
                self.sim.engine_mut().note(trace::CRASH_BETWEEN_PROGRAM_AND_MAP);
            }
            if power && self.sim.server(s).is_some_and(|s| s.ssd().swap_works()) {
                self.sim.engine_mut().note(trace::SWAP_CUT);
            }
            *self.down.entry(n).or_default() += 1;
            if power {
                let cut = self.sim.power_cut(s, self.plan.params.cut);
                self.stats.kept += u64::from(cut.kept);
                self.stats.dropped += u64::from(cut.dropped);
                self.stats.torn += u64::from(cut.torn);
            } else {
                self.sim.crash(n);
            }
        }
    }

    pub(super) fn node_down(&mut self, n: NodeId) {
        if n == Layout::META {
            self.watch.refresh(&self.sim);
        }
        *self.down.entry(n).or_default() += 1;
        self.end(n);
    }
    pub(super) fn end(&mut self, n: NodeId) {
        let layout = self.sim.engine().layout();
        if layout.kind(n) == Some(NodeKind::Switch) {
            self.bounds.switch_ended(layout.rack(n).unwrap_or(0), self.sim.now());
        }
        self.sim.crash(n);
    }

    /// One fault less keeps the node down; it restarts after the last one.
    pub(super) fn node_up(&mut self, n: NodeId) -> Result<(), Failure> {
        if !self.lift(n) {
            return Ok(());
        }
        let Err(e) = self.sim.restart(n) else { return Ok(()) };
        if self.is_edited() {
            self.refuse_start(e.into());
            return Ok(());
        }
        Err(Failure::Unexpected(format!("{n} does not start again: {e}")))
    }

    /// Whether the node must start: it was down, and no other fault keeps it down.
    pub(super) fn lift(&mut self, n: NodeId) -> bool {
        let Some(faults) = self.down.get_mut(&n) else { return false };
        *faults -= 1;
        let over = *faults == 0;
        if over {
            self.down.remove(&n);
        }
        over
    }

    fn client_down(&mut self, client: u32) {
        self.node_down(self.client_node(client));
        self.forget(client);
        self.pending.retain(|k, _| k.0 != client);
        self.attached[client as usize].fill(None);
        self.starts[client as usize] += 1;
    }

    fn client_up(&mut self, client: u32) -> Result<(), Failure> {
        let n = self.client_node(client);
        self.node_up(n)?;
        if self.down.contains_key(&n) {
            return Ok(());
        }
        let shared = self.shared();
        self.try_attach(client, client as usize);
        if self.volumes[shared].writer == Some(client) {
            self.try_attach(client, shared);
        }
        self.attach_passing(client);
        for _ in 0..self.plan.params.depth {
            let at = self.think();
            self.plan_at(at, Agenda::Issue { client });
        }
        Ok(())
    }

    fn late(&mut self, from: u32, to: u32, extra: Span) {
        let nodes = self.sim.engine().layout().nodes();
        self.sim.engine_mut().net().delay_way(NodeId(from % nodes), NodeId(to % nodes), extra);
    }

    /// A server began to collect: springs the oldest trap shortly afterwards.
    pub(super) fn spring_traps(&mut self) {
        let began = |t: &&(NodeId, Trace)| t.1.point == server_trace::GC_START;
        let Some(&(node, _)) = self.bounds.traces().iter().find(began) else { return };
        let Some(fault) = self.traps.pop_front() else { return };
        let Some(server) = self.sim.engine().layout().index(node, NodeKind::Server) else { return };
        self.plan_at(self.sim.now() + TRAP_DELAY, Agenda::Collecting { fault, server });
    }

    pub(super) fn crash_collecting(&mut self, fault: usize, server: u32) {
        self.hit.insert(fault, vec![server]);
        self.servers_down(&[server], false);
        if let Fault::CrashCollecting { down_ms } = self.plan.faults[fault].fault {
            self.plan_at(self.sim.now() + Span::from_millis(down_ms), Agenda::Over(fault));
        }
    }

    pub(super) fn half_crash(&mut self, i: usize) {
        let fault = self.plan.faults[i].fault;
        self.cut(fault, false);
        self.servers_down(&self.fault_servers(i), false);
        if let Fault::HalfCrash { down_ms, .. } = fault {
            self.plan_at(self.sim.now() + Span::from_millis(down_ms), Agenda::Over(i));
        }
    }

    fn cut(&mut self, fault: Fault, blocked: bool) {
        let layout = self.sim.engine().layout();
        let nodes = layout.nodes();
        let servers = layout.ids(NodeKind::Server);
        let node_of = |server: u32| servers[server as usize % servers.len()];
        let net = self.sim.engine_mut().net();
        match fault {
            Fault::Isolate { node, .. } => {
                for other in (0..nodes).filter(|&o| o != node % nodes) {
                    net.block(NodeId(node % nodes), NodeId(other), blocked);
                    net.block(NodeId(other), NodeId(node % nodes), blocked);
                }
            }
            Fault::Sever { server, .. } => {
                let n = node_of(server);
                let others = servers.iter().copied().filter(|&o| o != n);
                for other in others.chain([Layout::META]) {
                    net.block(n, other, blocked);
                    net.block(other, n, blocked);
                }
            }
            Fault::BlindPowerCut { server, .. } => {
                (0..layout.clients()).for_each(|c| net.block(Layout::META, layout.client(c), blocked));
                let n = node_of(server);
                for other in servers.iter().copied().filter(|&o| o != n) {
                    net.block(n, other, blocked);
                    net.block(other, n, blocked);
                }
            }
            Fault::Mute { server, .. } => {
                let n = node_of(server);
                net.block(n, layout.switch_near(n), blocked);
            }
            Fault::CutRacks { .. } => net.cut_between_racks(blocked),
            Fault::SeverRack { rack, .. } => {
                let in_rack = |n: &NodeId| layout.rack(*n) == Some(rack % layout.racks());
                let (of_rack, mut others): (Vec<NodeId>, Vec<NodeId>) = servers.iter().partition(|n| in_rack(n));
                others.push(Layout::META);
                for &n in &of_rack {
                    for &other in &others {
                        net.block(n, other, blocked);
                        net.block(other, n, blocked);
                    }
                }
            }
            Fault::HalfCrash { server, peer, .. } => {
                let (n, to) = (node_of(server), node_of(peer));
                net.block(n, to, blocked);
            }
            Fault::Cut { from, to, .. } => net.block(NodeId(from % nodes), NodeId(to % nodes), blocked),
            _ => {}
        }
    }

    /// Faults of a stopped rack's drives.
    fn damage(&mut self, damaged: u32, replaced: u32, permille: u32) {
        let servers = self.plan.params.servers;
        let (damaged, replaced) = (damaged % servers, replaced % servers);
        if let Some(d) = self.sim.disk(damaged).filter(|_| damaged != replaced) {
            d.damage(|_| self.rng.below(1000) < u64::from(permille));
        }
        self.sim.replace_disk(replaced);
        self.stood_still = true;
    }

    /// Only while every other copy is whole: contents that exist once are lost by corruption by definition.
    fn corrupt(&mut self, server: u32) {
        let servers = self.plan.params.servers;
        let whole =
            !self.is_edited() && self.down.is_empty() && !self.history.crashed() && self.watch.all_full(&self.sim);
        if whole && let Some(d) = self.sim.disk(server % servers) {
            self.corrupted |= d.corrupt(&mut self.rng);
        }
    }
}
