//! Unflushed contents of this client's share of a set, kept for resending.
//!
//! When all replicas of a set fail together, the set recovers with the contents on flash (protocol rules 6 and 11).
//! Each answer of a replica names the epoch in which its set last recovered whole. A surviving client thus sees that
//! earlier answered writes may be lost (as an NFS client does by the verifier of COMMIT, RFC 1813 §3.3.21), and resends
//! them. Only the newest contents of every sector are kept, so overwritten contents never return.

use std::collections::BTreeMap;

use rackweave_core::{Epoch, MESSAGE_MAX, Payload, SECTORS_PER_BLOCK};

/// Bytes that a kept range counts for beside its contents.
const RANGE_BYTES: u64 = 128;

/// Sectors `first..end`, and their contents; `None` is zeroes.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    pub first: u64,
    pub end: u64,
    pub data: Option<Payload>,
}

#[derive(Debug)]
struct Kept {
    end: u64,
    data: Option<Payload>,
    /// The share's count of answered mutations when this one was answered.
    stamp: u64,
    /// Epoch of the set's last recovery, as its answer had it.
    recovered: Epoch,
    /// The job that sends it again.
    sending: Option<u32>,
}

impl Kept {
    fn bytes(&self) -> u64 {
        let data = match &self.data {
            None | Some(Payload::Zero { .. }) => 0,
            Some(d) => u64::from(d.len()),
        };
        RANGE_BYTES + data
    }
}

/// Unflushed mutations that are not kept: a recovery loses them.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    stamp: u64,
    recovered: Epoch,
}

/// Keeps nothing while writes are in doubt: the next flush settles all, or reports that writes were lost.
#[derive(Debug, Default)]
pub struct Unflushed {
    /// By first sector; they do not overlap.
    ranges: BTreeMap<u64, Kept>,
    bytes: u64,
    doubt: Option<Doubt>,
}

impl Unflushed {
    /// Bytes that the kept ranges count as.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A mutation was answered. `keep`: it is not durable yet.
    pub fn answered(&mut self, c: Contents, stamp: u64, recovered: Epoch, keep: bool) {
        if self.doubt.is_some() {
            if keep {
                self.doubtful(stamp, recovered);
            }
            return;
        }
        self.cut(c.first, c.end);
        if keep {
            let data = c.data.map(own);
            self.insert(c.first, Kept { end: c.end, data, stamp, recovered, sending: None });
        }
    }

    fn insert(&mut self, first: u64, k: Kept) {
        self.bytes += k.bytes();
        self.ranges.insert(first, k);
    }

    fn cut(&mut self, first: u64, end: u64) {
        let before = self.ranges.range(..first).next_back().filter(|(_, k)| k.end > first).map(|(&at, _)| at);
        let mut next = before.filter(|_| !mutant!("block.unflushed.keeps-older")).or_else(|| self.first_in(first, end));
        while let Some(at) = next {
            let Some(k) = self.ranges.remove(&at) else { return };
            self.bytes -= k.bytes();
            if at < first {
                self.insert(at, part(&k, at, at, first));
            }
            if k.end > end {
                self.insert(end, part(&k, at, end, k.end));
            }
            next = self.first_in(first, end);
        }
    }

    fn first_in(&self, first: u64, end: u64) -> Option<u64> {
        self.ranges.range(first..end).next().map(|(&at, _)| at)
    }

    fn doubtful(&mut self, stamp: u64, recovered: Epoch) {
        let d = self.doubt.get_or_insert(Doubt { stamp, recovered });
        d.stamp = d.stamp.max(stamp);
        d.recovered = d.recovered.min(recovered);
    }

    /// Keeps nothing from now on: too much, or the order of kept and sent contents is unknown.
    pub fn give_up(&mut self) {
        for (_, k) in std::mem::take(&mut self.ranges) {
            self.doubtful(k.stamp, k.recovered);
        }
        self.bytes = 0;
    }

