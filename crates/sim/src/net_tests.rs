use super::*;

const A: NodeId = NodeId(2);
const B: NodeId = NodeId(3);

fn state(n: Network) -> NetState {
    NetState::new(n, Layout::new(2, 0), 7)
}

#[test]
fn a_link_sends_one_packet_after_another_and_drops_when_its_queue_is_full() {
    let mut net = Network::constant(Span::from_micros(10));
    net.bytes_per_s = 1_000_000;
    net.queue_max = Span::from_millis(2);
    let mut s = state(net);
    let at = |a: Arrivals| a[0].map(|t| t.0);
    assert_eq!(at(s.send(Time(0), A, B, 1000, false)), Some(1_010_000));
    assert_eq!(at(s.send(Time(0), A, B, 1000, false)), Some(2_010_000));
    assert_eq!(at(s.send(Time(0), A, B, 1000, false)), Some(3_010_000));
    assert_eq!(at(s.send(Time(0), A, B, 1000, false)), None, "3 ms of queue is more than 2");
    assert_eq!(s.dropped, 1);
    assert_eq!(s.receive(Time(50), B, 1000), Time(50));
    assert_eq!(s.receive(Time(60), B, 1000), Time(1_000_050), "waits for the receiver's link");
}

#[test]
fn a_partition_cuts_one_direction_until_healed() {
    let mut s = state(Network::constant(Span::from_micros(10)));
    s.block(A, B, true);
    assert_eq!(s.send(Time(0), A, B, 100, false), [None, None]);
    assert!(s.send(Time(0), B, A, 100, false)[0].is_some());
    s.heal();
    assert!(s.send(Time(0), A, B, 100, false)[0].is_some());
}

#[test]
fn mishaps_come_as_often_as_asked() {
    let mut s = state(Network::constant(Span::from_micros(10)));
    s.set_faults(LinkFaults {
        loss: 0.1,
        duplicate: 0.2,
        reorder: 0.3,
        reorder_extra_ns: 1_000_000,
        duplicate_extra_ns: 0,
    });
    let (mut lost, mut twice, mut late) = (0, 0, 0);
    for i in 0..10_000u64 {
        let t = Time(i * 1_000_000);
        match s.send(t, A, B, 100, false) {
            [None, _] => lost += 1,
            [Some(a), second] => {
                late += u32::from(a.since(t) > Span::from_micros(11));
                twice += u32::from(second.is_some());
            }
        }
    }
    assert!((900..1100).contains(&lost) && (1650..1950).contains(&twice) && (2500..2900).contains(&late));
}

#[test]
fn recorded_delays_are_played_from_a_place_of_each_links_own() {
    let delays = Network::excerpt();
    assert_eq!(delays.len(), 10_000);
    let mut s = state(Network { bytes_per_s: 0, ..Network::medium(delays.clone()) });
    let mut got: Vec<u64> =
        (0..10_000).map(|_| s.send(Time(0), A, B, 1, false)[0].unwrap().0 * 100 / 240 / 1000).collect();
    got.sort_unstable();
    assert_eq!([got[5000], got[9500], got[9999]], [133, 211, 350], "p50, p95, max of the excerpt");
    assert_ne!(s.links[0].place, s.links[3].place);
}

#[test]
fn malformed_delay_files_name_the_line() {
    let e = parse_delays("130\n140\nx7\n").unwrap_err();
    assert!(e.to_string().contains("line 3") && e.to_string().contains("x7"), "{e}");
    assert!(matches!(parse_delays(""), Err(DelayFileError::Empty)));
    assert!(parse_delays("0").is_err() && parse_delays("99999999999").is_err());
}

#[test]
fn networks_by_name_and_what_is_none() {
    for (text, name) in [("fast", "fast"), ("medium", "medium"), ("slow", "slow")] {
        let n = Network::parse(text).expect("named");
        assert_eq!((n.name, matches!(n.latency, Latency::Recorded { .. })), (name, true));
    }
    let constant = Network::parse("constant:50us").expect("constant");
    assert_eq!(constant.latency, Latency::Constant(Span::from_micros(50)));
    let drawn = Network::parse("exponential:20us,1ms").expect("drawn");
    let latency = Latency::Exponential { base: Span::from_micros(20), mean: Span::from_millis(1) };
    assert_eq!((drawn.name, drawn.latency), ("exponential", latency));
    let path = std::env::temp_dir().join(format!("rackweave-delays-{}", std::process::id()));
    std::fs::write(&path, "120\n80\n").expect("written");
    let file = Network::parse(&path.display().to_string()).expect("file");
    assert_eq!(file.latency, Latency::Recorded { delays_ns: [120_000, 80_000].into(), percent: 100 });
    std::fs::write(&path, "120\nsoon\n").expect("written");
    let e = Network::parse(&path.display().to_string()).unwrap_err().to_string();
    assert!(e.contains("line 2") && e.contains("soon"), "{e}");
    std::fs::remove_file(&path).expect("removed");
    for (bad, word) in [
        ("constant:", "\"\""),
        ("constant:5", "\"5\""),
        ("constant:-5us", "-5us"),
        ("constant:99999999999999999999ms", "99999999999999999999ms"),
        ("constant:5s", "5s"),
        ("constant:4001ms", "4001ms"),
        ("exponential:5us", "two delays"),
        ("exponential:5us,x", "\"x\""),
        ("quick", "not fast, medium"),
    ] {
        let e = Network::parse(bad).unwrap_err().to_string();
        assert!(e.contains(word) && e.contains(bad), "{bad}: {e}");
    }
}
