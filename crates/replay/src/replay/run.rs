//! One policy's run: starts a rack, ages it, plays requests, and counts. Traces and generated loads share it.

use rackweave_config::RackConfig;
use rackweave_core::admin::{self, SetStatus};
use rackweave_core::msg::Role;
use rackweave_core::request::{Operation, Reply, Request, RequestId};
use rackweave_core::volume::{self, VolumeInfo};
use rackweave_core::{Layout, Payload, SetId, Span, Time, VssdId};
use rackweave_rack::capture::Capture;
use rackweave_rack::sim::{Contents, Sim, SimConfig};
use rackweave_sim::Network;
use slab::Slab;

use super::config::{ReplayConfig, ReplayError};
use super::{LINK_QUEUE_MAX, age};
use crate::cpu::thread_cpu;
use crate::rack::ports::Bursts;
use crate::report::{BusyShare, PolicyReport};
use crate::stats::Latencies;
use crate::trace::TraceOp;
use crate::workload::{Plan, Planned, STRIPE_BYTES, Workload};
use rackweave_core::trace;
use rackweave_core::trace::Coverage;

/// Prefix of volume names; the client's number follows.
const VOLUME: &str = "replay";

/// Virtual time that a rack may take to start: many lease spans.
const UP_WITHIN: Span = Span::from_secs(120);
/// Interval of checks whether a rack has started.
const UP_LOOK: Span = Span::from_millis(10);
/// Requests passed to the simulator at a time.
const BATCH: usize = 128;
/// Unanswered requests at which a replay counts as overloaded (each costs the simulator about a kilobyte).
const OUTSTANDING_MAX: usize = 1 << 18;
/// Virtual time that the last answers may take after the last request.
const DRAIN_WITHIN: Span = Span::from_secs(3_600);

pub(super) struct Outcome {
    pub report: PolicyReport,
    pub volume_bytes: u64,
}

/// A request, and its arrival time.
struct Pending {
    arrived: Time,
    op: TraceOp,
    measured: bool,
}

/// One request for a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub client: u32,
    /// Arrival time since the start of the run; latency counts from here.
    pub arrived: Span,
    /// The request, and when it was sent: on arrival, or later if something held it back.
    pub planned: Planned,
}

/// Numbers of requests to play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Length {
    /// Requests before the measured ones.
    pub warm_up: u64,
    pub measured: u64,
}

pub(super) fn run(
    cfg: &ReplayConfig,
    rack: &RackConfig,
    policy: &'static str,
    workload: &Workload,
) -> Result<Outcome, ReplayError> {
    let sim = SimConfig { network: cfg.network.clone(), ..SimConfig::new(cfg.seed) };
    let mut run = Run::up(rack, sim, policy)?;
    let sets = run.sets(rack)?;
    let volumes = run.volumes(&sets, 1, cfg.utilization)?;
    let volume_bytes = volumes[0].size;
    age::age(&mut run.sim, &volumes, &sets, |_| age::FREE_AFTER, cfg.seed);
    let plan = Plan { volume_bytes, speed: cfg.speed, rate: cfg.rate, seed: cfg.seed };
    let mut player = workload.play(plan)?;
    if let Some(path) = &cfg.pcap {
        run.sim.capture(Capture::create(path)?);
    }
    let length = Length { warm_up: 0, measured: cfg.requests };
    let report = run.measure(length, &volumes, &sets, || {
        let planned = player.advance()?;
        Ok(Sent { client: 0, arrived: planned.at, planned })
    })?;
    Ok(Outcome { report, volume_bytes })
}

pub(crate) struct Run {
    pub(crate) sim: Sim,
    policy: &'static str,
    asked: Slab<Pending>,
    read: Latencies,
    write: Latencies,
    trims: u64,
    flushes: u64,
    failed: u64,
    rounded: u64,
    first_failure: Option<Box<str>>,
    /// Other traffic through the switch.
    pub(crate) bursts: Option<Bursts>,
}

