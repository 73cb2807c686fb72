//! NICE §6.4–6.7: load balancing, YCSB, quorums.

use std::collections::BTreeSet;

use rackweave_core::{NodeId, Rng, Span, Time};
use rackweave_kv_replica::Config;
use rackweave_kv_replica::hash::partition;
use rackweave_kv_replica::types::{Partition, View};
use serde_json::json;

use super::nice::{MIB, NEAR, QUORUM, RAC, TWO_PHASE, against, config, mean_us, size, times, us_row};
use super::{Better, ExperimentError, Options, Outcome, Row};
use crate::nice::client::{Done, Load, Op, key};
use crate::nice::cluster::{Cluster, Setup};
use crate::nice::host::HostConfig;
use crate::nice::net::{Division, LinkConfig};
use crate::nice::ours::Server;
use crate::nice::{Access, Replication, Scheme, params};
use rackweave_replay::ycsb::{self, Workload, Ycsb};

/// Gateways of YCSB's 2PC: of the paper's 14 nodes for clients and load balancers, 10 are clients.
const GATEWAYS: u32 = 4;
const YCSB_CLIENTS: u32 = 10;
/// YCSB's default number of records.
const RECORDS: u64 = 1_000;
/// Bar of a return, in seconds for 10,000 missed objects.
const REJOINED_BAR: f64 = 2.0;
/// Bar of P99, weighted replicas or better, of client partitioning's.
const WEIGHTED_BAR: f64 = 0.5;

fn forever(count: u64, op: Op) -> Load {
    Load { threads: 1, count, think: Span::ZERO, next: Box::new(move |_| op) }
}

/// Mean time of all operations on a shared object: one client's puts beside the others' gets, or the gets alone.
fn hot(setup: Setup, bytes: u64, count: u64, puts: bool) -> f64 {
    let clients = setup.clients;
    let mut c = Cluster::new(setup);
    c.fill(1, bytes);
    let load = |i: u32| match i {
        0 => forever(if puts { count } else { 0 }, Op::Put { key: 0, bytes }),
        _ => forever(count, Op::Get { key: 0 }),
    };
    let done: Vec<Done> = c.run((0..clients).map(load).collect()).concat();
    mean_us(&done)
}

fn weak_scaling(o: Options, bytes: u64, decides: bool) -> Result<Outcome, ExperimentError> {
    let count = match (o.quick, bytes >= MIB) {
        (true, true) => 10,
        (true, false) => 300,
        (false, _) => 1_000,
    };
    let replicas: &[usize] = if o.quick { &[3, 9] } else { &[3, 5, 7, 9] };
    let schemes = [Scheme::NICE, Scheme::RACKWEAVE, RAC, TWO_PHASE];
    let mut rows = Vec::new();
    let mut all = Vec::new();
    for &r in replicas {
        let cell = |s, puts| {
            let setup = Setup { replicas: r, clients: r as u32, ..Setup::new(s, o.seed) };
            hot(setup, bytes, count, puts)
        };
        let us = schemes.map(|s| cell(s, true));
        rows.extend(schemes.iter().zip(us).map(|(s, us)| us_row(format!("R = {r}: {}", s.name()), us)));
        rows.extend(schemes.iter().map(|s| us_row(format!("R = {r}: {}, gets alone", s.name()), cell(*s, false))));
        all.push(us);
    }
    let (three, nine) = (all[0], all[all.len() - 1]);
    for (i, name) in [(0, "NICE"), (1, "rackweave")] {
        for (j, other, paper) in [(2, "primary-backup", 7.5), (3, "2PC", 5.5)] {
            rows.push(against(format!("{name} against {other}, R = 9"), nine[j] / nine[i], paper, decides));
        }
    }
    let papers = if bytes >= MIB { [1.2, 1.2, 3.5, 2.6] } else { [1.8, 1.8, 10.0, 2.6] };
    for (i, paper) in papers.into_iter().enumerate() {
        let row = Row::new(format!("{}: R = 9, of R = 3", schemes[i].name()), "×", Better::Lower, nine[i] / three[i]);
        let row = row.paper(paper);
        rows.push(if i < 2 { row.bar(paper / NEAR) } else { row });
    }
    Ok(Outcome::new(config(o, count), rows))
}

