//! Cells: a rack under one policy or baseline and one generated load, in virtual time, and the result. RackBlox's
//! figures (§4) consist of cells.
//!
//! [`load`] draws the requests, [`super::replay`]'s rack answers them; [`run_all`] takes cells to all cores. Equal cells
//! give equal numbers.

pub mod load;
pub(crate) mod ports;
mod scheme;
mod vdc;

use std::cell::RefCell;

use rackweave_config::{BlockingConfig, Isolation, Levels, RackConfig, SchedSection, Size};
use rackweave_core::{BLOCK, Rng};
use rackweave_rack::sim::{ReadWeights, SimConfig};
use rackweave_sim::Network;
use serde_json::{Value, json};

pub use load::{Load, Pattern};
pub use ports::Ports;
pub use scheme::Scheme;

use crate::cpu::on_all_cores;
use crate::replay::run::{Length, Run};
use crate::replay::{ReplayError, TIMEOUT_MS, WINDOW, age, size};
use crate::report::{ERASES_DIFFER_MAX, PolicyReport};

/// Least reads (or four times the writes, without reads) of a counted cell of a full form.
pub const READS_MIN: u64 = 1_000_000;
/// A cell whose busiest die or bus is busy for more than this fraction shows a queue, not a policy.
pub const BUSY_MAX: f64 = 0.90;
/// The testbed: one of five servers runs the clients (§3.7).
pub const SERVERS: u32 = 4;
/// §3.1: two replicas in the rack; the third is in another rack.
pub const REPLICAS: u32 = 2;
/// Client nodes (tenants), each with a volume. With few of them a single popular block would limit the load, since its
/// writes are sequential and its reads go to one die.
pub const CLIENTS: u32 = 16;
/// Bytes of a modelled drive: enough erase blocks for a collector on eight dies, but a fraction of the paper's 1 TB, so
/// that a million reads see dozens of collections of each vSSD.
pub const SSD_BYTES: u64 = 2 << 30;
/// Channels of a drive: one for each of its vSSDs, as in the paper, where a vSSD of 64 GB is a channel of P-SSD. A rack
/// with fewer dies answers fewer requests per second, so a given number of requests sees more of collection.
pub const CHANNELS: u16 = 2;
/// Free ÷ spare blocks at the start of a cell, from the first set to the last. RB16 consumes half of the free blocks and
/// runs the workload until collection starts; the sets then lie between the soft threshold and the end of an episode.
pub const FREE_AFTER: (f64, f64) = (0.36, 0.45);
/// Overwrites of a cell's volumes before its start, by the law of its own writes, after which the amount that collection
/// moves is stable. On a drive that was only filled it would move less at first.
pub const WEAR_IN: f64 = 2.0;
/// Writes before the measured ones. On drives of [`SSD_BYTES`] they take a third of each vSSD's spare blocks, which is
/// more than lies between the regular threshold and the end of an episode, so each has collected by its scheme's rules.
pub const WARM_UP_WRITES: u64 = 100_000;
/// Stream of the seed for [`WEAR_IN`].
const WEAR_IN_STREAM: u64 = 0x7765_6172;

/// Bytes of a drive, and writes before the measured ones, of the short forms' cells.
const SHORT_SSD_BYTES: u64 = SSD_BYTES / 2;
const SHORT_WARM_UP_WRITES: u64 = WARM_UP_WRITES / 4;

/// Parameters of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub policy: Scheme,
    /// The name of a built-in device profile.
    pub profile: String,
    pub network: Network,
    /// Bytes of a modelled drive, and channels of it.
    pub ssd_bytes: u64,
    pub channels: u16,
    pub load: Load,
    /// Planned utilization of all dies together ([`load::rate`]).
    pub utilization: f64,
    pub seed: u64,
    /// Overwrites before the load ([`WEAR_IN`]).
    pub wear_in: f64,
    /// 4 KiB slots of each vSSD's write cache, if not the configuration's.
    pub cache_slots: Option<u64>,
    /// Each write is on flash on every replica when it is answered, so the cache hides no program.
    pub write_through: bool,
    /// Reads suspend erases and the collector's programs, under any scheme.
    pub suspends: bool,
    /// Reads suspend programs of host writes.
    pub host_program_suspend: bool,
    /// Requests before the measured ones, and measured.
    pub warm_up: u64,
    pub requests: u64,
    /// Unit of collection that a read waits for (protocol rule 21).
    pub blocking: BlockingConfig,
    /// Isolation of the vSSDs of a drive.
    pub isolation: Isolation,
    /// The servers' schedulers, if not as the policy says.
    pub sched: Option<SchedSection>,
    /// Two racks, each with this number of servers, and a third replica in the other one; the value says whether reads go
    /// there when both home replicas collect.
    pub far_reads: Option<bool>,
    pub servers: u32,
    pub clients: u32,
    /// Queues at the switch's ports, if there are any.
    pub ports: Option<Ports>,
    /// What the switch counts collection and erases as.
    pub weights: ReadWeights,
}

