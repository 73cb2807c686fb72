//! The network model: a link per node with bandwidth and queue, latency (constant, drawn, recorded), loss, duplication,
//! reordering, partitions.
//!
//! A packet pays its one-way delay where it enters the rack's network; a packet that leaves the switch (forwarded, or
//! the switch's own answer) pays a hop. Packets that do not address the switch still cross it: one delay covers both
//! legs.
//!
//! With several racks, a packet between two of them takes `between_racks` longer. Servers are behind their rack's
//! switch: while it is down they reach no other node. Clients and the metadata service are connected to every switch;
//! client `i` is near rack `i` modulo the number of racks, the metadata service near all. The link between racks may be
//! cut ([`NetState::cut_between_racks`]).

use std::sync::Arc;

use rackweave_core::msg::HEADER_BYTES;
use rackweave_core::{Layout, NodeId, NodeKind, Rng, Span, Time};

const EXCERPT: &str = include_str!("../data/net_fast_10k.txt");

/// One-way delay between two nodes.
#[derive(Clone, Debug, PartialEq)]
pub enum Latency {
    Constant(Span),
    /// `base` plus an exponentially distributed part.
    Exponential {
        base: Span,
        mean: Span,
    },
    /// Recorded delays (ns), which each link plays in order from its own position, times `percent` ÷ 100.
    Recorded {
        delays_ns: Arc<[u32]>,
        percent: u32,
    },
}

/// The network between the nodes. Defaults: no faults, 25 Gbit/s links.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    pub name: &'static str,
    pub latency: Latency,
    /// Delay through the switch, for packets that leave it.
    pub hop: Span,
    /// Of each node's link, in each direction; 0 is unlimited.
    pub bytes_per_s: u64,
    /// A packet that would queue longer at its sender's link is dropped.
    pub queue_max: Span,
    pub faults: LinkFaults,
    /// Additional delay between racks.
    pub between_racks: Span,
}

/// Two more switches and some hundred metres of fibre; an assumption.
const BETWEEN_RACKS: Span = Span::from_micros(20);

/// Probabilities of faults of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LinkFaults {
    pub loss: f64,
    pub duplicate: f64,
    /// Delayed by up to `reorder_extra_ns` more, so that later packets overtake it.
    pub reorder: f64,
    pub reorder_extra_ns: u64,
    /// A duplicate arrives up to this much after the first copy, at least up to `reorder_extra_ns`.
    #[serde(default)]
    pub duplicate_extra_ns: u64,
}

impl LinkFaults {
    pub const NONE: LinkFaults =
        LinkFaults { loss: 0.0, duplicate: 0.0, reorder: 0.0, reorder_extra_ns: 0, duplicate_extra_ns: 0 };
    fn any(&self) -> bool {
        self.loss > 0.0 || self.duplicate > 0.0 || self.reorder > 0.0
    }
}

/// Why a file of recorded delays was refused.
#[derive(Debug, thiserror::Error)]
pub enum DelayFileError {
    #[error("delay file: {0}")]
    Io(#[from] std::io::Error),
    #[error("delay file: line {line}: {text:?} is no delay in whole microseconds (1 to 4,000,000)")]
    Line { line: usize, text: String },
    #[error("delay file holds no delays")]
    Empty,
}

/// Why a network was refused.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("network {text:?}: {part:?} is no delay such as 50us (a whole number with ns, us or ms, at most 4 s)")]
    Delay { text: Box<str>, part: Box<str> },
    #[error("network {text:?}: exponential needs two delays, its least and the mean beyond it: exponential:20us,30us")]
    Exponential { text: Box<str> },
    /// Neither a known name nor a readable file of delays.
    #[error(
        "network {text:?} is not fast, medium, slow, constant:DELAY or exponential:LEAST,MEAN, and as a file: {error}"
    )]
    File { text: Box<str>, error: DelayFileError },
}

/// Longest delay of a link.
const DELAY_MAX: Span = Span::from_secs(4);