/// Figure 12.
pub(super) fn hot_small(o: Options) -> Result<Outcome, ExperimentError> {
    weak_scaling(o, 4, false)
}
/// Figure 13.
pub(super) fn hot_large(o: Options) -> Result<Outcome, ExperimentError> {
    weak_scaling(o, MIB, true)
}

/// Mean time of YCSB's operations by ten clients.
fn ycsb_us(scheme: Scheme, workload: Workload, count: u64, seed: u64) -> f64 {
    let bytes = u64::from(ycsb::RECORD_BYTES);
    let setup = Setup { clients: YCSB_CLIENTS, gateways: GATEWAYS, ..Setup::new(scheme, seed) };
    let mut c = Cluster::new(setup);
    c.fill(RECORDS, bytes);
    let load = |i: u32| {
        let mut ops = Ycsb::new(workload, RECORDS, seed << 8 | u64::from(i));
        let next = move |_: &mut Rng| match ops.next() {
            Some(ycsb::Op::ReadModifyWrite { record }) => Op::Modify { key: record, bytes },
            Some(ycsb::Op::Update { record }) => Op::Put { key: record, bytes },
            Some(ycsb::Op::Read { record }) => Op::Get { key: record },
            other => panic!("{other:?} is no operation of this workload"),
        };
        Load { threads: 1, count, think: Span::ZERO, next: Box::new(next) }
    };
    mean_us(&c.run((0..YCSB_CLIENTS).map(load).collect()).concat())
}

/// Figure 15.
pub(super) fn ycsb(o: Options) -> Result<Outcome, ExperimentError> {
    let count = if o.quick { 500 } else { 20_000 };
    let behind_rag = Scheme::Noob(Access::Rag, Replication::TwoPhase);
    let schemes = [Scheme::NICE, Scheme::RACKWEAVE, RAC, behind_rag];
    let mut rows = Vec::new();
    for (workload, name, papers) in [(Workload::C, "C", [1.6, 1.25]), (Workload::F, "F", [2.3, 1.5])] {
        let us = schemes.map(|s| ycsb_us(s, workload, count, o.seed));
        rows.extend(schemes.iter().zip(us).map(|(s, us)| us_row(format!("{name}: {}", s.name()), us)));
        for (i, ours) in [(0, "NICE"), (1, "rackweave")] {
            for (j, other) in [(2, "primary-backup"), (3, "2PC")] {
                rows.push(against(format!("{name}: {ours} against {other}"), us[j] / us[i], papers[j - 2], false));
            }
        }
    }
    Ok(Outcome::new(config(o, count), rows))
}

/// Puts to a partition, one of whose secondaries may be slow.
fn quorum_us(scheme: Scheme, replicas: usize, bytes: u64, slow: u64, o: Options) -> f64 {
    let mut c = Cluster::new(Setup { replicas, ..Setup::new(scheme, o.seed) });
    c.fill(1, bytes);
    let members = c.switch.borrow().replicas(partition(&key(0), params::BITS)).to_vec();
    let host = c.setup.host;
    let late = HostConfig { message: Span(host.message.0 * slow), ..host };
    c.host(members[replicas - 1]).set_config(late);
    let done = c.run(vec![forever(if o.quick { 10 } else { 50 }, Op::Put { key: 0, bytes })]).remove(0);
    mean_us(&done)
}

/// Any-k puts (NICE §5).
pub(super) fn quorum(o: Options) -> Result<Outcome, ExperimentError> {
    let mut rows = Vec::new();
    for (replicas, k) in [(3, 2), (5, 3)] {
        let any = Some(k);
        let schemes = [Scheme::Nice { any }, Scheme::Rackweave { any }, QUORUM, Scheme::NICE, Scheme::RACKWEAVE];
        for bytes in [4, MIB] {
            for slow in [1, 20] {
                let us = schemes.map(|s| quorum_us(s, replicas, bytes, slow, o));
                let late = if slow > 1 { ", one slow" } else { "" };
                let named = |what: &str| format!("R = {replicas}, {}{late}: {what}", size(bytes));
                rows.extend(schemes.iter().zip(us).map(|(s, us)| us_row(named(&s.name()), us)));
                rows.push(times(named("NICE against quorum"), us[2] / us[0]));
                rows.push(times(named("rackweave against quorum"), us[2] / us[1]));
            }
        }
    }
    let count = if o.quick { 10 } else { 50 };
    Ok(Outcome::new(config(o, count), rows))
}

