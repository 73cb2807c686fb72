//! Decisions of wear leveling in a rack (RackBlox §3.6): which contents are swapped between the SSDs of a server and
//! between servers, and when. The mover of the data (the metadata service, or the ageing model) reports the erases here
//! and carries out the swaps.
//!
//! φ of an SSD is the average erase count of its blocks; φ of a server, that of its SSDs. λ = φ_max ÷ φ_avg must stay
//! below 1 + γ. *Contents* are swapped: whole SSDs in the paper and the ageing model, vSSDs in a rack.
//!
//! - [`WearConfig`]: γ and the two periods, checked against the analysis of the required frequency of swaps
//!   ([`WearConfig::check`]).
//! - [`Rule`]: choice of pairs; the paper's, or ours.
//! - [`Balancer`]: the counters, the timing of rounds, and the rule.

use std::collections::BTreeMap;

use rackweave_core::wear::{AnalysisError, Imbalance, imbalance};
use rackweave_core::{NodeId, Span, SsdId, Time, VssdId};

/// One day, the unit of the periods.
pub const DAY: Span = Span::from_secs(86_400);
/// Required lifetime of SSDs (RackBlox §3.6).
pub const LIFE: Span = Span::from_secs(5 * 365 * 86_400 + 86_400);
/// A round between SSDs acts on those that would exceed this fraction of γ by the next.
const ACT_LOCAL: f64 = 0.25;
/// A round between servers acts on those beyond this fraction: the remainders add up to half of γ, with a margin.
const ACT_GLOBAL: f64 = 0.125;

/// Rule for the choice of pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// §3.6: the most worn SSD and the one with the lowest wear rate, one pair per round; between servers, those of the
    /// most worn server and of the one with the lowest rate.
    RackBlox,
    /// Every needed pair, the most helpful first. Swapping contents of rates x > y on SSDs of wear a > b lowers the sum
    /// of squared wear at any later time T by 2 T (a − b)(x − y), which is maximized. A pair is needed if its SSD (or
    /// server) would otherwise be too far above the mean at the next round.
    #[default]
    MostHelp,
}

/// Parameters of wear leveling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WearConfig {
    /// γ: λ is at most 1 + γ.
    pub gamma: f64,
    /// Period of rounds between SSDs of a server.
    pub local_every: Span,
    /// Period of rounds between servers.
    pub global_every: Span,
    pub rule: Rule,
}

impl Default for WearConfig {
    /// §3.6: γ = 0.1, 12 days, 8 weeks.
    fn default() -> WearConfig {
        WearConfig { gamma: 0.1, local_every: DAY * 12, global_every: DAY * 56, rule: Rule::default() }
    }
}