fn parse_delay(text: &str, part: &str) -> Result<Span, NetworkError> {
    let units: [(&str, u64); 3] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000)];
    let number = units.iter().find_map(|(u, ns)| Some((part.strip_suffix(u)?.parse::<u64>().ok()?, *ns)));
    let span = number.and_then(|(n, ns)| n.checked_mul(ns)).map(Span).filter(|s| *s <= DELAY_MAX);
    span.ok_or_else(|| NetworkError::Delay { text: text.into(), part: part.into() })
}

fn parse_delays(text: &str) -> Result<Arc<[u32]>, DelayFileError> {
    let mut out = Vec::new();
    for (i, line) in text.lines().enumerate() {
        match line.trim().parse::<u32>() {
            Ok(us) if (1..=4_000_000).contains(&us) => out.push(us * 1000),
            _ => return Err(DelayFileError::Line { line: i + 1, text: line.chars().take(40).collect() }),
        }
    }
    if out.is_empty() { Err(DelayFileError::Empty) } else { Ok(out.into()) }
}

/// Reads recorded one-way delays: µs, one per line, zstd-compressed or plain.
///
/// # Errors
/// The file cannot be read, or a line is not a delay.
pub fn read_delays(path: &std::path::Path) -> Result<Arc<[u32]>, DelayFileError> {
    let raw = std::fs::read(path)?;
    let bytes = if raw.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) { zstd::decode_all(&raw[..])? } else { raw };
    parse_delays(&String::from_utf8_lossy(&bytes))
}

impl Network {
    fn recorded(name: &'static str, delays_ns: Arc<[u32]>, percent: u32) -> Network {
        Network { name, latency: Latency::Recorded { delays_ns, percent }, ..Network::constant(Span::ZERO) }
    }
    /// The built-in excerpt of the recorded delays.
    pub fn excerpt() -> Arc<[u32]> {
        parse_delays(EXCERPT).expect("the excerpt is checked by a test")
    }
    /// "Fast": the recorded delays.
    pub fn fast(delays_ns: Arc<[u32]>) -> Network {
        Network::recorded("fast", delays_ns, 100)
    }
    /// "Medium": fast × 2.4, a documented assumption (RackBlox raises its targets by 1 ms for it).
    pub fn medium(delays_ns: Arc<[u32]>) -> Network {
        Network::recorded("medium", delays_ns, 240)
    }
    /// "Slow": fast × 6, with one packet in a thousand up to 10 ms late: an assumption in place of measurements in a
    /// public cloud.
    pub fn slow(delays_ns: Arc<[u32]>) -> Network {
        let spikes = LinkFaults { reorder: 0.001, reorder_extra_ns: 10_000_000, ..LinkFaults::NONE };
        Network { faults: spikes, ..Network::recorded("slow", delays_ns, 600) }
    }
    /// A network by its name (`fast`, `medium`, `slow`: the built-in delays), `constant:DELAY`,
    /// `exponential:LEAST,MEAN`, or a file of recorded one-way delays ([`read_delays`]).
    ///
    /// # Errors
    /// The part of `text` that is invalid.
    pub fn parse(text: &str) -> Result<Network, NetworkError> {
        match text {
            "fast" => return Ok(Network::fast(Network::excerpt())),
            "medium" => return Ok(Network::medium(Network::excerpt())),
            "slow" => return Ok(Network::slow(Network::excerpt())),
            _ => {}
        }
        if let Some(delay) = text.strip_prefix("constant:") {
            return Ok(Network::constant(parse_delay(text, delay)?));
        }
        if let Some(both) = text.strip_prefix("exponential:") {
            let Some((least, mean)) = both.split_once(',') else {
                return Err(NetworkError::Exponential { text: text.into() });
            };
            let latency = Latency::Exponential { base: parse_delay(text, least)?, mean: parse_delay(text, mean)? };
            return Ok(Network { name: "exponential", latency, ..Network::constant(Span::ZERO) });
        }
        match read_delays(std::path::Path::new(text)) {
            Ok(delays) => Ok(Network::recorded("recorded", delays, 100)),
            Err(error) => Err(NetworkError::File { text: text.into(), error }),
        }
    }
    pub fn constant(delay: Span) -> Network {
        Network {
            name: "constant",
            latency: Latency::Constant(delay),
            hop: Span::from_nanos(500),
            bytes_per_s: 25_000_000_000 / 8,
            queue_max: Span::from_millis(5),
            faults: LinkFaults::NONE,
            between_racks: BETWEEN_RACKS,
        }
    }
}

