use proptest::prelude::*;

use super::*;

/// A byte a microsecond.
const RATE: u64 = 1_000_000;

fn config(scheduling: NetSched) -> EgressConfig {
    let flow = FlowConfig { weight: 1, bytes_per_s: RATE / 4, burst: 10_000 };
    EgressConfig { scheduling, bytes_per_s: RATE, queue_bytes: 1 << 20, flow, flows: BTreeMap::new() }
}
fn us(t: u64) -> Time {
    Time(t * 1_000)
}
/// The packets that leave by `until`, with their times.
fn drain<T>(port: &mut Egress<T>, until: Time) -> Vec<(T, Time)> {
    std::iter::from_fn(|| port.poll(until)).map(|s| (s.what, s.at)).collect()
}

#[test]
fn a_packet_waits_for_those_before_it_and_for_its_own_bytes() {
    for scheduling in [NetSched::Priority, NetSched::FairQueue, NetSched::TokenBucket] {
        let mut port = Egress::new(Arc::new(config(scheduling)));
        port.push(us(5), 1, 1, 100, 'a').expect("room");
        assert_eq!(port.next(), Some(us(5)));
        assert_eq!(port.poll(us(5)), None);
        assert_eq!(port.next(), Some(us(105)));
        port.push(us(6), 1, 1, 50, 'b').expect("room");
        assert_eq!(port.waiting(), 2);
        assert_eq!(port.poll(us(104)), None);
        assert_eq!(port.poll(us(105)), Some(Sent { what: 'a', at: us(105), took: Span::from_micros(100) }));
        // The link goes on however late the driver polls.
        assert_eq!(port.poll(us(900)), Some(Sent { what: 'b', at: us(155), took: Span::from_micros(149) }));
        assert_eq!((port.waiting(), port.next()), (0, None));
        // An idle link starts with the next packet.
        port.push(us(1_000), 1, 1, 10, 'c').expect("room");
        assert_eq!(drain(&mut port, us(2_000)), [('c', us(1_010))]);
    }
}

#[test]
fn shares_of_a_full_port_are_as_the_weights() {
    let mut cfg = config(NetSched::FairQueue);
    let flow = |weight| FlowConfig { weight, ..cfg.flow };
    cfg.flows = [(1, flow(1)), (2, flow(2)), (3, flow(5))].into();
    cfg.queue_bytes = 1 << 30;
    let mut port = Egress::new(Arc::new(cfg));
    // The first flow's packets are sixteen times as long as the third's.
    for (flow, bytes) in [(1, 64_000), (2, 16_000), (3, 4_000)] {
        (0..40_000_000 / bytes).for_each(|_| port.push(us(0), flow, 1, bytes, (flow, bytes)).expect("room"));
    }
    let mut got = [0.0; 4];
    drain(&mut port, us(40_000_000)).into_iter().for_each(|((flow, bytes), _)| got[flow as usize] += f64::from(bytes));
    let all: f64 = got.iter().sum();
    assert!(all > 39_900_000.0, "the link is always busy: {got:?}");
    for (flow, weight) in [(1, 1.0), (2, 2.0), (3, 5.0)] {
        let share = got[flow] / all * 8.0 / weight;
        assert!((share - 1.0).abs() < 0.03, "flow {flow} got {share:.3} of its share");
    }
}

#[test]
fn a_flow_that_sends_little_does_not_wait_behind_anothers_burst() {
    let worst = |scheduling| {
        let mut port = Egress::new(Arc::new(config(scheduling)));
        (0..200).for_each(|_| port.push(us(0), 9, 1, 4_000, 0).expect("room"));
        let mut worst = Span::ZERO;
        for i in 1..=100 {
            let now = us(i * 8_200);
            let mut sent: Vec<_> = std::iter::from_fn(|| port.poll(now)).collect();
            if i < 90 {
                port.push(now, 1, 1, 150, 1).expect("room");
            }
            sent.extend(std::iter::from_fn(|| port.poll(now)));
            worst = sent.iter().filter(|s| s.what == 1).map(|s| s.took).fold(worst, Span::max);
        }
        worst
    };
    // At most: the burst's packet that is on the link, and one turn of the burst.
    assert!(worst(NetSched::FairQueue) <= Span::from_micros(8_500), "{:?}", worst(NetSched::FairQueue));
    assert!(worst(NetSched::Priority) > Span::from_micros(700_000), "{:?}", worst(NetSched::Priority));
}

