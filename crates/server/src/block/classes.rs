//! Online I/O before offline I/O at one vSSD (PN10): a queue each for reads, and tokens for offline writes, fewer while
//! online reads are late.
//!
//! Reads of a class wait behind each other. Offline reads start while no online one waits, and only a few at a time,
//! since a read that a die has begun is not interrupted. Pending reads of one vSSD do not delay other vSSDs, whose dies
//! are their own.

use std::collections::VecDeque;

use rackweave_core::msg::{Block, Body, Class, IoRequest, Packet};
use rackweave_core::{BLOCK, Span, Time};
use rackweave_flash::Profile;
use rackweave_sched::{TokenConfig, WriteTokens};

/// Most waiting reads of a class; a further one is refused, and its client retries at another replica.
pub const QUEUE_MAX: usize = 4_096;
/// Longest time that offline writes wait for tokens, at the current rate; further ones are refused. Shorter than the
/// clients' timeout, after which they would send the same write to another member.
const WRITES_WAIT: Span = Span::from_secs(1);
/// Offline reads get this fraction of the reads at the flash.
pub const OFFLINE_SHARE: usize = 8;
/// An online read counts as late if it takes more than twice its unloaded latency. At most 1 in 1,000 may be late, so
/// that P99 holds.
const LATE_AFTER_READS: u64 = 2;
const LATE_ONE_IN: u64 = 1000;
/// Lowest rate of offline writes, as a fraction of what the vSSD's dies can program, so that they always progress.
const RATE_MIN_PART: u64 = 1024;
/// Period of rate decisions: the time of a few erases.
const PERIOD: Span = Span::from_millis(10);

/// The waiting I/O of one vSSD.
#[derive(Debug)]
pub struct Classes {
    online: VecDeque<(Packet, Time)>,
    offline: VecDeque<(Packet, Time)>,
    writes: VecDeque<Packet>,
    /// Bytes of tokens needed by the waiting writes.
    writes_bytes: u64,
    tokens: WriteTokens,
    pub writes_delayed: u64,
}

pub fn is_offline(p: &Packet) -> bool {
    p.header.class == Class::Copper
}

impl Classes {
    /// State for a vSSD with `dies` dies.
    pub fn new(profile: &Profile, dies: usize) -> Classes {
        let page = u64::from(profile.geometry.page_bytes);
        let rate_max = (dies as u64 * page).saturating_mul(1_000_000_000) / profile.program.0.max(1);
        let tokens = WriteTokens::new(TokenConfig {
            late_after: (profile.read + Span(page * 1_000_000_000 / profile.bus_bytes_per_s.max(1))) * LATE_AFTER_READS,
            late_one_in: LATE_ONE_IN,
            rate_min: (rate_max / RATE_MIN_PART).max(page),
            rate_max: rate_max.max(page),
            period: PERIOD,
        });
        Classes {
            online: VecDeque::new(),
            offline: VecDeque::new(),
            writes: VecDeque::new(),
            writes_bytes: 0,
            tokens,
            writes_delayed: 0,
        }
    }
    /// Number of waiting reads.
    pub fn reads(&self) -> usize {
        self.online.len() + self.offline.len()
    }
    /// Number of waiting writes.
    pub fn writes(&self) -> usize {
        self.writes.len()
    }
    /// Current rate of offline writes, in bytes per second.
    pub fn rate(&self) -> u64 {
        self.tokens.rate()
    }

    /// Whether a read may start; `at_flash`: reads at the flash, and the offline ones among them.
    fn may_start(offline: bool, at_flash: (usize, usize), most: (usize, usize)) -> bool {
        at_flash.0 < most.0 && (!offline || at_flash.1 < most.1)
    }
    /// Whether an arriving read may start at once.
    pub fn at_once(&self, p: &Packet, at_flash: (usize, usize), most: (usize, usize)) -> bool {
        let first = self.online.is_empty() && (!is_offline(p) || self.offline.is_empty());
        first && Classes::may_start(is_offline(p), at_flash, most)
    }
    /// Adds a read to its queue; returns it if the queue is full.
    pub fn push_read(&mut self, now: Time, p: Packet) -> Result<(), Packet> {
        let queue = if is_offline(&p) { &mut self.offline } else { &mut self.online };
        if queue.len() >= QUEUE_MAX {
            return Err(p);
        }
        queue.push_back((p, now));
        Ok(())
    }
    /// The next read that may start, and its arrival time.
    pub fn pop_read(&mut self, at_flash: (usize, usize), most: (usize, usize)) -> Option<(Packet, Time)> {
        let offline = self.online.is_empty();
        if !Classes::may_start(offline, at_flash, most) {
            return None;
        }
        let queue = if offline { &mut self.offline } else { &mut self.online };
        queue.pop_front()
    }
    /// Records the latency of an online read, including waiting.
    pub fn read_took(&mut self, took: Span) {
        self.tokens.read(took);
    }

    /// Takes the tokens of an arriving mutation. False if it must wait.
    pub fn write_at_once(&mut self, now: Time, p: &Packet) -> bool {
        match cost(p) {
            Some(bytes) => self.writes.is_empty() && self.tokens.take(now, bytes),
            None => true,
        }
    }
    /// Adds a write to the queue; returns it if the queue is full.
    pub fn push_write(&mut self, p: Packet) -> Result<(), Packet> {
        let most = self.tokens.rate() / (1_000_000_000 / WRITES_WAIT.0);
        if !self.writes.is_empty() && self.writes_bytes >= most {
            return Err(p);
        }
        self.writes_bytes += u64::from(cost(&p).unwrap_or(0));
        self.writes_delayed += 1;
        self.writes.push_back(p);
        Ok(())
    }
    /// The next write, if there are tokens for it.
    pub fn pop_write(&mut self, now: Time) -> Option<Packet> {
        let bytes = self.writes.front().and_then(cost)?;
        if !self.tokens.take(now, bytes) {
            return None;
        }
        self.writes_bytes -= u64::from(bytes);
        self.writes.pop_front()
    }
    /// When the next write may start.
    pub fn deadline(&self, now: Time) -> Time {
        if self.writes.is_empty() { Time::MAX } else { self.tokens.ready_at(now) }
    }
}

/// Tokens that a packet needs, in bytes, if any. Flushes and fences concern earlier writes and need none.
fn cost(p: &Packet) -> Option<u32> {
    if !is_offline(p) {
        return None;
    }
    match &p.body {
        Body::Block(Block::Io(IoRequest::Write(w))) => Some(w.data.len()),
        // A record of the range, not its blocks.
        Body::Block(Block::Io(IoRequest::Zero { .. })) => Some(BLOCK),
        _ => None,
    }
}
