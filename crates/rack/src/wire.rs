//! Shared state of a simulated rack's network: each node's files (incarnation counter, keys), faults of datagrams, and
//! the checker of their contents ([`Log`]).

use std::collections::BTreeMap;

use bytes::BytesMut;
use rackweave_core::msg::{Op, Packet};
use rackweave_core::rng::mix64;
use rackweave_core::{Layout, Message, NodeId, Rng, Span, Time};
use rackweave_link::streams::StreamLimits;
use rackweave_link::{Link, incarnation, on_one_machine};
use rackweave_transport::header::{self, Kind};
use rackweave_transport::{Config, KeyId, Keys};
use serde::{Deserialize, Serialize};

use crate::forge;
use crate::networked::Datagram;
use crate::wire_log::Log;

/// Parameters of the transport under a rack's nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransportConfig {
    /// Nodes are processes of one machine: large datagrams, one path, longer timeouts.
    pub one_machine: bool,
    /// Largest datagram between machines.
    pub datagram_bytes: u32,
    pub authentication: Authentication,
    /// Chunks to one peer are sent as trains.
    pub trains: bool,
    /// Fraction of all datagrams that are damaged or truncated.
    pub damage: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Authentication {
    None,
    Tags,
    Encrypted,
}

/// Key ids in rotation: few, so that an id is reused within a run with another secret.
const KEY_IDS: [u8; 3] = [1, 2, 3];
/// Largest train, as UDP segmentation permits.
const TRAIN: usize = 65_507;
/// Datagrams per sender and receiver that an attacker keeps.
const RECORDED: usize = 32;
/// Recorded datagrams that an attacker forges others after, at a time.
const FORGED: usize = 64;

/// State that outlives nodes.
#[derive(Debug)]
pub struct Wire {
    cfg: TransportConfig,
    seed: u64,
    rng: Rng,
    starts: u64,
    /// Of each node, the durable incarnation counter; zero if it is lost.
    incarnations: Vec<u64>,
    /// Of each node, its key file.
    keys: Vec<Keys>,
    rotations: usize,
    /// Fraction of paths that lead nowhere, per mille, and a seed that selects them.
    dark: (u64, u64),
    /// Longer datagrams vanish.
    largest: usize,
    /// Number of messages so far.
    tokens: u64,
    /// An attacker's recordings by sender and receiver: the number of datagrams, and a sample of all of them.
    recorded: BTreeMap<(NodeId, NodeId), (u64, Vec<Datagram>)>,
    switches: Vec<NodeId>,
    pub(crate) log: Log,
}

impl Wire {
    pub fn new(cfg: TransportConfig, layout: &Layout, seed: u64) -> Wire {
        let nodes = layout.nodes() as usize;
        let keyed = cfg.authentication != Authentication::None;
        let keys = if keyed { Keys::one(KeyId(KEY_IDS[0]), secret(seed, 0)).expect("a key") } else { Keys::none() };
        Wire {
            cfg,
            seed,
            rng: Rng::stream(seed, 0x7769_7265),
            starts: 0,
            incarnations: vec![0; nodes],
            keys: vec![keys; nodes],
            rotations: 0,
            dark: (0, 0),
            largest: usize::MAX,
            tokens: 0,
            recorded: BTreeMap::new(),
            log: Log::new(keyed, layout.switches().collect()),
            switches: layout.switches().collect(),
        }
    }

    /// Starts a node: its link, and its own random numbers.
    pub(crate) fn begin(&mut self, node: NodeId) -> (Link, Rng) {
        self.starts += 1;
        let incarnation = self.next_incarnation(node, 0);
        self.log.begins(node, incarnation);
        let c = &self.cfg;
        let mut cfg = Config {
            switches: self.switches.clone(),
            datagram_bytes_max: c.datagram_bytes as usize,
            train_bytes_max: if c.trains { TRAIN } else { 0 },
            encrypt: c.authentication == Authentication::Encrypted,
            ..Config::default()
        };
        if c.one_machine {
            on_one_machine(&mut cfg);
        }
        let seed = mix64(self.seed ^ self.starts << 32 ^ u64::from(node.0));
        let link = Link::new(cfg, StreamLimits::default(), node, incarnation, self.keys(node), seed)
            .expect("the configuration is sound");
        (link, Rng::stream(seed, 1))
    }

    pub(crate) fn ends(&mut self, node: NodeId) {
        self.log.ends(node);
    }
    pub(crate) fn keys(&self, node: NodeId) -> Keys {
        self.keys[node.0 as usize].clone()
    }

    /// The next value of the node's counter, durable at once.
    pub(crate) fn next_incarnation(&mut self, node: NodeId, newest: u64) -> u64 {
        let random = self.rng.next_u64();
        let kept = &mut self.incarnations[node.0 as usize];
        *kept = incarnation::above(*kept, newest, random).expect("runs are short");
        *kept
    }

    /// The node's next run finds no counter.
    pub fn lose_counter(&mut self, node: NodeId) {
        self.incarnations[node.0 as usize] = 0;
    }

    /// From now on this fraction of all paths leads nowhere; zero for none.
    pub fn darken(&mut self, permille: u64) {
        self.dark = (permille, self.rng.next_u64());
    }

    /// Longer datagrams vanish from now on.
    pub fn narrow(&mut self, bytes: usize) {
        self.largest = bytes;
    }
    /// As [`Log::arrive_within`].
    pub fn arrive_within(&mut self, max: Span) {
        self.log.arrive_within(max);
    }
    /// As [`Log::reliable`].
    pub fn reliable(&mut self, reliable: bool) {
        self.log.reliable(reliable);
    }
    pub(crate) fn time(&mut self, now: Time) {
        self.log.time(now);
    }