#[test]
fn nothing_goes_while_a_higher_class_waits() {
    let mut port = Egress::new(Arc::new(config(NetSched::Priority)));
    for i in 0..300_u64 {
        port.push(us(0), (i % 7) as u32, (i % 3) as usize, 100, (i % 3, i)).expect("room");
    }
    let order: Vec<_> = drain(&mut port, us(15_000)).into_iter().map(|p| p.0).collect();
    assert!(order.is_sorted(), "by class, then by arrival");
    // A late packet of the first class waits only for the packet on the link.
    port.push(us(15_000), 1, 0, 100, (0, 999)).expect("room");
    let rest: Vec<_> = drain(&mut port, us(40_000)).into_iter().map(|p| p.0).collect();
    let at = rest.iter().position(|p| *p == (0, 999));
    assert_eq!(at, Some(1), "before all waiting packets");
    assert_eq!((order.len() + rest.len(), port.waiting()), (301, 0));
}

#[test]
fn a_bucket_holds_its_flow_to_rate_and_burst_over_any_window() {
    let mut cfg = config(NetSched::TokenBucket);
    cfg.flows = [(2, FlowConfig { weight: 1, bytes_per_s: RATE / 2, burst: 20_000 })].into();
    let cfg = Arc::new(cfg);
    let mut port = Egress::new(cfg.clone());
    // Each flow sends more than its rate, in bursts; the second pauses so that its bucket fills.
    let mut left: Vec<(u32, u32, Time)> = Vec::new();
    for ms in 0..400_u64 {
        let now = us(ms * 1_000);
        let mut take = |port: &mut Egress<_>| {
            while let Some(s) = port.poll(now) {
                let (flow, bytes) = s.what;
                left.push((flow, bytes, s.at));
            }
        };
        take(&mut port);
        for flow in [1, 2] {
            let bytes = 300 + (ms * 977 % 4_000) as u32;
            if flow == 1 || ms % 200 < 150 {
                // A packet that does not fit is dropped; more follow.
                let _ = port.push(now, flow, 1, bytes, (flow, bytes));
            }
        }
        take(&mut port);
    }
    for flow in [1, 2] {
        let limits = cfg.of(flow);
        // Start times: the bucket limits these.
        let sent: Vec<(u64, u64)> = left
            .iter()
            .filter(|p| p.0 == flow)
            .map(|(_, bytes, at)| (at.0 - u64::from(*bytes) * 1_000, u64::from(*bytes)))
            .collect();
        assert!(sent.len() > 30, "{} of flow {flow}", sent.len());
        let mut most: f64 = 0.0;
        for (i, (from, _)) in sent.iter().enumerate() {
            let mut bytes = 0;
            for (at, size) in &sent[i..] {
                bytes += size;
                let allowed = (limits.bytes_per_s as f64 * (at - from) as f64 / 1e9) + limits.burst as f64;
                most = most.max(bytes as f64 / allowed);
            }
        }
        assert!(most <= 1.0 + 1e-9, "flow {flow} had {most:.4} of its limit");
        assert!(most > 0.9, "flow {flow} had {most:.4} of its limit: the bucket is too strict");
    }
}

#[test]
fn what_can_never_go_is_dropped_at_once() {
    let mut port = Egress::new(Arc::new(config(NetSched::TokenBucket)));
    assert_eq!(port.push(us(0), 1, 1, 10_001, ()), Err((EgressDrop::OverBurst, ())));
    let mut cfg = config(NetSched::FairQueue);
    cfg.queue_bytes = 1_000;
    let mut port = Egress::new(Arc::new(cfg));
    assert_eq!(port.push(us(0), 1, 1, 1_001, ()), Err((EgressDrop::QueueFull, ())));
    // A refused flow gets no turn.
    assert_eq!((port.poll(us(9)), port.waiting(), port.next()), (None, 0, None));
    port.push(us(10), 1, 1, 1_000, ()).expect("fits");
    assert_eq!(drain(&mut port, us(2_000)), [((), us(1_010))]);
}

