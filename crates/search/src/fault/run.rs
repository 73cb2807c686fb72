//! Runs one plan: workload under faults, then without, then all checks.

mod device;
mod durable;
mod edits;
mod full;
mod inject;
mod moves;
mod network;
mod requests;
mod verify;
mod volumes;

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use rackweave_core::admin;
use rackweave_core::node::Trace;
use rackweave_core::request::RequestId;
use rackweave_core::volume;
use rackweave_core::{BLOCK, BlockAddr, NodeId, Rng, Span, Time, Timestamp, TracePoint, VolumeId};

use crate::check::{Bounds, History, HistoryStats, OpId};
use crate::fault::plan::Plan;
use crate::fault::report::{Failure, SimReport};
use crate::fault::run::volumes::{Gone, Passing, Volume};
use crate::fault::sets::SetWatch;
use crate::fault::workload::Kind;
use rackweave_block::trace as block_trace;
use rackweave_core::trace as core_trace;
use rackweave_rack::capture::Capture;
use rackweave_rack::sim::{Contents, Sim, SimConfig};
use rackweave_replica::trace as replica_trace;
use rackweave_sim::LinkFaults;

/// Time limit until the rack serves and the volumes are attached.
const SETUP_MAX: Span = Span::from_secs(30);
/// After the faults every request must complete within this; during them, some request or the next fault must.
const QUIET_MAX: Span = Span::from_secs(120);
/// Most events at one instant: such a rack has thousands, and more are an endless loop.
const EVENTS_AT_ONCE_MAX: u64 = 10_000_000;
/// Longest time of a packet in flight: the worst reordering, twice for a duplicate, and a link's queue.
const UNDER_WAY_MAX: Span = Span::from_millis(50);
/// The transport retransmits a message until its deadline of one second.
const REPEATED_MAX: Span = Span::from_millis(1_100);
/// Wait before an attach is retried because requests on its volume are pending.
const ATTACH_RETRY: Span = Span::from_millis(5);
/// Repetitions of the final read: members are addressed in turn, so most blocks are read from each.
const FINAL_READS: u32 = 3;
/// Interval of checks whether every set is whole again.
const WHOLE_POLL: Span = Span::from_millis(10);
/// Most failing blocks of a drive: drives of this size have hardly more in reserve, and worn-out ones are not replaced.
const FLAWED_BLOCKS_MAX: u32 = 1;
/// Blocks per final read.
const FINAL_BLOCKS: u32 = 16;

/// Trace points reported with a new view.
const VIEWS: [TracePoint; 4] =
    [core_trace::MEMBER_REMOVED, core_trace::SHADOW_ADDED, core_trace::SHADOW_COMPLETE, core_trace::SET_RECOVERED];

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct SimOptions {
    /// Records the path of the workload's n-th request.
    pub trace_request: Option<u64>,
    /// File for a packet capture.
    pub pcap: Option<PathBuf>,
}

/// Runs the plan of `seed`.
pub fn run_seed(seed: u64, options: &SimOptions) -> SimReport {
    run_plan(&Plan::draw(seed), options)
}

/// Runs a plan. A node's panic is a failure of the run.
pub fn run_plan(plan: &Plan, options: &SimOptions) -> SimReport {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut run = Run::new(plan, options)?;
        let failure = run.whole().err();
        run.sim.finish_capture().map_err(|e| Failure::Unexpected(e.to_string()))?;
        Ok::<_, Failure>(run.report(failure))
    }));
    match outcome {
        Ok(Ok(report)) => report,
        Ok(Err(failure)) => empty_report(plan, failure),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            empty_report(plan, Failure::Panic(text.unwrap_or_else(|| "without a message".into())))
        }
    }
}

/// The smallest plan, found by leaving out faults, that still fails; `None` if `plan` passes.
pub fn shrink(plan: &Plan, options: &SimOptions) -> Option<Plan> {
    let fails = |p: &Plan| !run_plan(p, options).passed();
    if !fails(plan) {
        return None;
    }
    let mut best = plan.clone();
    while let Some(smaller) = best.smaller().into_iter().find(|p| fails(p)) {
        best = smaller;
    }
    Some(best)
}