/// Why a configuration is refused.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum WearError {
    #[error("wear.{key}_every_days: a period must take time")]
    Zero { key: &'static str },
    #[error("wear.{key}_every_days: {error}")]
    Analysis { key: &'static str, error: AnalysisError },
}

impl WearConfig {
    /// Refuses a configuration whose periods cannot hold λ ≤ 1 + γ over the lifetime of SSDs, by the analysis in
    /// [`rackweave_flash::wear::analysis`]. `ssds` and `servers`: the greatest wear rate relative to the mean among a
    /// server's SSDs and among servers. That is their number if one may take all writes, divided by the number of
    /// replicas if each write goes to that many servers.
    ///
    /// # Errors
    /// γ is outside (0, 1], or a period is zero or too long.
    pub fn check(&self, ssds: f64, servers: f64) -> Result<(), WearError> {
        for (key, every, units) in [("local", self.local_every, ssds), ("global", self.global_every, servers)] {
            if every == Span::ZERO {
                return Err(WearError::Zero { key });
            }
            let goal = Imbalance { units, delta: self.gamma, life: LIFE, alpha: 1.0 };
            goal.check(every).map_err(|error| WearError::Analysis { key, error })?;
        }
        Ok(())
    }
    /// The longest period of rounds between servers that [`WearConfig::check`] accepts; `None` if any is, or γ is
    /// invalid.
    pub fn global_holds(&self, servers: f64) -> Option<Span> {
        let goal = Imbalance { units: servers, delta: self.gamma, life: LIFE, alpha: 1.0 };
        goal.period().ok().flatten()
    }
}

/// Two contents to swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// On the more worn SSD.
    pub hot: VssdId,
    /// On the less worn SSD.
    pub cold: VssdId,
    pub between_servers: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ssd {
    server: NodeId,
    /// φ: erases per block.
    wear: f64,
}

#[derive(Clone, Copy, Debug)]
struct Contents {
    ssd: SsdId,
    /// Fraction of the SSD that is written when they arrive.
    size: f64,
    /// Erases per block of the SSD since the counters were cleared.
    since: f64,
    /// The same per second, in the last interval between two rounds.
    rate: f64,
}

/// Wear counters of a rack, with its rule.
#[derive(Clone, Debug)]
pub struct Balancer {
    cfg: WearConfig,
    ssds: BTreeMap<SsdId, Ssd>,
    contents: BTreeMap<VssdId, Contents>,
    /// When rates were measured.
    cleared: Time,
    local_at: Time,
    global_at: Time,
}

impl Balancer {
    /// For a rack whose balancing begins `now`.
    pub fn new(cfg: WearConfig, now: Time) -> Balancer {
        let (local_at, global_at) = (now + cfg.local_every, now + cfg.global_every);
        let (ssds, contents) = (BTreeMap::new(), BTreeMap::new());
        Balancer { cfg, ssds, contents, cleared: now, local_at, global_at }
    }
    /// With the next rounds this far from `now`, as the previous balancer left them; neither is later than its period.
    pub fn resumed(cfg: WearConfig, now: Time, local_in: Span, global_in: Span) -> Balancer {
        let (local_at, global_at) = (now + local_in.min(cfg.local_every), now + global_in.min(cfg.global_every));
        Balancer { local_at, global_at, ..Balancer::new(cfg, now) }
    }
    /// Time until the rounds within servers, and between them.
    pub fn due_in(&self, now: Time) -> (Span, Span) {
        (self.local_at.since(now), self.global_at.since(now))
    }
    /// φ of each SSD.
    pub fn wear(&self) -> impl Iterator<Item = (NodeId, f64)> {
        self.ssds.values().map(|s| (s.server, s.wear))
    }
    pub fn config(&self) -> &WearConfig {
        &self.cfg
    }

    /// Sets an SSD's average erase count, whatever caused the erases.
    pub fn worn(&mut self, ssd: SsdId, server: NodeId, wear: f64) {
        self.ssds.insert(ssd, Ssd { server, wear });
    }
    /// Sets where contents are, new or moved. `size`: their fraction of the SSD, which their arrival wears.
    pub fn lie(&mut self, contents: VssdId, ssd: SsdId, size: f64) {
        let old = self.contents.get(&contents);
        let (since, rate) = old.map_or((0.0, 0.0), |c| (c.since, c.rate));
        self.contents.insert(contents, Contents { ssd, size, since, rate });
    }
    /// Counts erases per block of the SSD caused by writes to these contents; those of a move do not count.
    pub fn erased(&mut self, contents: VssdId, wear: f64) {
        if let Some(c) = self.contents.get_mut(&contents) {
            c.since += wear;
        }
    }
    /// Renames contents.
    pub fn renamed(&mut self, from: VssdId, to: VssdId) {
        if let Some(c) = self.contents.remove(&from) {
            self.contents.insert(to, c);
        }
    }
    /// Drops contents for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(VssdId) -> bool) {
        self.contents.retain(|v, _| keep(*v));
    }

    /// When [`Balancer::plan`] is to be called.
    pub fn due_at(&self) -> Time {
        self.local_at.min(self.global_at)
    }

    /// The swaps of a due round, in order; no contents are in two of them. Clears the counters. `may`: whether two
    /// contents may be swapped.
    pub fn plan(&mut self, now: Time, may: impl Fn(VssdId, VssdId) -> bool) -> Vec<Swap> {
        if now < self.due_at() {
            return Vec::new();
        }
        self.measure(now);
        let mut round = Round { rule: self.cfg.rule, gamma: self.cfg.gamma, swaps: Vec::new(), may: &may };
        let mut view = View::of(self);
        if now >= self.local_at {
            self.local_at = now + self.cfg.local_every;
            for server in view.servers() {
                round.local(&mut view, server, self.cfg.local_every);
            }
        }
        if now >= self.global_at {
            self.global_at = now + self.cfg.global_every;
            round.global(&mut view, self.cfg.global_every);
        }
        round.swaps
    }

    fn measure(&mut self, now: Time) {
        let span = now.since(self.cleared).as_secs_f64();
        // With both rounds due at once, the latest measurement holds.
        if span > 0.0 {
            for c in self.contents.values_mut() {
                (c.rate, c.since) = (c.since / span, 0.0);
            }
            self.cleared = now;
        }
    }

    /// λ over all SSDs.
    pub fn imbalance(&self) -> f64 {
        imbalance(self.ssds.values().map(|s| s.wear))
    }
    /// λ over servers.
    pub fn server_imbalance(&self) -> f64 {
        let mut servers: BTreeMap<NodeId, (f64, f64)> = BTreeMap::new();
        for s in self.ssds.values() {
            let of = servers.entry(s.server).or_default();
            *of = (of.0 + s.wear, of.1 + 1.0);
        }
        imbalance(servers.into_values().map(|(sum, n)| sum / n))
    }
}

