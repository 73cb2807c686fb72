//! The live experiments: alternating rounds of the same work over each carrier, and medians of the ratios.

use std::io;

use rackweave_eval::experiment::{Better, ExperimentError, Options, Outcome, Row};
use serde_json::{Value, json};

use super::ends::{Figures, Site, Stack, Work, once};
use super::ovs::{self, Between};
use super::receive;
use super::veth;

/// Length and number of runs.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    pub rounds: usize,
    /// Requests of one run at depth 1; a deeper run has this number per slot.
    pub count: u64,
}

impl Effort {
    fn of(o: Options) -> Effort {
        if o.quick { Effort { rounds: 1, count: 4_000 } } else { Effort { rounds: 5, count: 40_000 } }
    }
}

fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    x.get(x.len() / 2).copied().unwrap_or(f64::NAN)
}

fn middle(all: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    median(all.iter().map(of).collect())
}

/// Median over all rounds of one carrier's figure ÷ the other's.
fn ratio(a: &[Figures], b: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    median(a.iter().zip(b).map(|(a, b)| of(a) / of(b)).collect())
}

/// Alternating rounds of each carrier.
fn rounds(site: &Site, ways: &[Stack], w: &Work, n: usize) -> io::Result<Vec<Vec<Figures>>> {
    let mut all = vec![Vec::new(); ways.len()];
    for _ in 0..n {
        for (i, way) in ways.iter().enumerate() {
            all[i].push(once(site, *way, w)?);
        }
    }
    Ok(all)
}

fn row(depth: u64, way: &str, what: &str, unit: &'static str, better: Better, value: f64) -> Row {
    Row::new(format!("depth {depth}, {way}: {what}"), unit, better, value)
}

/// Medians of each carrier.
fn rows(all: &mut Vec<Row>, depth: u64, ways: &[Stack], of: &[Vec<Figures>]) {
    for (way, f) in ways.iter().zip(of) {
        let mut us = |what, value: &dyn Fn(&Figures) -> f64| {
            all.push(row(depth, way.name(), what, "µs", Better::Lower, middle(f, value)));
        };
        us("CPU an operation", &Figures::cpu_us_per_operation);
        us("mean", &|f| f.mean_us);
        us("P50", &|f| f.p50_us);
        us("P99", &|f| f.p99_us);
        us("P99.9", &|f| f.p999_us);
        let rate = middle(f, |f| f.operations as f64 / f.seconds);
        all.push(row(depth, way.name(), "operations", "/s", Better::Higher, rate));
    }
}

fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').take(1).collect()
}

/// Run on loopback, a core for each end.
pub const CORES: &str = "two idle cores";
pub const RPC: &str = "two idle cores, and a program built with --features rpc";
pub const ROOT: &str = "two idle cores, and root for network namespaces";
pub const VALGRIND: &str = "valgrind";
pub const OVS: &str = "two idle cores, root for network namespaces, and Open vSwitch";

fn failed(e: io::Error) -> ExperimentError {
    ExperimentError::Live { reason: e.to_string().into() }
}

/// The figure's configuration, with the machine's load before and after it.
fn config(e: Effort, before: &str) -> Value {
    json!({"rounds": e.rounds, "count": e.count, "load_before": before, "load_after": load()})
}

fn work(depth: u64, bytes: usize, e: Effort) -> Work {
    let count = e.count * depth.min(4);
    Work { bytes, depth, warm_up: count / 10, count }
}

/// Refuses before anything is measured.
fn with_rpc() -> Result<(), ExperimentError> {
    match cfg!(feature = "rpc") {
        true => Ok(()),
        false => Err(failed(io::Error::other("the protobuf RPC is not built in: it needs --features rpc"))),
    }
}

/// Figures 4 and 5: the RPC layer's part of a transfer, and the time that an operation takes in user space. The RPC's
/// carrier is kernel TCP, with the same requests. The least write is a sector, where the paper has 64 B.
pub fn fig45(o: Options) -> Result<Outcome, ExperimentError> {
    with_rpc()?;
    let (e, before) = (Effort::of(o), load());
    let mut all = Vec::new();
    let ways = [Stack::Transport, Stack::Tcp, Stack::Rpc];
    for (bytes, paper) in [(512, 0.30), (4096, 0.24)] {
        let of = rounds(&Site::loopback(), &ways, &work(1, bytes, e), e.rounds).map_err(failed)?;
        for (way, f) in ways.iter().zip(&of) {
            let named = |what: &str| format!("{bytes} B, {}: {what}", way.name());
            all.push(Row::new(named("mean"), "µs", Better::Lower, middle(f, |f| f.mean_us)));
            all.push(Row::new(
                named("CPU in user space"),
                "µs",
                Better::Lower,
                middle(f, Figures::user_us_per_operation),
            ));
            all.push(Row::new(named("CPU"), "µs", Better::Lower, middle(f, Figures::cpu_us_per_operation)));
        }
        let layer = 1.0 - ratio(&of[1], &of[2], |f| f.mean_us);
        all.push(Row::new(format!("{bytes} B: RPC layer"), "of the transfer", Better::Lower, layer).paper(paper));
        let user = ratio(&of[0], &of[2], Figures::user_us_per_operation);
        let row = Row::new(format!("{bytes} B: CPU in user space, rackweave ÷ RPC"), "×", Better::Lower, user);
        all.push(row.paper(0.6 / 4.8));
    }
    Ok(Outcome::new(config(e, &before), all))
}

