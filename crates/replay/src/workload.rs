//! A trace prepared for replay: surveyed once, mapped to one volume, and played any number of times.

use std::path::{Path, PathBuf};

use rackweave_core::map::{Map, Set, map, set};
use rackweave_core::{Rng, SECTOR, Span, Time};

use crate::trace::{Format, TraceError, TraceOp, TraceReader, TraceRecord};

/// Traces of up to this many requests are kept in memory (40 bytes each); longer ones are read again in each loop.
const KEPT_MAX: u64 = 1 << 20;

/// Unit of the footprint and of regions: a stripe unit of a volume.
pub const STRIPE_BYTES: u64 = 64 << 10;

/// Stripes counted in a survey: 256 GiB touched; a trace that touches more counts as touching this much.
const STRIPES_MAX: usize = 1 << 22;

/// Longest read or write of a trace: a longer one is no I/O of a block device.
pub const IO_MAX: u64 = 1 << 30;

/// Properties of a whole trace.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    pub requests: u64,
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Time from the first request to the last.
    pub span: Span,
    /// Requests with an earlier time than their predecessor, at whose time they are replayed.
    pub out_of_order: u64,
    /// Distinct bytes touched, in whole stripes of each device.
    pub footprint_bytes: u64,
    /// Device numbers in order of appearance.
    pub devices: Vec<u32>,
}

/// Why a trace cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    #[error("{path}: {source}", path = path.display())]
    Trace { path: PathBuf, source: TraceError },
    #[error("{path}: holds no request", path = path.display())]
    Empty { path: PathBuf },
    #[error("{path}: request {request} asks for {len} bytes, more than {IO_MAX}", path = path.display())]
    TooLong { path: PathBuf, request: u64, len: u64 },
    #[error("{path}: all {requests} requests are due at once: none has a later time than the first; give a rate", path = path.display())]
    NoTimes { path: PathBuf, requests: u64 },
}

/// A surveyed trace.
#[derive(Debug)]
pub struct Workload {
    path: PathBuf,
    format: Format,
    survey: Survey,
    kept: Option<Vec<TraceRecord>>,
}

impl Workload {
    /// Reads the whole trace once.
    pub fn load(path: &Path, format: Option<Format>) -> Result<Workload, WorkloadError> {
        let trace = |source| WorkloadError::Trace { path: path.into(), source };
        let reader = TraceReader::open(path, format).map_err(trace)?;
        let format = reader.format();
        let mut surveyor = Surveyor::new();
        let mut kept = Some(Vec::new());
        for record in reader {
            let r = record.map_err(trace)?;
            if r.len > IO_MAX && r.op != TraceOp::Trim {
                let request = surveyor.survey.requests + 1;
                return Err(WorkloadError::TooLong { path: path.into(), request, len: r.len });
            }
            surveyor.add(&r);
            if surveyor.survey.requests > KEPT_MAX {
                kept = None;
            }
            if let Some(k) = &mut kept {
                k.push(r);
            }
        }
        let survey = surveyor.finish();
        if survey.requests == 0 {
            return Err(WorkloadError::Empty { path: path.into() });
        }
        Ok(Workload { path: path.into(), format, survey, kept })
    }

    pub fn survey(&self) -> &Survey {
        &self.survey
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// The endless sequence of requests, loop after loop.
    pub fn play(&self, plan: Plan) -> Result<Player<'_>, WorkloadError> {
        if plan.rate.is_none() && self.survey.span == Span::ZERO && self.survey.requests > 1 {
            return Err(WorkloadError::NoTimes { path: self.path.clone(), requests: self.survey.requests });
        }
        let mut devices = map();
        for (i, &d) in self.survey.devices.iter().enumerate() {
            devices.insert(d, i as u64);
        }
        let regions = self.survey.devices.len().max(1) as u64;
        let region_bytes = (plan.volume_bytes / regions / STRIPE_BYTES).max(1) * STRIPE_BYTES;
        Ok(Player {
            workload: self,
            source: self.pass()?,
            devices,
            region_bytes,
            loops: 0,
            first: None,
            last: Time::ZERO,
            poisson: Rng::stream(plan.seed, 1),
            clock_ns: 0.0,
            plan,
        })
    }

    fn pass(&self) -> Result<Source<'_>, WorkloadError> {
        match &self.kept {
            Some(k) => Ok(Source::Kept(k.iter())),
            None => TraceReader::open(&self.path, Some(self.format))
                .map(|r| Source::File(Box::new(r)))
                .map_err(|source| WorkloadError::Trace { path: self.path.clone(), source }),
        }
    }
}

struct Surveyor {
    survey: Survey,
    stripes: Set<(u32, u64)>,
    known: Set<u32>,
    first: Option<Time>,
    last: Time,
}

impl Surveyor {
    fn new() -> Surveyor {
        Surveyor { survey: Survey::default(), stripes: set(), known: set(), first: None, last: Time::ZERO }
    }