fn link_time(network: &Network, bytes: u32) -> Span {
    match network.bytes_per_s {
        0 => Span::ZERO,
        per_s => Span(u64::from(bytes) * 1_000_000_000 / per_s),
    }
}

struct Link {
    /// The rack whose switch the node is behind, or is; `None` for clients and the metadata service.
    rack: Option<u32>,
    /// The rack it is near.
    near: Option<u32>,
    up_busy: Time,
    down_busy: Time,
    /// This link's position in the recorded delays.
    place: usize,
}

/// State of all links.
pub struct NetState {
    config: Network,
    links: Vec<Link>,
    /// `blocked[from × nodes + to]`, used while `partitioned`.
    blocked: Vec<bool>,
    partitioned: bool,
    /// Additional delays between pairs of nodes; few have one.
    late: Vec<(NodeId, NodeId, Span)>,
    layout: Layout,
    /// Of each rack: whether its switch is down.
    lost: Vec<bool>,
    /// Whether the link between racks is cut. Clients and the metadata service are unaffected.
    cut: bool,
    rng: Rng,
    /// Time for a packet without contents to cross a link. Most are such, and a division costs more than the rest.
    header_time: Span,
    pub dropped: u64,
    pub duplicated: u64,
}

/// When the copies of a packet reach the receiver's link; `None` is lost.
pub type Arrivals = [Option<Time>; 2];

impl NetState {
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
    pub fn new(config: Network, layout: Layout, seed: u64) -> NetState {
        let nodes = layout.nodes();
        let mut rng = Rng::stream(seed, 0x6e65_7477);
        let places = match &config.latency {
            Latency::Recorded { delays_ns, .. } => delays_ns.len() as u64,
            _ => 1,
        };
        let link = |i| {
            let n = NodeId(i);
            let of_client = layout.index(n, NodeKind::Client).map(|i| i % layout.racks());
            let (rack, place) = (layout.rack(n), rng.below(places) as usize);
            Link { rack, near: rack.or(of_client), up_busy: Time::ZERO, down_busy: Time::ZERO, place }
        };
        let links = (0..nodes).map(link).collect();
        let blocked = vec![false; (nodes * nodes) as usize];
        let header_time = link_time(&config, HEADER_BYTES);
        NetState {
            config,
            links,
            blocked,
            partitioned: false,
            late: Vec::new(),
            lost: vec![false; layout.racks() as usize],
            layout,
            cut: false,
            rng,
            header_time,
            dropped: 0,
            duplicated: 0,
        }
    }
    /// Sets whether a rack's switch works. In a single rack, servers reach each other without it.
    pub fn switch_works(&mut self, switch: NodeId, works: bool) {
        if let Some(rack) = self.layout.rack(switch).filter(|_| self.layout.racks() > 1) {
            self.lost[rack as usize] = !works;
        }
    }
    /// Cuts or mends the link between the racks.
    pub fn cut_between_racks(&mut self, cut: bool) {
        self.cut = cut;
    }

    /// Additional delay between racks; `None` if there is no connection.
    fn between(&self, src: NodeId, dst: NodeId) -> Option<Span> {
        let (from, to) = (&self.links[src.0 as usize], &self.links[dst.0 as usize]);
        let lost = |l: &Link| l.rack.is_some_and(|r| self.lost[r as usize]);
        let apart = |a: Option<u32>, b: Option<u32>| a.is_some() && b.is_some() && a != b;
        if lost(from) || lost(to) || self.cut && apart(from.rack, to.rack) {
            return None;
        }
        Some(if apart(from.near, to.near) { self.config.between_racks } else { Span::ZERO })
    }
    pub fn set_faults(&mut self, faults: LinkFaults) {
        self.config.faults = faults;
    }
    pub fn config(&self) -> &Network {
        &self.config
    }
    /// Blocks or unblocks packets from one node to another (one direction).
    pub fn block(&mut self, from: NodeId, to: NodeId, blocked: bool) {
        let n = self.links.len();
        self.blocked[from.0 as usize * n + to.0 as usize] = blocked;
        self.partitioned = self.blocked.iter().any(|&b| b);
    }
    /// Delays packets from one node to another by `extra` from now on; zero ends that.
    pub fn delay_way(&mut self, from: NodeId, to: NodeId, extra: Span) {
        self.late.retain(|l| (l.0, l.1) != (from, to));
        if extra > Span::ZERO {
            self.late.push((from, to, extra));
        }
    }
    pub fn heal(&mut self) {
        self.blocked.fill(false);
        self.late.clear();
        (self.partitioned, self.cut) = (false, false);
    }