/// Figure 14 (a, b): a 4 KiB write and its reply, against the same request as a protobuf RPC.
pub fn fig14ab(o: Options) -> Result<Outcome, ExperimentError> {
    with_rpc()?;
    let (e, before) = (Effort::of(o), load());
    let mut all = Vec::new();
    let ways = [Stack::Transport, Stack::Encrypted, Stack::Tcp, Stack::Rpc];
    for (depth, cpu_paper, p50_paper, p50_bar) in [(1, 0.27, 0.93, 0.75), (16, 0.29, 0.63, 0.6)] {
        let of = rounds(&Site::loopback(), &ways, &work(depth, 4096, e), e.rounds).map_err(failed)?;
        rows(&mut all, depth, &ways, &of);
        let cpu = ratio(&of[0], &of[3], Figures::cpu_us_per_operation);
        let against = |what, value| row(depth, "rackweave ÷ RPC", what, "×", Better::Lower, value);
        all.push(against("CPU an operation", cpu).paper(cpu_paper).bar(0.28));
        all.push(against("P50", ratio(&of[0], &of[3], |f| f.p50_us)).paper(p50_paper).bar(p50_bar));
    }
    Ok(Outcome::new(config(e, &before), all))
}

/// Figure 6: latency against kernel TCP.
pub fn fig6(o: Options) -> Result<Outcome, ExperimentError> {
    let (e, before) = (Effort::of(o), load());
    let mut all = Vec::new();
    let ways = [Stack::Transport, Stack::Encrypted, Stack::Tcp];
    for depth in [1, 16] {
        let of = rounds(&Site::loopback(), &ways, &work(depth, 4096, e), e.rounds).map_err(failed)?;
        rows(&mut all, depth, &ways, &of);
        for (what, paper, value) in [
            ("mean", 1.0 / 3.6, (|f| f.mean_us) as fn(&Figures) -> f64),
            ("P99", 1.0 / 3.5, |f| f.p99_us),
            ("P99.9", 1.0 / 2.6, |f| f.p999_us),
        ] {
            let against = ratio(&of[0], &of[2], value);
            all.push(row(depth, "rackweave ÷ TCP", what, "×", Better::Lower, against).paper(paper));
        }
    }
    Ok(Outcome::new(config(e, &before), all))
}

/// Figure 7: bandwidth against kernel TCP, 16 messages in flight.
pub fn fig7(o: Options) -> Result<Outcome, ExperimentError> {
    let (e, before) = (Effort::of(o), load());
    let mut all = Vec::new();
    let ways = [Stack::Transport, Stack::Tcp];
    for kib in [4, 64] {
        let shorter = Effort { count: e.count / (kib / 4), ..e };
        let of = rounds(&Site::loopback(), &ways, &work(16, kib as usize * 1024, shorter), e.rounds).map_err(failed)?;
        for (way, f) in ways.iter().zip(&of) {
            let name = format!("{kib} KiB, {}", way.name());
            all.push(Row::new(name, "GB/s", Better::Higher, middle(f, |f| f.bytes_per_s / 1e9)));
        }
        let against = ratio(&of[0], &of[1], |f| f.bytes_per_s);
        let row = Row::new(format!("{kib} KiB, rackweave ÷ TCP"), "×", Better::Higher, against);
        all.push(row.paper(1.25).bar(1.25));
    }
    Ok(Outcome::new(config(e, &before), all))
}

