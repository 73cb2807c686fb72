//! One policy's run: bring a rack up, age it, play the trace, count.

use rackweave_core::msg::Role;
use rackweave_core::request::{
    AdminOp, Reply, ReplyData, Request, RequestError, RequestId, RequestOp, SetStatus, VolumeInfo,
};
use rackweave_core::{Layout, Payload, Span, Time, TracePoint, VssdId};
use rackweave_rack::capture::Capture;
use rackweave_rack::config::RackConfig;
use rackweave_rack::sim::{Contents, Coverage, Network, Sim, SimConfig};
use slab::Slab;

use super::config::{ReplayConfig, ReplayError};
use super::{LINK_QUEUE_MAX, age};
use crate::cpu::thread_cpu;
use crate::report::PolicyReport;
use crate::stats::Latencies;
use crate::trace::TraceOp;
use crate::workload::{Plan, Planned, Player, STRIPE_BYTES, Workload};

/// The one volume's name, and the one client.
const VOLUME: &str = "replay";
const CLIENT: u32 = 0;

/// Virtual time a rack may take to come up: many lease spans.
const UP_WITHIN: Span = Span::from_secs(120);
/// Between two looks at a rack that comes up.
const UP_LOOK: Span = Span::from_millis(10);
/// Requests given to the simulator at a time.
const BATCH: usize = 128;
/// Unanswered requests at which a replay counts as overloaded (each costs the simulator about a kilobyte).
const OUTSTANDING_MAX: usize = 1 << 18;
/// Virtual time the last answers may take after the last request.
const DRAIN_WITHIN: Span = Span::from_secs(3_600);

pub(super) struct Outcome {
    pub report: PolicyReport,
    pub volume_bytes: u64,
}

/// What was asked and when.
struct Asked {
    at: Time,
    op: TraceOp,
}

pub(super) fn run(
    cfg: &ReplayConfig,
    rack: &RackConfig,
    policy: &'static str,
    workload: &Workload,
) -> Result<Outcome, ReplayError> {
    let mut run = Run::up(cfg, rack, policy)?;
    let sets = run.sets(rack)?;
    let room = age::set_room(&run.sim, &sets);
    let volume_bytes = volume_bytes(room, sets.len() as u64, cfg.utilization);
    if volume_bytes == 0 {
        return Err(ReplayError::NoRoom { ssd_bytes: rack.ssd.size.0 });
    }
    let volume = run.volume(volume_bytes)?;
    age::age(&mut run.sim, &volume, &sets, cfg.seed);
    let plan = Plan { volume_bytes, speed: cfg.speed, rate: cfg.rate, seed: cfg.seed };
    let report = run.measure(cfg, &volume, &sets, workload.play(plan)?)?;
    Ok(Outcome { report, volume_bytes })
}

/// `utilization` of `sets` × `room` bytes, in whole stripes of every set.
fn volume_bytes(room: u64, sets: u64, utilization: f64) -> u64 {
    (room as f64 * utilization) as u64 / STRIPE_BYTES * STRIPE_BYTES * sets
}

struct Run {
    sim: Sim,
    policy: &'static str,
    asked: Slab<Asked>,
    read: Latencies,
    write: Latencies,
    trims: u64,
    flushes: u64,
    failed: u64,
    rounded: u64,
    first_failure: Option<Box<str>>,
}