    fn serialize_time(&self, bytes: u32) -> Span {
        if bytes == HEADER_BYTES { self.header_time } else { link_time(&self.config, bytes) }
    }

    fn delay(&mut self, from: NodeId) -> Span {
        match &self.config.latency {
            Latency::Constant(s) => *s,
            Latency::Exponential { base, mean } => *base + Span(self.rng.exponential(mean.0 as f64) as u64),
            Latency::Recorded { delays_ns, percent } => {
                let link = &mut self.links[from.0 as usize];
                link.place = if link.place + 1 == delays_ns.len() { 0 } else { link.place + 1 };
                Span(u64::from(delays_ns[link.place]) * u64::from(*percent) / 100)
            }
        }
    }

    /// Sends from `src` at `now`. `from_switch`: the packet pays a hop instead of the one-way delay.
    pub fn send(&mut self, now: Time, src: NodeId, dst: NodeId, bytes: u32, from_switch: bool) -> Arrivals {
        let n = self.links.len();
        if dst.0 as usize >= n || (self.partitioned && self.blocked[src.0 as usize * n + dst.0 as usize]) {
            self.dropped += 1;
            return [None, None];
        }
        let mut farther = Span::ZERO;
        if self.layout.racks() > 1 {
            let Some(more) = self.between(src, dst) else {
                self.dropped += 1;
                return [None, None];
            };
            farther = more;
        }
        if let Some(l) = self.late.iter().find(|l| (l.0, l.1) == (src, dst)) {
            farther += l.2;
        }
        let start = now.max(self.links[src.0 as usize].up_busy);
        if start.since(now) > self.config.queue_max {
            self.dropped += 1;
            return [None, None];
        }
        let sent = start + self.serialize_time(bytes);
        let delay = if from_switch { self.config.hop } else { self.delay(src) };
        if !from_switch {
            // The switch has a link per node; forwarded packets queue at the receiver's.
            self.links[src.0 as usize].up_busy = sent;
        }
        let arrival = sent + delay + farther;
        if self.config.faults.any() { self.mishaps(arrival) } else { [Some(arrival), None] }
    }

    fn mishaps(&mut self, arrival: Time) -> Arrivals {
        let f = self.config.faults;
        if self.rng.chance(f.loss) {
            self.dropped += 1;
            return [None, None];
        }
        let one = |rng: &mut Rng| match rng.chance(f.reorder) {
            true => arrival + Span(rng.below(f.reorder_extra_ns.max(1))),
            false => arrival,
        };
        let first = one(&mut self.rng);
        if !self.rng.chance(f.duplicate) {
            return [Some(first), None];
        }
        self.duplicated += 1;
        let extra = Span(self.rng.below(f.reorder_extra_ns.max(f.duplicate_extra_ns).max(1_000)));
        [Some(first), Some(one(&mut self.rng) + extra)]
    }

    /// A packet reached the receiver's link; returns when it has passed. Call once per arrival, in order of time.
    pub fn receive(&mut self, now: Time, dst: NodeId, bytes: u32) -> Time {
        let through = self.serialize_time(bytes);
        let link = &mut self.links[dst.0 as usize];
        let at = now.max(link.down_busy);
        link.down_busy = at + through;
        at
    }
}

#[cfg(test)]
#[path = "net_tests.rs"]
mod tests;