/// Input of a round: the rates of SSDs after the swaps decided so far.
struct View {
    ssds: Vec<SsdView>,
    contents: Vec<ContentsView>,
}

#[derive(Clone, Copy)]
struct SsdView {
    server: NodeId,
    wear: f64,
    rate: f64,
}

#[derive(Clone, Copy)]
struct ContentsView {
    id: VssdId,
    ssd: usize,
    size: f64,
    rate: f64,
    /// Already in a swap of this round.
    taken: bool,
}

/// Mean wear and wear rate.
#[derive(Clone, Copy)]
struct Mean {
    wear: f64,
    rate: f64,
}

impl Mean {
    fn of<'a>(ssds: impl Iterator<Item = &'a SsdView>) -> Mean {
        let (mut n, mut wear, mut rate) = (0.0, 0.0, 0.0);
        for s in ssds {
            (n, wear, rate) = (n + 1.0, wear + s.wear, rate + s.rate);
        }
        Mean { wear: wear / n, rate: rate / n }
    }
    /// Wear after `span` without changes.
    fn after(&self, span: f64) -> f64 {
        self.wear + self.rate * span
    }
}

impl View {
    fn of(b: &Balancer) -> View {
        let index: BTreeMap<SsdId, usize> = b.ssds.keys().enumerate().map(|(i, s)| (*s, i)).collect();
        let mut ssds: Vec<SsdView> =
            b.ssds.values().map(|s| SsdView { server: s.server, wear: s.wear, rate: 0.0 }).collect();
        let known = |(id, c): (&VssdId, &Contents)| {
            let ssd = *index.get(&c.ssd)?;
            Some(ContentsView { id: *id, ssd, size: c.size, rate: c.rate, taken: false })
        };
        let contents: Vec<ContentsView> = b.contents.iter().filter_map(known).collect();
        for c in &contents {
            ssds[c.ssd].rate += c.rate;
        }
        View { ssds, contents }
    }
    fn servers(&self) -> Vec<NodeId> {
        let mut all: Vec<NodeId> = self.ssds.iter().map(|s| s.server).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
    fn server(&self, server: NodeId) -> Mean {
        Mean::of(self.ssds.iter().filter(|s| s.server == server))
    }
    fn ssd(&self, c: &ContentsView) -> SsdView {
        self.ssds[c.ssd]
    }
    fn swap(&mut self, hot: usize, cold: usize) {
        let (x, y) = (self.contents[hot], self.contents[cold]);
        self.ssds[x.ssd].rate += y.rate - x.rate;
        self.ssds[y.ssd].rate += x.rate - y.rate;
        // Moving them causes wear too.
        self.ssds[x.ssd].wear += y.size;
        self.ssds[y.ssd].wear += x.size;
        self.contents[hot] = ContentsView { ssd: y.ssd, taken: true, ..x };
        self.contents[cold] = ContentsView { ssd: x.ssd, taken: true, ..y };
    }
}

struct Round<'a> {
    rule: Rule,
    gamma: f64,
    swaps: Vec<Swap>,
    may: &'a dyn Fn(VssdId, VssdId) -> bool,
}

