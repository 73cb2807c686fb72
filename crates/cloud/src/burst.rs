//! Detection of bursts (DiffForward §3.2, algorithm 1): whether a write belongs to a volume's steady traffic or to a burst.
//!
//! A virtual queue drains at the volume's average rate and grows by each write's weighted length; a write that overfills it
//! is a burst. Random writes weigh more than sequential ones. All arithmetic is on integers, so equal writes at equal times
//! give equal answers on every machine. Detection never affects safety: either path keeps every acknowledged write.

use std::collections::VecDeque;

use rackweave_core::{SECTOR, Span, Time};

use crate::client::{Route, Router};
use crate::types::Extent;

const NS_PER_S: u128 = 1_000_000_000;
/// Unit of the published code's queue.
const PAGE: u64 = 4096;
/// Compared offsets at most; a search among them is paid by every write.
pub const HISTORY_MAX: usize = 1024;
/// Weights and β are in hundredths, up to this.
pub const PERCENT_MAX: u32 = 10_000;
/// Buckets of the running average at most.
const BUCKETS_MAX: u64 = 4096;

/// The class of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Stable,
    Burst,
}

/// How the queue is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BurstPolicy {
    /// Algorithm 1 of the paper, where line 2 keeps the queue at or above zero, as its comment and the text say. The rate is
    /// the mean of the window. A burst leaves the queue full.
    Paper,
    /// The authors' published code: the queue is in pages of 4 KiB, the rate is halved and renewed each bucket
    /// (`0.5 · new + 0.5 · old`), a burst is not added to the queue, and the first write is always stable.
    Published,
}

/// Parameters of detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstConfig {
    pub policy: BurstPolicy,
    /// β, in hundredths: the factor on the threshold. A smaller one detects more.
    pub beta_percent: u32,
    /// The threshold is the average traffic of this time (TH).
    pub threshold: Span,
    /// n: previous offsets that a write is compared with.
    pub history: usize,
    /// T_ran: a write further than this from all of them is random.
    pub random_min_bytes: u64,
    /// W_seq and W_rand, in hundredths.
    pub weight_seq_percent: u32,
    pub weight_rand_percent: u32,
    /// The rate is counted in buckets of this length …
    pub bucket: Span,
    /// … and, by [`BurstPolicy::Paper`], is the mean of this time.
    pub window: Span,
}

impl BurstConfig {
    /// The paper's settings (§3.2, §5.4): n = 32, T_ran = 128 KiB, W_rand = 2 · W_seq, TH of 50 ms. W_seq = 1 and the window
    /// of a minute are assumptions.
    pub const PAPER: BurstConfig = BurstConfig {
        policy: BurstPolicy::Paper,
        beta_percent: 100,
        threshold: Span::from_millis(50),
        history: 32,
        random_min_bytes: 128 << 10,
        weight_seq_percent: 100,
        weight_rand_percent: 200,
        bucket: Span::from_secs(5),
        window: Span::from_secs(60),
    };
    /// The published code's: weights 0.5 and 1, and a capacity of 16 times the traffic of 50 ms.
    pub const PUBLISHED: BurstConfig = BurstConfig {
        policy: BurstPolicy::Published,
        beta_percent: 1600,
        weight_seq_percent: 50,
        weight_rand_percent: 100,
        ..BurstConfig::PAPER
    };

    /// # Errors
    /// A value is out of its range.
    pub fn check(&self) -> Result<(), BurstConfigError> {
        let percent = |key, value: u32| {
            let within = (1..=PERCENT_MAX).contains(&value);
            if within { Ok(()) } else { Err(BurstConfigError::Percent { key, value }) }
        };
        percent("beta_percent", self.beta_percent)?;
        percent("weight_seq_percent", self.weight_seq_percent)?;
        percent("weight_rand_percent", self.weight_rand_percent)?;
        if self.history == 0 || self.history > HISTORY_MAX {
            return Err(BurstConfigError::History { history: self.history });
        }
        if self.threshold == Span::ZERO || self.threshold > self.window {
            return Err(BurstConfigError::Threshold { threshold: self.threshold, window: self.window });
        }
        let buckets = self.window.0.checked_div(self.bucket.0).unwrap_or(0);
        if buckets == 0 || buckets > BUCKETS_MAX || !self.window.0.is_multiple_of(self.bucket.0) {
            return Err(BurstConfigError::Window { window: self.window, bucket: self.bucket });
        }
        Ok(())
    }
}

/// Why parameters of detection are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BurstConfigError {
    #[error("{key} is {value}, but it must be 1 to {PERCENT_MAX}")]
    Percent { key: &'static str, value: u32 },
    #[error("history is {history}, but it must be 1 to {HISTORY_MAX}")]
    History { history: usize },
    #[error(
        "the threshold is the traffic of {threshold}, but it must be of more than 0 and at most the window, {window}"
    )]
    Threshold { threshold: Span, window: Span },
    #[error("window {window} is not 1 to {BUCKETS_MAX} whole buckets of {bucket}")]
    Window { window: Span, bucket: Span },
}

/// The average rate of a volume's writes, bytes per second.
#[derive(Clone, Debug)]
struct Rate {
    /// Bytes of the last whole buckets, the oldest first (paper).
    buckets: VecDeque<u64>,
    sum: u64,
    bytes: u64,
    began: Option<Time>,
    bytes_per_s: u64,
}

