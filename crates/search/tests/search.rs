//! Seeds: each must pass and repeat itself exactly, and together they must meet every trace point that matters.
#![allow(clippy::disallowed_methods, reason = "seeds run on both cores")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use rackweave_core::TracePoint;
use rackweave_core::trace as core_trace;
use rackweave_core::trace::Coverage;
use rackweave_flash::trace as flash_trace;
use rackweave_link::trace as link_trace;
use rackweave_meta::trace as meta_trace;
use rackweave_replica::trace as replica_trace;
use rackweave_search::fault::trace;
use rackweave_search::fault::{
    Failure, Fault, FaultAt, Plan, PlanKind, SimOptions, SimReport, run_plan, run_seed, shrink,
};
use rackweave_server::trace as server_trace;
use rackweave_switch::trace as switch_trace;

/// Trace points that need not be reported, and why. Every other one must: "a suite in which one stays zero fails".
const NEED_NOT_OCCUR: &[TracePoint] = &[
    // A retransmission in a new epoch meets a full cache about once in two thousand seeds; the replica's own tests
    // cover it.
    replica_trace::INV_NO_ROOM,
    // Every plan leaves a good copy of each block; the tests of evidence do not.
    replica_trace::BLOCK_LOST,
    // About once in a thousand plans in which a set stands still.
    replica_trace::FILL_GAVE_WAY_TO_LOSS,
    // Only with two racks, which are searched separately.
    switch_trace::REDIRECT_FAR,
    switch_trace::FAR_STATE,
    switch_trace::FAR_STATE_STALE,
    meta_trace::MEMBER_UNREACHED,
    meta_trace::MEMBER_REACHED,
    // Cloud disks are searched separately; `cloud.rs` reaches the first by a script.
    rackweave_block::trace::ALLOCATION_OUTDATED,
    meta_trace::SNAPSHOT_SWEPT,
    meta_trace::LONG_DISK_FLATTENED,
    // Keys are searched separately.
    meta_trace::KEYSPACE_MADE,
    meta_trace::KEYSPACE_DELETED,
    // The metadata service writes rarely, and is rarely cut at that moment.
    rackweave_sim::trace::STORES_LOST,
    // Only in plans with moves.
    meta_trace::MOVE_STARTED,
    meta_trace::MOVE_DONE,
    meta_trace::MOVE_CANCELLED,
    server_trace::VSSD_RELEASED,
    switch_trace::ROW_DELETED,
    // Only with volumes that have units of their own, which `own.rs` searches.
    meta_trace::OWN_SET_MADE,
    meta_trace::OWN_SET_ENDED,
    meta_trace::UNITS_CHANGED,
    // Only with channel groups.
    server_trace::BLOCKS_BORROWED,
    // Only in plans whose dies trade places.
    switch_trace::SWAP_ACCEPTED,
    switch_trace::FAR_SWAP_ACCEPTED,
    switch_trace::FAR_SWAP_DELAYED,
    server_trace::SWAP_BEGUN,
    server_trace::SWAP_FOUND,
    server_trace::SWAP_ENDED,
    server_trace::SWAP_SLICE,
    server_trace::SWAP_REFUSED,
    server_trace::SWAP_OF_MOVING,
    trace::SWAP_CUT,
    // Copies differ only where their checksums show it: a plan in which they differ otherwise fails.
    replica_trace::COPIES_DIFFER,
];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Seeds of the widest kind of plan; the others run a share of them.
fn seeds() -> u64 {
    number("RACKWEAVE_SEEDS", 150)
}

/// Rarer ones, required of a longer search.
const MUST_OCCUR_IN_100: &[TracePoint] = &[
    replica_trace::REDIRECT_DURING_INVALIDATION,
    replica_trace::FILL_OLDER_IGNORED,
    core_trace::CRC_MISMATCH,
    replica_trace::BLOCK_HEALED,
    flash_trace::CHECKPOINT_TORN,
    switch_trace::GC_BITS_EXPIRED,
    server_trace::GC_UNACKNOWLEDGED,
    server_trace::GC_FORCED,
    switch_trace::GC_OP_STALE,
    flash_trace::TOMBSTONE_DROPPED,
    replica_trace::CACHE_FULL,
    replica_trace::CREDIT_RECALLED,
    replica_trace::NO_SPACE,
    replica_trace::DEVICE_FAILED,
    replica_trace::COPIES_COMPARED,
];

