use super::*;

/// Smaller than the short form of the experiments.
const SMALL: Scale = Scale { pages_per_block: 16, warm_up: Span::from_millis(100), window: Span::from_millis(600) };

fn beside(isolation: Isolation) -> Seen {
    let load = KvLoad { clients: 16, ..SMALL.load(1) };
    let mut s = Stores::new(SMALL.drive(2).expect("a drive"), isolation, 2, load).expect("two stores");
    let first = seen(&s.run(&[Workload::C, Workload::A], &SMALL)[0]);
    // Every read is compared with the value that was put. The neighbour's log has wrapped.
    let stats = s.clients[1].borrow().stats();
    assert!(stats.compactions > 0 && stats.checkpoints > 0, "{stats:?}");
    first
}

#[test]
fn a_reader_feels_its_neighbours_writes_only_where_it_shares_dies() {
    let [channel, software] = [Isolation::Channel, Isolation::Software].map(beside);
    let (a, b) = (channel.read_p99_us, software.read_p99_us);
    assert!(a * 1.5 < b, "{channel:?}, {software:?}");
    // Sixteen reads at four dies: some wait for other reads, none for a program.
    assert!(a > 124.0 && a < 1500.0, "{channel:?}");
    assert_eq!(format!("{channel:?}"), format!("{:?}", beside(Isolation::Channel)), "the same seed, the same figures");
}

#[test]
fn who_writes_does_not_wait_for_the_reads_of_all_scans() {
    let scale = Scale { window: Span::from_millis(1500), ..SMALL };
    let load = KvLoad { clients: 64, ..scale.load(1) };
    let mut s = Stores::new(scale.drive(1).expect("a drive"), Isolation::Channel, 1, load).expect("a store");
    let scanned = &s.run(&[Workload::E], &scale)[0];
    let (scan, insert) = (scanned.latency("scan"), scanned.latency("insert"));
    assert!(scan.count > 500 && insert.count > 20, "{scan:?}, {insert:?}");
    // A page is programmed in 0.8 ms, behind at most 16 reads of 0.09 ms at its die; two of them, and an erase of 3.8 ms.
    assert!(insert.p99_us < 12_000.0, "{insert:?}");
}

#[test]
fn a_store_goes_on_while_its_channel_is_migrated_and_a_replica_has_all_it_has() {
    let small = KvLoad { records: 4000, clients: 16, ..SMALL.load(1) };
    let mut cfg = SMALL.drive(3).expect("a drive");
    cfg.move_bytes_per_s = Some(MOVE_BYTES_PER_S);
    let found = migrate_on(&SMALL, cfg, small, true).expect("two stores");
    assert_eq!(found.len(), MIGRATED.len());
    for Migrated { before, during, bytes_per_s } in found {
        assert!(during.ops_per_s > before.ops_per_s * 0.5, "{before:?}, {during:?}");
        assert!(bytes_per_s > 0.0 && bytes_per_s < MOVE_BYTES_PER_S as f64 * 1.1, "{bytes_per_s}");
    }
}