/// How gets of figures 16 and 17 are divided.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Divided {
    Clients,
    Weights,
    /// By Rackweave's client.
    Ours,
    /// By Rackweave's switch, as on a rack.
    Switch,
}

/// The cluster of §6.7: three servers, ten clients of 100 threads, links of 100 Gb/s.
struct Skew {
    /// Requests a second of each client.
    rates: [f64; 10],
    /// A server's cost of a message, of the others'.
    slow: f64,
}

const SKEW_SERVERS: u32 = 3;
const THREADS: usize = 100;
/// Of the servers' capacity.
const LOADED: f64 = 0.7;
/// The controller recomputes weights this often (NICE §4.7), from queue lengths of heartbeats.
const WEIGHTS_EVERY: u64 = 10;
const HEARTBEAT: Span = Span::from_millis(100);

/// Gets a second that a server can answer: it receives one message and sends one.
fn capacity() -> f64 {
    1e9 / (2.0 * params::HOST.message.0 as f64)
}

impl Skew {
    /// Figure 16: three clients of ten make half of the requests.
    fn clients() -> Skew {
        let all = LOADED * f64::from(SKEW_SERVERS) * capacity();
        Skew { rates: std::array::from_fn(|i| if i < 3 { all * 0.5 / 3.0 } else { all * 0.5 / 7.0 }), slow: 1.0 }
    }
    /// Figure 17: one server's CPU is 40 % slower.
    fn servers() -> Skew {
        let slow = 1.0 / 0.6;
        let all = LOADED * (f64::from(SKEW_SERVERS - 1) + 1.0 / slow) * capacity();
        Skew { rates: [all / 10.0; 10], slow }
    }

    /// Times of the gets of the second half, in µs, in order.
    fn run(&self, divided: Divided, span: Span, seed: u64) -> Vec<f64> {
        let ours = matches!(divided, Divided::Ours | Divided::Switch);
        let scheme = if ours { Scheme::RACKWEAVE } else { Scheme::NICE };
        let weights = (divided == Divided::Weights).then(|| Division::Weights(vec![1.0; SKEW_SERVERS as usize]));
        let links = LinkConfig { bits_per_ns: 100.0, ..params::LINKS };
        let clients = self.rates.len() as u32;
        let mut setup = Setup { servers: SKEW_SERVERS, clients, links, division: weights, ..Setup::new(scheme, seed) };
        setup.config.by_switch = divided == Divided::Switch;
        let mut c = Cluster::new(setup);
        // One replica set: the placement of every partition in the same order.
        let home = c.switch.borrow().replicas(Partition(0)).to_vec();
        c.switch.borrow_mut().home.iter_mut().for_each(|h| h.clone_from(&home));
        c.fill(RECORDS, 1_024);
        let host = c.setup.host;
        let message = Span((host.message.0 as f64 * self.slow) as u64);
        c.host(home[0]).set_config(HostConfig { message, ..host });
        let load = |(i, rate): (usize, &f64)| {
            let mut ops = Ycsb::new(Workload::C, RECORDS, seed << 8 | i as u64);
            let next = move |_: &mut Rng| match ops.next() {
                Some(ycsb::Op::Read { record }) => Op::Get { key: record },
                other => panic!("{other:?} is no operation of this workload"),
            };
            let think = Span((THREADS as f64 * 1e9 / rate) as u64);
            Load { threads: THREADS, count: u64::MAX, think, next: Box::new(next) }
        };
        let began = c.now();
        c.begin(self.rates.iter().enumerate().map(load).collect());
        let mut queues = vec![0; home.len()];
        for beat in 1..=span.0 / HEARTBEAT.0 {
            c.engine.run_until(began + Span(beat * HEARTBEAT.0));
            home.iter().zip(&mut queues).for_each(|(s, q)| *q += c.host(*s).queued());
            if beat % WEIGHTS_EVERY == 0 {
                reweigh(&mut c, &mut queues);
            }
        }
        let half = began + Span(span.0 / 2);
        let mut us: Vec<f64> = c.take_done().concat().iter().filter(|d| d.began >= half).map(Done::us).collect();
        us.sort_by(f64::total_cmp);
        us
    }
}

