//! The shapes of NICE's figures, as in [`crate::shapes`].

use crate::shapes::{Guard, beside, between, guard, near, times};

pub const NICE: [Guard; 13] = [
    guard(
        0,
        "ni-fig6",
        Some(&[]),
        &[
            beside("4 B: RAG primary-backup", "4 B: NICE", 1.45, 1.5),
            beside("4 B: ROG primary-backup", "4 B: NICE", 1.9, 2.0),
            beside("4 B: ROG primary-backup", "4 B: rackweave", 1.9, 2.0),
            times("1 MiB: proxy", "1 MiB: NICE", 1.9),
            between("4 B: RAC primary-backup", 420.0, 430.0),
        ],
    ),
    guard(
        1,
        "ni-fig7",
        Some(&[
            "1 MiB: NICE against RAC",
            "1 MiB: NICE against RAG",
            "1 MiB: NICE against ROG",
            "1 MiB: rackweave against RAC",
            "1 MiB: rackweave against RAG",
            "1 MiB: rackweave against ROG",
        ]),
        &[
            beside("1 MiB: RAC primary-backup", "1 MiB: NICE", 2.4, 2.6),
            beside("1 MiB: RAG primary-backup", "1 MiB: NICE", 3.1, 3.4),
            beside("1 MiB: ROG primary-backup", "1 MiB: NICE", 3.9, 4.3),
            times("1 MiB: RAC primary-backup", "1 MiB: rackweave", 1.9),
            times("1 MiB: RAG primary-backup", "1 MiB: rackweave", 2.5),
        ],
    ),
    guard(
        2,
        "ni-fig8",
        Some(&[
            "64 KiB: ROG, of NICE",
            "64 KiB: rackweave: of the tree's chunks",
            "64 KiB: rackweave: of the tree's data",
            "64 KiB: ROG, of rackweave",
            "1 MiB: RAC, of NICE",
            "1 MiB: ROG, of NICE",
            "1 MiB: rackweave: of the tree's data",
            "1 MiB: RAC, of rackweave",
            "1 MiB: ROG, of rackweave",
        ]),
        &[
            beside("1 MiB: RAC primary-backup", "1 MiB: NICE", 1.5, 1.7),
            beside("1 MiB: ROG primary-backup", "1 MiB: NICE", 2.5, 3.5),
            times("1 MiB: ROG primary-backup", "1 MiB: rackweave", 2.3),
            between("1 MiB: NICE: of the tree's data", 1.05, 1.08),
        ],
    ),
    guard(
        0,
        "ni-fig9",
        Some(&[]),
        &[
            between("1 MiB: NICE", 1.0, 1.01),
            between("1 MiB: rackweave", 1.0, 1.01),
            between("1 MiB: RAC primary-backup", 2.95, 3.05),
            between("1 MiB: proxy", 3.95, 4.05),
        ],
    ),
    guard(
        1,
        "ni-fig10",
        Some(&[]),
        &[
            near("calibration", 0.01),
            beside("R = 9: RAC 2PC", "R = 9: NICE", 1.7, 1.3),
            times("R = 9: RAC 2PC", "R = 9: rackweave", 1.3),
            beside("R = 9: RAC primary-backup", "R = 9: NICE", 1.1, 1.0),
            times("R = 9: NICE", "R = 9: RAC primary-backup, standing connections", 1.2),
        ],
    ),
    guard(
        2,
        "ni-fig11",
        Some(&["NICE: R = 9, of R = 1", "rackweave against primary-backup, R = 9", "rackweave: R = 9, of R = 1"]),
        &[
            beside("R = 9: RAC primary-backup", "R = 9: NICE", 6.0, 5.5),
            between("NICE: R = 9, of R = 1", 1.1, 1.2),
            beside("R = 9: RAC primary-backup", "R = 1: RAC primary-backup", 7.0, 7.0),
            times("R = 9: RAC primary-backup", "R = 9: rackweave", 5.0),
        ],
    ),
    guard(
        0,
        "ni-fig12",
        Some(&[
            "NICE against primary-backup, R = 9",
            "NICE against 2PC, R = 9",
            "rackweave against primary-backup, R = 9",
            "rackweave against 2PC, R = 9",
            "rackweave: R = 9, of R = 3",
        ]),
        &[
            beside("R = 9: RAC primary-backup", "R = 9: NICE", 4.5, 7.5),
            beside("R = 9: RAC 2PC", "R = 9: NICE", 1.2, 5.5),
            times("R = 9: RAC primary-backup", "R = 9: rackweave", 1.2),
            times("R = 9: RAC primary-backup, gets alone", "R = 9: NICE, gets alone", 3.5),
        ],
    ),
    guard(
        1,
        "ni-fig13",
        Some(&[
            "NICE against 2PC, R = 9",
            "rackweave against primary-backup, R = 9",
            "rackweave against 2PC, R = 9",
            "rackweave: R = 9, of R = 3",
        ]),
        &[
            beside("R = 9: RAC primary-backup", "R = 9: NICE", 12.0, 7.5),
            beside("R = 9: RAC 2PC", "R = 9: NICE", 1.6, 5.5),
            times("R = 9: RAC primary-backup", "R = 9: rackweave", 4.0),
        ],
    ),
    guard(
        2,
        "ni-fig14",
        Some(&[]),
        &[
            between("longest time without a put, at the loss", 40.0, 100.0),
            between("rejoined and serving after", 0.01, 1.0),
            between("rejoined, for each 10,000 objects", 0.1, 1.5),
            between("objects that it missed", 1_000.0, 5_000.0),
            between("answered puts that a replica lacks", 0.0, 0.0),
        ],
    ),
    guard(
        0,
        "ni-fig15",
        Some(&[
            "C: NICE against primary-backup",
            "C: rackweave against primary-backup",
            "F: NICE against primary-backup",
            "F: rackweave against primary-backup",
        ]),
        &[
            beside("C: RAG 2PC", "C: NICE", 1.4, 1.25),
            beside("F: RAG 2PC", "F: NICE", 1.5, 1.5),
            times("F: RAG 2PC", "F: rackweave", 1.2),
            times("C: RAC primary-backup", "C: NICE", 1.02),
        ],
    ),
    guard(
        1,
        "ni-fig16",
        Some(&[]),
        &[
            beside("NICE, client partitioning: P99", "NICE, weighted replicas: P99", 6.0, 2.0),
            beside("NICE, client partitioning: P99", "rackweave: P99", 6.0, 2.0),
            beside("NICE, client partitioning: P99", "rackweave, by the switch: P99", 9.0, 2.0),
            times("NICE, weighted replicas: P99", "rackweave, by the switch: P99", 1.3),
        ],
    ),
    guard(
        2,
        "ni-fig17",
        Some(&["rackweave: P99, of client partitioning"]),
        &[
            beside("NICE, client partitioning: P99", "NICE, weighted replicas: P99", 6.0, 2.0),
            times("NICE, client partitioning: P99", "rackweave: P99", 1.5),
            beside("NICE, client partitioning: P99", "rackweave, by the switch: P99", 9.0, 2.0),
            times("NICE, weighted replicas: P99", "rackweave, by the switch: P99", 1.3),
        ],
    ),
    guard(
        0,
        "ni-quorum",
        Some(&[]),
        &[
            times("R = 3, 4 B: RAC quorum", "R = 3, 4 B: NICE, any 2", 1.6),
            times("R = 3, 1 MiB: RAC quorum", "R = 3, 1 MiB: NICE, any 2", 2.4),
            times("R = 3, 4 B, one slow: NICE", "R = 3, 4 B, one slow: NICE, any 2", 10.0),
            times("R = 3, 4 B, one slow: rackweave", "R = 3, 4 B, one slow: rackweave, any 2", 10.0),
        ],
    ),
];