#[test]
fn flows_and_ports_are_bounded() {
    for scheduling in [NetSched::FairQueue, NetSched::TokenBucket] {
        let mut port = Egress::new(Arc::new(config(scheduling)));
        for flow in 0..FLOWS_MAX as u32 {
            port.push(us(0), flow, 1, 10, flow).expect("room");
        }
        let one_more = FLOWS_MAX as u32;
        assert_eq!(port.push(us(0), one_more, 1, 10, one_more), Err((EgressDrop::TooManyFlows, one_more)));
        port.push(us(0), 5, 1, 10, 5).expect("a known flow");
        // Flows with nothing waiting and no debt make room for others.
        assert_eq!(drain(&mut port, us(1_000_000)).len(), FLOWS_MAX + 1);
        port.push(us(1_000_000), one_more, 1, 10, one_more).expect("room");
    }
    let mut ports = Ports::new(config(NetSched::Priority));
    for port in 0..=FLOWS_MAX as u32 {
        ports.push(us(0), Envelope { port, flow: 0, class: 0, bytes: 1 }, ());
    }
    assert_eq!((ports.counters().too_many_flows, ports.waiting()), (1, FLOWS_MAX));
}

#[derive(Clone, Debug)]
struct Step {
    wait_us: u64,
    port: u32,
    flow: u32,
    class: usize,
    bytes: u32,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..3_000_u64, 0..3_u32, 0..4_u32, 0..3_usize, 1..12_000_u32);
    let step = step.prop_map(|(wait_us, port, flow, class, bytes)| Step { wait_us, port, flow, class, bytes });
    proptest::collection::vec(step, 1..200)
}

proptest! {
    /// For every discipline: each loss is counted, nothing is invented, the order within a queue is kept, no queue exceeds
    /// its bound, no link exceeds its rate, and a driver that polls only at the times it is given sees the same as one that
    /// polls all the time.
    #[test]
    fn what_came_is_sent_or_dropped_or_waits(steps in steps(), discipline in 0..3_usize, queue in 1_000..40_000_u64) {
        let scheduling = [NetSched::Priority, NetSched::FairQueue, NetSched::TokenBucket][discipline];
        let mut cfg = config(scheduling);
        cfg.queue_bytes = queue;
        let (mut ports, mut eager) = (Ports::new(cfg.clone()), Ports::new(cfg));
        let (mut now, mut sent, mut seen) = (Time::ZERO, Vec::new(), Vec::new());
        for (i, s) in steps.iter().enumerate() {
            let envelope = Envelope { port: s.port, flow: s.flow, class: s.class, bytes: s.bytes };
            let later = now + Span::from_micros(s.wait_us);
            while now < later {
                now = later.min(now + Span::from_micros(500));
                seen.extend(std::iter::from_fn(|| eager.poll(now)));
            }
            sent.extend(std::iter::from_fn(|| ports.poll(now)));
            seen.extend(std::iter::from_fn(|| eager.poll(now)));
            ports.push(now, envelope, i);
            eager.push(now, envelope, i);
            sent.extend(std::iter::from_fn(|| ports.poll(now)));
            seen.extend(std::iter::from_fn(|| eager.poll(now)));
            prop_assert!(ports.next().is_none_or(|t| t > now));
            let c = ports.counters();
            let dropped = c.queue_full + c.over_burst + c.too_many_flows;
            prop_assert_eq!((c.arrived, c.sent), (i as u64 + 1, sent.len() as u64));
            prop_assert_eq!(c.arrived, c.sent + dropped + ports.waiting() as u64);
            prop_assert!(c.queue_max <= queue);
        }
        while let Some(at) = ports.next() {
            prop_assert!(at > now);
            now = at;
            sent.extend(std::iter::from_fn(|| ports.poll(now)));
            seen.extend(std::iter::from_fn(|| eager.poll(now)));
        }
        prop_assert_eq!((ports.waiting(), eager.waiting()), (0, 0));
        // Ports are independent: only the order between ports depends on the times of polls.
        sent.sort_by_key(|s| (steps[s.what].port, s.at, s.what));
        seen.sort_by_key(|s| (steps[s.what].port, s.at, s.what));
        prop_assert_eq!(&sent, &seen);
        let mut last: BTreeMap<(u32, u32), usize> = BTreeMap::new();
        let mut free: BTreeMap<u32, Time> = BTreeMap::new();
        for s in &sent {
            let p = &steps[s.what];
            let queue = if scheduling == NetSched::Priority { p.class as u32 } else { p.flow };
            if let Some(before) = last.insert((p.port, queue), s.what) {
                prop_assert!(before < s.what, "{} left before {}", before, s.what);
            }
            let took = Span::from_micros(u64::from(p.bytes));
            let free = free.entry(p.port).or_default();
            prop_assert!(s.at >= *free + took, "two packets on one link at {:?}", s.at);
            *free = s.at;
        }
    }
}
