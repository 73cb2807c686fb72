//! Mutants of the transport: lives, replays, tags, chunks.

use super::{Mutant, m};

const UNITS: &[&str] = &["transport"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("transport.replay.accepted", "18", &[], UNITS, "A datagram that came before is accepted again.").tested(),
    m("transport.life.older", "18", &[], UNITS, "Datagrams of a peer's earlier life are accepted.").tested(),
    m("transport.life.unproven", "18", &[], UNITS, "A life of a peer is accepted without proof that it lives.").tested(),
    m("transport.ack.other-life", "18", &[], UNITS, "Acknowledgements for an earlier life count.").tested(),
    m("transport.routed.rebinds", "13", &[], UNITS, "A message bound to its first responder moves to another.")
        .open("Its crate\'s tests pass: in their world a train of datagrams goes to one server whole, so never do two acknowledge parts of one message."),
    m("transport.tag.unchecked", "18", &[], UNITS, "A damaged or forged datagram is accepted.").tested(),
    m("transport.crc.unchecked", "18", &[], UNITS, "A damaged datagram without a key is accepted.").tested(),
    m("transport.gc.unchecked", "18", &[], UNITS, "A forged gc_op is accepted.").tested(),
    m("transport.key.all-lives", "18", &[], UNITS, "All lives of a node have one key.").tested(),
    m("transport.key.none", "18", &[], UNITS, "A datagram without a key is accepted where one is wanted.").tested(),
    m("transport.chunk.contradicts", "13", &[], UNITS, "Chunks of two messages are put together.").tested(),
    m("transport.chunk.early", "13", &[], UNITS, "A message is delivered before its last chunk is here.").tested(),
    m("transport.outdated.any-life", "32", &[], UNITS, "News of a newer incarnation that is meant for another life counts.").tested(),
    m("transport.outdated.lower", "32", &[], UNITS, "News of an incarnation that is not newer counts.")
        .equivalent("A peer answers only an incarnation below the newest it knows."),
    m("transport.outdated.former", "32", &[], UNITS, "Two processes with the same node id each receive `outdated` with the other's incarnation, and outbid each other.").tested(),
    m("transport.outdated.silent", "32", &[], UNITS, "A node that lost its counter is not told the newest incarnation.").tested(),
    m("transport.budget.unbounded", "33", &[], UNITS, "A peer gets more memory than is left for all.")
        .open("Its crate's tests were not run."),
];
