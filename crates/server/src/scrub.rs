//! Scrubbing: flash that is never read decays unseen. Every vSSD's blocks are read in turn within the configured
//! period, while the vSSD is idle. A block that fails its checksum is healed from another member, and the contents read
//! are compared with the others'.

use std::collections::VecDeque;

use rackweave_core::msg::peer::{CHUNK_BLOCKS, SCAN_MAX, ScanEntry};
use rackweave_core::{BlockAddr, Effects, Span, Time, VssdId};

use crate::node::Server;

/// Shortest interval of reads, however much there is to read: 16 MiB/s.
const EVERY_MIN: Span = Span::from_micros(250);
/// Retry interval with nothing to read.
const EMPTY_RETRY_INTERVAL: Span = Span::from_secs(60);
/// Retry interval while the vSSD is busy.
const BUSY_RETRY_INTERVAL: Span = Span::from_millis(5);
/// Retries after which it reads anyway; a busy vSSD would otherwise never be read.
const BUSY_MAX: u32 = 200;

/// Most chunks of one zeroed run that are compared: a trim of a large volume spans millions.
const ZEROED_CHUNKS_MAX: usize = 64;

/// Position of the scrub.
#[derive(Debug, Default)]
pub struct Scrub {
    slot: usize,
    /// Blocks of the current chunk.
    blocks: VecDeque<BlockAddr>,
    from: Option<BlockAddr>,
    at: Time,
    busy: u32,
    /// Blocks of the current pass and vSSD that were reached.
    seen: u64,
    /// The current pass left out a vSSD that could not be read.
    partial: bool,
    /// Completed passes over everything.
    pub passes: u64,
}

/// Mapped blocks; for a chunk without any that is zeroed, its first zeroed block, so that the chunk is compared.
fn to_read(runs: &[ScanEntry]) -> Vec<BlockAddr> {
    let chunk = |a: BlockAddr| (a.volume, a.block / CHUNK_BLOCKS);
    let mut all: Vec<BlockAddr> = Vec::new();
    for r in runs {
        if r.mapped {
            all.push(r.addr);
            continue;
        }
        let chunks =
            (r.addr.block / CHUNK_BLOCKS..=(r.addr.block + (r.count - 1)) / CHUNK_BLOCKS).take(ZEROED_CHUNKS_MAX);
        for c in chunks {
            let first = BlockAddr { block: r.addr.block.max(c * CHUNK_BLOCKS), ..r.addr };
            if all.last().is_none_or(|l| chunk(*l) != chunk(first)) {
                all.push(first);
            }
        }
    }
    all
}

impl Server {
    /// When the next block is due.
    pub(crate) fn scrub_deadline(&self) -> Time {
        let rests = self.cfg.scrub_every == Span::ZERO || self.failed || self.registration.incarnation.is_none();
        if rests { Time::MAX } else { self.scrub.at }
    }

    /// Reads the next block if it is due.
    pub(crate) fn scrub(&mut self, now: Time, fx: &mut Effects) {
        if self.scrub.at == Time::ZERO {
            // The first pass does not begin together with everything else.
            self.scrub.from = Some(BlockAddr::default());
            self.scrub.at = now + self.scrub_pause();
            return;
        }
        let i = self.scrub.slot;
        if self.vssds.get(i).is_some_and(|v| v.service.load().is_busy()) && self.scrub.busy < BUSY_MAX {
            self.scrub.busy += 1;
            self.scrub.at = now + BUSY_RETRY_INTERVAL;
            return;
        }
        if self.vssds.get(i).is_some_and(|v| !v.service.scrub_ready()) {
            // The previous range is still being compared.
            self.scrub.at = now + BUSY_RETRY_INTERVAL;
            return;
        }
        self.scrub.busy = 0;
        self.scrub.at = now + self.scrub_pause();
        let next = self.next_block();
        if (next.is_none() || self.scrub.slot != i) && i < self.vssds.len() {
            self.with(now, i, fx, |service, cx| service.end_scrub(cx));
        }
        if let Some(a) = next {
            let i = self.scrub.slot;
            self.with(now, i, fx, |service, cx| service.scrub(cx, a));
        }
    }

    /// Fraction of the vSSD's blocks reached in the current pass.
    pub(crate) fn scrub_progress(&self, vssd: VssdId) -> f64 {
        let Some(i) = self.vssds.iter().position(|v| v.cfg.id == vssd) else { return 0.0 };
        let mapped = self.ssd.space(vssd).mapped_slots.max(1);
        match i.cmp(&self.scrub.slot) {
            std::cmp::Ordering::Less => 1.0,
            std::cmp::Ordering::Equal => (self.scrub.seen as f64 / mapped as f64).min(1.0),
            std::cmp::Ordering::Greater => 0.0,
        }
    }

    /// Interval of reads that completes a pass in time.
    fn scrub_pause(&self) -> Span {
        let readable = self.vssds.iter().filter(|v| v.readable() && !v.is_log());
        let mapped: u64 = readable.map(|v| self.ssd.space(v.cfg.id).mapped_slots).sum();
        if mapped == 0 {
            EMPTY_RETRY_INTERVAL.min(self.cfg.scrub_every)
        } else {
            (self.cfg.scrub_every / mapped).max(EVERY_MIN)
        }
    }

    /// The next block on flash, of this vSSD or the next one that has any.
    fn next_block(&mut self) -> Option<BlockAddr> {
        for _ in 0..=2 * self.vssds.len() {
            if let Some(a) = self.scrub.blocks.pop_front() {
                self.scrub.seen += 1;
                return Some(a);
            }
            let Some(from) = self.scrub.from.take() else {
                // It is read completely.
                (self.scrub.slot, self.scrub.seen) = (self.scrub.slot + 1, 0);
                self.scrub.from = Some(BlockAddr::default());
                if self.scrub.slot >= self.vssds.len() {
                    let whole = !std::mem::take(&mut self.scrub.partial);
                    (self.scrub.slot, self.scrub.passes) = (0, self.scrub.passes + u64::from(whole));
                    return None;
                }
                continue;
            };
            self.scrub.partial |=
                self.vssds.get(self.scrub.slot).is_some_and(|v| !v.is_free() && !v.is_log() && !v.readable());
            if let Some(v) = self.vssds.get(self.scrub.slot).filter(|v| v.readable() && !v.is_log()) {
                let end = BlockAddr::unpack(u64::MAX);
                let mut runs = Vec::new();
                let to = self.ssd.scan(v.cfg.id, (from, end), SCAN_MAX as usize, &mut runs);
                self.scrub.from = (to < end).then_some(to);
                self.scrub.blocks.extend(to_read(&runs));
            }
        }
        None
    }
}
