//! The drive under both layers, the page layer ([`crate::Ssd`]) and the flash manager ([`crate::manager`]): its clock,
//! its commands in flight, its erase blocks and their map, and its failure.

mod blocks;
pub(crate) mod copies;
mod free;
pub(crate) mod map;
mod units;

use bytes::Bytes;
use rackweave_core::device::{Completion, DeviceCommand, DeviceData, DeviceError, DeviceOp};
use rackweave_core::{Span, SsdId, Time};
use slab::Slab;

use crate::profile::Profile;
use crate::timing::{Clock, Suspends, Timing};
pub(crate) use blocks::{EraseBlocks, LastErase};
pub(crate) use free::FreeBlocks;
pub(crate) use map::BlockMap;
pub use units::Free;
pub(crate) use units::FreeUnits;

/// `P`: what a layer keeps of a command in flight.
#[derive(Debug)]
pub(crate) struct Drive<P> {
    id: SsdId,
    timing: Timing,
    sync_span: Span,
    pub(crate) clock: Clock,
    /// By tag.
    pub(crate) pending: Slab<P>,
    /// By physical number.
    pub(crate) blocks: EraseBlocks,
    pub(crate) map: BlockMap,
    failed: Option<DeviceError>,
}

impl<P> Drive<P> {
    pub(crate) fn new(
        id: SsdId,
        p: &Profile,
        map: BlockMap,
        (timing, sync_span): (Timing, Span),
        suspends: Suspends,
    ) -> Drive<P> {
        let mut clock = Clock::new(p, timing);
        clock.suspend(p, suspends);
        let blocks = EraseBlocks::new(&p.geometry);
        Drive { id, timing, sync_span, clock, pending: Slab::new(), blocks, map, failed: None }
    }
    /// The first failure: it is final, and no later success hides it (protocol rule 12).
    pub(crate) fn failed(&self) -> Option<DeviceError> {
        self.failed
    }
    pub(crate) fn fail(&mut self, e: DeviceError) {
        self.failed.get_or_insert(e);
    }

    /// `collects`: a program of the collector, which reads may suspend by a rule of its own.
    pub(crate) fn submit(
        &mut self,
        now: Time,
        pending: P,
        (op, done_at): (DeviceOp, Time),
        collects: bool,
        commands: &mut Vec<DeviceCommand>,
    ) {
        let tag = self.pending.insert(pending) as u64;
        let done_at = if self.timing == Timing::None { now } else { done_at };
        self.clock.submitted(tag, &op, collects, done_at);
        commands.push(DeviceCommand { ssd: self.id, tag, op, done_at });
    }
    /// [`Self::submit`] of a command that names its block by the address.
    pub(crate) fn submit_at_address(
        &mut self,
        now: Time,
        pending: P,
        (mut op, done_at): (DeviceOp, Time),
        collects: bool,
        commands: &mut Vec<DeviceCommand>,
    ) {
        if !self.map.is_identity()
            && let Some(block) = op.block_mut()
        {
            *block = self.map.place(*block);
        }
        self.submit(now, pending, (op, done_at), collects, commands);
    }
    pub(crate) fn sync(&mut self, now: Time, pending: P, commands: &mut Vec<DeviceCommand>) {
        self.submit(now, pending, (DeviceOp::Sync, now + self.sync_span), false, commands);
    }
    pub(crate) fn read_meta(
        &mut self,
        now: Time,
        pending: P,
        (offset, len): (u64, u32),
        commands: &mut Vec<DeviceCommand>,
    ) {
        let done_at = self.clock.meta(now, u64::from(len), false);
        self.submit(now, pending, (DeviceOp::ReadMeta { offset, len }, done_at), false, commands);
    }
    pub(crate) fn write_meta(
        &mut self,
        now: Time,
        pending: P,
        (offset, data): (u64, Bytes),
        commands: &mut Vec<DeviceCommand>,
    ) {
        let done_at = self.clock.meta(now, data.len() as u64, true);
        self.submit(now, pending, (DeviceOp::WriteMeta { offset, data }, done_at), false, commands);
    }
    /// The command that a completion is of, with its result. None: it is not done yet, or not in flight.
    pub(crate) fn finish(
        &mut self,
        now: Time,
        c: Completion,
        commands: &mut Vec<DeviceCommand>,
    ) -> Option<(P, Result<DeviceData, DeviceError>)> {
        match self.clock.finish(now, c) {
            Ok(c) => self.pending.try_remove(c.tag as usize).map(|p| (p, c.result)),
            Err(wait) => {
                commands.push(wait);
                None
            }
        }
    }
}
