//! The shapes of the figures' short forms with seed 1, as measured, beside the paper's numbers.

/// A property of a figure.
pub enum Shape {
    /// One row is at least this many times another one; `paper` is the paper's ratio, or the project's bar.
    Times {
        over: &'static str,
        under: &'static str,
        least: f64,
        paper: Option<f64>,
    },
    Between {
        row: &'static str,
        low: f64,
        high: f64,
    },
    /// All rows with this in their names are this close to the paper's numbers.
    NearPaper {
        part: &'static str,
        within: f64,
    },
}

/// In no third: too long for one. Its parts have tests of their own.
pub const SOAK: usize = 3;

pub struct Guard {
    pub id: &'static str,
    /// Figures that share cells are in the same third.
    pub third: usize,
    pub shapes: &'static [Shape],
    /// Rows that miss their bars, for the reasons in docs/results; `None` if the form is too short for the bars.
    pub missed: Option<&'static [&'static str]>,
}

pub const fn times(over: &'static str, under: &'static str, least: f64) -> Shape {
    Shape::Times { over, under, least, paper: None }
}
pub const fn beside(over: &'static str, under: &'static str, least: f64, paper: f64) -> Shape {
    Shape::Times { over, under, least, paper: Some(paper) }
}
pub const fn between(row: &'static str, low: f64, high: f64) -> Shape {
    Shape::Between { row, low, high }
}
pub const fn near(part: &'static str, within: f64) -> Shape {
    Shape::NearPaper { part, within }
}
pub const fn guard(
    third: usize,
    id: &'static str,
    missed: Option<&'static [&'static str]>,
    shapes: &'static [Shape],
) -> Guard {
    Guard { id, third, shapes, missed }
}