impl Run {
    /// A rack from scratch, until its metadata service answers and every member of every set serves.
    fn up(cfg: &ReplayConfig, rack: &RackConfig, policy: &'static str) -> Result<Run, ReplayError> {
        let network = Network { queue_max: LINK_QUEUE_MAX, ..cfg.network.clone() };
        let sim_config = SimConfig { clients: 1, contents: Contents::Discard, network, ..SimConfig::new(cfg.seed) };
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
        })
    }

    /// Runs until `op` is answered.
    fn ask(&mut self, op: RequestOp) -> Result<Result<ReplyData, RequestError>, ReplayError> {
        let id = RequestId(u64::MAX);
        let start = self.sim.now();
        self.sim.submit(start, CLIENT, Request { id, op });
        loop {
            if let Some((_, _, reply)) = self.sim.take_replies().into_iter().find(|(_, _, r)| r.id == id) {
                return Ok(reply.result);
            }
            let waited = self.sim.now().since(start);
            if waited > UP_WITHIN {
                return Err(ReplayError::NotUp { waited });
            }
            self.sim.run_until(self.sim.now() + Span::from_millis(1));
        }
    }

    /// The members of every set, once each of them is one.
    fn sets(&mut self, rack: &RackConfig) -> Result<Vec<Members>, ReplayError> {
        while self.sim.now() < Time::ZERO + UP_WITHIN {
            if let Ok(ReplyData::Rack(status)) = self.ask(RequestOp::Admin(AdminOp::RackStatus))? {
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

    /// Makes and attaches the volume; a flush proves that every set serves it.
    fn volume(&mut self, size: u64) -> Result<VolumeInfo, ReplayError> {
        let create = AdminOp::VolumeCreate { name: VOLUME.into(), size };
        self.ask(RequestOp::Admin(create))?.map_err(ReplayError::Volume)?;
        match self.ask(RequestOp::Attach { name: VOLUME.into() })?.map_err(ReplayError::Volume)? {
            ReplyData::Attached(volume) => {
                self.ask(RequestOp::Flush { volume: volume.id })?.map_err(ReplayError::Volume)?;
                Ok(volume)
            }
            other => unreachable!("attach answered with {other:?}"),
        }
    }

    fn measure(
        mut self,
        cfg: &ReplayConfig,
        volume: &VolumeInfo,
        sets: &[Members],
        mut player: Player<'_>,
    ) -> Result<PolicyReport, ReplayError> {
        if let Some(path) = &cfg.pcap {
            self.sim.engine_mut().capture(Capture::create(path)?);
        }
        let start = self.sim.now() + UP_LOOK;
        let before = Counters::of(&self.sim, sets);
        let cpu = thread_cpu();
        let mut left = cfg.requests;
        while left > 0 {
            let batch = left.min(BATCH as u64);
            let mut until = start;
            for _ in 0..batch {
                let planned = player.advance()?;
                until = start + planned.at;
                self.submit(until, volume, &planned);
            }
            left -= batch;
            self.sim.run_until(until);
            self.take();
            if self.asked.len() > OUTSTANDING_MAX {
                let at = self.sim.now().since(start);
                return Err(ReplayError::Overloaded { policy: self.policy, outstanding: self.asked.len(), at });
            }
        }
        self.drain()?;
        if let Some(c) = self.sim.engine_mut().take_capture() {
            c.finish()?;
        }
        let cpu = Span(thread_cpu().0 - cpu.0);
        let after = Counters::of(&self.sim, sets);
        let took = self.sim.now().since(start);
        Ok(self.report(&before, &after, cpu, took))
    }

    fn submit(&mut self, at: Time, volume: &VolumeInfo, p: &Planned) {
        self.rounded += u64::from(p.rounded);
        let id = RequestId(self.asked.insert(Asked { at, op: p.op }) as u64);
        let volume = volume.id;
        let op = match p.op {
            TraceOp::Read => RequestOp::Read { volume, offset: p.offset, len: p.len as u32 },
            TraceOp::Write => {
                // Each write has contents of its own, as if from a counter.
                let data = Payload::elided(p.len as u32, at.0 ^ p.offset);
                RequestOp::Write { volume, offset: p.offset, data, fua: p.fua }
            }
            TraceOp::Trim => RequestOp::Trim { volume, offset: p.offset, len: p.len, fua: p.fua },
            TraceOp::Flush => RequestOp::Flush { volume },
        };
        self.sim.submit(at, CLIENT, Request { id, op });
    }

    fn take(&mut self) {
        for (at, _, reply) in self.sim.take_replies() {
            self.answered(at, reply);
        }
    }

    fn answered(&mut self, at: Time, reply: Reply) {
        let Some(asked) = self.asked.try_remove(reply.id.0 as usize) else { return };
        if let Err(e) = reply.result {
            self.failed += 1;
            self.first_failure.get_or_insert_with(|| e.to_string().into());
            return;
        }
        let latency = at.since(asked.at);
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

    fn report(self, before: &Counters, after: &Counters, cpu: Span, took: Span) -> PolicyReport {
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
            redirects: after.coverage.get(TracePoint::Redirect) - before.coverage.get(TracePoint::Redirect),
            gc_runs: after.gc_runs - before.gc_runs,
            erases: after.erases - before.erases,
            waf: if host == 0 { 1.0 } else { (host + moved) as f64 / host as f64 },
            cpu,
            took,
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

/// The members of one set: vSSD and the number of its server.
#[derive(Clone, Debug)]
pub(super) struct Members(pub Vec<(VssdId, u32)>);

impl Members {
    fn of(status: &SetStatus) -> Members {
        let first = Layout { servers: 0, clients: 0 }.server(0).0;
        Members(status.members.iter().map(|m| (m.vssd, m.server.0 - first)).collect())
    }
}

/// Sums over all vSSDs since the rack began.
#[derive(Clone, Debug, Default)]
struct Counters {
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
        let mut c = Counters { coverage: engine.coverage().clone(), events: engine.events(), ..Counters::default() };
        for &(vssd, server) in sets.iter().flat_map(|m| &m.0) {
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