/// Runs the plans of the seeds on two threads; reports are in order of seed.
fn run(first: u64, count: u64, draw: impl Fn(u64) -> Plan + Copy + Send) -> Vec<SimReport> {
    let next = AtomicU64::new(first);
    let next = &next;
    let work = move || {
        let mut out = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return out;
            }
            out.push(run_plan(&draw(seed), &SimOptions::default()));
        }
    };
    let mut reports = std::thread::scope(|s| {
        let other = s.spawn(work);
        let mut mine = work();
        mine.extend(other.join().expect("a run's panic is a failed report"));
        mine
    });
    reports.sort_by_key(|r| r.plan.seed);
    reports
}

#[test]
fn every_seed_passes_and_together_they_meet_every_situation() {
    let count = seeds();
    let reports = run(number("RACKWEAVE_FIRST_SEED", 0), count, Plan::draw);
    let mut coverage = Coverage::default();
    for r in &reports {
        coverage.merge(&r.coverage);
        assert!(r.operations.values().sum::<u64>() >= 2_000 || !r.passed());
        assert!(r.faults_done >= 3 || !r.passed());
    }
    let failed: Vec<&SimReport> = reports.iter().filter(|r| !r.passed()).collect();
    if let Some(first) = failed.first() {
        panic!("{} of {count} seeds failed; the first:\n{first}", failed.len());
    }
    assert!(reports.iter().all(|r| r.copies_checked > 0), "no member's durable state was looked at");
    if count >= 30 {
        let rare = if count < 100 { MUST_OCCUR_IN_100 } else { &[] };
        // The transport is searched separately.
        let all = trace::all().filter(|p| !link_trace::ALL.contains(p));
        let all = all.filter(|p| !NEED_NOT_OCCUR.contains(p) && !rare.contains(p));
        let missing: Vec<&str> = all.filter(|&p| coverage.get(p) == 0).map(|p| p.name()).collect();
        assert!(missing.is_empty(), "never happened in {count} seeds: {missing:?}");
        assert!(reports.iter().map(|r| r.cut_torn).sum::<u64>() > 0, "no write was ever torn");
        assert!(reports.iter().map(|r| r.history.set_crashes).sum::<u64>() > 0, "no set ever crashed whole");
        assert!(reports.iter().map(|r| r.history.unanswered).sum::<u64>() > 0, "no request was ever cut off");
    }
}

/// Required of two racks in addition to one rack's.
const MUST_OCCUR_IN_TWO_RACKS: &[TracePoint] = &[
    switch_trace::REDIRECT_FAR,
    switch_trace::FAR_STATE,
    switch_trace::FAR_STATE_STALE,
    core_trace::MEMBER_REMOVED,
    core_trace::SHADOW_COMPLETE,
    replica_trace::LEASE_EXPIRED,
    meta_trace::MEMBER_UNREACHED,
    meta_trace::MEMBER_REACHED,
];

#[test]
fn two_racks_pass_every_seed_and_meet_what_one_rack_cannot() {
    let count = (seeds() * 4).div_ceil(15);
    let reports = run(number("RACKWEAVE_FIRST_SEED", 0), count, Plan::draw_two_racks);
    let failed: Vec<&SimReport> = reports.iter().filter(|r| !r.passed()).collect();
    if let Some(first) = failed.first() {
        panic!("{} of {count} seeds failed; the first:\n{first}", failed.len());
    }
    let mut coverage = Coverage::default();
    reports.iter().for_each(|r| coverage.merge(&r.coverage));
    let missing = MUST_OCCUR_IN_TWO_RACKS.iter().filter(|&&p| coverage.get(p) == 0);
    let missing: Vec<&str> = missing.map(|p| p.name()).collect();
    assert!(count < 40 || missing.is_empty(), "never happened in {count} seeds: {missing:?}");
    let again = run_plan(&reports[0].plan, &SimOptions::default());
    assert_eq!(again.hash, reports[0].hash, "seed {}", reports[0].plan.seed);
}

/// Required while vSSDs move.
const MUST_OCCUR_IN_MOVES: &[TracePoint] = &[
    meta_trace::MOVE_STARTED,
    meta_trace::MOVE_DONE,
    meta_trace::MOVE_CANCELLED,
    server_trace::VSSD_RELEASED,
    switch_trace::ROW_DELETED,
    core_trace::SHADOW_COMPLETE,
    core_trace::MEMBER_REMOVED,
];

