//! Several tenants on one drive of the flash manager in virtual time, to measure their interference.
//!
//! A [`Tenant`] is a state machine on FlashBlox's calls: it fills a vSSD with its data, then offers its load. Manager and
//! tenants are one node of the [`rackweave_sim`] engine, which wakes them at their deadlines and passes every answer to
//! the tenant of its token. The same tenants on the same drive give the same figures.
//!
//! Order of calls: [`Bench::new`], [`Bench::alloc`] and [`Bench::add`] for each tenant, [`Bench::prepare`] (all fill
//! their vSSDs), [`Bench::begin`] (all loads start), [`Bench::run`] for a warm-up, then [`Bench::measure`].

mod arrivals;
pub mod block;
pub mod kv;
mod recorder;

use rackweave_core::device::Backend;
use rackweave_core::{Effects, Event, Node, Span, Time, VssdId};
use rackweave_flash::isolation::{Isolation, ThroughputLevels};
use rackweave_flash::manager::api::{AllocError, BlockError};
use rackweave_flash::manager::{BootError, ConfigError, Done, FlashManager, ManagerConfig, ManagerOut};
use rackweave_sim::{Disk, Single};

pub use arrivals::Arrivals;
use rackweave_replay::cpu::thread_cpu;
pub use recorder::{KindOutcome, Recorder, TenantOutcome};

/// Bits of a token that are the tenant's own; its number is above them.
const TENANT_SHIFT: u32 = 48;
/// The tenant number of the bench itself.
const BENCH: u16 = u16::MAX;

/// Environment of a tenant's turn.
#[derive(Debug)]
pub struct Turn<'a> {
    pub now: Time,
    pub manager: &'a mut FlashManager,
    pub out: &'a mut ManagerOut,
    tenant: u16,
}

impl Turn<'_> {
    /// Offset of the tenant's own tokens, which are below 2^48, so that their answers reach it.
    pub fn token_base(&self) -> u64 {
        u64::from(self.tenant) << TENANT_SHIFT
    }
}

/// The tenant's own part of a token.
pub fn own_token(token: u64) -> u64 {
    token & ((1 << TENANT_SHIFT) - 1)
}