    /// A node passes a packet to its network. Returns the packet's token.
    pub(crate) fn sent(&mut self, incarnation: u64, p: &Packet) -> u64 {
        self.tokens += 1;
        self.log.sent(incarnation, self.tokens, p);
        self.tokens
    }

    /// An attacker sees the datagram. Without keys anyone can forge datagrams, so replays are not needed.
    pub(crate) fn record(&mut self, d: &Datagram) {
        if !self.is_keyed() || d.path().is_none() {
            return;
        }
        let (count, kept) = self.recorded.entry((d.from(), d.to())).or_default();
        *count += 1;
        if kept.len() < RECORDED {
            return kept.push(d.clone());
        }
        let place = self.rng.below(*count) as usize;
        if let Some(old) = kept.get_mut(place) {
            *old = d.clone();
        }
    }
    /// Datagrams recorded on their way to the node.
    pub(crate) fn recorded(&self, to: NodeId) -> Vec<Datagram> {
        self.recorded.iter().filter(|(way, _)| way.1 == to).flat_map(|(_, (_, kept))| kept.clone()).collect()
    }

    /// Datagrams to the node that an attacker without keys makes of some that were recorded.
    pub(crate) fn forged(&mut self, to: NodeId) -> Vec<Datagram> {
        let mut models = self.recorded(to);
        let mut forged = Vec::new();
        for _ in 0..FORGED.min(models.len()) {
            let model = models.swap_remove(self.rng.below(models.len() as u64) as usize);
            let Some(first) = model.each().next() else { continue };
            forged.extend(forge::after(first, &mut self.rng).into_iter().map(|bytes| model.alike(bytes)));
        }
        forged.extend(self.redirected(to));
        forged
    }
    /// Trains for other nodes, sent to this one.
    fn redirected(&mut self, to: NodeId) -> Vec<Datagram> {
        let elsewhere = self.recorded.iter().filter(|(way, _)| way.1 != to);
        let mut models: Vec<Datagram> = elsewhere.flat_map(|(_, (_, kept))| kept.clone()).collect();
        let mut redirected = Vec::new();
        for _ in 0..FORGED.min(models.len()) {
            let model = models.swap_remove(self.rng.below(models.len() as u64) as usize);
            redirected.extend(forge::redirected(model.each(), to).map(|bytes| model.redirected(to, bytes)));
        }
        redirected
    }

    /// Whether the path leads to the node.
    pub(crate) fn reaches(&self, from: NodeId, to: NodeId, path: u16) -> bool {
        let (permille, which) = self.dark;
        let way = u64::from(from.0) << 40 ^ u64::from(to.0) << 16 ^ u64::from(path);
        permille == 0 || mix64(which ^ way) % 1000 >= permille
    }

    /// Whether the datagram arrives; some arrive damaged.
    pub(crate) fn passes(&self, from: NodeId, to: NodeId, path: u16, d: &mut BytesMut, rng: &mut Rng) -> bool {
        if d.len() > self.largest || !self.reaches(from, to, path) {
            return false;
        }
        // Without a key only UDP's checksum protects a `gc_op`.
        let guarded = self.is_keyed() || d.first() != Some(&(Op::GcOp as u8));
        if self.cfg.damage > 0.0 && guarded && !d.is_empty() && rng.chance(self.cfg.damage) {
            let at = rng.below(d.len() as u64) as usize;
            if rng.chance(0.2) { d.truncate(at) } else { d[at] ^= 1 << rng.below(8) }
        }
        true
    }

    /// A node sends a datagram. No counter may be reused with a key (rule 32), and the key must be the node's current
    /// sending key.
    pub(crate) fn leaves(&mut self, node: NodeId, train: &Datagram) {
        self.record(train);
        train.each().for_each(|d| self.sealed(node, d));
    }
    fn sealed(&mut self, node: NodeId, d: &[u8]) {
        let Ok(p) = header::parse(d) else {
            return self.log.violated(|| format!("{node} sends a datagram that nobody can read"));
        };
        let id = (p.counter >> 56) as u8;
        let wanted = self.keys[node.0 as usize].sending().map_or(0, |k| k.0);
        if id != wanted {
            self.log.violated(|| format!("{node} seals with key {id}, its file says {wanted}"));
        }
        if p.kind != Kind::Bare {
            self.log.sealed(node, p.incarnation, p.counter);
        }
    }

    /// Applies a step of the current rotation to a node's key file.
    pub fn rekey(&mut self, node: NodeId, step: Rekey) {
        let (old, new) = (self.rotations, self.rotations + 1);
        let id = |n: usize| KeyId(KEY_IDS[n % KEY_IDS.len()]);
        let keys = &mut self.keys[node.0 as usize];
        if keys.is_none() {
            return;
        }
        let changed = match step {
            Rekey::Add => keys.add(id(new), secret(self.seed, new)),
            Rekey::SendWith => keys.send_with(id(new)),
            Rekey::Remove => keys.remove(id(old)),
        };
        debug_assert!(changed.is_ok(), "{node} {step:?}: {changed:?}");
    }
    /// The rotation is complete on all nodes.
    pub fn rotated(&mut self) {
        self.rotations += 1;
    }
    pub fn is_keyed(&self) -> bool {
        self.cfg.authentication != Authentication::None
    }
}

/// Steps of a rotation; every node takes each before any takes the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rekey {
    Add,
    SendWith,
    Remove,
}

fn secret(seed: u64, number: usize) -> [u8; 32] {
    let mut key = [0; 32];
    for (i, word) in key.chunks_mut(8).enumerate() {
        word.copy_from_slice(&mix64(seed ^ (number as u64) << 8 ^ i as u64).to_be_bytes());
    }
    key
}
