//! The live experiments: alternating rounds of the same work over each carrier, and medians of the ratios.

use std::io;

use serde_json::json;

use super::ends::{Figures, Site, Stack, Work, once};
use super::receive;
use super::veth;
use crate::report::{Bar, Report};

/// Length and number of runs.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    pub rounds: usize,
    /// Requests of one run at depth 1; a deeper run has this number per slot.
    pub count: u64,
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

const COLUMNS: [&str; 8] =
    ["depth", "way", "CPU, µs an operation", "mean, µs", "P50, µs", "P99, µs", "P99.9, µs", "operations/s"];

fn rows(r: &mut Report, depth: u64, ways: &[Stack], all: &[Vec<Figures>]) {
    for (way, f) in ways.iter().zip(all) {
        r.row([
            json!(depth),
            json!(way.name()),
            json!(middle(f, Figures::cpu_us_per_operation)),
            json!(middle(f, |f| f.mean_us)),
            json!(middle(f, |f| f.p50_us)),
            json!(middle(f, |f| f.p99_us)),
            json!(middle(f, |f| f.p999_us)),
            json!(middle(f, |f| f.operations as f64 / f.seconds)),
        ]);
    }
}

fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').take(1).collect()
}

fn live_note(r: &mut Report, before: &str, e: Effort) {
    r.note(format!(
        "live: two processes on loopback, a core each, {} alternating rounds; load before {before}, after {}",
        e.rounds,
        load()
    ));
}

fn work(depth: u64, bytes: usize, e: Effort) -> Work {
    let count = e.count * depth.min(4);
    Work { bytes, depth, warm_up: count / 10, count }
}

/// Figure 14 (a, b): a 4 KiB write and its reply, against the same request as a protobuf RPC.
pub fn fig14ab(e: Effort) -> io::Result<Report> {
    let mut r = Report::new(
        "pn-fig14a/b: 4 KiB write and reply, against protobuf RPC",
        "CPU −73 % (depth 1), −71 % (16); latency −7 %, −37 %",
        &COLUMNS,
    );
    let before = load();
    let ways = [Stack::Transport, Stack::Encrypted, Stack::Tcp, Stack::Rpc];
    for (depth, p50) in [(1, 0.75), (16, 0.6)] {
        let all = rounds(&Site::loopback(), &ways, &work(depth, 4096, e), e.rounds)?;
        rows(&mut r, depth, &ways, &all);
        let cpu = ratio(&all[0], &all[3], Figures::cpu_us_per_operation);
        r.bars.push(Bar::at_most(format!("CPU an operation against RPC, depth {depth}"), cpu, 0.28));
        r.bars.push(Bar::at_most(
            format!("P50 against RPC, depth {depth}"),
            ratio(&all[0], &all[3], |f| f.p50_us),
            p50,
        ));
    }
    live_note(&mut r, &before, e);
    Ok(r)
}

/// Figures 6 and 7: latency and bandwidth against kernel TCP; bulk against the kernel's plain datagrams.
pub fn fig67(e: Effort) -> io::Result<Report> {
    let mut r = Report::new(
        "pn-fig6/7: against kernel TCP",
        "latency −31 to −65 %; 3.6× lower mean, 3.5× P99, 2.6× P99.9; +25 % bandwidth",
        &COLUMNS,
    );
    let before = load();
    let ways = [Stack::Transport, Stack::Encrypted, Stack::Tcp];
    for depth in [1, 16] {
        let all = rounds(&Site::loopback(), &ways, &work(depth, 4096, e), e.rounds)?;
        rows(&mut r, depth, &ways, &all);
    }
    live_note(&mut r, &before, e);
    Ok(r)
}

/// Bulk over a veth pair of two namespaces: 1 MiB in flight as messages of 64 KiB.
pub fn bulk(e: Effort) -> io::Result<Report> {
    let mut r = Report::new(
        "pn-bulk: 64 KiB messages, 1 MiB under way, over veth",
        "no figure; the bar is plain UDP with GSO and GRO on the same veth",
        &["MTU", "way", "GB/s", "CPU, µs a MiB"],
    );
    let before = load();
    let ways = [Stack::Transport, Stack::Encrypted, Stack::Tcp, Stack::Udp];
    let w = Work { bytes: 65_536, depth: 16, warm_up: e.count / 40, count: e.count / 4 };
    for mtu in MTUS {
        let all = rounds(&veth::site(mtu)?, &ways, &w, e.rounds)?;
        for (way, f) in ways.iter().zip(&all) {
            let mib = |f: &Figures| (f.client_cpu_s + f.server_cpu_s) * 1e6 / (f.bytes_per_s * f.seconds / 1048576.0);
            let rate = middle(f, |f| f.bytes_per_s / 1e9);
            r.row([json!(mtu), json!(way.name()), json!(rate), json!(middle(f, mib))]);
        }
        let rate = |f: &Figures| f.bytes_per_s;
        let of_udp = ratio(&all[0], &all[3], rate);
        r.bars.push(Bar::at_least(format!("bandwidth of plain UDP, MTU {mtu}"), of_udp, 0.9));
    }
    r.note(format!(
        "live: two namespaces, a process on a core in each, {} alternating rounds; load before {before}, after {}",
        e.rounds,
        load()
    ));
    Ok(r)
}

/// Ethernet's, without and with jumbo frames.
const MTUS: [u16; 2] = [1_500, 9_000];
/// Headers of IP and UDP in a packet.
const HEADERS: u16 = 28;

/// Counted receives, beyond those of a first run for warm-up.
const RECEIVES: u64 = 8;

/// Figure 14 (c): bytes read and written while a 64 KiB message is received, every access counted by valgrind.
pub fn fig14c() -> io::Result<Report> {
    let mut r = Report::new(
        "pn-fig14c: bytes moved while 64 KiB are received into blocks with their CRCs",
        "memory bandwidth −30 % (slices), −50 % (slices and CRC) at 64 KB",
        &["MTU", "way", "KiB moved a receive", "of copy, then CRC"],
    );
    for mtu in MTUS {
        let datagram = usize::from(mtu - HEADERS);
        let per_receive = |way: receive::Receive| -> io::Result<f64> {
            let counted = |receives| receive::counted(way, datagram, receives);
            let (few, many) = (counted(2)?, counted(2 + RECEIVES)?);
            Ok((many - few) as f64 / RECEIVES as f64 / 1024.0)
        };
        let sent = per_receive(receive::Receive::Not)?;
        let apart = per_receive(receive::Receive::CopyThenCrc)? - sent;
        let once = per_receive(receive::Receive::InOneStep)? - sent;
        r.row([json!(mtu), json!("message, copied into blocks, then CRC"), json!(apart), json!(1.0)]);
        r.row([json!(mtu), json!("blocks and CRC in the receive step"), json!(once), json!(once / apart)]);
        r.bars.push(Bar::at_most(format!("bytes moved, of copy-then-CRC, MTU {mtu}"), once / apart, 0.5));
    }
    r.note("counted: every load and store of the process (valgrind's lackey), datagrams in trains, CRC32C only");
    Ok(r)
}