/// The paper leaves open how weights follow queue lengths; here a weight changes with the square root of the mean queue's length, of
/// its replica's.
fn reweigh(c: &mut Cluster, queues: &mut [usize]) {
    let length = |q: usize| 1.0 + q as f64 / WEIGHTS_EVERY as f64;
    let mean = queues.iter().map(|q| length(*q)).sum::<f64>() / queues.len() as f64;
    if let Division::Weights(weights) = &mut c.switch.borrow_mut().division {
        weights.iter_mut().zip(&*queues).for_each(|(w, q)| *w *= (mean / length(*q)).sqrt());
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    queues.fill(0);
}

fn skewed(o: Options, skew: &Skew) -> Result<Outcome, ExperimentError> {
    let span = Span::from_secs(if o.quick { 6 } else { 40 });
    let runs = [Divided::Clients, Divided::Weights, Divided::Ours, Divided::Switch].map(|d| skew.run(d, span, o.seed));
    let names = ["NICE, client partitioning", "NICE, weighted replicas", "rackweave", "rackweave, by the switch"];
    let at =
        |us: &[f64], percent: f64| us.get((us.len() as f64 * percent / 100.0) as usize).copied().unwrap_or(f64::NAN);
    let mut rows = Vec::new();
    let points: &[f64] = if o.quick { &[50.0, 99.0] } else { &[10.0, 25.0, 50.0, 60.0, 75.0, 90.0, 99.0, 99.9] };
    for (name, us) in names.iter().zip(&runs) {
        rows.extend(points.iter().map(|p| us_row(format!("{name}: P{p}"), at(us, *p))));
    }
    for (name, us) in names.iter().zip(&runs).skip(1) {
        let row = Row::new(
            format!("{name}: P99, of client partitioning"),
            "×",
            Better::Lower,
            at(us, 99.0) / at(&runs[0], 99.0),
        );
        rows.push(row.paper(0.5).bar(WEIGHTED_BAR));
    }
    let config = json!({
        "servers": SKEW_SERVERS, "clients": skew.rates.len(), "threads": THREADS, "link_gbps": 100, "load": LOADED,
        "gets_per_s": skew.rates, "slow": skew.slow, "span_s": span.0 / 1_000_000_000, "seed": o.seed,
    });
    Ok(Outcome::new(config, rows))
}

/// Figure 16.
pub(super) fn skewed_clients(o: Options) -> Result<Outcome, ExperimentError> {
    skewed(o, &Skew::clients())
}
/// Figure 17.
pub(super) fn slow_replica(o: Options) -> Result<Outcome, ExperimentError> {
    skewed(o, &Skew::servers())
}

/// Times of figure 14, in seconds: a secondary is lost, comes back, the end.
fn failure_times(o: Options) -> [u64; 3] {
    if o.quick { [2, 6, 9] } else { [30, 90, 120] }
}

/// Figure 14: three clients, a fifth puts, objects of 1 KiB in one partition.
pub(super) fn failure(o: Options) -> Result<Outcome, ExperimentError> {
    let [lost_s, back_s, end_s] = failure_times(o);
    let lease = Span::from_millis(50);
    let defaults = Config::default();
    let times = Config { bits: 0, lease, heartbeat: Span::from_millis(15), check: Span::from_millis(5), ..defaults };
    let setup = Setup { clients: 3, config: times, restarts: true, ..Setup::new(Scheme::RACKWEAVE, o.seed) };
    let mut c = Cluster::new(setup);
    c.fill(1, 1_024);
    let began = c.now();
    let at = |s: u64| began + Span::from_secs(s);
    let load = |i: u64| {
        let mut puts = 0u64;
        let next = move |rng: &mut Rng| {
            if puts == 0 || rng.chance(0.2) {
                puts += 1;
                return Op::Put { key: i << 32 | puts, bytes: 1_024 };
            }
            // One of the client's last 1,000 objects.
            Op::Get { key: i << 32 | (puts - rng.below(puts.min(1_000))) }
        };
        Load { threads: 1, count: u64::MAX, think: Span::ZERO, next: Box::new(next) }
    };
    c.begin((1..=3).map(load).collect());
    c.engine.run_until(at(lost_s));
    let p = Partition(0);
    let view = c.membership().view(p).expect("it is served").clone();
    let secondary = view.members.iter().map(|m| m.node).find(|n| *n != view.primary).expect("three members");
    let saved = c.kill(secondary);
    c.engine.run_until(at(back_s));
    c.restart(secondary, saved);
    let mut whole = None;
    while c.now() < at(end_s) {
        c.engine.run_until(c.now() + Span::from_millis(5));
        let is_whole = |v: &View| v.readable().any(|n| n == secondary) && v.members.len() == 3;
        if whole.is_none() && c.membership().view(p).is_some_and(is_whole) {
            whole = Some(c.now());
        }
    }
    let done = c.take_done().concat();
    let mut rows = failure_rows(&done, at(lost_s), at(back_s));
    let rejoined = whole.map_or(f64::INFINITY, |t| t.since(at(back_s)).0 as f64 / 1e9);
    let missed = done.iter().filter(|d| is_put(d) && d.ended > at(lost_s) && d.ended < at(back_s)).count() as f64;
    rows.push(Row::new("rejoined and serving after", "s", Better::Lower, rejoined).paper(5.0));
    rows.push(Row::new("objects that it missed", "objects", Better::Higher, missed));
    let of_some = rejoined * 10_000.0 / missed;
    rows.push(Row::new("rejoined, for each 10,000 objects", "s", Better::Lower, of_some).bar(REJOINED_BAR));
    let lacking = lacking(&mut c, p, &done) as f64;
    rows.push(Row::new("answered puts that a replica lacks", "puts", Better::Lower, lacking).paper(0.0).bar(0.0));
    let config = json!({
        "lease_ms": lease.0 / 1_000_000, "lost_s": lost_s, "back_s": back_s, "end_s": end_s, "clients": 3, "seed": o.seed,
    });
    Ok(Outcome::new(config, rows))
}

/// Answered puts that are not at each replica that answers any get. No key is put twice.
fn lacking(c: &mut Cluster, p: Partition, done: &[Done]) -> usize {
    let replicas: Vec<NodeId> = c.membership().view(p).map(|v| v.readable().collect()).unwrap_or_default();
    assert!(!replicas.is_empty(), "somebody answers gets");
    let mut lacking = 0;
    for n in replicas {
        let server: &mut Server = c.host(n).process().expect("a server");
        let has: BTreeSet<_> = server.node.versions(p).map(|(k, _)| k).collect();
        let puts = done.iter().filter_map(|d| if let Op::Put { key: k, .. } = d.op { Some(key(k)) } else { None });
        lacking += puts.filter(|k| !has.contains(k)).count();
    }
    lacking
}

fn is_put(d: &Done) -> bool {
    matches!(d.op, Op::Put { .. })
}

fn failure_rows(done: &[Done], lost: Time, back: Time) -> Vec<Row> {
    let mut ends: Vec<_> = done.iter().filter(|d| is_put(d)).map(|d| d.ended).collect();
    ends.sort_unstable();
    let gap = |from, until| {
        let pairs = ends.windows(2).filter(|w| w[1] >= from && w[0] <= until);
        pairs.map(|w| w[1].since(w[0]).0).max().map_or(f64::NAN, |ns| ns as f64 / 1e6)
    };
    let longest = |puts: bool| {
        let of = done.iter().filter(|d| is_put(d) == puts);
        of.map(Done::us).fold(0.0, f64::max) / 1e3
    };
    let soon = Span::from_secs(2);
    let ms = |name: &str, value| Row::new(name, "ms", Better::Lower, value);
    let count = |from, until| done.iter().filter(|d| d.ended >= from && d.ended < until).count();
    let rate = |name: &str, from: Time| {
        Row::new(name, "operations", Better::Higher, count(from, from + Span::from_secs(1)) as f64)
    };
    vec![
        rate("in the second before the loss", lost - Span::from_secs(1)),
        rate("in the second after the loss", lost),
        rate("in the second before the return", back - Span::from_secs(1)),
        rate("in the second after the return", back),
        ms("longest time without a put, at the loss", gap(lost, lost + soon)).paper(2_000.0).bar(100.0),
        ms("longest time without a put, at the return", gap(back, back + soon)),
        ms("longest put", longest(true)),
        ms("longest get", longest(false)).bar(100.0),
    ]
}
