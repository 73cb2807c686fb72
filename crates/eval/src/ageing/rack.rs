//! Wear of a rack's SSDs by the erase rates of their vSSDs, and the balancers that swap their contents (RackBlox §3.6,
//! §4.6). The decisions are those of the rack's metadata service ([`rackweave_meta::wear`]); between two rounds wear
//! grows evenly.
//!
//! Not modelled: a swap takes no time. Within an SSD wear is even (§4.6). A swap erases every block of both SSDs once,
//! which counts as wear.

use rackweave_core::wear::imbalance;
use rackweave_core::{NodeId, Rng, Span, SsdId, Time, VssdId};
use rackweave_meta::wear::{Balancer, DAY, WearConfig};

use super::YEAR_S;
use super::rack_rates::RackRates;

/// Contents of each SSD of a rack.
#[derive(Clone, Debug, PartialEq)]
pub struct RackLoad {
    servers: usize,
    ssds_per_server: usize,
    vssds_per_ssd: usize,
    /// Erases per block of the SSD and per second that each vSSD causes: first the vSSDs of the first SSD, and so on.
    vssds: Vec<f64>,
}

impl RackLoad {
    /// The load of `servers` × `ssds_per_server` SSDs: for every vSSD, erases per block of its SSD and per second.
    ///
    /// # Panics
    /// If there are no vSSDs, or SSDs have different numbers of them.
    pub fn new(servers: usize, ssds_per_server: usize, vssds: Vec<f64>) -> RackLoad {
        let ssds = servers * ssds_per_server;
        assert!(!vssds.is_empty() && vssds.len().is_multiple_of(ssds), "every SSD has the same number of vSSDs");
        RackLoad { servers, ssds_per_server, vssds_per_ssd: vssds.len() / ssds, vssds }
    }
    /// Draws a workload for each vSSD uniformly; vSSDs are assigned to servers and their SSDs in turn (§4.6).
    pub fn drawn(rates: &RackRates, rng: &mut Rng) -> RackLoad {
        let r = rates.rack;
        let ssds = r.servers * r.ssds_per_server;
        let mut vssds = vec![0.0; ssds * r.vssds_per_ssd];
        for k in 0..vssds.len() {
            let (server, on_server) = (k % r.servers, k / r.servers);
            let (ssd, slot) = (on_server % r.ssds_per_server, on_server / r.ssds_per_server);
            vssds[(server * r.ssds_per_server + ssd) * r.vssds_per_ssd + slot] = rates.draw(rng);
        }
        RackLoad::new(r.servers, r.ssds_per_server, vssds)
    }
    pub fn ssds(&self) -> usize {
        self.servers * self.ssds_per_server
    }
    /// Rate of the initial contents of one SSD.
    fn of(&self, contents: usize) -> f64 {
        self.vssds[contents * self.vssds_per_ssd..(contents + 1) * self.vssds_per_ssd].iter().sum()
    }
    /// Wear rate ÷ mean of the fastest SSD within its server, and of the fastest server.
    pub fn spread(&self) -> (f64, f64) {
        let ssds: Vec<f64> = (0..self.ssds()).map(|s| self.of(s)).collect();
        let servers = ssds.chunks(self.ssds_per_server);
        let within = servers.clone().map(|s| imbalance(s.iter().copied())).fold(1.0, f64::max);
        (within, imbalance(servers.map(|s| s.iter().sum())))
    }
}

/// Changes of a rack besides its load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    pub every: Span,
    /// Fraction of the vSSDs that get another workload.
    pub workloads: f64,
    /// Fraction of the SSDs that are replaced by new ones.
    pub ssds: f64,
    pub seed: u64,
}

/// State of a rack at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct RackAged {
    pub at: Time,
    /// φ of each SSD, in erases per block, server by server.
    pub wear: Vec<f64>,
    /// The part of `wear` that swaps caused.
    pub moved: Vec<f64>,
    /// Swaps between SSDs of a server, and between servers.
    pub swaps: [u64; 2],
    /// The greatest λ over all SSDs from the first year on.
    pub worst: f64,
    ssds_per_server: usize,
}

impl RackAged {
    /// λ over all SSDs of the rack.
    pub fn imbalance(&self) -> f64 {
        imbalance(self.wear.iter().copied())
    }
    /// λ over the SSDs of each server.
    pub fn within_servers(&self) -> Vec<f64> {
        self.wear.chunks(self.ssds_per_server).map(|s| imbalance(s.iter().copied())).collect()
    }
    /// λ over servers, as the paper's global balancer sees it.
    pub fn between_servers(&self) -> f64 {
        imbalance(self.wear.chunks(self.ssds_per_server).map(|s| s.iter().sum()))
    }
    pub fn mean(&self) -> f64 {
        self.wear.iter().sum::<f64>() / self.wear.len() as f64
    }
    /// Fraction of all erases that swaps caused.
    pub fn moved_part(&self) -> f64 {
        self.moved.iter().sum::<f64>() / self.wear.iter().sum::<f64>()
    }
    /// Erases that swaps caused on the SSD that was swapped most.
    pub fn moved_most(&self) -> f64 {
        self.moved.iter().copied().fold(0.0, f64::max)
    }
}