#[test]
fn racks_whose_vssds_move_pass_every_seed() {
    let count = seeds().div_ceil(5);
    let reports = run(number("RACKWEAVE_FIRST_SEED", 0), count, Plan::draw_moving);
    let failed: Vec<&SimReport> = reports.iter().filter(|r| !r.passed()).collect();
    if let Some(first) = failed.first() {
        panic!("{} of {count} seeds failed; the first:\n{first}", failed.len());
    }
    let mut coverage = Coverage::default();
    reports.iter().for_each(|r| coverage.merge(&r.coverage));
    let missing: Vec<&str> = MUST_OCCUR_IN_MOVES.iter().filter(|&&p| coverage.get(p) == 0).map(|p| p.name()).collect();
    assert!(missing.is_empty(), "never happened in {count} seeds: {missing:?}");
    let again = run_plan(&reports[0].plan, &SimOptions::default());
    assert_eq!(again.hash, reports[0].hash, "seed {}", reports[0].plan.seed);
}

/// Required with channel groups.
const MUST_OCCUR_IN_GROUPS: &[TracePoint] = &[
    server_trace::BLOCKS_BORROWED,
    switch_trace::GC_ACCEPTED,
    switch_trace::GC_DELAYED,
    switch_trace::GC_REGULAR,
    server_trace::GC_START,
    server_trace::GC_END,
    flash_trace::BLOCK_MOVED,
];

#[test]
fn channel_groups_pass_every_seed() {
    let count = seeds().div_ceil(5);
    let reports = run(number("RACKWEAVE_FIRST_SEED", 0), count, Plan::draw_grouped);
    let failed: Vec<&SimReport> = reports.iter().filter(|r| !r.passed()).collect();
    if let Some(first) = failed.first() {
        panic!("{} of {count} seeds failed; the first:\n{first}", failed.len());
    }
    let mut coverage = Coverage::default();
    reports.iter().for_each(|r| coverage.merge(&r.coverage));
    let missing = MUST_OCCUR_IN_GROUPS.iter().filter(|&&p| coverage.get(p) == 0);
    let missing: Vec<&str> = missing.map(|p| p.name()).collect();
    assert!(missing.is_empty(), "never happened in {count} seeds: {missing:?}");
    let again = run_plan(&reports[0].plan, &SimOptions::default());
    assert_eq!(again.hash, reports[0].hash, "seed {}", reports[0].plan.seed);
}

/// Required while dies trade places.
const MUST_OCCUR_IN_SWAPS: &[TracePoint] = &[
    switch_trace::SWAP_ACCEPTED,
    switch_trace::FAR_SWAP_ACCEPTED,
    switch_trace::FAR_SWAP_DELAYED,
    server_trace::SWAP_BEGUN,
    server_trace::SWAP_FOUND,
    server_trace::SWAP_ENDED,
    server_trace::SWAP_SLICE,
    server_trace::SWAP_REFUSED,
    server_trace::SWAP_OF_MOVING,
    trace::SWAP_CUT,
    switch_trace::GC_DELAYED,
    flash_trace::BLOCK_RETIRED,
    core_trace::REDIRECT,
    core_trace::SHADOW_COMPLETE,
];

#[test]
fn dies_that_trade_places_pass_every_seed() {
    let count = (seeds() * 2).div_ceil(5);
    let reports = run(number("RACKWEAVE_FIRST_SEED", 0), count, |seed| PlanKind::Swaps.draw(seed));
    let failed: Vec<&SimReport> = reports.iter().filter(|r| !r.passed()).collect();
    if let Some(first) = failed.first() {
        panic!("{} of {count} seeds failed; the first:\n{first}", failed.len());
    }
    let mut coverage = Coverage::default();
    reports.iter().for_each(|r| coverage.merge(&r.coverage));
    let swaps: Vec<(&str, u64)> = MUST_OCCUR_IN_SWAPS.iter().map(|&p| (p.name(), coverage.get(p))).collect();
    println!("{swaps:?}");
    let missing: Vec<&str> = swaps.iter().filter(|s| s.1 == 0).map(|s| s.0).collect();
    assert!(count < 50 || missing.is_empty(), "never happened in {count} seeds: {missing:?}");
    let again = run_plan(&reports[0].plan, &SimOptions::default());
    assert_eq!(again.hash, reports[0].hash, "seed {}", reports[0].plan.seed);
}

