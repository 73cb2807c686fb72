//! The three congestion controls on one shared link: goodput under loss, fairness between unequal hosts, queue length.

use std::collections::BTreeMap;

use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Span, Time};
use rackweave_transport::{Algorithm, Config, Event, Keys, Retransmission, SendOptions};

use crate::world::{Faults, Link, World, message};

/// 10 Gb/s.
const RATE: u64 = 1250;
const SINK: u32 = 2;
const MESSAGE: usize = 65_536;
const DELAY: Algorithm = Algorithm::Delay;
const ECN: Algorithm = Algorithm::Ecn;
/// Twice the link's bandwidth-delay product of about 60 µs.
const FIXED: Algorithm = Algorithm::Fixed { window: 150_000 };

struct Run {
    /// Bytes delivered to the sink, by sender, in the second half of the run.
    bytes: BTreeMap<u32, u64>,
    w: World,
}

impl Run {
    fn goodput(&self) -> u64 {
        self.bytes.values().sum()
    }
    /// Jain's index of the senders' shares.
    fn jain(&self) -> f64 {
        let x: Vec<f64> = self.bytes.values().map(|b| *b as f64).collect();
        x.iter().sum::<f64>().powi(2) / (x.len() as f64 * x.iter().map(|x| x * x).sum::<f64>())
    }
}

/// Every sender keeps sixteen messages in flight.
fn run(cfg: &Config, senders: &[u32], slow: &[(u32, Span)], faults: Faults, span: Span) -> Run {
    let mut w = World::new(11, faults);
    for &node in [SINK].iter().chain(senders) {
        w.add(node, cfg.clone(), Keys::none());
    }
    w.host(SINK).link = Some(Link::new(RATE, 1 << 20, 100_000));
    slow.iter().for_each(|(n, span)| w.host(*n).slow = *span);
    let (start, mut n) = (w.now, 0);
    let payloads: BTreeMap<u32, _> =
        senders.iter().map(|s| (*s, message(Op::Peer, Class::Silver, *s, 0, 0, 40, MESSAGE))).collect();
    let mut bytes: BTreeMap<u32, u64> = senders.iter().map(|s| (*s, 0)).collect();
    while w.now.since(start) < span {
        let now = w.now;
        for &s in senders {
            while w.end(s).unacknowledged() < 16 {
                let how = SendOptions { deadline: Time::MAX, token: n };
                w.end(s).send(now, NodeId(SINK), payloads[&s].clone(), how).expect("taken");
                n += 1;
            }
        }
        w.pump();
        assert!(w.step());
        for (at, _, event) in w.events.drain(..) {
            if let Event::Delivered(d) = event
                && at.since(start) > span / 2
            {
                *bytes.get_mut(&d.from.0).expect("a sender") += d.message.data.len() as u64;
            }
        }
    }
    Run { bytes, w }
}

fn config(algorithm: Algorithm) -> Config {
    Config { algorithm, stream_loss_per_mille: 1000, ..Config::default() }
}

#[test]
fn goodput_under_loss() {
    let span = Span::from_millis(100);
    for algorithm in [DELAY, ECN, FIXED] {
        let lossless = run(&config(algorithm), &[3], &[], Faults::default(), span).goodput() as f64;
        let full = lossless / (RATE as f64 * (span / 2).0 as f64 / 1000.0);
        println!("{algorithm:?}: lossless {full:.3} of the link");
        assert!(full > 0.85, "{algorithm:?}: {full} of the link");
        for (loss, bar) in [(0.001, 0.95), (0.01, 0.85), (0.05, 0.5)] {
            let got = run(&config(algorithm), &[3], &[], Faults { loss, ..Faults::default() }, span);
            let share = got.goodput() as f64 / lossless;
            let back = Config { retransmission: Retransmission::GoBackN, ..config(algorithm) };
            let back = run(&back, &[3], &[], Faults { loss, ..Faults::default() }, span).goodput() as f64 / lossless;
            println!("{algorithm:?}: loss {loss}: {share:.3} of lossless, go-back-N {back:.3}");
            assert!(share >= bar, "{algorithm:?}, loss {loss}: {share}");
            assert!(back < share, "go-back-N {back}, selective {share}");
        }
    }
}

#[test]
fn unlike_hosts_get_equal_shares() {
    // Two slow hosts, two fast ones, and one that reads arrivals very slowly.
    let slow = [(3, Span::from_micros(60)), (4, Span::from_micros(60)), (7, Span::from_micros(150))];
    let span = Span::from_millis(300);
    for algorithm in [DELAY, ECN] {
        let got = run(&config(algorithm), &[3, 4, 5, 6, 7], &slow, Faults::default(), span);
        let jain = got.jain();
        println!("{algorithm:?}: Jain {jain:.4}, {:?}", got.bytes);
        assert!(jain >= 0.99, "{algorithm:?}: {jain}, {:?}", got.bytes);
        let full = got.goodput() as f64 / (RATE as f64 * (span / 2).0 as f64 / 1000.0);
        assert!(full > 0.85, "{algorithm:?}: {full} of the link");
    }
}

/// The default keeps the queue short where the fixed window fills it.
#[test]
fn the_delay_based_control_leaves_the_queue_short() {
    let senders = [3, 4, 5, 6, 7, 8, 9, 10];
    let rtt = |algorithm| {
        let mut got = run(&config(algorithm), &senders, &[], Faults::default(), Span::from_millis(60));
        got.w.end(3).peers()[0].flows[1].rtt
    };
    let (delay, ecn, fixed) = (rtt(DELAY), rtt(ECN), rtt(Algorithm::Fixed { window: 300_000 }));
    println!("round trip: delay-based {delay}, ECN {ecn}, fixed window {fixed}");
    assert!(delay * 2 < fixed && delay < Span::from_micros(500), "{delay}, fixed {fixed}");
}