fn empty_report(plan: &Plan, failure: Failure) -> SimReport {
    SimReport {
        plan: plan.clone(),
        operations: BTreeMap::new(),
        errors: BTreeMap::new(),
        faults_done: 0,
        virtual_seconds: 0.0,
        events: 0,
        packets_dropped: 0,
        packets_duplicated: 0,
        cut_kept: 0,
        cut_dropped: 0,
        cut_torn: 0,
        copies_checked: 0,
        edits: BTreeMap::new(),
        coverage: Default::default(),
        history: Default::default(),
        hash: Default::default(),
        costs: Default::default(),
        timeline: Vec::new(),
        failure: Some(failure),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Agenda {
    Fault(usize),
    /// The fault's end: restart, mend, restore links.
    Over(usize),
    Issue {
        client: u32,
    },
    Attach {
        client: u32,
        volume: usize,
    },
    /// The second part of a half crash.
    Crash(usize),
    /// The server of a blind power cut returns.
    Back(usize),
    /// A collecting server ends.
    Collecting {
        fault: usize,
        server: u32,
    },
    /// Added servers start.
    Join,
    /// A node takes a step of a key rotation.
    Rekey {
        step: usize,
        node: u32,
    },
    /// Nothing sent before the crash is in flight any more.
    Silent {
        crash: usize,
    },
}

struct PendingOp {
    volume: usize,
    kind: Kind,
    history: Option<OpId>,
    lane: bool,
    /// For a [`Fault::Fill`]: the next block.
    fill: Option<u32>,
    passing: Option<Passing>,
}

struct Run<'a> {
    plan: &'a Plan,
    options: &'a SimOptions,
    sim: Sim,
    rng: Rng,
    bounds: Bounds,
    watch: SetWatch,
    history: History,
    /// Each client's own volume, the shared one, and possibly a short-lived one of each client.
    volumes: Vec<Volume>,
    gone: Vec<Gone>,
    /// `generation[client][volume]` while this incarnation of the client has the volume attached.
    attached: Vec<Vec<Option<u32>>>,
    /// Number of restarts of each client.
    starts: Vec<u32>,
    pending: BTreeMap<(u32, u64), PendingOp>,
    agenda: BinaryHeap<std::cmp::Reverse<(Time, u64, Agenda)>>,
    agenda_count: u64,
    /// Nodes that are down, and the number of faults that keep them down.
    down: BTreeMap<NodeId, u32>,
    next_request: u64,
    issued: u32,
    start: Time,
    /// When a request was last answered, or an entry of the agenda was carried out.
    progress: Time,
    /// Events since time last advanced.
    at_once: u64,
    quiet: bool,
    corrupted: bool,
    /// A drive was damaged and another replaced while the rack stood still: some blocks have one copy.
    stood_still: bool,
    /// Volumes with a block of which only a write is left that was never agreed on: it is marked as lost.
    gave_way: BTreeSet<VolumeId>,
    /// Crashes that wait for a server to collect.
    traps: VecDeque<usize>,
    /// Servers that a fault took down without the plan naming them.
    hit: BTreeMap<usize, Vec<u32>>,
    breakage: device::Breakages,
    edits: edits::Edits,
    rekeying: bool,
    stats: Stats,
}

#[derive(Default)]
struct Stats {
    operations: BTreeMap<Kind, u64>,
    errors: BTreeMap<String, u64>,
    faults_done: u64,
    kept: u64,
    dropped: u64,
    torn: u64,
    copies_checked: u64,
    edits: BTreeMap<String, u64>,
    history: HistoryStats,
}

/// Commit time of the metadata service's store if its disk is slow, as in every fourth plan: some writes are then
/// pending when it ends.
fn slow_store(seed: u64) -> Option<Span> {
    let mut rng = Rng::stream(seed, 0x7374_6f72);
    rng.chance(0.25).then(|| Span::from_micros(rng.between(1_000, 30_000)))
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, options: &'a SimOptions) -> Result<Run<'a>, Failure> {
        let p = &plan.params;
        let config = SimConfig {
            clients: p.clients,
            network: plan.network(),
            contents: Contents::Memory,
            drift_ppm: p.drift_ppm,
            offset: Span::from_millis(p.clock_offset_ms),
            clocks_restart: p.clocks_restart,
            flawed_blocks_max: FLAWED_BLOCKS_MAX,
            transport: p.transport.clone(),
            ..SimConfig::new(plan.seed)
        };
        let rack = plan.rack();
        let mut sim = Sim::new(&rack, config).map_err(|e| Failure::Unexpected(e.to_string()))?;
        if let Some(path) = &options.pcap {
            sim.capture(Capture::create(path).map_err(|e| Failure::Unexpected(e.to_string()))?);
        }
        let bounds = Bounds::new(&mut sim);
        let mut places = Rng::stream(plan.seed, 0x706c_6163);
        let mut volume = |name: String, blocks| match p.sparse_gib {
            0 => Volume::new(name, blocks),
            gib => Volume::sparse(name, blocks, gib, &mut places),
        };
        let mut volumes: Vec<Volume> = (0..p.clients).map(|c| volume(format!("own{c}"), p.own_blocks)).collect();
        volumes.push(volume("shared".into(), p.shared_blocks));
        if p.passing_volumes {
            volumes.extend((0..p.clients).map(|_| Volume::new(String::new(), 0)));
        }
        Ok(Run {
            plan,
            options,
            sim,
            rng: Rng::stream(plan.seed, 0x776f_726b),
            bounds,
            watch: SetWatch::new(rack.sets(), rack.servers_max()),
            history: History::new(),
            attached: vec![vec![None; volumes.len()]; p.clients as usize],
            volumes,
            gone: Vec::new(),
            starts: vec![0; p.clients as usize],
            pending: BTreeMap::new(),
            agenda: BinaryHeap::new(),
            agenda_count: 0,
            down: BTreeMap::new(),
            next_request: 0,
            issued: 0,
            start: Time::ZERO,
            progress: Time::ZERO,
            at_once: 0,
            quiet: false,
            corrupted: false,
            stood_still: false,
            gave_way: BTreeSet::new(),
            traps: VecDeque::new(),
            hit: BTreeMap::new(),
            breakage: device::Breakages::default(),
            edits: edits::Edits::default(),
            rekeying: false,
            stats: Stats::default(),
        })
    }

    fn whole(&mut self) -> Result<(), Failure> {
        self.sim.engine_mut().net().set_faults(LinkFaults::NONE);
        self.limit_age();
        self.set_up()?;
        self.sim.engine_mut().net().set_faults(self.plan.params.links);
        if let Some(span) = slow_store(self.plan.seed) {
            self.sim.engine_mut().set_store_time(span);
        }
        self.work()?;
        if self.breakage.lost {
            // The last copy of a set was on the failed device: the set answers no more.
            return self.check_history();
        }
        self.settle()?;
        if self.plan.params.full {
            self.fill_to_the_brim()?;
        }
        self.read_over_lossy_links()?;
        self.read_deleted()?;
        self.check()?;
        if self.plan.params.full {
            self.trim_makes_room()?;
        }
        if self.plan.params.broken_end {
            self.everything_breaks()?;
        }
        Ok(())
    }

    /// Delivers the next event and checks the invariants; false if none is pending.
    fn step(&mut self) -> Result<bool, Failure> {
        let before = self.sim.now();
        if !self.sim.step() {
            return Ok(false);
        }
        self.at_once = if self.sim.now() == before { self.at_once + 1 } else { 0 };
        if self.at_once > EVENTS_AT_ONCE_MAX {
            return Err(self.stuck(&format!("while time stands still at {}", Span(before.0))));
        }
        self.bounds.event(&mut self.sim).map_err(Failure::Invariant)?;
        if let Some(what) = self.sim.network_violation() {
            return Err(Failure::Network(what));
        }
        if let Some((_, t)) = self.bounds.traces().iter().find(|t| t.1.point == replica_trace::COPIES_DIFFER) {
            let (addr, version) = (BlockAddr::unpack(t.a), Timestamp(t.b));
            return Err(Failure::Divergence(format!("members compared {addr}: they differ at {version} or before")));
        }
        if self.bounds.traces().iter().any(|t| VIEWS.contains(&t.1.point)) {
            self.watch.refresh(&self.sim);
        }
        let lost = |t: &&(NodeId, Trace)| t.1.point == replica_trace::FILL_GAVE_WAY_TO_LOSS;
        let volumes = self.bounds.traces().iter().filter(lost).map(|t| BlockAddr::unpack(t.1.a).volume);
        self.gave_way.extend(volumes);
        self.note_held();
        if !self.traps.is_empty() {
            self.spring_traps();
        }
        Ok(true)
    }

    /// Records answers that clients have received and hold back.
    fn note_held(&mut self) {
        let (layout, at) = (self.sim.engine().layout(), self.sim.now());
        for (node, t) in self.bounds.traces().iter().filter(|(_, t)| t.point == block_trace::ANSWER_AFTER_RECOVERY) {
            let client = (0..self.plan.params.clients).find(|&c| layout.client(c) == *node);
            let op = client.and_then(|c| self.pending.get(&(c, t.a))).and_then(|p| p.history);
            if let Some(op) = op {
                self.history.at(at);
                self.history.held(op);
            }
        }
    }

    fn under_way_max(&self) -> Span {
        if self.plan.params.transport.is_some() { UNDER_WAY_MAX + REPEATED_MAX } else { UNDER_WAY_MAX }
    }

    fn plan_at(&mut self, at: Time, what: Agenda) {
        self.agenda_count += 1;
        self.agenda.push(std::cmp::Reverse((at, self.agenda_count, what)));
    }

    // ---- phases ----

    fn set_up(&mut self) -> Result<(), Failure> {
        for v in 0..=self.shared() {
            let name = self.volumes[v].name.clone().into_boxed_str();
            let size = u64::from(self.volumes[v].blocks) * u64::from(BLOCK);
            self.submit(0, admin::Op::create(name, size), v, Kind::Attach, false);
        }
        self.drain("volumes are created", SETUP_MAX)?;
        for v in 0..=self.shared() {
            let client = if v < self.plan.params.clients as usize { v as u32 } else { 0 };
            self.attach(client, v);
        }
        self.drain("volumes are attached", SETUP_MAX)?;
        self.watch.refresh(&self.sim);
        match self.attached[0][self.shared()] {
            Some(_) => Ok(()),
            None => Err(Failure::Unexpected("the shared volume could not be attached".into())),
        }
    }

    /// Runs until every pending request is answered.
    fn drain(&mut self, what: &str, within: Span) -> Result<(), Failure> {
        let end = self.sim.now() + within;
        while !self.pending.is_empty() {
            if !self.step()? || self.sim.now() > end {
                return Err(self.stuck(&format!("before {what}, {within} later")));
            }
            if self.sim.has_replies() {
                self.replies()?;
            }
        }
        Ok(())
    }

    /// The failure of a run without progress: pending requests, and sets that are not whole.
    fn stuck(&mut self, phase: &str) -> Failure {
        let open = self.pending.iter().take(8).map(|((c, id), p)| format!("client {c} request {id} {:?}", p.kind));
        let open: Vec<String> = open.collect();
        let mut said = format!("{} requests open {phase}: {}", self.pending.len(), open.join(", "));
        let not_whole = self.watch.describe(&self.sim);
        if !not_whole.is_empty() {
            said += &format!("; sets that are not whole: {not_whole}");
        }
        Failure::Liveness(said)
    }

    fn work(&mut self) -> Result<(), Failure> {
        self.start = self.sim.now();
        self.progress = self.start;
        for (i, f) in self.plan.faults.iter().enumerate() {
            self.plan_at(self.start + Span::from_micros(f.at_us), Agenda::Fault(i));
        }
        for client in 0..self.plan.params.clients {
            for _ in 0..self.plan.params.depth {
                let at = self.think();
                self.plan_at(at, Agenda::Issue { client });
            }
        }
        if let Some(n) = self.options.trace_request {
            self.sim.follow(RequestId(self.next_request + n));
        }
        loop {
            let Some(&std::cmp::Reverse((at, _, what))) = self.agenda.peek() else {
                if self.issued >= self.plan.params.operations || self.breakage.lost {
                    return Ok(());
                }
                self.until_answer()?;
                continue;
            };
            // An entry of the agenda may wait for an answer itself, repeatedly, or be far away.
            let patience = self.progress + QUIET_MAX;
            self.run_to(at.min(patience))?;
            if self.sim.now() >= self.progress + QUIET_MAX {
                if self.breakage.lost {
                    return Ok(());
                }
                return Err(self.stuck(&format!("while faults go on, nothing answered for {QUIET_MAX}")));
            }
            // An answer in flight may have put something earlier on the agenda.
            if at <= patience && self.agenda.peek().is_some_and(|e| e.0.0 >= at) {
                self.agenda.pop();
                self.act(what)?;
            }
        }
    }

    /// Every lane waits for the rack: runs until an answer arrives.
    fn until_answer(&mut self) -> Result<(), Failure> {
        let end = self.sim.now() + QUIET_MAX;
        while !self.sim.has_replies() {
            if !self.step()? || self.sim.now() > end {
                return Err(self.stuck(&format!("while every lane waits, nothing answered for {QUIET_MAX}")));
            }
        }
        self.replies()
    }

    /// Runs the rack up to `at`, or until an answer puts something before it.
    fn run_to(&mut self, at: Time) -> Result<(), Failure> {
        while self.sim.next_time().is_some_and(|t| t <= at) {
            self.step()?;
            if self.sim.has_replies() {
                self.replies()?;
                if self.agenda.peek().is_some_and(|e| e.0.0 < at) {
                    return Ok(());
                }
            }
        }
        self.sim.run_until(at);
        Ok(())
    }

    fn act(&mut self, what: Agenda) -> Result<(), Failure> {
        self.history.at(self.sim.now());
        if !matches!(what, Agenda::Issue { .. } | Agenda::Attach { .. }) {
            self.progress = self.sim.now();
        }
        match what {
            Agenda::Issue { client } => self.issue(client),
            Agenda::Attach { client, volume } => self.try_attach(client, volume),
            Agenda::Silent { crash } => self.history.silent(crash),
            Agenda::Rekey { step, node } => self.rekey(step, node),
            Agenda::Join => self.join()?,
            Agenda::Fault(i) => self.begin(i),
            Agenda::Over(i) => self.over(i)?,
            Agenda::Crash(i) => self.half_crash(i),
            Agenda::Collecting { fault, server } => self.crash_collecting(fault, server),
            Agenda::Back(i) => {
                for s in self.fault_servers(i) {
                    self.node_up(self.node_of(s))?;
                }
            }
        }
        Ok(())
    }

    // ---- after the faults ----

    fn settle(&mut self) -> Result<(), Failure> {
        self.quiet = true;
        let net = self.sim.engine_mut().net();
        net.heal();
        net.set_faults(LinkFaults::NONE);
        let down: Vec<NodeId> = std::mem::take(&mut self.down).into_keys().collect();
        for n in down {
            self.sim.restart(n).map_err(|e| Failure::Unexpected(format!("{n} does not start again: {e}")))?;
        }
        self.drain("the rack is quiet", QUIET_MAX)?;
        // Clients that lost a volume attach it again: their requests must succeed now.
        for v in (0..self.volumes.len()).filter(|&v| self.volumes[v].info.is_some()).collect::<Vec<_>>() {
            let client = self.volumes[v].writer.unwrap_or(0);
            self.attach(client, v);
        }
        self.drain("volumes are attached again", QUIET_MAX)?;
        let end = self.sim.now() + QUIET_MAX;
        while !self.watch.all_full(&self.sim) || !self.at_rest() {
            if self.sim.now() > end {
                let not_whole = self.watch.describe(&self.sim) + &self.unrest();
                return Err(Failure::Liveness(format!("not whole {QUIET_MAX} after the last fault: {not_whole}")));
            }
            let at = self.sim.now() + WHOLE_POLL;
            self.run_to(at)?;
        }
        while let Err(what) = self.tables_agree().and_then(|()| self.deleted_are_gone()) {
            if self.sim.now() > end {
                return Err(Failure::Liveness(format!("{QUIET_MAX} after the last fault: {what}")));
            }
            let at = self.sim.now() + WHOLE_POLL;
            self.run_to(at)?;
        }
        Ok(())
    }

    fn read_everything(&mut self) -> Result<(), Failure> {
        for round in 0..FINAL_READS {
            for v in (0..self.volumes.len()).filter(|&v| self.volumes[v].info.is_some()).collect::<Vec<_>>() {
                let client = self.volumes[v].writer.unwrap_or(0);
                let (volume, places) = (self.volumes[v].id(), self.volumes[v].places.clone());
                for (from, blocks) in places {
                    for first in (from..from + blocks).step_by(FINAL_BLOCKS as usize) {
                        let offset = u64::from(first) * u64::from(BLOCK);
                        let len = FINAL_BLOCKS.min(from + blocks - first) * BLOCK;
                        self.submit(client, volume::Op::Read { volume, offset, len }, v, Kind::Read, false);
                    }
                }
                if round == 0 {
                    self.submit(client, volume::Op::Flush { volume }, v, Kind::Flush, false);
                }
            }
            self.drain("everything is read", QUIET_MAX)?;
        }
        Ok(())
    }

    fn report(mut self, failure: Option<Failure>) -> SimReport {
        let s = std::mem::take(&mut self.stats);
        let virtual_seconds = Span(self.sim.now().0).as_secs_f64();
        let net = self.sim.engine_mut().net();
        let (packets_dropped, packets_duplicated) = (net.dropped, net.duplicated);
        let e = self.sim.engine();
        SimReport {
            plan: self.plan.clone(),
            operations: s.operations,
            errors: s.errors,
            faults_done: s.faults_done,
            virtual_seconds,
            events: e.events(),
            packets_dropped,
            packets_duplicated,
            cut_kept: s.kept,
            cut_dropped: s.dropped,
            cut_torn: s.torn,
            copies_checked: s.copies_checked,
            edits: s.edits,
            coverage: e.coverage().clone(),
            history: s.history,
            hash: e.hash(),
            costs: *e.costs(),
            timeline: e.timeline().to_vec(),
            failure,
        }
    }
}
