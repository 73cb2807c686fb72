//! Seeds of the fault search that once failed, each with its cause. Together they pass within seconds.

use rackweave_search::fault::{PlanKind, SimOptions, run_plan};

const SEEDS: &[(PlanKind, u64)] = &[
    // A shadow took the part of a mutation that its members had seen for all of it, and answered the rest as executed.
    (PlanKind::Groups, 960_952),
    // The checker took an answer that its client held back for one sent after the crash.
    (PlanKind::Moves, 960_266),
    // A member acknowledged the replay of a mutation below its client's floor, which had given it up, and did not apply
    // it.
    (PlanKind::TwoRacks, 910_035),
    // A member alone in its view answered a flush; the set continued with one that had the flushed writes in memory
    // only.
    (PlanKind::LateMessages, 53),
    // A heartbeat from before a power cut made a dead member the survivor.
    (PlanKind::Wide, 239),
    // A member that knew of a deletion was compared with one that did not: their copies were reported to differ.
    (PlanKind::PassingVolumes, 20),
    // The checker could not decide a history of fourteen pending writes.
    (PlanKind::OneRack, 900_779),
    // Every device fails while a set is down to one member, which notices nothing and rightly waits.
    (PlanKind::OneRack, 902_272),
    // The same, but it noticed just before the checker's time limit.
    (PlanKind::LateMessages, 126),
    // A flush of a deleted volume was answered after another volume had replaced it: the checker applied its promise to
    // that one.
    (PlanKind::Wide, 201),
    // Zeroes written over a part of an unwritten block had no checksum with `ssd.verify = false`.
    (PlanKind::Wide, 82),
    // A server started with an edited configuration, but after the others.
    (PlanKind::Wide, 65),
    // A metadata service started with keys that a rack's store refuses, and kept views of sets that do not exist.
    (PlanKind::Wide, 105),
    // A drive of another rack had a later incarnation than the metadata service knew.
    (PlanKind::Wide, 165),
    // A switch restarted between two checks.
    (PlanKind::Wide, 189),
    // An older store deleted a volume, which the current one then had again.
    (PlanKind::Wide, 268),
    // All copies but one were lost when the view that made that one a member was decided, but not durable.
    (PlanKind::Wide, 103),
    // A client that restarted while an edited configuration was tried had another node's id.
    (PlanKind::Edits, 2025),
    // A volume was deleted while its block was read: the answer was zeroes.
    (PlanKind::Wide, 2060),
    // A set's recovery waited for blocks of a volume that was deleted meanwhile.
    (PlanKind::PassingVolumes, 8_000_004),
    // The checker took servers for ended ones whose numbers had been given in a view that was lost.
    (PlanKind::Wide, 8_500_262),
    // An announcement that was on its way made a deleted row again, and a late gc_op was the first of the new row.
    (PlanKind::Swaps, 8_730_002),
    // A device failed beside a member whose lease had ended.
    (PlanKind::TwoRacks, 8_800_004),
];

/// The same with the transport between nodes.
const OVER_TRANSPORT: &[(PlanKind, u64)] = &[
    // No report of a server's reads reached the switch: the transport refused them.
    (PlanKind::OneRack, 0),
    // The vssd_id of a row, which no tag covers, was damaged on its way to the switch: the switch had a row of no vSSD.
    (PlanKind::Moves, 4),
    (PlanKind::Moves, 62),
    // A thousand invalidations to a server were begun at once: none was whole within its deadline, then or later.
    (PlanKind::NoisyRacks, 123),
    // As `Wide` 103.
    (PlanKind::LastCopies, 1014),
    // A request whose server was unknown went to the switch by a stream, which acknowledged it, and was lost there.
    (PlanKind::NoisyRacks, 106),
    // Round trips were longer than the time after which a path counts as failed: paths changed without end.
    (PlanKind::NoisyRacks, 2054),
    // A server answered equally before and after a restart; the checker took the late first answer for the second.
    (PlanKind::Swaps, 4_000_035),
    // What the switch forwarded was answered, but the next request that it lost waited as if nothing had been.
    (PlanKind::HalfCrashes, 8_100_069),
    // An announcement that was held back made the row of a vSSD again that had been given back.
    (PlanKind::Moves, 8_101_108),
    // The checker counted a member whose lease had ended when the others lost power.
    (PlanKind::LeftAlone, 8_400_223),
    // Three grants for a swap, given soon after each other, were taken for one.
    (PlanKind::Swaps, 8_401_033),
    // A server whose sync has failed restarts although its set has no other copy.
    (PlanKind::Moves, 8_500_081),
    // A late acknowledgement counted as a round trip of seconds, and a loss was repeated after a second.
    (PlanKind::LateMessages, 8_500_151),
    // After two crashes of a set a client sent an answered write again, and then the older one that it had replaced.
    (PlanKind::SingleCopies, 8_700_021),
    // A connection that was made late counted as the peer's stream, and nothing was written to it.
    (PlanKind::FewBlocks, 8_760_177),
    // A replayed operation was the first that a restarted switch heard.
    (PlanKind::OneRack, 8_760_213),
    // A copy of a drive's table was damaged while the server looked for the other one where another drive's shape has it.
    (PlanKind::Edits, 8_800_002),
    // The checker did not count the crash of a member whose lease had ended, though no view was without it.
    (PlanKind::PassingVolumes, 8_850_039),
    // Two of three members, cut off from the third, lost power before their leases ended: the metadata service left out the third.
    (PlanKind::FewBlocks, 8_890_022),
    // A device failed beside a member that was cut off from the one with the device.
    (PlanKind::Ragged, 8_900_015),
];

#[test]
fn what_failed_once_passes() {
    let plain = SEEDS.iter().map(|(kind, seed)| kind.draw(*seed));
    let over = OVER_TRANSPORT.iter().map(|(kind, seed)| kind.draw(*seed).over_transport());
    for plan in plain.chain(over) {
        let report = run_plan(&plan, &SimOptions::default());
        assert!(report.passed(), "{report}");
    }
}