impl Cell {
    /// P-SSD, the fast network, half of the dies' time, and enough requests for [`READS_MIN`] reads.
    pub fn new(policy: impl Into<Scheme>, load: Load) -> Cell {
        Cell {
            policy: policy.into(),
            profile: "p-ssd".into(),
            network: Network::fast(Network::excerpt()),
            ssd_bytes: SSD_BYTES,
            channels: CHANNELS,
            load,
            utilization: 0.5,
            seed: 1,
            wear_in: WEAR_IN,
            cache_slots: None,
            write_through: false,
            suspends: false,
            host_program_suspend: false,
            warm_up: 0,
            requests: 0,
            blocking: BlockingConfig::Page,
            isolation: Isolation::Channel,
            sched: None,
            far_reads: None,
            servers: SERVERS,
            clients: CLIENTS,
            ports: None,
            weights: ReadWeights::default(),
        }
        .reads(READS_MIN)
    }
    /// Sets the number of requests: this number of reads and at least a quarter as many writes, if there are any;
    /// before them [`WARM_UP_WRITES`], at least a tenth as many requests.
    pub fn reads(mut self, reads: u64) -> Cell {
        let needs = |count: f64, share: f64| if share > 0.0 { count / share } else { 0.0 };
        let reads = reads as f64;
        let requests = needs(reads, 1.0 - self.load.writes).max(needs(reads / 4.0, self.load.writes));
        // One in a hundred more, since reads are drawn.
        self.requests = (requests * 1.01).ceil() as u64;
        self.warm_up = (self.requests / 10).max(needs(WARM_UP_WRITES as f64, self.load.writes) as u64);
        self
    }

    /// A cell of the short forms: half as large drives, and this number of reads after a quarter of the writes before
    /// them. The schemes' tails keep their order; their erases, a few hundred, may differ by more than in a long cell.
    pub fn short(self, reads: u64) -> Cell {
        let cell = Cell { ssd_bytes: SHORT_SSD_BYTES, ..self }.reads(reads);
        let writes = if cell.load.writes > 0.0 { SHORT_WARM_UP_WRITES as f64 / cell.load.writes } else { 0.0 };
        Cell { warm_up: (cell.requests / 10).max(writes as u64), ..cell }
    }

    /// The rack, before the policy.
    fn rack(&self) -> RackConfig {
        let mut rack = RackConfig { servers: self.servers, replicas: REPLICAS, ..RackConfig::default() };
        rack.ssd.profile.clone_from(&self.profile);
        rack.ssd.size = Size(self.ssd_bytes);
        rack.ssd.channels = Some(self.channels);
        rack.ssd.blocking_unit = self.blocking;
        rack.ssd.isolation = Levels::One(self.isolation);
        rack.gc.yields = self.suspends;
        rack.ssd.host_program_suspend = self.host_program_suspend;
        rack.ssd.verify = false;
        if self.far_reads.is_some() {
            (rack.servers, rack.replicas, rack.racks.count) = (self.servers * 2, REPLICAS + 1, 2);
            rack.switch.far_reads = self.far_reads;
        }
        if let Some(slots) = self.cache_slots {
            rack.cache_slots = slots * u64::from(rack.replicas + rack.spare());
        }
        rack.client.window = WINDOW;
        rack.client.keep_kib = 0;
        rack.client.timeout_ms = TIMEOUT_MS;
        rack
    }

    /// Runs the cell.
    ///
    /// # Errors
    /// The rack cannot be built, or a request was never answered. (One that cannot keep up is a void cell.)
    pub fn run(&self) -> Result<CellReport, ReplayError> {
        let mut rack = self.policy.apply(&self.rack());
        rack.sched = self.sched.clone().unwrap_or(rack.sched);
        let costs = load::Costs::of(&rack)?.clients(self.clients);
        let rate = load::rate(&costs, &self.load, self.utilization);
        let bursts = self.ports.and_then(|p| p.apply(&mut rack, rate, &self.load, self.clients));
        rack.validate()?;
        let sim = SimConfig {
            clients: self.clients,
            network: self.network.clone(),
            controller: self.policy.controller,
            weights: self.weights,
            ..SimConfig::new(self.seed)
        };
        let mut run = Run::up(&rack, sim, self.policy.name)?;
        let sets = run.sets(&rack)?;
        let volumes = run.volumes(&sets, self.clients, size::UTILIZATION)?;
        let step = (FREE_AFTER.1 - FREE_AFTER.0) / sets.len() as f64;
        let free_after = |set: usize| FREE_AFTER.0 + step * (set as f64 + 0.5);
        let mut rng = Rng::stream(self.seed, WEAR_IN_STREAM);
        let blocks = volumes[0].size / u64::from(BLOCK);
        age::wear_in(&mut run.sim, &volumes, &sets, free_after, self.wear_in, || {
            let (client, block) = load::target(&mut rng, self.clients, blocks);
            (client as usize, block)
        });
        run.bursts = bursts;
        let mut source = load::Source::new(&self.load, rate, volumes[0].size, self.seed).clients(self.clients);
        source.write_through = self.write_through;
        if self.policy.tokens {
            source = source.through_vdc(&costs, &self.network, self.seed);
        }
        let length = Length { warm_up: self.warm_up, measured: self.requests };
        let (result, overloaded) = match run.measure(length, &volumes, &sets, || Ok(source.next())) {
            Ok(report) => (Some(report), None),
            Err(e @ ReplayError::Overloaded { .. }) => (None, Some(e.to_string().into())),
            Err(e) => return Err(e),
        };
        Ok(CellReport { policy: self.policy.name, rate, result, overloaded })
    }
}