/// Required with the transport between nodes.
const MUST_OCCUR_OVER_TRANSPORT: &[TracePoint] = &[
    link_trace::CHUNK_RESENT,
    link_trace::CHUNK_REPEATED,
    link_trace::CHUNK_EARLY,
    link_trace::STREAM_USED,
    link_trace::DATAGRAM_DAMAGED,
    link_trace::DATAGRAM_REPLAYED,
    link_trace::DATAGRAM_OUTDATED,
    link_trace::DATAGRAM_UNPROVEN,
    link_trace::DATAGRAM_UNBOUND,
    link_trace::DATAGRAM_FORWARDED,
    link_trace::INCARNATION_RENEWED,
    link_trace::KEY_CHANGED,
    link_trace::PATH_CHANGED,
    core_trace::REDIRECT,
    core_trace::SET_RECOVERED,
];

/// Number of seeds of a kind if one rack has `count`.
fn seeds_of(kind: PlanKind, count: u64) -> u64 {
    match kind {
        PlanKind::OneRack => count,
        PlanKind::TwoRacks => (count * 4).div_ceil(15),
        PlanKind::Swaps => (count * 2).div_ceil(5),
        PlanKind::Moves | PlanKind::Groups | PlanKind::Wide | PlanKind::Edits => count.div_ceil(5),
        _ => count.div_ceil(30),
    }
}

/// `RACKWEAVE_OVER_TRANSPORT`: number of seeds in percent of those without the transport.
#[test]
fn plans_pass_with_the_transport_between_nodes() {
    let (count, percent) = (seeds(), number("RACKWEAVE_OVER_TRANSPORT", 20));
    let first = number("RACKWEAVE_FIRST_SEED", 0);
    let mut coverage = Coverage::default();
    for kind in PlanKind::ALL {
        let count = (seeds_of(kind, count) * percent).div_ceil(100);
        let reports = run(first, count, |seed| kind.draw(seed).over_transport());
        let failed: Vec<&SimReport> = reports.iter().filter(|r| !r.passed()).collect();
        if let Some(first) = failed.first() {
            panic!("{kind}: {} of {count} seeds failed; the first:\n{first}", failed.len());
        }
        reports.iter().for_each(|r| coverage.merge(&r.coverage));
        let again = run_plan(&reports[0].plan, &SimOptions::default());
        assert_eq!(again.hash, reports[0].hash, "{kind} {first}");
    }
    let missing = MUST_OCCUR_OVER_TRANSPORT.iter().filter(|&&p| coverage.get(p) == 0);
    let missing: Vec<&str> = missing.map(|p| p.name()).collect();
    assert!(count * percent < 2_000 || missing.is_empty(), "never happened in {count} seeds: {missing:?}");
}

#[test]
fn wide_plans_pass_every_seed() {
    let count = seeds().div_ceil(5);
    let reports = run(number("RACKWEAVE_FIRST_SEED", 0), count, |seed| PlanKind::Wide.draw(seed));
    let failed: Vec<&SimReport> = reports.iter().filter(|r| !r.passed()).collect();
    if let Some(first) = failed.first() {
        panic!("{} of {count} seeds failed; the first:\n{first}", failed.len());
    }
    let refused = |r: &&SimReport| r.errors.keys().any(|e| e.starts_with("After no volume is named"));
    let crashed = |r: &&SimReport| r.history.set_crashes >= 8;
    assert!(count < 30 || reports.iter().any(|r| refused(&r)), "no deleted volume was read");
    assert!(count < 30 || reports.iter().any(|r| crashed(&r)), "no rack lost all copies but one");
    let again = run_plan(&reports[0].plan, &SimOptions::default());
    assert_eq!(again.hash, reports[0].hash, "seed {}", reports[0].plan.seed);
}

/// Required refusals, and required acceptances where either is permitted.
const MUST_OCCUR_IN_EDITS: &[&str] = &[
    "Isolation refused",
    "Spare refused",
    "Size refused",
    "Profile refused",
    "Replicas refused",
    "Servers refused",
    "Swapped refused",
    "Doubled refused",
    "MixedUp refused",
    "Foreign refused",
    "OlderStore refused",
    "OlderDrive refused",
    "Table refused",
];

