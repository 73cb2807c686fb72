//! The requests of a cell: 4 KiB each, open-loop Poisson arrivals, popular blocks by YCSB's law, and a share of writes
//! (RB16, Table 2). Computes the rate for a given utilization.

use rackweave_config::RackConfig;
use rackweave_core::{BLOCK, Layout, NodeKind, Rng, Span, Time};
use rackweave_rack::build;
use rackweave_sim::Network;
use rackweave_sim::net::NetState;

use super::CLIENTS;
use super::vdc::Vdc;
use crate::replay::ReplayError;
use crate::replay::run::Sent;
use crate::trace::TraceOp;
use crate::workload::Planned;
use crate::ycsb::{HOTTEST, popular};

/// Order of reads and writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Each request is drawn independently.
    Mixed,
    /// A run of writes, then a run of reads, with this number of requests together.
    Runs { requests: u64 },
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    pub name: &'static str,
    /// Fraction of the requests that are writes.
    pub writes: f64,
    pub pattern: Pattern,
}

/// AuctionMark's "long sequence of writes followed by a sequence of reads" (§4.3), without a length.
const RUN: u64 = 20_000;

impl Load {
    /// YCSB with a share of writes.
    pub const fn ycsb(writes: f64) -> Load {
        Load { name: "YCSB", writes, pattern: Pattern::Mixed }
    }
    pub const TPC_H: Load = Load { name: "TPC-H", writes: 0.0227, pattern: Pattern::Mixed };
    pub const SEATS: Load = Load { name: "Seats", writes: 0.1034, pattern: Pattern::Mixed };
    pub const AUCTIONMARK: Load =
        Load { name: "AuctionMark", writes: 0.5376, pattern: Pattern::Runs { requests: RUN } };
    pub const TPC_C: Load = Load { name: "TPC-C", writes: 0.5995, pattern: Pattern::Mixed };
    pub const TWITTER: Load = Load { name: "Twitter", writes: 0.9786, pattern: Pattern::Mixed };
    /// Table 2; of YCSB, workload A.
    pub const SIX: [Load; 6] =
        [Load::ycsb(0.5), Load::TPC_H, Load::SEATS, Load::AUCTIONMARK, Load::TPC_C, Load::TWITTER];
}

/// Write amplification for computing a rate, as measured by cells at this fill. Cells report the drives' utilization, so
/// an error here is visible.
const WAF: f64 = 2.7;
/// A block that is rewritten within this time is still in the write cache, so reads of it use no die.
const CACHED_FOR: Span = Span::from_millis(5);
/// Bound of the utilization of the die with the hottest uncached block; a load is lowered to meet it.
const HOT_DIE_MAX: f64 = 0.75;

/// Cost of requests for a rack.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Dies of the whole rack.
    dies: f64,
    /// Die time in seconds of each read, and of each write with all its copies and their share of collection.
    read: f64,
    write: f64,
    /// Number of clients that share the load, each with its own blocks.
    clients: u32,
}

impl Costs {
    /// Costs by the service times of the rack's device.
    ///
    /// # Errors
    /// The device is unknown.
    pub fn of(rack: &RackConfig) -> Result<Costs, ReplayError> {
        let p = build::profile(rack).map_err(|e| ReplayError::Build { reason: e.to_string().into() })?;
        let g = &p.geometry;
        let slot = f64::from(BLOCK) / p.bus_bytes_per_s as f64;
        let (per_page, per_block) = (g.slots_per_page() as f64, f64::from(g.slots_per_block()));
        let (read, program, erase) = (p.read.as_secs_f64(), p.program.as_secs_f64(), p.erase.as_secs_f64());
        let moved = (program + read) / per_page + slot;
        let copy = program / per_page + (WAF - 1.0) * moved + WAF * erase / per_block;
        Ok(Costs {
            dies: f64::from(rack.servers) * f64::from(g.dies()),
            read: read + slot,
            write: copy * f64::from(rack.replicas),
            clients: CLIENTS,
        })
    }
    /// From this number of clients.
    pub fn clients(self, clients: u32) -> Costs {
        Costs { clients, ..self }
    }
    fn mean(&self, load: &Load) -> f64 {
        (1.0 - load.writes) * self.read + load.writes * self.write
    }
}