/// Result of a cell.
#[derive(Clone, Debug)]
pub struct CellReport {
    pub policy: &'static str,
    /// Offered requests per second.
    pub rate: f64,
    /// `None` if the rack was overloaded.
    pub result: Option<PolicyReport>,
    pub overloaded: Option<Box<str>>,
}

impl CellReport {
    /// Requests answered per second of virtual time.
    pub fn iops(&self) -> f64 {
        self.result.as_ref().map_or(f64::NAN, |r| r.requests() as f64 / r.took.as_secs_f64().max(1e-9))
    }
    /// A percentile of the reads' latency in µs; NaN without reads.
    pub fn read_us(&self, part: f64) -> f64 {
        let reads = self.result.as_ref().map(|r| &r.read).filter(|l| l.count() > 0);
        reads.map_or(f64::NAN, |l| l.quantile(part).as_micros_f64())
    }
    /// The same for writes.
    pub fn write_us(&self, part: f64) -> f64 {
        let writes = self.result.as_ref().map(|r| &r.write).filter(|l| l.count() > 0);
        writes.map_or(f64::NAN, |l| l.quantile(part).as_micros_f64())
    }
    /// Why this cell alone must not be counted.
    pub fn void(&self, reads_min: u64) -> Option<Box<str>> {
        if let Some(why) = &self.overloaded {
            return Some(why.clone());
        }
        let r = self.result.as_ref()?;
        if r.failed > 0 {
            let first = r.first_failure.as_deref().unwrap_or_default();
            return Some(format!("{} requests failed; the first: {first}", r.failed).into());
        }
        let busiest = r.busy.die_max.max(r.busy.bus_max);
        if busiest >= BUSY_MAX {
            return Some(format!("the busiest die or bus worked {:.0} % of the time", busiest * 100.0).into());
        }
        let counted = if r.read.count() > 0 { r.read.count() } else { r.write.count() * 4 };
        (counted < reads_min).then(|| format!("{counted} requests counted, fewer than {reads_min}").into())
    }
    pub fn json(&self) -> Value {
        let Some(r) = &self.result else {
            return json!({"policy": self.policy, "rate": self.rate, "overloaded": self.overloaded});
        };
        json!({
            "policy": self.policy, "rate": self.rate, "iops": self.iops(),
            "read": r.read.summary(), "write": r.write.summary(),
            "erases": r.erases, "waf": r.waf, "redirects": r.redirects, "gc_episodes": r.gc_runs,
            "busy": r.busy, "failed": r.failed, "cpu_s": r.cpu.as_secs_f64(), "virtual_s": r.took.as_secs_f64(),
        })
    }
}

/// Why cells of one load under several policies must not be compared: any of them is void, or they did not do the same
/// work.
pub fn void<'a>(cells: impl Iterator<Item = &'a CellReport> + Clone, reads_min: u64) -> Option<Box<str>> {
    if let Some((c, why)) = cells.clone().find_map(|c| c.void(reads_min).map(|why| (c, why))) {
        return Some(format!("{}: {why}", c.policy).into());
    }
    let erases = cells.filter_map(|c| c.result.as_ref().map(|r| (r.erases, c.policy)));
    let (least, most) = (erases.clone().min()?, erases.max()?);
    (most.0 as f64 > least.0 as f64 * (1.0 + ERASES_DIFFER_MAX))
        .then(|| format!("{} erased {} blocks, {} {}", most.1, most.0, least.1, least.0).into())
}

/// Runs cells on all cores; answers are in the cells' order.
///
/// # Errors
/// As [`Cell::run`], of the first cell that has one.
pub fn run_all(cells: &[Cell]) -> Result<Vec<CellReport>, ReplayError> {
    on_all_cores(cells, Cell::run).into_iter().collect()
}

thread_local! {
    /// Cells that this thread has had run, with their reports: figures 9 to 12, 15 and 16 are views of the same cells.
    static KNOWN: RefCell<Vec<(Cell, CellReport)>> = const { RefCell::new(Vec::new()) };
}

/// As [`run_all`], but an equal cell runs once for all figures of a thread.
///
/// # Errors
/// As [`run_all`].
pub fn run_once(cells: &[Cell]) -> Result<Vec<CellReport>, ReplayError> {
    KNOWN.with_borrow_mut(|known| {
        let mut new: Vec<Cell> = Vec::new();
        for c in cells {
            if !known.iter().any(|(k, _)| k == c) && !new.contains(c) {
                new.push(c.clone());
            }
        }
        let reports = run_all(&new)?;
        known.extend(new.into_iter().zip(reports));
        let report = |c: &Cell| known.iter().find(|(k, _)| k == c).map(|(_, r)| r.clone());
        Ok(cells.iter().filter_map(report).collect())
    })
}
