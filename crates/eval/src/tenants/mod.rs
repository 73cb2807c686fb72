//! Several tenants on one drive of the flash manager, in virtual time: how they disturb each other.
//!
//! A [`Tenant`] is a state machine on FlashBlox's calls: it lays out its data in a vSSD, then offers its load. A
//! [`Bench`] runs tenants against one [`FlashManager`]: it executes the drive's commands on a backend, delivers each
//! completion when the modelled device is done, wakes manager and tenants at their deadlines, and hands every answer to
//! the tenant whose token it bears. The same tenants on the same drive give the same figures.
//!
//! The order of a run: [`Bench::new`], [`Bench::alloc`] and [`Bench::add`] for each tenant, [`Bench::prepare`] (all of
//! them lay out their data), [`Bench::begin`] (all loads start), [`Bench::run`] for a warm-up, then
//! [`Bench::measure`].

mod arrivals;
pub mod block;
pub mod kv;
mod recorder;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rackweave_core::device::{Backend, Completion, DeviceCommand};
use rackweave_core::{Span, Time, VssdId};
use rackweave_flash::isolation::{Isolation, ThroughputLevels};
use rackweave_flash::manager::api::{AllocError, BlockError};
use rackweave_flash::manager::{BootError, ConfigError, Done, FlashManager, ManagerConfig, ManagerOut};
use slab::Slab;

use crate::cpu::thread_cpu;
pub use arrivals::Arrivals;
pub use recorder::{KindOutcome, Recorder, TenantOutcome};

/// Bits of a token that are the tenant's own; its number is above them.
const TENANT_SHIFT: u32 = 48;
/// The number of the bench itself.
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
    /// Begins to lay out its data.
    fn prepare(&mut self, turn: &mut Turn);
    /// Its data is laid out and nothing of that is under way.
    fn prepared(&self) -> bool;
    /// Its load starts now.
    fn begin(&mut self, turn: &mut Turn);
    /// An answer to one of its calls, with the whole token.
    fn done(&mut self, turn: &mut Turn, done: Done);
    /// When it wants [`Tenant::tick`].
    fn wake(&self) -> Option<Time>;
    fn tick(&mut self, turn: &mut Turn);
    /// Where it notes what it has done.
    fn recorder(&mut self) -> &mut Recorder;
}

/// Why a run did not end.
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

/// A drive and its tenants.
pub struct Bench<B> {
    manager: FlashManager,
    backend: B,
    now: Time,
    out: ManagerOut,
    /// Completions by the time they are due, in the order of submission.
    due: BinaryHeap<Reverse<(Time, u64, usize)>>,
    in_flight: Slab<Completion>,
    sequence: u64,
    tenants: Vec<Box<dyn Tenant>>,
    /// Answers to the bench's own calls.
    own: Vec<Done>,
}

impl<B: Backend> Bench<B> {
    /// Starts the drive.
    pub fn new(cfg: ManagerConfig, backend: B) -> Result<Bench<B>, BenchError> {
        let manager = FlashManager::new(cfg)?;
        let mut b = Bench {
            manager,
            backend,
            now: Time::ZERO,
            out: ManagerOut::new(),
            due: BinaryHeap::new(),
            in_flight: Slab::new(),
            sequence: 0,
            tenants: Vec::new(),
            own: Vec::new(),
        };
        b.manager.boot(b.now, &mut b.out);
        match b.wait_own() {
            Some(Done::Recovered { result }) => result?,
            other => unreachable!("a boot ends with its answer, not {other:?}"),
        }
        Ok(b)
    }
    /// A vSSD of that many channels, dies or soft-planes; the drive's configuration has [`unit_levels`].
    pub fn alloc(&mut self, isolation: Isolation, units: u32) -> Result<VssdId, BenchError> {
        let token = u64::from(BENCH) << TENANT_SHIFT;
        self.manager.alloc_vssd(self.now, (isolation, units - 1, 1), token, &mut self.out)?;
        match self.wait_own() {
            Some(Done::VssdAllocated { result, .. }) => Ok(result?),
            other => unreachable!("an allocation is answered, not {other:?}"),
        }
    }
    /// Gives back the unused vSSD.
    ///
    /// # Errors
    /// The drive has failed.
    pub fn dealloc(&mut self, vssd: VssdId) -> Result<(), BenchError> {
        let token = u64::from(BENCH) << TENANT_SHIFT;
        self.manager.dealloc_vssd(self.now, vssd, token, &mut self.out)?;
        match self.wait_own() {
            Some(Done::VssdFreed { result, .. }) => Ok(result?),
            other => unreachable!("a deallocation is answered, not {other:?}"),
        }
    }
    /// The tenant's number.
    pub fn add(&mut self, tenant: Box<dyn Tenant>) -> usize {
        assert!(self.tenants.len() < usize::from(BENCH), "a tenant's number has 16 bits");
        self.tenants.push(tenant);
        self.tenants.len() - 1
    }
    pub fn manager(&self) -> &FlashManager {
        &self.manager
    }
    pub fn now(&self) -> Time {
        self.now
    }
    pub fn tenant(&self, tenant: usize) -> &dyn Tenant {
        &*self.tenants[tenant]
    }

