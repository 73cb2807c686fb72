//! Seeds of the fault search that failed once: each with what was wrong. They pass within seconds together.

use rackweave_search::fault::{PlanKind, SimOptions, run_plan};

const SEEDS: &[(PlanKind, u64)] = &[
    // A shadow took the part of a mutation that its members had seen for all of it, and answered the rest as executed.
    (PlanKind::Groups, 960_952),
    // The checker took an answer that its client held back for one sent after the crash.
    (PlanKind::Moves, 960_266),
    // A member acknowledged the replay of a mutation below the floor of its client, which had given it up, and did not take it.
    (PlanKind::TwoRacks, 910_035),
    // A member alone in its view answered a flush; the set went on with one that had the flushed writes in memory only.
    (PlanKind::LateMessages, 53),
    // A heartbeat from before a power cut made a dead member the survivor.
    (PlanKind::Wide, 239),
    // A member that had heard of a deletion was compared with one that had not: copies were said to differ.
    (PlanKind::PassingVolumes, 20),
    // The checker could not decide a history of fourteen pending writes.
    (PlanKind::OneRack, 900_779),
    // Every device fails while a set is down to one member, which notices nothing and rightly waits.
    (PlanKind::OneRack, 902_272),
    // The same, but it noticed a moment before the checker's time was over.
    (PlanKind::LateMessages, 126),
];

#[test]
fn what_failed_once_passes() {
    for &(kind, seed) in SEEDS {
        let report = run_plan(&kind.draw(seed), &SimOptions::default());
        assert!(report.passed(), "{report}");
    }
}
