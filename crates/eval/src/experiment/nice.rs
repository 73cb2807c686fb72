//! NICE §6.1–6.3: routing, replication, consistency. The cluster is [`crate::nice`].

use rackweave_core::{Rng, Span};
use rackweave_kv_replica::hash::partition;
use serde_json::{Value, json};

use super::{Better, ExperimentError, Options, Outcome, Row};
use crate::nice::client::{Done, Load, Op};
use crate::nice::cluster::{Cluster, Setup};
use crate::nice::net::{Carrier, framed};
use crate::nice::{Access, Replication, Scheme, params};

const ROG: Scheme = Scheme::Noob(Access::Rog, Replication::PrimaryBackup);
const RAG: Scheme = Scheme::Noob(Access::Rag, Replication::PrimaryBackup);
pub(super) const RAC: Scheme = Scheme::Noob(Access::Rac, Replication::PrimaryBackup);
pub(super) const TWO_PHASE: Scheme = Scheme::Noob(Access::Rac, Replication::TwoPhase);
pub(super) const QUORUM: Scheme = Scheme::Noob(Access::Rac, Replication::Quorum);
/// Own bar: a put of 1 MiB to nine replicas, of one to one.
const REPLICAS_BAR: f64 = 1.10;
/// Own bar: bytes at the primary, of those at a secondary, from 64 KiB.
const EVEN_BAR: f64 = 1.05;
/// Own bars: bytes on links, of the data and its chunks' headers, and of the data.
const LINK_BARS: (f64, f64) = (1.03, 1.12);
/// Bars of what neither bytes nor hops decide: of the paper's factor.
pub(super) const NEAR: f64 = 0.8;
pub(super) const MIB: u64 = 1 << 20;
/// After a load, until all of its messages have arrived.
const REST: Span = Span::from_millis(100);
/// Keys of an experiment; each is there before it is measured.
const KEYS: u64 = 64;

pub(super) fn config(o: Options, count: u64) -> Value {
    json!({
        "servers": params::SERVERS, "link_gbps": params::LINKS.bits_per_ns, "operations": count, "seed": o.seed,
        "message_cpu_us": params::HOST.message.0 as f64 / 1e3, "forced_write_us": params::HOST.force.0 as f64 / 1e3,
        "drive_mb_per_s": params::HOST.drive_bytes_per_us,
    })
}

fn sizes(o: Options) -> &'static [u64] {
    if o.quick { &[4, 65_536, MIB] } else { &[4, 64, 1_024, 4_096, 16_384, 65_536, 262_144, MIB] }
}