struct Model {
    load: RackLoad,
    /// The contents on each SSD.
    on: Vec<usize>,
    aged: RackAged,
}

impl Model {
    fn new(load: RackLoad) -> Model {
        let (n, ssds_per_server) = (load.ssds(), load.ssds_per_server);
        let (wear, moved) = (vec![0.0; n], vec![0.0; n]);
        let aged = RackAged { at: Time::ZERO, wear, moved, swaps: [0; 2], worst: 1.0, ssds_per_server };
        Model { load, on: (0..n).collect(), aged }
    }
    fn server(&self, ssd: usize) -> NodeId {
        NodeId((ssd / self.load.ssds_per_server) as u32)
    }

    fn advance(&mut self, to: Time, b: Option<&mut Balancer>) {
        let by_s = to.since(self.aged.at).as_secs_f64();
        self.aged.at = to;
        let grown: Vec<f64> = self.on.iter().map(|&c| self.load.of(c) * by_s).collect();
        self.aged.wear.iter_mut().zip(&grown).for_each(|(w, g)| *w += g);
        if to >= year() {
            self.aged.worst = self.aged.worst.max(self.aged.imbalance());
        }
        let Some(b) = b else { return };
        for (ssd, g) in grown.into_iter().enumerate() {
            b.worn(SsdId(ssd as u32), self.server(ssd), self.aged.wear[ssd]);
            b.erased(VssdId(self.on[ssd] as u32), g);
        }
    }

    /// Swaps the contents of whole SSDs, which rewrites all blocks of both.
    fn round(&mut self, b: &mut Balancer) {
        for swap in b.plan(self.aged.at, |_, _| true) {
            let at =
                |c: VssdId| self.on.iter().position(|on| *on == c.0 as usize).expect("all contents are on some SSD");
            let (x, y) = (at(swap.hot), at(swap.cold));
            self.on.swap(x, y);
            self.aged.swaps[usize::from(swap.between_servers)] += 1;
            for ssd in [x, y] {
                self.aged.wear[ssd] += 1.0;
                self.aged.moved[ssd] += 1.0;
                b.worn(SsdId(ssd as u32), self.server(ssd), self.aged.wear[ssd]);
                b.lie(VssdId(self.on[ssd] as u32), SsdId(ssd as u32), 1.0);
            }
        }
    }

    fn change(&mut self, rates: &RackRates, change: &Change, rng: &mut Rng) {
        for rate in &mut self.load.vssds {
            if rng.chance(change.workloads) {
                *rate = rates.draw(rng);
            }
        }
        for ssd in 0..self.aged.wear.len() {
            if rng.chance(change.ssds) {
                (self.aged.wear[ssd], self.aged.moved[ssd]) = (0.0, 0.0);
            }
        }
    }
}

fn year() -> Time {
    Time((YEAR_S * 1e9) as u64)
}

/// Ages a new rack under `load` and returns its state at each of the times `looks`; without a configuration nothing is
/// swapped.
pub fn age_rack(
    load: &RackLoad,
    balance: Option<WearConfig>,
    change: Option<(&RackRates, Change)>,
    looks: &[Time],
) -> Vec<RackAged> {
    let mut model = Model::new(load.clone());
    let mut balancer = balance.map(|cfg| Balancer::new(cfg, Time::ZERO));
    if let Some(b) = &mut balancer {
        for ssd in 0..model.on.len() {
            b.worn(SsdId(ssd as u32), model.server(ssd), 0.0);
            b.lie(VssdId(ssd as u32), SsdId(ssd as u32), 1.0);
        }
    }
    let mut changes = change.map(|(rates, c)| (rates, c, Rng::stream(c.seed, 1), Time::ZERO + c.every));
    let mut seen = Vec::new();
    while let Some(&look) = looks.get(seen.len()) {
        let round = balancer.as_ref().map_or(Time::MAX, Balancer::due_at);
        let change = changes.as_ref().map_or(Time::MAX, |c| c.3);
        let next = look.min(round).min(change).min(model.aged.at + DAY);
        model.advance(next, balancer.as_mut());
        if next >= round
            && let Some(b) = &mut balancer
        {
            model.round(b);
        }
        if let Some((rates, c, rng, at)) = &mut changes
            && next >= *at
        {
            model.change(rates, c, rng);
            *at += c.every;
        }
        if next >= look {
            seen.push(model.aged.clone());
        }
    }
    seen
}

#[cfg(test)]
#[path = "rack_tests.rs"]
mod tests;
