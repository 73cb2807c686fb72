//! The storage network (C3; NICE's puts) over modelled links: [`crate::transport`].

use rackweave_core::Span;
use serde_json::json;

use super::{Better, ExperimentError, Options, Outcome, Row};
use crate::transport::multicast::{Puts, Replication, puts};
use crate::transport::qos::{self, Measured};
use crate::transport::shares::{self, Shares, controls};
use crate::transport::{black_holes as holes, loss, multicast as groups};

/// Shares of flows that the short form swallows, in percent.
const SHARES_QUICK: [u32; 2] = [1, 25];
/// Bars of black holes: slow I/Os fewer by, and P99 of a path's change.
const FEWER_BAR: f64 = 20.0;
const CHANGE_MS_BAR: f64 = 50.0;
/// Bar of shares (PN9).
const JAIN_BAR: f64 = 0.98;
/// Bar of online P99 beside offline work, against alone (PN10).
const ONLINE_BAR: f64 = 1.05;

fn span(o: Options, quick_ms: u64, full_ms: u64) -> Span {
    Span::from_millis(if o.quick { quick_ms } else { full_ms })
}

fn ms(s: Span) -> f64 {
    s.0 as f64 / 1e6
}

/// Figure 14 d.
pub(super) fn black_holes(o: Options) -> Result<Outcome, ExperimentError> {
    let hole = span(o, 3_000, 10_000);
    let swallowed: &[u32] = if o.quick { &SHARES_QUICK } else { &holes::SHARES };
    let mut rows = Vec::new();
    for percent in swallowed {
        let share = f64::from(*percent) / 100.0;
        let (one, many) = (holes::run(6 + o.seed, share, 1, hole), holes::run(6 + o.seed, share, 16, hole));
        let mut row = |what: &str, unit, better, value: f64, bar: Option<f64>| {
            rows.push(Row { bar, ..Row::new(format!("{percent} % of flows: {what}"), unit, better, value) });
        };
        let fewer = one.slow as f64 / many.slow.max(1) as f64;
        row("I/Os over 1 s, one source port", "I/Os", Better::Lower, one.slow as f64, None);
        row("I/Os over 1 s, 16 ports", "I/Os", Better::Lower, many.slow as f64, None);
        row("fewer by", "×", Better::Higher, fewer, Some(FEWER_BAR));
        row("path changes", "changes", Better::Lower, many.path_changes as f64, None);
        for (name, change, bar) in [("P50", 0, None), ("P99", 1, Some(CHANGE_MS_BAR)), ("longest", 2, None)] {
            row(&format!("path change, {name}"), "ms", Better::Lower, ms(many.change[change]), bar);
        }
        row("longest I/O, 16 ports", "ms", Better::Lower, ms(many.io_max), None);
        row("I/Os lost", "I/Os", Better::Lower, (one.lost + many.lost) as f64, Some(0.0));
    }
    // "An order of magnitude": of the paper's system.
    rows.iter_mut().filter(|r| r.name.ends_with("fewer by")).for_each(|r| r.paper = Some(10.0));
    Ok(Outcome::new(json!({"hole_ms": ms(hole), "clients": 16, "servers": 16, "write_bytes": 4096}), rows))
}

fn of_shares(all: &[Shares], groups: [&str; 2]) -> Vec<Row> {
    let mut rows = Vec::new();
    for s in all {
        let named = |what: &str| format!("{}: {what}", s.name);
        for (group, gbps) in groups.iter().zip(s.groups) {
            rows.push(Row::new(named(group), "Gb/s each", Better::Higher, gbps));
        }
        let jain = Row::new(named("Jain's index"), "", Better::Higher, s.jain);
        rows.push(if matches!(s.name, "delay" | "ecn") { jain.bar(JAIN_BAR) } else { jain });
        rows.push(Row::new(named("used"), "of the servers' links", Better::Higher, s.used));
    }
    rows
}

/// Figure 16.
pub(super) fn unlike_hosts(o: Options) -> Result<Outcome, ExperimentError> {
    let span = span(o, 100, 400);
    let rows = of_shares(&shares::unlike_hosts(2 + o.seed, span), ["quick hosts", "slow hosts"]);
    Ok(Outcome::new(shares_config(span), rows))
}

/// Figure 17.
pub(super) fn across_pods(o: Options) -> Result<Outcome, ExperimentError> {
    let span = span(o, 100, 400);
    let rows = of_shares(&shares::across_pods(3 + o.seed, span), ["first pod", "second pod"]);
    Ok(Outcome::new(shares_config(span), rows))
}

fn shares_config(span: Span) -> serde_json::Value {
    json!({"span_ms": ms(span), "clients": 8, "servers": 2, "link_gbps": 10, "message_bytes": shares::MESSAGE})
}