impl Run {
    /// Starts a new rack. Requests beyond a link's rate wait there instead of being dropped, and contents are not kept.
    pub(crate) fn up(rack: &RackConfig, sim: SimConfig, policy: &'static str) -> Result<Run, ReplayError> {
        let network = Network { queue_max: LINK_QUEUE_MAX, ..sim.network };
        let sim_config = SimConfig { contents: Contents::Discard, network, ..sim };
        let sim = Sim::new(rack, sim_config).map_err(|e| ReplayError::Build { reason: e.to_string().into() })?;
        Ok(Run {
            sim,
            policy,
            asked: Slab::with_capacity(4 * BATCH),
            read: Latencies::new(),
            write: Latencies::new(),
            trims: 0,
            flushes: 0,
            failed: 0,
            rounded: 0,
            first_failure: None,
            bursts: None,
        })
    }

    /// Runs until `op` is answered.
    fn ask<O: Operation>(&mut self, client: u32, op: O) -> Result<Result<O::Reply, O::Error>, ReplayError> {
        let id = RequestId(u64::MAX);
        let start = self.sim.now();
        self.sim.submit(start, client, Request::new(id, op));
        loop {
            if let Some((_, _, reply)) = self.sim.take_replies().into_iter().find(|(_, _, r)| r.id == id) {
                return Ok(O::result(reply.result).expect("an answer is of its operation's API"));
            }
            let waited = self.sim.now().since(start);
            if waited > UP_WITHIN {
                return Err(ReplayError::NotUp { waited });
            }
            self.sim.run_until(self.sim.now() + Span::from_millis(1));
        }
    }

    /// The members of every set, once all are members.
    pub(crate) fn sets(&mut self, rack: &RackConfig) -> Result<Vec<Members>, ReplayError> {
        while self.sim.now() < Time::ZERO + UP_WITHIN {
            if let Ok(admin::Reply::Rack(status)) = self.ask(0, admin::Op::RackStatus)? {
                let up = status.sets.iter().all(|s| {
                    s.members.len() == rack.replicas as usize && s.members.iter().all(|m| m.role == Role::Member)
                });
                if up && status.sets.len() == rack.sets() as usize {
                    return Ok(status.sets.iter().map(Members::of).collect());
                }
            }
            self.sim.run_until(self.sim.now() + UP_LOOK);
        }
        Err(ReplayError::NotUp { waited: UP_WITHIN })
    }

    /// Creates a volume for each client; together they take `utilization` of the rack's capacity.
    pub(crate) fn volumes(
        &mut self,
        sets: &[Members],
        clients: u32,
        utilization: f64,
    ) -> Result<Vec<VolumeInfo>, ReplayError> {
        let room = age::set_room(&self.sim, sets) / u64::from(clients);
        // Whole stripes of every set.
        let size = (room as f64 * utilization) as u64 / STRIPE_BYTES * STRIPE_BYTES * sets.len() as u64;
        if size == 0 {
            return Err(ReplayError::NoRoom { ssd_bytes: self.sim.config().ssd.size.0 });
        }
        (0..clients).map(|client| self.volume(client, size)).collect()
    }

    /// Creates a volume and attaches it to the client; a flush proves that every set serves it.
    fn volume(&mut self, client: u32, size: u64) -> Result<VolumeInfo, ReplayError> {
        let name: Box<str> = format!("{VOLUME}-{client}").into();
        let create = admin::Op::create(name.clone(), size);
        self.ask(client, create)?.map_err(ReplayError::Create)?;
        match self.ask(client, volume::Op::Attach { name })?.map_err(ReplayError::Volume)? {
            volume::Reply::Attached(volume) => {
                self.ask(client, volume::Op::Flush { volume: volume.id })?.map_err(ReplayError::Volume)?;
                Ok(*volume)
            }
            other => unreachable!("attach answered with {other:?}"),
        }
    }

