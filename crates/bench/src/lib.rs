//! Live experiments of the network (`docs/experiments.md` lists them): `rackweave eval NAME`.
//!
//! [`live`] runs the drivers' loop between two processes, beside kernel TCP and an RPC with the same request code. Those in
//! virtual time are in `rackweave-eval`, which also has the type of a figure.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "benchmarks read clocks and open sockets")]

pub mod live;

use live::figures::{self, CORES, OVS, ROOT, RPC, VALGRIND};
use rackweave_eval::experiment::Experiment;

/// The live experiments.
pub const EXPERIMENTS: [Experiment; 7] = [
    Experiment::new("pn-fig4", "C3 figures 4 and 5: where the time of a transfer goes", figures::fig45).live(RPC),
    Experiment::new("pn-fig6", "C3 figure 6: 4 KiB write and reply against kernel TCP", figures::fig6).live(CORES),
    Experiment::new("pn-fig7", "C3 figure 7: bandwidth against kernel TCP", figures::fig7).live(CORES),
    Experiment::new("pn-fig14a", "C3 figure 14 a, b: 4 KiB write and reply against protobuf RPC", figures::fig14ab)
        .live(RPC),
    Experiment::new("pn-fig14c", "C3 figure 14 c: bytes moved while 64 KiB are received", figures::fig14c)
        .live(VALGRIND),
    Experiment::new("pn-bulk", "64 KiB messages, 1 MiB in flight, against plain UDP over veth", figures::bulk)
        .live(ROOT),
    Experiment::new("ni-ovs", "NICE §5.1: writes by way of Open vSwitch, against the kernel's bridge", figures::ovs)
        .live(OVS),
];
