//! Mutants of the transport: lives, replays, tags, chunks.

use super::{Mutant, m};

const UNITS: &[&str] = &["transport"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("transport.replay.accepted", "18", &[], UNITS, "A datagram that came before is accepted again.")
        .open("Its crate's tests were not run."),
    m("transport.life.older", "18", &[], UNITS, "Datagrams of a peer's earlier life are accepted.")
        .open("Its crate's tests were not run."),
    m("transport.life.unproven", "18", &[], UNITS, "A life of a peer is accepted without proof that it lives.")
        .open("Its crate's tests were not run."),
    m("transport.ack.other-life", "18", &[], UNITS, "Acknowledgements for an earlier life count.")
        .open("Its crate's tests were not run."),
    m("transport.routed.rebinds", "13", &[], UNITS, "A message bound to its first responder moves to another.")
        .open("Its crate's tests were not run."),
    m("transport.tag.unchecked", "18", &[], UNITS, "A damaged or forged datagram is accepted.")
        .open("Its crate's tests were not run."),
    m("transport.crc.unchecked", "18", &[], UNITS, "A damaged datagram without a key is accepted.")
        .open("Its crate's tests were not run."),
    m("transport.gc.unchecked", "18", &[], UNITS, "A forged gc_op is accepted.")
        .open("Its crate's tests were not run."),
    m("transport.key.all-lives", "18", &[], UNITS, "All lives of a node have one key.")
        .open("Its crate's tests were not run."),
    m("transport.key.none", "18", &[], UNITS, "A datagram without a key is accepted where one is wanted.")
        .open("Its crate's tests were not run."),
    m("transport.chunk.contradicts", "13", &[], UNITS, "Chunks of two messages are put together.")
        .open("Its crate's tests were not run."),
    m("transport.chunk.early", "13", &[], UNITS, "A message is delivered before its last chunk is here.")
        .open("Its crate's tests were not run."),
    m("transport.budget.unbounded", "33", &[], UNITS, "A peer gets more memory than is left for all.")
        .open("Its crate's tests were not run."),
];