impl Round<'_> {
    fn local(&mut self, view: &mut View, server: NodeId, every: Span) {
        match self.rule {
            Rule::RackBlox => self.paper(view, server, server),
            Rule::MostHelp => {
                let span = every.as_secs_f64();
                let mean = view.server(server);
                let most = (1.0 + self.gamma * ACT_LOCAL) * mean.after(span);
                let mine = |v: &View, i: usize| v.ssd(&v.contents[i]).server == server;
                let hot = |v: &View, i: usize| {
                    let s = v.ssd(&v.contents[i]);
                    s.server == server && s.wear + s.rate * span > most
                };
                while self.best(view, mean, span, false, hot, mine) {}
            }
        }
    }

    fn global(&mut self, view: &mut View, every: Span) {
        let servers = view.servers();
        let by = |v: &View, of: fn(&Mean) -> f64| {
            servers.iter().map(|&s| (s, of(&v.server(s)))).collect::<Vec<(NodeId, f64)>>()
        };
        match self.rule {
            Rule::RackBlox => {
                let worn = by(view, |m| m.wear).into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
                let calm = by(view, |m| m.rate).into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
                if let (Some((worn, _)), Some((calm, _))) = (worn, calm)
                    && worn != calm
                {
                    self.paper(view, worn, calm);
                }
            }
            Rule::MostHelp => {
                let span = every.as_secs_f64();
                let mean = Mean::of(view.ssds.iter());
                let most = (1.0 + self.gamma * ACT_GLOBAL) * mean.after(span);
                loop {
                    let later: BTreeMap<NodeId, f64> =
                        servers.iter().map(|&s| (s, view.server(s).after(span))).collect();
                    let after = |v: &View, i: usize| later[&v.ssd(&v.contents[i]).server];
                    let hot = |v: &View, i: usize| after(v, i) > most;
                    if !self.best(view, mean, span, true, hot, |v, i| after(v, i) <= mean.after(span)) {
                        break;
                    }
                }
            }
        }
    }

    /// The most worn SSD of a server (unless it already has the lowest rate) and the SSD with the lowest rate of the
    /// same or another server; of equal ones the least worn, as with FlashBlox's channels.
    fn paper(&mut self, view: &mut View, worn: NodeId, calm: NodeId) {
        let on = |server| (0..view.ssds.len()).filter(|i| view.ssds[*i].server == server).collect::<Vec<usize>>();
        let mean = view.server(worn).wear;
        let mut hots = on(worn);
        hots.retain(|i| view.ssds[*i].wear > mean || worn != calm);
        hots.sort_by(|a, b| view.ssds[*b].wear.total_cmp(&view.ssds[*a].wear));
        let calmer = |a: &usize, b: &usize| {
            let (a, b) = (view.ssds[*a], view.ssds[*b]);
            a.rate.total_cmp(&b.rate).then(a.wear.total_cmp(&b.wear))
        };
        let all = &view.contents;
        let of = |ssd| all.iter().enumerate().filter(move |(_, c)| c.ssd == ssd && !c.taken);
        let left = |ssd: &usize| of(*ssd).next().is_some();
        let Some(cold) = on(calm).into_iter().filter(left).min_by(calmer) else { return };
        // Of several contents of an SSD, those that make the greatest difference.
        let pair = hots.into_iter().filter(|hot| *hot != cold).find_map(|hot| {
            of(hot)
                .flat_map(|x| of(cold).map(move |y| (x, y)))
                .filter(|((_, x), (_, y))| x.rate > y.rate && (self.may)(x.id, y.id))
                .max_by(|(a, b), (c, d)| (a.1.rate - b.1.rate).total_cmp(&(c.1.rate - d.1.rate)))
                .map(|((i, _), (j, _))| (i, j))
        });
        if let Some((i, j)) = pair {
            self.take(view, i, j, worn != calm);
        }
    }

    /// Takes the most helpful pair of those that need it (`hot`) and those that can give it; false if there is none.
    fn best(
        &mut self,
        view: &mut View,
        mean: Mean,
        span: f64,
        between_servers: bool,
        hot: impl Fn(&View, usize) -> bool,
        cold: impl Fn(&View, usize) -> bool,
    ) -> bool {
        let free = |i: &usize| !view.contents[*i].taken;
        let above = |i: &usize| view.ssd(&view.contents[*i]).wear > mean.wear;
        let all = 0..view.contents.len();
        let hots: Vec<usize> = all.clone().filter(free).filter(above).filter(|i| hot(view, *i)).collect();
        let colds: Vec<usize> = all.filter(free).filter(|i| !above(i) && cold(view, *i)).collect();
        let mut best = None;
        let mut most = 0.0;
        for &i in &hots {
            let x = view.contents[i];
            for &j in &colds {
                let y = view.contents[j];
                let faster = x.rate - y.rate;
                let help = (view.ssd(&x).wear - view.ssd(&y).wear) * faster;
                // The gain until the next round must exceed the wear of the swap.
                let pays = faster * span > x.size.max(y.size);
                let apart = (view.ssd(&x).server != view.ssd(&y).server) == between_servers;
                if help > most && pays && apart && (self.may)(x.id, y.id) {
                    (best, most) = (Some((i, j)), help);
                }
            }
        }
        let Some((i, j)) = best else { return false };
        self.take(view, i, j, between_servers);
        true
    }

    fn take(&mut self, view: &mut View, hot: usize, cold: usize, between_servers: bool) {
        self.swaps.push(Swap { hot: view.contents[hot].id, cold: view.contents[cold].id, between_servers });
        view.swap(hot, cold);
    }
}

#[cfg(test)]
#[path = "wear_tests.rs"]
mod tests;
