use super::*;

fn params() -> Params {
    Params::builtin().expect("valid")
}

#[test]
fn quantiles_are_those_of_the_normal_distribution() {
    for (p, z) in [(0.5, 0.0), (0.975, 1.959_963_985), (0.001, -3.090_232_306), (0.1, -1.281_551_566)] {
        assert!((normal_quantile(p) - z).abs() < 1e-7, "{p}: {}", normal_quantile(p));
    }
}

#[test]
fn the_top_two_percent_of_disks_write_forty_times_the_mean() {
    let p = params();
    let r = rates(p.disks.count, p.disks.rate_sigma, p.disks.rate_cap);
    assert!((r.iter().sum::<f64>() / r.len() as f64 - 1.0).abs() < 1e-9);
    assert!(r[0] <= p.disks.rate_cap * (1.0 + 1e-9));
    assert!(r[..p.disks.count / 50].iter().sum::<f64>() >= 40.0 * (p.disks.count / 50) as f64);
}

#[test]
fn requests_are_in_order_inside_their_disks_and_of_the_traces_rates() {
    let p = params();
    for trace in [Trace::W1, Trace::W2] {
        let mut g = Generator::new(&p, trace, 3);
        let capacities = g.capacities();
        let (mut last, mut read, mut written) = (Time::ZERO, 0.0, 0.0);
        let seconds = 120;
        loop {
            let r = g.advance();
            assert!(r.at >= last && r.offset + u64::from(r.len) <= capacities[r.disk as usize]);
            assert!(r.offset.is_multiple_of(u64::from(BLOCK)) && r.len > 0);
            last = r.at;
            if r.at >= Time::ZERO + Span::from_secs(seconds) {
                break;
            }
            *if r.write { &mut written } else { &mut read } += f64::from(r.len) / seconds as f64;
        }
        let (reads, writes) = trace.rates(&p);
        assert!((read / reads - 1.0).abs() < 0.1, "{trace:?}: read {read} of {reads}");
        assert!((written / writes - 1.0).abs() < 0.2, "{trace:?}: written {written} of {writes}");
    }
}

#[test]
fn equal_seeds_give_equal_requests() {
    let run = |seed| {
        let mut g = Generator::new(&params(), Trace::W1, seed);
        (0..5000).map(|_| g.advance()).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