    /// Plays the requests of `next` in order of arrival, and records the measured part.
    pub(crate) fn measure(
        mut self,
        length: Length,
        volumes: &[VolumeInfo],
        sets: &[Members],
        mut next: impl FnMut() -> Result<Sent, ReplayError>,
    ) -> Result<PolicyReport, ReplayError> {
        let start = self.sim.now() + UP_LOOK;
        self.play(start, length.warm_up, false, volumes, &mut next)?;
        let (before, cpu) = (Counters::of(&self.sim, sets), thread_cpu());
        self.play(start, length.measured, true, volumes, &mut next)?;
        let under_load = Counters::of(&self.sim, sets);
        self.drain()?;
        self.sim.finish_capture()?;
        let cpu = Span(thread_cpu().0 - cpu.0);
        let after = Counters::of(&self.sim, sets);
        Ok(self.report(&before, &under_load, &after, cpu))
    }

    fn play(
        &mut self,
        start: Time,
        requests: u64,
        measured: bool,
        volumes: &[VolumeInfo],
        next: &mut impl FnMut() -> Result<Sent, ReplayError>,
    ) -> Result<(), ReplayError> {
        let mut left = requests;
        while left > 0 {
            let batch = left.min(BATCH as u64);
            let mut until = start;
            for _ in 0..batch {
                let sent = next()?;
                until = start + sent.arrived;
                self.submit(start, volumes, &sent, measured);
            }
            left -= batch;
            if let Some(bursts) = &mut self.bursts {
                bursts.until(until, &mut self.sim);
            }
            self.sim.run_until(until);
            self.take();
            if self.asked.len() > OUTSTANDING_MAX {
                let at = self.sim.now().since(start);
                return Err(ReplayError::Overloaded { policy: self.policy, outstanding: self.asked.len(), at });
            }
        }
        Ok(())
    }

    fn submit(&mut self, start: Time, volumes: &[VolumeInfo], sent: &Sent, measured: bool) {
        let (p, at) = (&sent.planned, start + sent.planned.at);
        self.rounded += u64::from(p.rounded && measured);
        let asked = Pending { arrived: start + sent.arrived, op: p.op, measured };
        let id = RequestId(self.asked.insert(asked) as u64);
        let volume = volumes[sent.client as usize].id;
        let op = match p.op {
            TraceOp::Read => volume::Op::Read { volume, offset: p.offset, len: p.len as u32 },
            TraceOp::Write => {
                // Each write has different contents, as if from a counter.
                let data = Payload::elided(p.len as u32, at.0 ^ p.offset);
                volume::Op::Write { volume, offset: p.offset, data, fua: p.fua }
            }
            TraceOp::Trim => volume::Op::Trim { volume, offset: p.offset, len: p.len, fua: p.fua },
            TraceOp::Flush => volume::Op::Flush { volume },
        };
        self.sim.submit(at, sent.client, Request::new(id, op));
    }

    fn take(&mut self) {
        for (at, _, reply) in self.sim.take_replies() {
            self.answered(at, reply);
        }
    }

    fn answered(&mut self, at: Time, reply: Reply) {
        let Some(asked) = self.asked.try_remove(reply.id.0 as usize) else { return };
        if let Some(e) = reply.result.error() {
            self.failed += 1;
            self.first_failure.get_or_insert_with(|| e.to_string().into());
            return;
        }
        if !asked.measured {
            return;
        }
        let latency = at.since(asked.arrived);
        match asked.op {
            TraceOp::Read => self.read.record(latency),
            TraceOp::Write => self.write.record(latency),
            TraceOp::Trim => self.trims += 1,
            TraceOp::Flush => self.flushes += 1,
        }
    }

