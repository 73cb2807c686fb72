//! Mutants of the transport: lives, replays, tags, chunks.

use super::{Mutant, m};

const UNITS: &[&str] = &["transport"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("transport.replay.accepted", "18", &[], UNITS, "A datagram that came before is accepted again."),
    m("transport.life.older", "18", &[], UNITS, "Datagrams of a peer's earlier life are accepted."),
    m("transport.life.unproven", "18", &[], UNITS, "A life of a peer is accepted without proof that it lives."),
    m("transport.ack.other-life", "18", &[], UNITS, "Acknowledgements for an earlier life count."),
    m("transport.routed.rebinds", "13", &[], UNITS, "A message bound to its first responder moves to another."),
    m("transport.tag.unchecked", "18", &[], UNITS, "A damaged or forged datagram is accepted."),
    m("transport.crc.unchecked", "18", &[], UNITS, "A damaged datagram without a key is accepted."),
    m("transport.gc.unchecked", "18", &[], UNITS, "A forged gc_op is accepted."),
    m("transport.key.all-lives", "18", &[], UNITS, "All lives of a node have one key."),
    m("transport.key.none", "18", &[], UNITS, "A datagram without a key is accepted where one is wanted."),
    m("transport.chunk.contradicts", "13", &[], UNITS, "Chunks of two messages are put together."),
    m("transport.chunk.early", "13", &[], UNITS, "A message is delivered before its last chunk is here."),
];