    fn add(&mut self, r: &TraceRecord) {
        let s = &mut self.survey;
        s.requests += 1;
        match r.op {
            TraceOp::Read => {
                s.reads += 1;
                s.bytes_read += r.len;
            }
            TraceOp::Write => {
                s.writes += 1;
                s.bytes_written += r.len;
            }
            TraceOp::Trim | TraceOp::Flush => {}
        }
        if self.known.insert(r.device) {
            s.devices.push(r.device);
        }
        self.first.get_or_insert(r.at);
        s.out_of_order += u64::from(r.at < self.last);
        self.last = self.last.max(r.at);
        if matches!(r.op, TraceOp::Read | TraceOp::Write) && r.len > 0 {
            let (first, last) = (r.offset / STRIPE_BYTES, (r.offset + (r.len - 1)) / STRIPE_BYTES);
            for stripe in first..=last {
                if self.stripes.len() < STRIPES_MAX {
                    self.stripes.insert((r.device, stripe));
                }
            }
        }
    }

    fn finish(mut self) -> Survey {
        self.survey.span = self.last.since(self.first.unwrap_or_default());
        self.survey.footprint_bytes = self.stripes.len() as u64 * STRIPE_BYTES;
        self.survey
    }
}

/// How a trace is played.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub volume_bytes: u64,
    /// Speed-up of the trace's times.
    pub speed: f64,
    /// Poisson arrivals at this number of requests per second, instead of the trace's times.
    pub rate: Option<f64>,
    pub seed: u64,
}

/// One request of the replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Time since the start of the replay.
    pub at: Span,
    pub op: TraceOp,
    /// Whole sectors inside the volume.
    pub offset: u64,
    pub len: u64,
    pub fua: bool,
    /// The request's ends in the trace were not whole sectors.
    pub rounded: bool,
}

enum Source<'a> {
    Kept(std::slice::Iter<'a, TraceRecord>),
    File(Box<TraceReader>),
}

/// The endless requests of a trace: each loop starts when the previous one would have had its next request, and uses
/// another part of each device's region. (Looped in place, a short trace would rewrite the same few blocks; victims
/// would hold no valid data, and collection would be unrealistically cheap.)
pub struct Player<'a> {
    workload: &'a Workload,
    plan: Plan,
    source: Source<'a>,
    devices: Map<u32, u64>,
    region_bytes: u64,
    loops: u64,
    first: Option<Time>,
    /// The last time of this loop, so that times do not decrease.
    last: Time,
    poisson: Rng,
    clock_ns: f64,
}

impl Player<'_> {
    /// Number of loops before this one.
    pub fn loops(&self) -> u64 {
        self.loops
    }

    /// Bytes of the volume that belong to one device.
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// The next request; there is always one.
    pub fn advance(&mut self) -> Result<Planned, WorkloadError> {
        let record = match self.pull()? {
            Some(r) => r,
            None => {
                self.loops += 1;
                self.last = Time::ZERO;
                self.source = self.workload.pass()?;
                self.pull()?.ok_or_else(|| WorkloadError::Empty { path: self.workload.path.clone() })?
            }
        };
        Ok(self.place(&record))
    }

    fn pull(&mut self) -> Result<Option<TraceRecord>, WorkloadError> {
        match &mut self.source {
            Source::Kept(records) => Ok(records.next().copied()),
            Source::File(reader) => reader
                .next()
                .transpose()
                .map_err(|source| WorkloadError::Trace { path: self.workload.path.clone(), source }),
        }
    }

    fn place(&mut self, r: &TraceRecord) -> Planned {
        let at = self.time(r.at);
        if r.op == TraceOp::Flush {
            return Planned { at, op: r.op, offset: 0, len: 0, fua: false, rounded: false };
        }
        let sector = u64::from(SECTOR);
        let start = r.offset / sector * sector;
        let end = r.offset.saturating_add(r.len).min(u64::MAX - sector).next_multiple_of(sector);
        let rounded = start != r.offset || end != r.offset.saturating_add(r.len);
        let longest = if r.op == TraceOp::Trim { self.region_bytes } else { self.region_bytes.min(IO_MAX) };
        let len = (end - start).min(longest);
        // A shift by the golden ratio per loop spreads any number of loops evenly.
        let step = (self.region_bytes as f64 * 0.618_033_988_749_895) as u64 / STRIPE_BYTES * STRIPE_BYTES;
        let shift = (u128::from(step) * u128::from(self.loops) % u128::from(self.region_bytes)) as u64;
        let inside = (start % self.region_bytes + shift) % self.region_bytes;
        let inside = inside.min(self.region_bytes - len);
        let region = self.devices.get(&r.device).copied().unwrap_or(0) * self.region_bytes;
        Planned { at, op: r.op, offset: region + inside, len, fua: r.fua, rounded }
    }

    fn time(&mut self, at: Time) -> Span {
        if let Some(rate) = self.plan.rate {
            self.clock_ns += self.poisson.exponential(1e9 / rate);
            return Span(self.clock_ns as u64);
        }
        let first = *self.first.get_or_insert(at);
        self.last = self.last.max(at).max(first);
        let survey = &self.workload.survey;
        // A loop is as long as the trace and one mean gap between requests.
        let gap = survey.span / survey.requests.saturating_sub(1).max(1);
        let period = (survey.span + gap).max(Span(1));
        let into = self.last.since(first);
        Span(((period.0 as f64 * self.loops as f64 + into.0 as f64) / self.plan.speed) as u64)
    }
}