    /// Something answered before the recovery in `epoch` is neither flushed nor kept.
    pub fn lost(&self, epoch: Epoch) -> bool {
        self.doubt.is_some_and(|d| d.recovered < epoch && !mutant!("block.lost.silent"))
    }

    /// The loss was reported: writes answered since are in doubt from now on.
    pub fn reported(&mut self, epoch: Epoch) {
        if let Some(d) = &mut self.doubt {
            d.recovered = d.recovered.max(epoch);
        }
    }

    /// A flush requested when the share had counted `mark` answers is done.
    pub fn flushed(&mut self, mark: u64) {
        self.doubt = self.doubt.filter(|d| d.stamp > mark);
        let mut bytes = 0;
        self.ranges.retain(|_, k| {
            let stays = k.stamp > mark && !mutant!("block.unflushed.all-flushed");
            bytes += if stays { k.bytes() } else { 0 };
            stays
        });
        self.bytes = bytes;
    }

    /// Contents answered before the recovery in `epoch` that are not being resent yet; this job does from now on.
    pub fn take_old(&mut self, epoch: Epoch, job: u32) -> Vec<Contents> {
        let old = |(_, k): &(&u64, &Kept)| k.recovered < epoch && k.sending.is_none();
        let old: Vec<u64> = self.ranges.iter().filter(old).map(|(&at, _)| at).collect();
        let mut out = Vec::with_capacity(old.len());
        for first in old {
            for at in self.split_zeroes(first) {
                let Some(k) = self.ranges.get_mut(&at) else { continue };
                k.sending = Some(job);
                out.push(Contents { first: at, end: k.end, data: k.data.clone() });
            }
        }
        out
    }

    /// Zeroes that do not begin and end with a block become whole blocks and contents beside them.
    fn split_zeroes(&mut self, at: u64) -> Vec<u64> {
        let spb = u64::from(SECTORS_PER_BLOCK);
        let ragged = |k: &&Kept| k.data.is_none() && !(at.is_multiple_of(spb) && k.end.is_multiple_of(spb));
        let Some(end) = self.ranges.get(&at).filter(ragged).map(|k| k.end) else { return vec![at] };
        let Some(k) = self.ranges.remove(&at) else { return Vec::new() };
        self.bytes -= k.bytes();
        let mut places = Vec::new();
        let (head, tail) = (at.next_multiple_of(spb).min(end), (end / spb * spb).max(at));
        for (from, to, whole) in [(at, head, false), (head, tail, true), (tail.max(head), end, false)] {
            if from >= to {
                continue;
            }
            let data = (!whole).then_some(Payload::Zero { sectors: (to - from) as u32 });
            self.insert(from, Kept { data, ..part(&k, at, from, to) });
            places.push(from);
        }
        places
    }

    /// Whether the job is still to send exactly these sectors: another one sends what was written there since.
    pub fn wanted(&self, first: u64, end: u64, job: u32) -> bool {
        let this = |k: &Kept| k.sending == Some(job) || k.sending.is_some() && mutant!("block.resend.any-job");
        self.ranges.get(&first).is_some_and(|k| this(k) && k.end == end)
    }
}

/// Sectors `from..to` of a range that begins at `at`.
fn part(k: &Kept, at: u64, from: u64, to: u64) -> Kept {
    let data = k.data.as_ref().map(|d| own(d.slice((from - at) as u32, (to - from) as u32)));
    Kept { end: to, data, sending: None, ..*k }
}

/// A few sectors must not keep a whole receive buffer in memory.
fn own(data: Payload) -> Payload {
    match data {
        Payload::Bytes(_) | Payload::Summed(_) if data.len() < MESSAGE_MAX => {
            Payload::Bytes(data.bytes().map_or_else(bytes::Bytes::new, bytes::Bytes::copy_from_slice))
        }
        other => other,
    }
}