pub(super) fn size(bytes: u64) -> String {
    match bytes {
        MIB.. => format!("{} MiB", bytes >> 20),
        1024.. => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

pub(super) fn mean_us(done: &[Done]) -> f64 {
    done.iter().map(Done::us).sum::<f64>() / done.len() as f64
}

/// Operations on all keys in turn.
pub(super) fn in_turn(count: u64, op: impl Fn(u64) -> Op + 'static) -> Load {
    let mut i = 0;
    let next = Box::new(move |_: &mut Rng| {
        i += 1;
        op(i % KEYS)
    });
    Load { threads: 1, count, think: Span::ZERO, next }
}

/// Mean time of one client's operations.
struct Single {
    us: f64,
    /// Bytes on all links an operation.
    link_bytes: f64,
    /// Bytes of all primaries, of those of as many secondaries.
    uneven: f64,
}

/// One client's gets or puts of all keys in turn.
fn single(setup: Setup, bytes: u64, puts: bool, count: u64) -> Single {
    let mut c = Cluster::new(setup);
    c.fill(KEYS, bytes);
    let of = move |key| if puts { Op::Put { key, bytes } } else { Op::Get { key } };
    let (done, link_bytes) = counted(&mut c, in_turn(count, of), Cluster::link_bytes);
    Single { us: mean_us(&done), link_bytes: link_bytes / count as f64, uneven: uneven(&mut c, bytes, count) }
}

/// Runs a load; returns what was done and the bytes that it caused: heartbeats, which also come without it, are subtracted.
fn counted(c: &mut Cluster, load: Load, bytes: impl Fn(&Cluster) -> u64) -> (Vec<Done>, f64) {
    let (before, began) = (bytes(c), c.now());
    let done = c.run(vec![load]).remove(0);
    c.engine.run_until(c.now() + REST);
    let (with_load, took) = (bytes(c) - before, c.now().since(began));
    let before = bytes(c);
    c.engine.run_until(c.now() + took);
    (done, with_load as f64 - (bytes(c) - before) as f64)
}

/// Puts of one key: bytes at its primary, or at the proxy, of those at a secondary.
fn uneven(c: &mut Cluster, bytes: u64, count: u64) -> f64 {
    let key = crate::nice::client::key(0);
    let replicas = c.switch.borrow().replicas(partition(&key, params::BITS)).to_vec();
    if replicas.len() < 2 {
        return f64::NAN;
    }
    let first = if c.setup.scheme == Scheme::Proxy { c.gateways[0] } else { replicas[0] };
    let mut of = |host| {
        let next = Box::new(move |_: &mut Rng| Op::Put { key: 0, bytes });
        let puts = Load { threads: 1, count: count.min(20), think: Span::ZERO, next };
        counted(c, puts, |c| c.host_bytes(host)).1
    };
    of(first) / of(replicas[1])
}

pub(super) fn us_row(name: impl Into<String>, us: f64) -> Row {
    Row::new(name, "µs", Better::Lower, us)
}
pub(super) fn times(name: impl Into<String>, ratio: f64) -> Row {
    Row::new(name, "×", Better::Higher, ratio)
}
/// The paper's factor: with all of it as the bar, or most.
pub(super) fn against(name: impl Into<String>, ratio: f64, paper: f64, decides: bool) -> Row {
    times(name, ratio).paper(paper).bar(if decides { paper } else { NEAR * paper })
}

/// Figure 6.
pub(super) fn gets(o: Options) -> Result<Outcome, ExperimentError> {
    let count = if o.quick { 200 } else { 1_000 };
    let schemes = [Scheme::NICE, Scheme::RACKWEAVE, RAC, RAG, ROG, Scheme::Proxy];
    let mut rows = Vec::new();
    for &bytes in sizes(o) {
        let us = schemes.map(|s| single(Setup::new(s, o.seed), bytes, false, count).us);
        let named = |what: String| format!("{}: {what}", size(bytes));
        for (s, us) in schemes.iter().zip(us) {
            rows.push(us_row(named(s.name()), us));
        }
        for (name, us_ours) in [("NICE", us[0]), ("rackweave", us[1])] {
            let small = bytes < 65_536;
            let row = |other: &str, ratio: f64, paper: f64| {
                let name = named(format!("{name} against {other}"));
                if small { against(name, ratio, paper, false) } else { times(name, ratio) }
            };
            rows.push(row("RAG", us[3] / us_ours, 1.5));
            rows.push(row("ROG", us[4] / us_ours, 2.0));
        }
    }
    Ok(Outcome::new(config(o, count), rows))
}

/// Of one size, by scheme.
type BySize = (u64, Vec<(Scheme, Single)>);

/// Figures 7, 8 and 9: operations, and the cells.
fn puts_by_size(o: Options) -> (u64, Vec<BySize>) {
    let count = if o.quick { 20 } else { 1_000 };
    let schemes = [Scheme::NICE, Scheme::RACKWEAVE, RAC, RAG, ROG, Scheme::Proxy];
    let of = |bytes: u64| schemes.map(|s| (s, single(Setup::new(s, o.seed), bytes, true, count))).into_iter().collect();
    (count, sizes(o).iter().map(|b| (*b, of(*b))).collect())
}

/// Figure 7.
pub(super) fn puts(o: Options) -> Result<Outcome, ExperimentError> {
    let (count, all) = puts_by_size(o);
    let mut rows = Vec::new();
    for (bytes, of) in &all {
        let named = |what: String| format!("{}: {what}", size(*bytes));
        rows.extend(of.iter().map(|(s, m)| us_row(named(s.name()), m.us)));
        for (i, name) in [(0, "NICE"), (1, "rackweave")] {
            for (j, other, paper) in [(2, "RAC", 2.6), (3, "RAG", 3.4), (4, "ROG", 4.3)] {
                let ratio = of[j].1.us / of[i].1.us;
                let name = named(format!("{name} against {other}"));
                // The paper's factors are its largest, those of 1 MB.
                rows.push(if *bytes == MIB { against(name, ratio, paper, true) } else { times(name, ratio) });
            }
        }
    }
    Ok(Outcome::new(config(o, count), rows))
}

/// Figure 8.
pub(super) fn link_bytes(o: Options) -> Result<Outcome, ExperimentError> {
    let (count, all) = puts_by_size(o);
    let mut rows = Vec::new();
    let lower = |name, ratio| Row::new(name, "×", Better::Lower, ratio);
    for (bytes, of) in &all {
        let named = |what: String| format!("{}: {what}", size(*bytes));
        for (s, m) in of {
            rows.push(Row::new(named(s.name()), "KB a put", Better::Lower, m.link_bytes / 1e3));
        }
        if *bytes < 1_024 {
            continue;
        }
        // From the client to the switch, and from there to each replica.
        let links = 1.0 + params::REPLICAS as f64;
        for (i, name) in [(0, "NICE"), (1, "rackweave")] {
            let carrier = [Carrier::Datagrams, Carrier::Rackweave][i];
            let framed = framed(carrier, *bytes) as f64 * links;
            let (of_frames, of_data) = (of[i].1.link_bytes / framed, of[i].1.link_bytes / (*bytes as f64 * links));
            let (first, second) = (
                lower(named(format!("{name}: of the tree's chunks")), of_frames),
                lower(named(format!("{name}: of the tree's data")), of_data),
            );
            let large = *bytes >= 65_536;
            rows.push(if large { first.bar(LINK_BARS.0) } else { first });
            rows.push(if large { second.bar(LINK_BARS.1) } else { second });
            for (j, other, paper) in [(2, "RAC", 1.7), (4, "ROG", 3.5)] {
                let ratio = of[j].1.link_bytes / of[i].1.link_bytes;
                rows.push(against(named(format!("{other}, of {name}")), ratio, paper, *bytes == MIB));
            }
        }
    }
    Ok(Outcome::new(config(o, count), rows))
}

/// Figure 9.
pub(super) fn evenness(o: Options) -> Result<Outcome, ExperimentError> {
    let (count, all) = puts_by_size(o);
    let mut rows = Vec::new();
    for (bytes, of) in &all {
        for (s, m) in of {
            let row = Row::new(format!("{}: {}", size(*bytes), s.name()), "of a secondary's", Better::Lower, m.uneven);
            let paper = match s {
                Scheme::Nice { .. } | Scheme::Rackweave { .. } => 1.0,
                Scheme::Noob(..) => 3.0,
                Scheme::Proxy => 4.0,
            };
            let is_ours = matches!(s, Scheme::Nice { .. } | Scheme::Rackweave { .. });
            let row = row.paper(paper);
            rows.push(if is_ours && *bytes >= 65_536 { row.bar(EVEN_BAR) } else { row });
        }
    }
    Ok(Outcome::new(config(o, count), rows))
}

/// Figures 10 and 11, one size.
fn by_replicas(o: Options, bytes: u64) -> Result<Outcome, ExperimentError> {
    let count = if o.quick { 10 } else { 1_000 };
    let replicas: &[usize] = if o.quick { &[1, 3, 9] } else { &[1, 3, 5, 7, 9] };
    let schemes = [Scheme::NICE, Scheme::RACKWEAVE, RAC, TWO_PHASE, QUORUM];
    let cell = |scheme, replicas, connections| {
        let setup = Setup { replicas, connections, ..Setup::new(scheme, o.seed) };
        single(setup, bytes, true, count).us
    };
    let mut rows = Vec::new();
    let mut of = Vec::new();
    for &r in replicas {
        let us = schemes.map(|s| cell(s, r, true));
        rows.extend(schemes.iter().zip(us).map(|(s, us)| us_row(format!("R = {r}: {}", s.name()), us)));
        if bytes < MIB && r > 1 {
            let standing =
                |s: &Scheme| us_row(format!("R = {r}: {}, standing connections", s.name()), cell(*s, r, false));
            rows.extend(schemes[2..].iter().map(standing));
        }
        of.push((r, us));
    }
    let (one, three, nine) = (of[0].1, of[1].1, of[of.len() - 1].1);
    if bytes < MIB {
        // What the cost of a message is calibrated to.
        rows.push(us_row("calibration: RAC primary-backup, R = 3", three[2]).paper(params::CALIBRATED_US));
        for (i, name) in [(0, "NICE"), (1, "rackweave")] {
            rows.push(against(format!("{name} against 2PC, R = 9"), nine[3] / nine[i], 1.3, false));
            rows.push(times(format!("{name} against primary-backup, R = 9"), nine[2] / nine[i]).paper(1.0).bar(NEAR));
        }
    } else {
        for (i, name) in [(0, "NICE"), (1, "rackweave")] {
            rows.push(against(format!("{name} against primary-backup, R = 9"), nine[2] / nine[i], 5.5, true));
            let grows = Row::new(format!("{name}: R = 9, of R = 1"), "×", Better::Lower, nine[i] / one[i]);
            rows.push(grows.paper(1.17).bar(REPLICAS_BAR));
        }
        let grows = Row::new("RAC primary-backup: R = 9, of R = 1", "×", Better::Lower, nine[2] / one[2]);
        rows.push(grows.paper(7.0));
    }
    Ok(Outcome::new(config(o, count), rows))
}

/// Figure 10.
pub(super) fn small_by_replicas(o: Options) -> Result<Outcome, ExperimentError> {
    by_replicas(o, 4)
}
/// Figure 11.
pub(super) fn large_by_replicas(o: Options) -> Result<Outcome, ExperimentError> {
    by_replicas(o, MIB)
}