    /// All tenants lay out their data, at the same time.
    ///
    /// # Errors
    /// One of them waits for nothing.
    pub fn prepare(&mut self) -> Result<(), BenchError> {
        (0..self.tenants.len()).for_each(|i| self.turn(i, |t, turn| t.prepare(turn)));
        while let Some(tenant) = self.tenants.iter().position(|t| !t.prepared()) {
            if !self.step(Time(u64::MAX)) {
                return Err(BenchError::Stalled { tenant });
            }
        }
        Ok(())
    }
    /// All loads start.
    pub fn begin(&mut self) {
        (0..self.tenants.len()).for_each(|i| self.turn(i, |t, turn| t.begin(turn)));
    }
    /// Lets this much time pass.
    pub fn run(&mut self, span: Span) {
        let until = self.now + span;
        while self.step(until) {}
        self.now = self.now.max(until);
    }
    /// Lets this much time pass, and says what was done in it.
    pub fn measure(&mut self, span: Span) -> Vec<TenantOutcome> {
        self.measure_until(span, |_| false)
    }
    /// As [`Bench::measure`], but it may end earlier.
    pub fn measure_until(&mut self, most: Span, ended: impl Fn(&FlashManager) -> bool) -> Vec<TenantOutcome> {
        let cpu = thread_cpu();
        let (from, until) = (self.now, self.now + most);
        self.tenants.iter_mut().for_each(|t| t.recorder().open());
        let mut over = ended(&self.manager);
        while !over && self.step(until) {
            over = ended(&self.manager);
        }
        if !over {
            self.now = until;
        }
        let cpu = Span(thread_cpu().0 - cpu.0);
        let window = self.now.since(from);
        self.tenants.iter_mut().map(|t| t.recorder().close(window, cpu)).collect()
    }
    /// Does something with the drive now.
    pub fn act<T>(&mut self, what: impl FnOnce(Time, &mut FlashManager, &mut ManagerOut) -> T) -> T {
        let result = what(self.now, &mut self.manager, &mut self.out);
        self.settle();
        result
    }
    /// Gives the tenant a turn out of order: a switch of its mode, say.
    pub fn turn(&mut self, tenant: usize, what: impl FnOnce(&mut dyn Tenant, &mut Turn)) {
        let mut turn = Turn { now: self.now, manager: &mut self.manager, out: &mut self.out, tenant: tenant as u16 };
        what(&mut *self.tenants[tenant], &mut turn);
        self.settle();
    }

    /// Executes the drive's commands and hands out its answers, until there are none left.
    fn settle(&mut self) {
        loop {
            for c in std::mem::take(&mut self.out.commands) {
                self.submit(c);
            }
            if self.out.done.is_empty() {
                return;
            }
            for d in std::mem::take(&mut self.out.done) {
                self.deliver(d);
            }
        }
    }
    fn submit(&mut self, c: DeviceCommand) {
        let result = self.backend.execute(&c.op);
        let completion = Completion { ssd: c.ssd, tag: c.tag, result };
        let slot = self.in_flight.insert(completion);
        self.sequence += 1;
        self.due.push(Reverse((c.done_at.max(self.now), self.sequence, slot)));
    }
    fn deliver(&mut self, done: Done) {
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
        let tenant = (token >> TENANT_SHIFT) as u16;
        if tenant == BENCH {
            return self.own.push(done);
        }
        let mut turn = Turn { now: self.now, manager: &mut self.manager, out: &mut self.out, tenant };
        self.tenants[usize::from(tenant)].done(&mut turn, done);
    }
    /// Delivers the event that is due first, if that is not after `until`. False: there is none.
    fn step(&mut self, until: Time) -> bool {
        self.settle();
        let completion = self.due.peek().map(|Reverse((at, ..))| *at);
        let wake = self.manager.wake();
        let tenant = (0..self.tenants.len()).filter_map(|i| Some((self.tenants[i].wake()?, i))).min();
        let first = [completion, wake, tenant.map(|t| t.0)].into_iter().flatten().min();
        let Some(at) = first.filter(|at| *at <= until) else { return false };
        self.now = self.now.max(at);
        if completion == Some(at) {
            let Reverse((.., slot)) = self.due.pop().expect("it was there");
            let completion = self.in_flight.remove(slot);
            self.manager.handle(self.now, completion, &mut self.out);
        } else if wake == Some(at) {
            self.manager.tick(self.now, &mut self.out);
        } else if let Some((_, i)) = tenant {
            self.turn(i, |t, turn| t.tick(turn));
        }
        self.settle();
        true
    }
    fn wait_own(&mut self) -> Option<Done> {
        while self.own.is_empty() {
            if !self.step(Time(u64::MAX)) {
                return None;
            }
        }
        self.own.pop()
    }
}

/// Throughput level `n` is `n + 1` units.
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