    fn drain(&mut self) -> Result<(), ReplayError> {
        let deadline = self.sim.now() + DRAIN_WITHIN;
        while !self.asked.is_empty() {
            if self.sim.now() > deadline {
                return Err(ReplayError::Stuck { policy: self.policy, outstanding: self.asked.len() });
            }
            self.sim.run_until(self.sim.now() + Span::from_millis(1));
            self.take();
        }
        Ok(())
    }

    /// `under_load` has the counters at the arrival of the last request.
    fn report(self, before: &Counters, under_load: &Counters, after: &Counters, cpu: Span) -> PolicyReport {
        let host = after.host_slots - before.host_slots;
        let moved = after.gc_slots - before.gc_slots;
        PolicyReport {
            policy: self.policy,
            read: self.read,
            write: self.write,
            trims: self.trims,
            flushes: self.flushes,
            failed: self.failed,
            rounded: self.rounded,
            redirects: after.coverage.get(trace::REDIRECT) - before.coverage.get(trace::REDIRECT),
            gc_runs: after.gc_runs - before.gc_runs,
            erases: after.erases - before.erases,
            waf: if host == 0 { 1.0 } else { (host + moved) as f64 / host as f64 },
            busy: under_load.busy.share_since(&before.busy, under_load.at.since(before.at)),
            cpu,
            took: after.at.since(before.at),
            offered_for: under_load.at.since(before.at),
            events: after.events - before.events,
            situations: after
                .coverage
                .seen()
                .map(|(p, n)| (p.name(), n - before.coverage.get(p)))
                .filter(|&(_, n)| n > 0)
                .collect(),
            first_failure: self.first_failure,
        }
    }
}

/// Busy time of every die and bus of the rack.
#[derive(Clone, Debug, Default)]
struct DriveBusy {
    dies: Vec<Span>,
    buses: Vec<Span>,
}

impl DriveBusy {
    fn share_since(&self, before: &DriveBusy, window: Span) -> BusyShare {
        let part = |now: &[Span], then: &[Span]| -> Vec<f64> {
            now.iter().zip(then).map(|(n, t)| (n.0 - t.0) as f64 / window.0.max(1) as f64).collect()
        };
        let (dies, buses) = (part(&self.dies, &before.dies), part(&self.buses, &before.buses));
        let most = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
        let mean = dies.iter().sum::<f64>() / dies.len().max(1) as f64;
        BusyShare { dies_mean: mean, die_max: most(&dies), bus_max: most(&buses) }
    }
}

/// The members of one set: vSSD and the number of its server.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    pub set: SetId,
    pub vssds: Vec<(VssdId, u32)>,
}

impl Members {
    fn of(status: &SetStatus) -> Members {
        let vssds = status.members.iter().map(|m| (m.vssd, Layout::server_number(m.server))).collect();
        Members { set: status.set, vssds }
    }
}

/// Sums over all vSSDs since the start of the rack.
#[derive(Clone, Debug, Default)]
struct Counters {
    at: Time,
    /// Busy times of all drives, in sequence.
    busy: DriveBusy,
    coverage: Coverage,
    events: u64,
    gc_runs: u64,
    erases: u64,
    host_slots: u64,
    gc_slots: u64,
}

impl Counters {
    fn of(sim: &Sim, sets: &[Members]) -> Counters {
        let engine = sim.engine();
        let mut c = Counters {
            at: sim.now(),
            coverage: engine.coverage().clone(),
            events: engine.events(),
            ..Counters::default()
        };
        for server in (0..sim.config().servers).filter_map(|i| sim.server(i)) {
            let b = server.ssd().busy();
            c.busy.dies.extend(b.dies);
            c.busy.buses.extend(b.buses);
        }
        for &(vssd, server) in sets.iter().flat_map(|m| &m.vssds) {
            let Some(server) = sim.server(server) else { continue };
            let s = server.ssd().stats(vssd);
            c.gc_runs += s.gc_runs;
            c.erases += s.erases;
            c.host_slots += s.host_slots;
            c.gc_slots += s.gc_slots + s.range_slots;
        }
        c
    }
}
