//! `pn-loss`: goodput of one connection under random loss, with selective retransmission and with go-back-N.

use rackweave_core::{NodeId, Span};
use rackweave_transport::{Config, Retransmission};
use serde_json::json;

use super::fabric::{Fabric, LinkConfig};
use super::shares::{bulk, controls, gbps};
use crate::report::{Bar, Report};

const FROM: NodeId = NodeId(2);
const TO: NodeId = NodeId(3);

/// Gb/s delivered with this loss in both directions.
pub fn goodput(cfg: &Config, loss: f64, span: Span) -> f64 {
    let link = |loss| LinkConfig { latency: Span::from_micros(10), loss, ..LinkConfig::default() };
    let links = vec![link(loss), link(0.0), link(loss), link(0.0)];
    let routes = |from: NodeId, _: NodeId, _: u16| if from == FROM { vec![0, 1] } else { vec![2, 3] };
    let mut f = Fabric::new(11, links, Box::new(routes));
    f.add(FROM, cfg.clone());
    f.add(TO, cfg.clone());
    gbps(bulk(&mut f, &[(FROM, vec![TO])], span)[&FROM], span)
}

/// Shares of lossless goodput: selective, go-back-N.
pub fn of_lossless(cfg: &Config, loss: f64, span: Span) -> (f64, f64) {
    let cfg = Config { retransmission: Retransmission::Selective, ..cfg.clone() };
    let lossless = goodput(&cfg, 0.0, span);
    let back = Config { retransmission: Retransmission::GoBackN, ..cfg.clone() };
    (goodput(&cfg, loss, span) / lossless, goodput(&back, loss, span) / lossless)
}

/// Rates of random loss, with the least share of lossless goodput.
pub const BARS: [(f64, f64); 3] = [(0.001, 0.95), (0.01, 0.85), (0.05, 0.5)];

pub fn report(span: Span) -> Report {
    let mut r = Report::new(
        "pn-loss: goodput under random loss",
        "ConnectX-4's go-back-N made whole clusters oscillate (§3.2); no figure",
        &["control", "loss", "selective, of lossless", "go-back-N, of lossless"],
    );
    for (name, cfg) in controls().into_iter().take(3) {
        for (loss, bar) in BARS {
            let (selective, back) = of_lossless(&cfg, loss, span);
            r.row([json!(name), json!(format!("{} %", loss * 100.0)), json!(selective), json!(back)]);
            r.bars.push(Bar::at_least(format!("{name} at {} %", loss * 100.0), selective, bar));
        }
    }
    r.note("virtual time; one 10 Gb/s path of 40 µs there and back, 16 messages of 64 KiB under way, loss both ways");
    r
}
