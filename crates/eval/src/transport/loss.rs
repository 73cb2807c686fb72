//! `pn-loss`: goodput of one connection under random loss, with selective retransmission and with go-back-N.

use rackweave_core::{NodeId, Span};
use rackweave_transport::{Config, Retransmission};

use super::fabric::{Fabric, LinkConfig};
use super::shares::{bulk, gbps};

const FROM: NodeId = NodeId(2);
const TO: NodeId = NodeId(3);

/// Gb/s delivered with this loss in both directions.
pub fn goodput(seed: u64, cfg: &Config, loss: f64, span: Span) -> f64 {
    let link = |loss| LinkConfig { latency: Span::from_micros(10), loss, ..LinkConfig::default() };
    let links = vec![link(loss), link(0.0), link(loss), link(0.0)];
    let routes = |from: NodeId, _: NodeId, _: u16| if from == FROM { vec![0, 1] } else { vec![2, 3] };
    let mut f = Fabric::new(seed, links, Box::new(routes));
    f.add(FROM, cfg.clone());
    f.add(TO, cfg.clone());
    gbps(bulk(&mut f, &[(FROM, vec![TO])], span)[&FROM], span)
}

/// Shares of lossless goodput: selective, go-back-N.
pub fn of_lossless(seed: u64, cfg: &Config, loss: f64, span: Span) -> (f64, f64) {
    let cfg = Config { retransmission: Retransmission::Selective, ..cfg.clone() };
    let lossless = goodput(seed, &cfg, 0.0, span);
    let back = Config { retransmission: Retransmission::GoBackN, ..cfg.clone() };
    (goodput(seed, &cfg, loss, span) / lossless, goodput(seed, &back, loss, span) / lossless)
}

/// Rates of random loss, with the least share of lossless goodput.
pub const BARS: [(f64, f64); 3] = [(0.001, 0.95), (0.01, 0.85), (0.05, 0.5)];