impl Rate {
    /// Ends the buckets that are over, then counts a write.
    fn count(&mut self, cfg: &BurstConfig, now: Time, len: u64) {
        let began = *self.began.get_or_insert(now);
        let over = now.since(began).0 / cfg.bucket.0;
        match cfg.policy {
            BurstPolicy::Paper => self.slide(cfg, over),
            BurstPolicy::Published if over > 0 => self.renew(now.since(began)),
            BurstPolicy::Published => {}
        }
        if over > 0 {
            self.began = Some(match cfg.policy {
                BurstPolicy::Paper => began + cfg.bucket * over,
                BurstPolicy::Published => now,
            });
        }
        self.bytes += match cfg.policy {
            BurstPolicy::Paper => len,
            // Whole pages only, as published.
            BurstPolicy::Published => len / PAGE * PAGE,
        };
        if cfg.policy == BurstPolicy::Paper && self.buckets.is_empty() {
            // No bucket is whole yet: what was seen counts for the time of one.
            self.bytes_per_s = per_second(self.bytes, cfg.bucket);
        }
    }
    fn slide(&mut self, cfg: &BurstConfig, over: u64) {
        let most = cfg.window.0 / cfg.bucket.0;
        // After a pause of a window all buckets are empty.
        for _ in 0..over.min(most + 1) {
            let bytes = std::mem::take(&mut self.bytes);
            self.buckets.push_back(bytes);
            self.sum += bytes;
            if self.buckets.len() as u64 > most {
                self.sum -= self.buckets.pop_front().unwrap_or(0);
            }
        }
        if over > 0 {
            self.bytes_per_s = per_second(self.sum, cfg.bucket * self.buckets.len() as u64);
        }
    }
    fn renew(&mut self, took: Span) {
        let new = per_second(std::mem::take(&mut self.bytes), took);
        self.bytes_per_s = new / 2 + self.bytes_per_s / 2;
    }
}

fn per_second(bytes: u64, span: Span) -> u64 {
    (u128::from(bytes) * NS_PER_S / u128::from(span.0.max(1))) as u64
}

/// The detector of one volume.
///
/// Times given to [`Detector::write`] do not decrease; an earlier one counts as the last.
#[derive(Clone, Debug)]
pub struct Detector {
    cfg: BurstConfig,
    rate: Rate,
    /// Length of the virtual queue, in weighted bytes × 10⁹ × 100: the traffic of a nanosecond and a hundredth of weight
    /// are whole numbers.
    queue: u128,
    last: Option<Time>,
    offsets: VecDeque<u64>,
}

impl Detector {
    /// # Errors
    /// A parameter is out of its range.
    pub fn new(cfg: BurstConfig) -> Result<Detector, BurstConfigError> {
        cfg.check()?;
        let rate = Rate { buckets: VecDeque::new(), sum: 0, bytes: 0, began: None, bytes_per_s: 0 };
        Ok(Detector { cfg, rate, queue: 0, last: None, offsets: VecDeque::with_capacity(cfg.history) })
    }

    /// R, bytes per second.
    pub fn bytes_per_s(&self) -> u64 {
        self.rate.bytes_per_s
    }

    /// Classifies the next write.
    pub fn write(&mut self, now: Time, offset: u64, len: u64) -> Class {
        let now = self.last.map_or(now, |last| last.max(now));
        self.rate.count(&self.cfg, now, len);
        let drained = u128::from(self.rate.bytes_per_s) * u128::from(now.since(self.last.unwrap_or(now)).0) * 100;
        self.queue = self.queue.saturating_sub(drained);
        let first = self.last.replace(now).is_none();
        if first && self.cfg.policy == BurstPolicy::Published {
            // The published code returns before it remembers the offset.
            return Class::Stable;
        }
        let random = self.is_random(offset);
        self.remember(offset);
        let weight = if random { self.cfg.weight_rand_percent } else { self.cfg.weight_seq_percent };
        let full =
            u128::from(self.rate.bytes_per_s) * u128::from(self.cfg.threshold.0) * u128::from(self.cfg.beta_percent);
        match self.cfg.policy {
            BurstPolicy::Paper => {
                self.queue += u128::from(len) * u128::from(weight) * NS_PER_S;
                if self.queue <= full {
                    return Class::Stable;
                }
                self.queue = full;
                Class::Burst
            }
            BurstPolicy::Published => {
                let pages = u128::from(len) * u128::from(weight) / u128::from(PAGE * 100);
                let longer = self.queue + pages * u128::from(PAGE) * NS_PER_S * 100;
                if longer > full {
                    return Class::Burst;
                }
                self.queue = longer;
                Class::Stable
            }
        }
    }

    /// Equation 2 over the previous writes, j = 1 … n: with j = 0 the distance would always be 0.
    fn is_random(&self, offset: u64) -> bool {
        self.offsets.iter().all(|o| o.abs_diff(offset) > self.cfg.random_min_bytes)
    }
    fn remember(&mut self, offset: u64) {
        if self.offsets.len() == self.cfg.history {
            self.offsets.pop_front();
        }
        self.offsets.push_back(offset);
    }
}

/// Bursts go to the log, steady writes to their proxies.
impl Router for Detector {
    fn route(&mut self, now: Time, extent: Extent, bytes: u32) -> Route {
        match self.write(now, extent.first * u64::from(SECTOR), bytes.into()) {
            Class::Stable => Route::Stable,
            Class::Burst => Route::Burst,
        }
    }
}

#[cfg(test)]
#[path = "burst_tests.rs"]
mod tests;