/// A user of a vSSD, with its load.
pub trait Tenant {
    /// Starts to fill its vSSD.
    fn prepare(&mut self, turn: &mut Turn);
    /// Whether its data is complete and nothing is pending.
    fn prepared(&self) -> bool;
    /// Starts its load.
    fn begin(&mut self, turn: &mut Turn);
    /// An answer to one of its calls, with the whole token.
    fn done(&mut self, turn: &mut Turn, done: Done);
    /// When it needs [`Tenant::tick`].
    fn wake(&self) -> Option<Time>;
    fn tick(&mut self, turn: &mut Turn);
    /// The record of its requests.
    fn recorder(&mut self) -> &mut Recorder;
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Boot(#[from] BootError),
    #[error(transparent)]
    Alloc(#[from] AllocError),
    #[error(transparent)]
    Dealloc(#[from] BlockError),
    #[error("tenant {tenant} waits for nothing and has not laid out its data")]
    Stalled { tenant: usize },
}

/// A drive's manager and its tenants.
struct Drive {
    manager: FlashManager,
    out: ManagerOut,
    tenants: Vec<Box<dyn Tenant>>,
    /// Answers to the bench's own calls.
    own: Vec<Done>,
}

impl Drive {
    /// When the manager or a tenant must be woken.
    fn wake(&self) -> Option<Time> {
        self.manager.wake().into_iter().chain(self.tenants.iter().filter_map(|t| t.wake())).min()
    }
    fn turn(&mut self, now: Time, tenant: usize, what: impl FnOnce(&mut dyn Tenant, &mut Turn)) {
        let Drive { manager, out, tenants, .. } = self;
        what(&mut *tenants[tenant], &mut Turn { now, manager, out, tenant: tenant as u16 });
    }
    /// Wakes the first one that is due, the manager before tenants: only one, since it may change the others' deadlines.
    fn tick(&mut self, now: Time) {
        let first = (0..self.tenants.len()).filter_map(|i| Some((self.tenants[i].wake()?, i))).min();
        let first = first.filter(|(at, _)| *at <= now);
        if self.manager.wake().is_some_and(|at| at <= first.map_or(now, |(at, _)| at)) {
            self.manager.tick(now, &mut self.out);
        } else if let Some((_, tenant)) = first {
            self.turn(now, tenant, |t, turn| t.tick(turn));
        }
    }
    /// Passes on commands and answers, until there are none left.
    fn settle(&mut self, now: Time, fx: &mut Effects) {
        loop {
            fx.commands.append(&mut self.out.commands);
            if self.out.done.is_empty() {
                return fx.wake_at(self.wake().unwrap_or(Time::MAX));
            }
            for d in std::mem::take(&mut self.out.done) {
                self.deliver(now, d);
            }
        }
    }
    fn deliver(&mut self, now: Time, done: Done) {
        let token = match &done {
            Done::VssdAllocated { token, .. }
            | Done::VssdFreed { token, .. }
            | Done::BlockAllocated { token, .. }
            | Done::Written { token, .. }
            | Done::Read { token, .. }
            | Done::Synced { token, .. } => *token,
            Done::Recovered { .. } => u64::from(BENCH) << TENANT_SHIFT,
            Done::Swapped => return,
        };
        match (token >> TENANT_SHIFT) as u16 {
            BENCH => self.own.push(done),
            tenant => self.turn(now, tenant.into(), |t, turn| t.done(turn, done)),
        }
    }
}

impl Node for Drive {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        match event {
            Event::Completion(c) => self.manager.handle(now, c, &mut self.out),
            _ => self.tick(now),
        }
        self.settle(now, fx);
        // Overdue deadlines come before the other completions of this instant.
        while self.wake().is_some_and(|at| at < now) {
            self.tick(now);
            self.settle(now, fx);
        }
    }
}

/// A drive and its tenants.
pub struct Bench {
    sim: Single<Drive>,
}

impl Bench {
    /// Starts the drive.
    pub fn new(cfg: ManagerConfig, backend: impl Backend + 'static) -> Result<Bench, BenchError> {
        let (ssd, manager) = (cfg.id, FlashManager::new(cfg)?);
        let drive = Drive { manager, out: ManagerOut::new(), tenants: Vec::new(), own: Vec::new() };
        let mut b = Bench { sim: Single::new(drive, ssd, Disk::Plain(Box::new(backend))) };
        b.act(|now, m, out| m.boot(now, out));
        match b.wait_own() {
            Some(Done::Recovered { result }) => result?,
            other => unreachable!("a boot ends with its answer, not {other:?}"),
        }
        Ok(b)
    }
    /// Allocates a vSSD of this number of channels, dies or soft-planes; the drive's configuration has [`unit_levels`].
    pub fn alloc(&mut self, isolation: Isolation, units: u32) -> Result<VssdId, BenchError> {
        let token = u64::from(BENCH) << TENANT_SHIFT;
        self.act(|now, m, out| m.alloc_vssd(now, (isolation, units - 1, 1), token, out))?;
        match self.wait_own() {
            Some(Done::VssdAllocated { result, .. }) => Ok(result?),
            other => unreachable!("an allocation is answered, not {other:?}"),
        }
    }
    /// Releases an unused vSSD.
    ///
    /// # Errors
    /// The drive has failed.
    pub fn dealloc(&mut self, vssd: VssdId) -> Result<(), BenchError> {
        let token = u64::from(BENCH) << TENANT_SHIFT;
        self.act(|now, m, out| m.dealloc_vssd(now, vssd, token, out))?;
        match self.wait_own() {
            Some(Done::VssdFreed { result, .. }) => Ok(result?),
            other => unreachable!("a deallocation is answered, not {other:?}"),
        }
    }
    /// Adds a tenant; returns its number.
    pub fn add(&mut self, tenant: Box<dyn Tenant>) -> usize {
        let tenants = &mut self.sim.node_mut().tenants;
        assert!(tenants.len() < usize::from(BENCH), "a tenant's number has 16 bits");
        tenants.push(tenant);
        tenants.len() - 1
    }
    pub fn manager(&self) -> &FlashManager {
        &self.sim.node().manager
    }
    pub fn now(&self) -> Time {
        self.sim.now()
    }
    pub fn tenant(&self, tenant: usize) -> &dyn Tenant {
        &*self.sim.node().tenants[tenant]
    }

    /// Lets all tenants fill their vSSDs at the same time.
    ///
    /// # Errors
    /// A tenant stopped making progress.
    pub fn prepare(&mut self) -> Result<(), BenchError> {
        self.all(|t, turn| t.prepare(turn));
        while let Some(tenant) = self.sim.node().tenants.iter().position(|t| !t.prepared()) {
            if !self.sim.step() {
                return Err(BenchError::Stalled { tenant });
            }
        }
        Ok(())
    }
    /// Starts all loads.
    pub fn begin(&mut self) {
        self.all(|t, turn| t.begin(turn));
    }
    fn all(&mut self, what: impl Fn(&mut dyn Tenant, &mut Turn)) {
        (0..self.sim.node().tenants.len()).for_each(|i| self.turn(i, &what));
    }
    /// Lets this much time pass.
    pub fn run(&mut self, span: Span) {
        self.sim.run_until(self.now() + span);
    }
    /// Lets this much time pass, and returns the tenants' results in it.
    pub fn measure(&mut self, span: Span) -> Vec<TenantOutcome> {
        self.measure_until(span, |_| false)
    }
    /// As [`Bench::measure`], but it may end earlier.
    pub fn measure_until(&mut self, most: Span, ended: impl Fn(&FlashManager) -> bool) -> Vec<TenantOutcome> {
        let cpu = thread_cpu();
        let (from, until) = (self.now(), self.now() + most);
        self.sim.node_mut().tenants.iter_mut().for_each(|t| t.recorder().open());
        while !ended(self.manager()) {
            if self.sim.next_time().is_none_or(|at| at > until) {
                self.sim.run_until(until);
                break;
            }
            self.sim.step();
        }
        let cpu = Span(thread_cpu().0 - cpu.0);
        let window = self.now().since(from);
        self.sim.node_mut().tenants.iter_mut().map(|t| t.recorder().close(window, cpu)).collect()
    }
    /// Calls `what` with the drive now.
    pub fn act<T>(&mut self, what: impl FnOnce(Time, &mut FlashManager, &mut ManagerOut) -> T) -> T {
        self.sim.act(|drive, now, fx| {
            let result = what(now, &mut drive.manager, &mut drive.out);
            drive.settle(now, fx);
            result
        })
    }
    /// Gives the tenant an extra turn, for example to switch its mode.
    pub fn turn(&mut self, tenant: usize, what: impl FnOnce(&mut dyn Tenant, &mut Turn)) {
        self.sim.act(|drive, now, fx| {
            drive.turn(now, tenant, what);
            drive.settle(now, fx);
        });
    }
    fn wait_own(&mut self) -> Option<Done> {
        while self.sim.node().own.is_empty() {
            if !self.sim.step() {
                return None;
            }
        }
        self.sim.node_mut().own.pop()
    }
}

/// Throughput levels where level `n` has `n + 1` units.
pub fn unit_levels(cfg: &ManagerConfig) -> ThroughputLevels {
    let g = &cfg.profile.geometry;
    let up_to = |n: u32| (1..=n).collect();
    ThroughputLevels {
        channels: up_to(u32::from(g.channels)),
        dies: up_to(g.dies()),
        soft_planes: up_to(g.dies() * u32::from(cfg.soft_planes_per_die)),
    }
}

#[cfg(test)]
#[path = "tenants_tests.rs"]
mod tests;