/// Figure 18.
pub(super) fn classes(o: Options) -> Result<Outcome, ExperimentError> {
    let span = span(o, 300, 1_000);
    let run = |offline, classed| qos::run(4 + o.seed, offline, classed, span);
    let [alone, classed, mixed] = [run(0.0, true), run(qos::OFFLINE_SHARE, true), run(qos::OFFLINE_SHARE, false)];
    let mut rows = Vec::new();
    let against = |m: &Measured| m.p99.0 as f64 / alone.p99.0 as f64;
    for (name, m) in [("alone", &alone), ("silver and copper", &classed), ("all silver", &mixed)] {
        for (part, value) in [("mean", m.mean), ("P50", m.p50), ("P99", m.p99)] {
            rows.push(Row::new(format!("{name}: online {part}"), "µs", Better::Lower, value.0 as f64 / 1e3));
        }
    }
    let p99 = Row::new("silver and copper: online P99, of alone", "×", Better::Lower, against(&classed));
    rows.push(p99.paper(ONLINE_BAR).bar(ONLINE_BAR));
    rows.push(Row::new("all silver: online P99, of alone", "×", Better::Lower, against(&mixed)));
    let offline = Row::new("silver and copper: offline data", "of the links", Better::Higher, classed.offline);
    rows.push(offline.bar(qos::OFFLINE_SHARE * qos::DATA_OF_LINK));
    let config = json!({"span_ms": ms(span), "link_gbps": 25, "servers": 4, "online": 4, "offline": 4});
    Ok(Outcome::new(config, rows))
}

/// §3.2.
pub(super) fn losses(o: Options) -> Result<Outcome, ExperimentError> {
    let span = span(o, 60, 200);
    let mut rows = Vec::new();
    for (name, cfg) in controls().into_iter().take(3) {
        for (loss, bar) in loss::BARS {
            let (selective, back) = loss::of_lossless(10 + o.seed, &cfg, loss, span);
            let named = |what: &str| format!("{name}, {} % lost: {what}", loss * 100.0);
            rows.push(Row::new(named("selective"), "of lossless", Better::Higher, selective).bar(bar));
            rows.push(Row::new(named("go-back-N"), "of lossless", Better::Higher, back));
        }
    }
    Ok(Outcome::new(json!({"span_ms": ms(span), "link_gbps": 10, "message_bytes": shares::MESSAGE}), rows))
}

const ALL: Replication = Replication::Group { quorum: 3 };

/// NICE's puts.
pub(super) fn multicast(o: Options) -> Result<Outcome, ExperimentError> {
    let (span, seed) = (span(o, 30, 200), 6 + o.seed);
    let sizes: &[usize] = if o.quick { &[4, 64, 1024] } else { &[4, 16, 64, 256, 1024] };
    let mut rows = Vec::new();
    for kib in sizes {
        let one = |way| puts(seed, way, kib << 10, 1, 0.0, Span::ZERO, Span::from_micros(1));
        let (group, each) = (one(ALL), one(Replication::Each));
        let of_each = |what: &str, of: &dyn Fn(&Puts) -> f64| {
            Row::new(format!("{kib} KiB: {what}"), "of those to each", Better::Lower, of(&group) / of(&each))
        };
        rows.push(of_each("bytes that the client sends", &|p| p.sent_bytes as f64).bar(groups::BYTES_BAR));
        rows.push(of_each("time until all have it", &Puts::median_us));
    }
    let goodput = |way, loss| puts(seed, way, 65_536, 16, loss, Span::ZERO, span).gbps;
    let (lossless, each) = (goodput(ALL, 0.0), goodput(Replication::Each, 0.0));
    rows.push(Row::new("goodput", "Gb/s", Better::Higher, lossless));
    rows.push(Row::new("goodput to each", "Gb/s", Better::Higher, each));
    for (loss, bar) in groups::BARS {
        let name = format!("goodput with {} % lost", loss * 100.0);
        rows.push(Row::new(name, "of lossless", Better::Higher, goodput(ALL, loss) / lossless).bar(bar));
    }
    for kib in [64, 1024] {
        let two = |slow_ms| {
            let quorum = Replication::Group { quorum: 2 };
            puts(seed, quorum, kib << 10, 1, 0.0, Span::from_millis(slow_ms), span).median_us()
        };
        let row =
            Row::new(format!("{kib} KiB: any two, the third 5 ms late"), "of not late", Better::Lower, two(5) / two(0));
        rows.push(row.bar(groups::ANY_BAR));
    }
    Ok(Outcome::new(json!({"span_ms": ms(span), "link_gbps": 10, "replicas": 3}), rows))
}