/// Requests per second that keep the rack's dies busy for `utilization` of the time, including collection, or fewer if a
/// single popular block would keep its die busier than [`HOT_DIE_MAX`].
pub fn rate(costs: &Costs, load: &Load, utilization: f64) -> f64 {
    let each = costs.mean(load) / costs.dies;
    // Reads per second of the most popular uncached block.
    let hot = |rate: f64| {
        let hottest = HOTTEST / f64::from(costs.clients);
        let cached_above = 1.0 / (rate * load.writes * CACHED_FOR.as_secs_f64()).max(f64::MIN_POSITIVE);
        rate * (1.0 - load.writes) * hottest.min(cached_above)
    };
    let fits = |rate: f64| rate * each + hot(rate) * costs.read <= HOT_DIE_MAX.max(utilization);
    let even = utilization / each;
    if fits(even) {
        return even;
    }
    let (mut low, mut high) = (0.0, even);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Draws a client and a block of its volume, for requests and for ageing.
pub(super) fn target(rng: &mut Rng, clients: u32, blocks: u64) -> (u32, u64) {
    let client = rng.below(u64::from(clients)) as u32;
    (client, popular(rng, blocks))
}

/// The endless sequence of requests, in order of arrival.
pub struct Source {
    load: Load,
    gap_ns: f64,
    blocks: u64,
    clients: u32,
    clock_ns: f64,
    drawn: u64,
    rng: Rng,
    vdc: Option<Controlled>,
    /// [`super::Cell::write_through`].
    pub(super) write_through: bool,
}

/// Inputs of VDC.
struct Controlled {
    vdc: Vdc,
    read: f64,
    write: f64,
    /// One-way delays between a client and the controller.
    delays: NetState,
}

/// A report of demand, or an allocation, on the wire.
const CONTROL_BYTES: u32 = 200;
/// Stream of the seed for requests.
const STREAM: u64 = 0x6c6f_6164;

impl Source {
    /// `rate` requests per second to volumes of `bytes` each.
    pub fn new(load: &Load, rate: f64, bytes: u64, seed: u64) -> Source {
        Source {
            load: *load,
            gap_ns: 1e9 / rate,
            blocks: bytes / u64::from(BLOCK),
            clients: CLIENTS,
            clock_ns: 0.0,
            drawn: 0,
            rng: Rng::stream(seed, STREAM),
            vdc: None,
            write_through: false,
        }
    }

    /// From this number of clients.
    pub fn clients(self, clients: u32) -> Source {
        Source { clients, ..self }
    }

    /// Makes requests wait for VDC's tokens, of each client's link and of the dies' time.
    pub fn through_vdc(mut self, costs: &Costs, network: &Network, seed: u64) -> Source {
        // Unlimited: more than any flow demands.
        let links = if network.bytes_per_s == 0 { 1e15 } else { network.bytes_per_s as f64 };
        let vdc = Vdc::new([links * f64::from(self.clients), costs.dies], self.clients as usize);
        let delays = NetState::new(network.clone(), control(), seed ^ STREAM);
        self.vdc = Some(Controlled { vdc, read: costs.read, write: costs.write, delays });
        self
    }

    fn writes(&mut self) -> bool {
        match self.load.pattern {
            Pattern::Mixed => self.rng.chance(self.load.writes),
            Pattern::Runs { requests } => ((self.drawn % requests) as f64) < requests as f64 * self.load.writes,
        }
    }

    /// The next request; there always is one.
    pub(crate) fn next(&mut self) -> Sent {
        self.clock_ns += self.rng.exponential(self.gap_ns);
        let at = Span(self.clock_ns as u64);
        let op = if self.writes() { TraceOp::Write } else { TraceOp::Read };
        self.drawn += 1;
        let (client, block) = target(&mut self.rng, self.clients, self.blocks);
        let offset = block * u64::from(BLOCK);
        let fua = self.write_through && op == TraceOp::Write;
        let mut planned = Planned { at, op, offset, len: u64::from(BLOCK), fua, rounded: false };
        if let Some(c) = &mut self.vdc {
            let die = if op == TraceOp::Write { c.write } else { c.read };
            let now = Time::ZERO + at;
            let delays = &mut c.delays;
            let go = c.vdc.admit(now, client as usize, [f64::from(BLOCK), die], || round_trip(delays, now));
            planned.at = go.since(Time::ZERO);
        }
        Sent { client, arrived: at, planned }
    }
}

/// A client and the controller, as two hosts of a rack.
fn control() -> Layout {
    Layout::new(2, 0)
}

/// Time to the controller and back, including retransmissions of lost messages.
fn round_trip(delays: &mut NetState, now: Time) -> Span {
    let control = control();
    let hosts = control.ids(NodeKind::Server);
    let mut one_way = |from: usize, to: usize| loop {
        if let Some(at) = delays.send(now, hosts[from], hosts[to], CONTROL_BYTES, false)[0] {
            return at.since(now);
        }
    };
    one_way(0, 1) + one_way(1, 0)
}