/// Bulk over a veth pair of two namespaces: 1 MiB in flight as messages of 64 KiB. The bar is plain UDP with GSO and GRO.
pub fn bulk(o: Options) -> Result<Outcome, ExperimentError> {
    let (e, before) = (Effort::of(o), load());
    let mut all = Vec::new();
    let ways = [Stack::Transport, Stack::Encrypted, Stack::Tcp, Stack::Udp];
    let w = Work { bytes: 65_536, depth: 16, warm_up: e.count / 40, count: e.count / 4 };
    for mtu in MTUS {
        let of = veth::site(mtu).and_then(|site| rounds(&site, &ways, &w, e.rounds)).map_err(failed)?;
        for (way, f) in ways.iter().zip(&of) {
            let mib = |f: &Figures| (f.client_cpu_s + f.server_cpu_s) * 1e6 / (f.bytes_per_s * f.seconds / 1048576.0);
            let named = |what: &str| format!("MTU {mtu}, {}: {what}", way.name());
            all.push(Row::new(named("bandwidth"), "GB/s", Better::Higher, middle(f, |f| f.bytes_per_s / 1e9)));
            all.push(Row::new(named("CPU a MiB"), "µs", Better::Lower, middle(f, mib)));
        }
        let of_udp = ratio(&of[0], &of[3], |f| f.bytes_per_s);
        all.push(Row::new(format!("MTU {mtu}, rackweave ÷ plain UDP"), "×", Better::Higher, of_udp).bar(0.9));
    }
    Ok(Outcome::new(config(e, &before), all))
}

/// NICE §5.1: writes by way of Open vSwitch, which maps the ring's address to the server, against the kernel's bridge; links of 1 Gbit/s.
/// A write has at most 64 KiB, so 1 MiB is 16 of them in flight.
pub fn ovs(o: Options) -> Result<Outcome, ExperimentError> {
    if let Some(why) = ovs::unavailable() {
        return Err(failed(io::Error::other(why)));
    }
    let (e, before) = (Effort::of(o), load());
    let with = ovs::hosts(Between::Ovs).map_err(failed)?;
    let without = ovs::hosts(Between::Bridge).map_err(failed)?;
    let mut all = Vec::new();
    for (name, bytes, depth) in [("512 B", 512, 1), ("4 KiB", 4_096, 1), ("64 KiB", 65_536, 1), ("1 MiB", 65_536, 16)] {
        let count = (e.count / 4).min(e.count * 4_096 / bytes as u64).max(depth * 20);
        let w = Work { bytes, depth, warm_up: count / 10, count };
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..e.rounds {
            a.push(once(&with.site, Stack::Transport, &w).map_err(failed)?);
            b.push(once(&without.site, Stack::Transport, &w).map_err(failed)?);
        }
        let took = |f: &Figures| f.seconds * 1e6 * depth as f64 / f.operations as f64;
        for (way, f) in [("Open vSwitch", &a), ("bridge", &b)] {
            all.push(Row::new(format!("{name}, {way}"), "µs", Better::Lower, middle(f, took)));
        }
        let against = Row::new(format!("{name}, with ÷ without"), "×", Better::Lower, ratio(&a, &b, took));
        all.push(if name == "1 MiB" { against.paper(1.04).bar(1.04) } else { against });
    }
    Ok(Outcome::new(config(e, &before), all))
}

/// Ethernet's, without and with jumbo frames.
const MTUS: [u16; 2] = [1_500, 9_000];
/// Headers of IP and UDP in a packet.
const HEADERS: u16 = 28;

/// Counted receives, beyond those of a first run for warm-up.
const RECEIVES: u64 = 8;

/// Figure 14 (c): bytes read and written while a 64 KiB message is received, every load and store of the process counted
/// by valgrind.
pub fn fig14c(o: Options) -> Result<Outcome, ExperimentError> {
    let receives = if o.quick { 1 } else { RECEIVES };
    let mut all = Vec::new();
    for mtu in MTUS {
        let datagram = usize::from(mtu - HEADERS);
        let per_receive = |way: receive::Receive| {
            let counted = |receives| receive::counted(way, datagram, receives).map_err(failed);
            let (few, many) = (counted(2)?, counted(2 + receives)?);
            Ok::<_, ExperimentError>((many - few) as f64 / receives as f64 / 1024.0)
        };
        let sent = per_receive(receive::Receive::Not)?;
        let apart = per_receive(receive::Receive::CopyThenCrc)? - sent;
        let once = per_receive(receive::Receive::InOneStep)? - sent;
        let moved = |how: &str, kib| Row::new(format!("MTU {mtu}: {how}"), "KiB a receive", Better::Lower, kib);
        all.push(moved("copied into blocks, then checked", apart));
        all.push(moved("blocks and CRC in the receive step", once));
        let row = Row::new(format!("MTU {mtu}: receive step ÷ copy, then CRC"), "×", Better::Lower, once / apart);
        all.push(row.paper(0.5).bar(0.5));
    }
    Ok(Outcome::new(json!({"receives": receives, "message_bytes": 65_536}), all))
}