pub const GUARDS: [Guard; 41] = [
    guard(
        1,
        "df-fig2",
        None,
        &[
            between("CoV, 100 ms", 0.9, 1.1),
            between("CoV, 100 s", 0.25, 0.5),
            between("max ÷ min, 100 ms", 20.0, 80.0),
            between("Spearman: traffic, share of random writes", 0.55, 0.7),
            between("EWMA's error, 5 s", 1.0, 2.5),
            between("EWMA's error, 100 ms", 1.7, 2.1),
        ],
    ),
    guard(
        0,
        "df-fig12",
        Some(&[
            "W1: CoV against segmentation",
            "W1: max ÷ min against segmentation",
            "W1: bursts alone, CoV",
            "W1: bursts alone, max ÷ min",
        ]),
        &[
            beside("W1: segmentation: CoV", "W1: diffforward: CoV", 2.4, 2.94),
            times("W1: none: CoV", "W1: segmentation: CoV", 1.75),
            beside("W1: replication: CoV", "W1: diffforward: CoV", 2.1, 1.32),
            times("W1: diffforward: CoV", "W1: diffforward, two copies: CoV", 1.2),
        ],
    ),
    guard(
        0,
        "df-fig14",
        Some(&[
            "W1: write mean, two log copies ÷ one",
            "W1: write P99, two log copies ÷ one",
            "W1: read P99, two log copies ÷ one",
        ]),
        &[
            beside("W1: segmentation: write mean", "W1: diffforward: write mean", 5.6, 1.89),
            times("W1: replication: write mean", "W1: diffforward: write mean", 4.8),
            times("W1: none: write mean", "W1: segmentation: write mean", 3.0),
        ],
    ),
    guard(
        1,
        "df-fig16",
        Some(&[]),
        &[
            beside("40 %: migration, mean: write mean", "40 %: diffforward: write mean", 8.0, 2.94),
            times("40 %: replication: write mean", "40 %: diffforward: write mean", 11.0),
            times("10 %: migration, mean: write mean", "10 %: diffforward: write mean", 1.25),
            times("40 %: diffforward, two copies: write mean", "40 %: diffforward: write mean", 1.2),
        ],
    ),
    guard(
        2,
        "df-fig17",
        Some(&[]),
        &[
            times("whole disks: migration, EWMA: write mean", "whole disks: diffforward: write mean", 14.0),
            times("64 GiB: migration, EWMA: write mean", "64 GiB: diffforward: write mean", 4.0),
            times("whole disks: segmentation: CoV", "whole disks: diffforward: CoV", 3.5),
            times("64 GiB: migration, EWMA: CoV", "64 GiB: diffforward: CoV", 2.0),
        ],
    ),
    guard(
        0,
        "df-fig18",
        None,
        &[
            times("30 %: β = 4.00: write mean", "30 %: β = 0.10: write mean", 1.0),
            times("30 %: published code: write mean", "30 %: β = 0.10: write mean", 1.1),
            between("30 %: β = 0.10: logged", 0.85, 0.93),
            between("30 %: β of the least mean", 0.1, 0.1),
        ],
    ),
    guard(
        0,
        "df-fig19",
        Some(&[]),
        &[
            between("write: waiting and transfer, mean against segmentation", 0.85, 1.0),
            between("write: waiting, P99 against segmentation", 0.9, 1.0),
            between("write: transfer, P99 against segmentation", 0.77, 1.0),
        ],
    ),
    guard(
        1,
        "df-fig20",
        None,
        &[
            beside(
                "limited: write mean, more than without merging",
                "prioritized: write mean, more than without merging",
                1.0,
                2.9,
            ),
            times("ASAP: write mean, more than without merging", "limited: write mean, more than without merging", 8.0),
            between("paper's: recall, by bytes", 0.8, 1.0),
            between("published: recall, by bytes", 0.6, 1.0),
        ],
    ),
    guard(
        2,
        "fb-fig1",
        Some(&[]),
        &[
            beside(
                "tenant 2 (2 channels, writes): P99, software",
                "tenant 2 (2 channels, writes): P99, channel",
                4.0,
                1.7,
            ),
            beside(
                "tenant 1 (1 channels, reads): P99, software",
                "tenant 1 (1 channels, reads): P99, channel",
                1.3,
                1.7,
            ),
            between("throughput of all, channel ÷ software", 1.1, 1.25),
        ],
    ),
    guard(
        0,
        "fb-fig7",
        Some(&["RW + SW: software", "RW + RW: channel", "RW + RW: die", "RW + RW: software", "RW + RW: none"]),
        &[
            times("RW + SW: shared page-level FTL", "RW + SW: channel", 1.0),
            times("RW + SW: shared page-level FTL", "RW + SW: none", 1.08),
            times("RW + SW: shared page-level FTL", "RW + SW: software", 0.985),
            times("RW + RW: shared page-level FTL", "RW + RW: channel", 0.99),
            times("RW + RW: shared page-level FTL", "RW + RW: software", 0.99),
        ],
    ),
    guard(
        SOAK,
        "fb-fig8",
        Some(&["best: throughput, against software", "best: P99 of reads, against software"]),
        &[
            between("best: throughput, against software", 1.4, 1.6),
            between("best: P99 of reads, against software", 2.1, 2.6),
            between("best: P99 of updates, against software", 3.5, 6.0),
            between("2 × A: P99 of updates, against software", 1.8, 2.4),
            between("2 × A: throughput, against software", 1.4, 1.6),
            between("best: throughput, against die", 0.98, 1.1),
        ],
    ),
    guard(
        SOAK,
        "fb-fig10",
        None,
        &[
            between("best: P99 of reads, against software", 2.7, 6.0),
            between("best: P99 of updates, against software", 3.1, 12.0),
        ],
    ),
    guard(
        2,
        "fb-fig11",
        Some(&[]),
        &[
            beside("unisolated: web search, read P99", "channel: web search, read P99", 15.0, 2.0),
            times("software: web search, read P99", "channel: web search, read P99", 4.0),
            beside("channel: MapReduce", "unisolated: MapReduce", 0.5, 0.64),
        ],
    ),
    guard(
        SOAK,
        "fb-fig12",
        None,
        &[between("A: moved at", 70.0, 79.0), between("B: moved at", 68.0, 79.0), between("F: moved at", 70.0, 79.0)],
    ),
    guard(
        2,
        "fb-fig13",
        Some(&[
            "alone: moved at",
            "alone: search read P99 more",
            "alone: search write P99 more",
            "with a replica: moved at",
            "with a replica: search write P99 more",
        ]),
        &[
            times("alone: web search, read P99 meanwhile", "with a replica: web search, read P99 meanwhile", 8.0),
            beside("alone: MapReduce meanwhile", "alone: MapReduce before", 0.9, 0.633),
        ],
    ),
    guard(
        1,
        "fb-fig14",
        Some(&[]),
        &[
            times("1 channel killers: ours, adaptive", "1 channel killers: paper's rule, adaptive", 1.01),
            times("4 channel killers: ours, adaptive", "4 channel killers: paper's rule, adaptive", 1.01),
            times("15 channel killers: ours, adaptive", "15 channel killers: paper's rule, adaptive", 1.01),
            times("1 channel killers: ours, adaptive", "1 channel killers: no swap | of ideal life", 15.0),
            near("no swap", 0.05),
        ],
    ),
    guard(
        1,
        "fb-fig15",
        Some(&[]),
        &[
            between("no swap: imbalance | max ÷ mean", 2.92, 3.28),
            between("no swap: life | years", 1.19, 1.21),
            times("ours, adaptive: life | of ideal", "paper's rule, adaptive: life | of ideal", 1.4),
            times("paper's rule, adaptive: life | of ideal", "no swap: life | of ideal", 2.0),
        ],
    ),
    guard(
        1,
        "fb-fig16",
        Some(&[]),
        &[
            times("ours, adaptive: least worn channel", "ours, adaptive: most worn channel", 0.9),
            times("ours, adaptive: least worn channel", "paper's rule, adaptive: least worn channel", 10.0),
        ],
    ),
    guard(
        1,
        "fb-table5",
        Some(&[]),
        &[
            near("no swap", 0.13),
            near(": ideal", 0.13),
            times("16 vSSDs, P50: ours | of ideal life", "16 vSSDs, P50: paper's rule | of ideal life", 1.6),
            times("4 vSSDs, P50: ours | years", "4 vSSDs, P50: no swap", 8.0),
        ],
    ),
    guard(
        2,
        "pn-fig14d",
        Some(&[]),
        &[
            between("25 % of flows: I/Os over 1 s, 16 ports", 0.0, 0.0),
            between("25 % of flows: I/Os over 1 s, one source port", 2_000.0, 5_000.0),
            between("25 % of flows: path change, longest", 0.0, 50.0),
        ],
    ),
    guard(
        2,
        "pn-fig16",
        Some(&[]),
        &[
            beside("delay: slow hosts", "delay: quick hosts", 0.9, 1.0),
            beside("ecn: slow hosts", "ecn: quick hosts", 0.95, 1.0),
            times("delay: used", "fixed window, go-back-N: used", 1.6),
        ],
    ),
    guard(
        2,
        "pn-fig17",
        Some(&[]),
        &[
            beside("delay: second pod", "delay: first pod", 0.95, 1.0),
            beside("ecn: second pod", "ecn: first pod", 0.95, 1.0),
            times("delay: used", "fixed window, go-back-N: used", 1.6),
        ],
    ),
    guard(
        1,
        "pn-fig18",
        Some(&[]),
        &[
            beside("alone: online P99", "silver and copper: online P99", 0.97, 1.0 / 1.05),
            times("all silver: online mean", "silver and copper: online mean", 1.02),
        ],
    ),
    guard(
        2,
        "pn-loss",
        Some(&[]),
        &[
            times("delay, 0.1 % lost: selective", "delay, 0.1 % lost: go-back-N", 1.07),
            times("delay, 1 % lost: selective", "delay, 1 % lost: go-back-N", 1.35),
            times("delay, 5 % lost: selective", "delay, 5 % lost: go-back-N", 1.6),
            times("ecn, 0.1 % lost: selective", "ecn, 0.1 % lost: go-back-N", 1.07),
            times("ecn, 1 % lost: selective", "ecn, 1 % lost: go-back-N", 1.35),
            times("ecn, 5 % lost: selective", "ecn, 5 % lost: go-back-N", 1.6),
            times("fixed window, 0.1 % lost: selective", "fixed window, 0.1 % lost: go-back-N", 1.07),
            times("fixed window, 1 % lost: selective", "fixed window, 1 % lost: go-back-N", 1.35),
            times("fixed window, 5 % lost: selective", "fixed window, 5 % lost: go-back-N", 1.6),
        ],
    ),
    guard(
        2,
        "pn-multicast",
        Some(&["4 KiB: bytes that the client sends"]),
        &[
            between("64 KiB: bytes that the client sends", 0.33, 0.36),
            between("64 KiB: time until all have it", 0.4, 0.55),
            times("goodput", "goodput to each", 2.8),
        ],
    ),
    guard(
        0,
        "rb-fig9",
        None,
        &[
            beside("50 % writes, 30 % busy: read P99.9, vdc", "50 % writes, 30 % busy: read P99.9, rackblox", 2.6, 4.4),
            beside(
                "50 % writes, 30 % busy: read P99.9, software",
                "50 % writes, 30 % busy: read P99.9, rackblox",
                1.05,
                1.84,
            ),
            beside("50 % writes, 30 % busy: read P99.9, vdc", "50 % writes, 30 % busy: read P99.9, software", 2.4, 2.4),
            beside(
                "50 % writes, 30 % busy: write P99.9, vdc",
                "50 % writes, 30 % busy: write P99.9, rackblox",
                0.97,
                1.4,
            ),
            times(
                "50 % writes, 30 % busy, suspension: read P99.9, vdc",
                "50 % writes, 30 % busy, suspension: read P99.9, rackblox",
                0.98,
            ),
            beside(
                "50 % writes, 30 % busy: read P99.9, ideal",
                "50 % writes, 30 % busy: read P99.9, rackweave",
                0.95,
                1.0 / 1.25,
            ),
            beside(
                "50 % writes, 30 % busy, suspension: read P99.9, ideal",
                "50 % writes, 30 % busy, suspension: read P99.9, rackweave",
                0.95,
                1.0 / 1.05,
            ),
            beside(
                "50 % writes, 10 % busy: by whole blocks, read P99.9, vdc",
                "50 % writes, 10 % busy: by whole blocks, read P99.9, rackblox",
                160.0,
                4.4,
            ),
            beside(
                "50 % writes, 10 % busy: by whole blocks, write P99.9, vdc",
                "50 % writes, 10 % busy: by whole blocks, write P99.9, rackblox",
                90.0,
                1.4,
            ),
            times(
                "50 % writes, 10 % busy: by whole blocks, read P99.9, ideal",
                "50 % writes, 10 % busy: by whole blocks, read P99.9, rackweave",
                0.95,
            ),
        ],
    ),
    guard(
        0,
        "rb-fig10",
        None,
        &[
            beside("50 % writes, 30 % busy: read P99, vdc", "50 % writes, 30 % busy: read P99, rackblox", 1.25, 2.1),
            beside("50 % writes, 30 % busy: write P99, vdc", "50 % writes, 30 % busy: write P99, rackblox", 0.97, 1.3),
            beside(
                "50 % writes, 10 % busy: by whole blocks, read P99, vdc",
                "50 % writes, 10 % busy: by whole blocks, read P99, rackblox",
                135.0,
                2.1,
            ),
        ],
    ),
    guard(
        0,
        "rb-fig11",
        None,
        &[
            beside("50 % writes, 30 % busy: mean read, vdc", "50 % writes, 30 % busy: mean read, rackblox", 1.15, 1.0),
            times("50 % writes, 30 % busy: mean read, vdc", "50 % writes, 30 % busy: mean read, rackweave", 1.15),
            beside(
                "50 % writes, 30 % busy: mean write, vdc",
                "50 % writes, 30 % busy: mean write, rackblox",
                0.99,
                1.0,
            ),
            times(
                "50 % writes, 30 % busy, suspension: mean read, vdc",
                "50 % writes, 30 % busy, suspension: mean read, rackblox",
                1.02,
            ),
        ],
    ),
    guard(
        0,
        "rb-fig12",
        None,
        &[
            beside("50 % writes, 30 % busy: rackblox", "50 % writes, 30 % busy: vdc", 0.97, 1.0),
            beside("50 % writes, 30 % busy: rackweave", "50 % writes, 30 % busy: vdc", 0.97, 1.0),
        ],
    ),
    guard(
        1,
        "rb-fig13",
        None,
        &[
            beside("AuctionMark, 30 % busy: read P99.9, vdc", "AuctionMark, 30 % busy: read P99.9, rackblox", 5.4, 7.9),
            beside(
                "AuctionMark, 30 % busy: read P99.9, software",
                "AuctionMark, 30 % busy: read P99.9, rackblox",
                1.15,
                1.84,
            ),
            times(
                "AuctionMark, 30 % busy, suspension: read P99.9, vdc",
                "AuctionMark, 30 % busy, suspension: read P99.9, rackblox",
                1.6,
            ),
            beside(
                "AuctionMark, 30 % busy: read P99.9, ideal",
                "AuctionMark, 30 % busy: read P99.9, rackweave",
                0.95,
                1.0 / 1.25,
            ),
            beside(
                "AuctionMark, 30 % busy, suspension: read P99.9, ideal",
                "AuctionMark, 30 % busy, suspension: read P99.9, rackweave",
                0.95,
                1.0 / 1.05,
            ),
        ],
    ),
    guard(
        1,
        "rb-fig14",
        None,
        &[
            beside("AuctionMark, 30 % busy: rackblox", "AuctionMark, 30 % busy: vdc", 0.97, 1.0),
            beside(
                "AuctionMark, 30 % busy, suspension: rackblox",
                "AuctionMark, 30 % busy, suspension: vdc",
                0.97,
                1.0,
            ),
        ],
    ),
    guard(
        0,
        "rb-fig15",
        None,
        &[
            times(
                "50 % writes, 30 % busy: read P99.9, storage, vdc",
                "50 % writes, 30 % busy: read P99.9, storage, rackblox",
                3.2,
            ),
            beside(
                "50 % writes, 30 % busy: read P99.9, total, coord-io",
                "50 % writes, 30 % busy: read P99.9, total, rackblox",
                2.6,
                4.3,
            ),
            beside(
                "50 % writes, 30 % busy: read P99.9, total, vdc",
                "50 % writes, 30 % busy: read P99.9, total, coord-io",
                0.98,
                1.23,
            ),
            times(
                "50 % writes, 30 % busy: read P99.9, total, vdc",
                "50 % writes, 30 % busy: read P99.9, storage, vdc",
                1.05,
            ),
        ],
    ),
    guard(
        0,
        "rb-fig16",
        None,
        &[
            beside("50 % writes, 30 % busy: read P99.9, vdc", "50 % writes, 30 % busy: read P99.9, rackblox", 2.6, 4.3),
            times("50 % writes, 30 % busy: read P99.9, coord-io", "50 % writes, 30 % busy: read P99.9, rackblox", 2.6),
            times("50 % writes, 30 % busy: read P90, vdc", "50 % writes, 30 % busy: read P90, rackblox", 1.6),
            times("50 % writes, 30 % busy: read P99.99, vdc", "50 % writes, 30 % busy: read P99.99, rackblox", 2.7),
            times("50 % writes, 30 % busy: read P50, rackblox", "50 % writes, 30 % busy: read P50, ideal", 0.97),
        ],
    ),
    guard(
        1,
        "rb-fig17",
        None,
        &[
            beside("queues, FIFO: plain, P99.9 read", "queues, FIFO: coordinated, P99.9 read", 1.5, 1.5),
            beside("queues, Deadline: plain, P99.9 read", "queues, Deadline: coordinated, P99.9 read", 1.0, 1.36),
            beside("queues, Kyber: plain, P99.9 read", "queues, Kyber: coordinated, P99.9 read", 0.99, 1.24),
            times("queues, FIFO: plain, P99.9 read", "queues, Kyber: plain, P99.9 read", 1.5),
        ],
    ),
    guard(
        1,
        "rb-fig18",
        None,
        &[
            beside("TB, 50 % writes: plain, P99.9 read", "TB, 50 % writes: coordinated, P99.9 read", 0.98, 1.0),
            beside("FQ, 50 % writes: plain, P99.9 read", "FQ, 50 % writes: coordinated, P99.9 read", 0.98, 1.21),
            beside(
                "Priority, 50 % writes: plain, P99.9 read",
                "Priority, 50 % writes: coordinated, P99.9 read",
                0.98,
                1.15,
            ),
        ],
    ),
    guard(
        2,
        "rb-fig19",
        None,
        &[
            times(
                "50 % writes, 30 % busy: p-ssd, fast, read P99.9, vdc",
                "50 % writes, 30 % busy: p-ssd, fast, read P99.9, rackblox",
                2.6,
            ),
            times(
                "50 % writes, 30 % busy: intel-dc, fast, read P99.9, vdc",
                "50 % writes, 30 % busy: intel-dc, fast, read P99.9, rackblox",
                2.6,
            ),
            times(
                "50 % writes, 30 % busy: optane, fast, read P99.9, vdc",
                "50 % writes, 30 % busy: optane, fast, read P99.9, rackblox",
                0.95,
            ),
            times(
                "50 % writes, 30 % busy: p-ssd, slow, read P99.9, vdc",
                "50 % writes, 30 % busy: p-ssd, slow, read P99.9, rackblox",
                0.95,
            ),
            times(
                "50 % writes, 30 % busy: p-ssd, fast, read P50, vdc",
                "50 % writes, 30 % busy: optane, fast, read P50, vdc",
                1.25,
            ),
            times(
                "50 % writes, 30 % busy: optane, slow, read P99.9, vdc",
                "50 % writes, 30 % busy: optane, fast, read P99.9, vdc",
                10.0,
            ),
        ],
    ),
    guard(
        2,
        "rb-fig20",
        None,
        &[
            between("p-ssd, fast, 50 % writes, 30 % busy: read P99.9, vdc ÷ rackblox", 2.6, 3.2),
            between("intel-dc, fast, 50 % writes, 30 % busy: read P99.9, vdc ÷ rackblox", 2.6, 3.2),
            between("optane, fast, 50 % writes, 30 % busy: read P99.9, vdc ÷ rackblox", 0.9, 1.1),
            between("optane, slow, 50 % writes, 30 % busy: read P99.9, vdc ÷ rackblox", 0.9, 1.1),
            between("intel-dc, slow, 50 % writes, 30 % busy: read P99.9, vdc ÷ rackblox", 0.9, 1.1),
            between("p-ssd, slow, 50 % writes, 30 % busy: read P99.9, vdc ÷ rackblox", 0.9, 1.1),
        ],
    ),
    guard(
        1,
        "rb-fig21",
        None,
        &[
            beside("software-isolated: read P99.9, vdc", "software-isolated: read P99.9, rackblox", 1.1, 1.47),
            beside("hardware-isolated: read P99.9, vdc", "hardware-isolated: read P99.9, rackblox", 1.12, 1.51),
            times("hardware-isolated: read P99.9, rackblox", "hardware-isolated: read P99.9, ideal", 2.4),
            times("software-isolated: read P99.9, vdc", "hardware-isolated: read P99.9, vdc", 1.0),
        ],
    ),
    guard(
        0,
        "rb-fig22",
        Some(&[]),
        &[
            times("no swap: mean of the servers", "paper's rule, local: mean of the servers", 1.25),
            times("paper's rule, local: mean of the servers", "ours, local: mean of the servers", 1.2),
        ],
    ),
    guard(
        0,
        "rb-fig23",
        Some(&[]),
        &[
            times("no swap: after a year, over SSDs", "paper's rule, local: after a year, over SSDs", 1.3),
            times(
                "paper's rule, local: after a year, over SSDs",
                "paper's rule, local and global: after a year, over SSDs",
                1.0,
            ),
            times(
                "paper's rule, local and global: after a year, over SSDs",
                "ours, local: after a year, over SSDs",
                1.1,
            ),
            times("ours, local: after a year, over SSDs", "ours, local and global: after a year, over SSDs", 1.1),
        ],
    ),
    guard(
        0,
        "rb-predict",
        Some(&[]),
        &[
            between("fast, as recorded: within 25 µs", 49.0, 53.0),
            times("fast, as recorded: within 25 µs", "fast, shuffled: within 25 µs", 1.05),
            times("fast, as recorded: within 25 µs", "medium (× 2.4), as recorded: within 25 µs", 2.0),
        ],
    ),
];