#[test]
fn edits_between_starts_are_refused_or_harmless() {
    let count = seeds().div_ceil(5);
    let reports = run(number("RACKWEAVE_FIRST_SEED", 0), count, |seed| PlanKind::Edits.draw(seed));
    let mut edits = BTreeMap::<&str, u64>::new();
    for (name, n) in reports.iter().flat_map(|r| &r.edits) {
        *edits.entry(name).or_default() += n;
    }
    println!("{edits:?}");
    let failed: Vec<&SimReport> = reports.iter().filter(|r| !r.passed()).collect();
    if let Some(first) = failed.first() {
        panic!("{} of {count} seeds failed; the first:\n{first}", failed.len());
    }
    let missing: Vec<&&str> = MUST_OCCUR_IN_EDITS.iter().filter(|n| !edits.contains_key(**n)).collect();
    assert!(count < 50 || missing.is_empty(), "never happened in {count} seeds: {missing:?}");
    let again = run_plan(&reports[0].plan, &SimOptions::default());
    assert_eq!(again.hash, reports[0].hash, "seed {}", reports[0].plan.seed);
}

#[test]
fn plans_of_one_situation_pass_every_seed() {
    let count = seeds().div_ceil(30);
    for kind in PlanKind::ALL.into_iter().filter(|k| !PlanKind::GENERAL.contains(k)) {
        let reports = run(number("RACKWEAVE_FIRST_SEED", 0), count, |seed| kind.draw(seed));
        let failed: Vec<&SimReport> = reports.iter().filter(|r| !r.passed()).collect();
        if let Some(first) = failed.first() {
            panic!("{kind}: {} of {count} seeds failed; the first:\n{first}", failed.len());
        }
    }
}

#[test]
fn a_failing_plan_shrinks_to_the_faults_that_matter() {
    let mut plan = Plan::draw(1);
    // The switch, for far longer than any time limit: nothing else in the plan matters.
    let fault = Fault::Isolate { node: 1, ms: 1_000_000 };
    plan.faults.push(FaultAt { at_us: plan.params.span_ms * 500, fault });
    plan.faults.sort_by_key(|f| f.at_us);
    let small = shrink(&plan, &SimOptions::default()).expect("it fails");
    assert_eq!(small.faults.iter().map(|f| f.fault).collect::<Vec<_>>(), [fault]);
    assert!(
        small.smaller().iter().all(|p| run_plan(p, &SimOptions::default()).passed()),
        "nothing more can be left out"
    );
}

#[test]
fn a_rack_that_answers_nobody_fails_and_says_what_waits() {
    let mut plan = Plan::draw(1);
    // The switch, for far longer than any time limit.
    let fault = Fault::Isolate { node: 1, ms: 1_000_000 };
    plan.faults = vec![FaultAt { at_us: plan.params.span_ms * 500, fault }];
    let report = run_plan(&plan, &SimOptions::default());
    let text = report.to_string();
    assert!(matches!(report.failure, Some(Failure::Liveness(_))), "{text}");
    for said in ["while faults go on", "nothing answered for 120", "client 1 request", "seed 1"] {
        assert!(text.contains(said), "{said:?} is not in {text}");
    }
    assert!(report.virtual_seconds < 200.0, "{}", report.virtual_seconds);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 8] {
        let (a, b) = (run_seed(seed, &SimOptions::default()), run_seed(seed, &SimOptions::default()));
        assert_eq!(a.hash, b.hash, "seed {seed}");
        assert_eq!((a.events, &a.coverage, a.virtual_seconds), (b.events, &b.coverage, b.virtual_seconds));
    }
    assert_ne!(run_seed(3, &SimOptions::default()).hash, run_seed(4, &SimOptions::default()).hash);
}

#[test]
fn a_request_is_followed_through_the_rack() {
    let report = run_seed(3, &SimOptions { trace_request: Some(43), ..SimOptions::default() });
    let text: Vec<String> = report.timeline.iter().map(ToString::to_string).collect();
    assert!(text.len() >= 3, "{text:?}");
    assert!(text[0].contains("Request"), "{text:?}");
    assert!(text.iter().any(|l| l.contains("n1 ")), "through the switch: {text:?}");
    assert!(text.last().unwrap().contains("Reply"), "{text:?}");
}

#[test]
fn a_report_reads_as_text_and_as_json() {
    let report = run_seed(3, &SimOptions::default());
    let text = report.to_string();
    for part in ["seed 3", "drawn {", "fault ", "coverage ", "cpu Server", "trace hash "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json: serde_json::Value = serde_json::to_value(&report).unwrap();
    assert_eq!(json["plan"]["seed"], 3);
    assert_eq!(json["hash"], report.hash.to_string());
    assert!(json["coverage"]["WriteCommit"].as_u64().unwrap() > 100);
    assert!(json["failure"].is_null());
}
