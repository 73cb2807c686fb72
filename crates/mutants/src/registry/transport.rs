//! Mutants of the transport: incarnations, replays, tags, chunks.

use super::plans::*;
use super::{Mutant, m, net};

const UNITS: &[&str] = &["transport"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    net("transport.replay.accepted", "18", ONE, UNITS, "A datagram that came before is accepted again."),
    net("transport.incarnation.older", "18", ONE, UNITS, "Datagrams of a peer's earlier incarnation are accepted."),
    net("transport.incarnation.unproven", "18", ONE, UNITS, "An incarnation of a peer is accepted without proof of liveness."),
    net("transport.ack.other-incarnation", "18", FEW, UNITS, "Acknowledgements for an earlier incarnation count."),
    net("transport.routed.rebinds", "13", ONE, UNITS, "A message bound to its first responder moves to another."),
    m("transport.routed.waits-on", "13", &[], UNITS, "An answer to what the switch forwarded does not end the wait of the other messages that go by it."),
    net("transport.destination.uncovered", "18", ONE, UNITS, "The tag does not cover the destination of what no switch routes: sent to another node, it counts there."),
    net("transport.destination.older", "18", ONE, UNITS, "A chunk in a version that does not cover the destination is accepted of a sender that can do better."),
    m("transport.destination.older-run", "18", &[], UNITS, "The first of such chunks is refused, and those behind it in its train are not.").tested(),
    net("transport.tag.unchecked", "18", ONE, UNITS, "A damaged or forged datagram is accepted."),
    net("transport.crc.unchecked", "18", ONE, UNITS, "A damaged datagram without a key is accepted."),
    net("transport.gc.unchecked", "18", ONE, UNITS, "A forged gc_op is accepted."),
    m("transport.key.all-incarnations", "18", &[], UNITS, "All incarnations of a node have one key."),
    net("transport.key.none", "18", ONE, UNITS, "A datagram without a key is accepted where one is wanted."),
    net("transport.chunk.contradicts", "13", ONE, UNITS, "Chunks of two messages are put together."),
    net("transport.vssd.unchecked", "18", MOVES, UNITS, "A row or gc_op counts though its vssd_id was changed on the way."),
    net("transport.begun.unbounded", "13", NOISY, UNITS, "All messages to a slow peer are begun at once."),
    net("transport.chunk.not-resent", "13", ONE, UNITS, "A chunk that was lost is not sent again."),
    net("transport.ack.before-whole", "13", ONE, UNITS, "A message is acknowledged before its last chunk is here."),
    net("transport.stream.to-switch", "PN5", NOISY, UNITS, "Requests whose server is unknown go to the switch by its stream, which ends there."),
    net("transport.nonce.reused", "32", ONE, UNITS, "A chunk that is sent again has the counter of the datagram before."),
    net("transport.key.not-rotated", "18", ONE, UNITS, "A node goes on sending with the key that it began with."),
    net("transport.chunk.early", "13", ONE, UNITS, "A message is delivered before its last chunk is here."),
    m("transport.reorder.forgotten", "PN5", &[], UNITS, "A path that reorders is judged as one that does not.").tested(),
    m("transport.rtt.overtaken-sampled", "PN8", &[], UNITS, "A datagram that was held back for seconds counts as a round trip: losses are then repeated after a second."),
    m("transport.rtt.lost-unsampled", "PN8", &[], UNITS, "Round trips longer than the first timeout are never measured: their datagrams were declared lost before."),
    m("transport.late.is-queue", "PN8", &[], UNITS, "What reordered datagrams are late counts as a queue: the window stays at its least.").tested(),
    m("transport.path.sla-alone", "PN4", &[], UNITS, "A path whose round trips are longer than the SLA's time is left before it can answer."),
    m("transport.stream.congestion", "PN5", &[], UNITS, "Timeouts on a stream, which resends by itself, shrink the window."),
    m("transport.head.cut", "13", &[], UNITS, "A body with 64 KiB or more before its data is cut there, and is no packet."),
    m("transport.own.dropped", "13", &[], UNITS, "A read that the switch redirects to its own sender is dropped.").tested(),
    m("transport.own.any-incarnation", "13", &[], UNITS, "Datagrams of another process with this node's id are accepted.").tested(),
    net("transport.outdated.any-incarnation", "32", ONE, UNITS, "A report of a newer incarnation that is meant for another incarnation counts."),
    m("transport.outdated.lower", "32", &[], UNITS, "News of an incarnation that is not newer counts.")
        .equivalent("A peer answers only an incarnation below the newest it knows."),
    m("transport.outdated.former", "32", &[], UNITS, "Two processes with the same node id each receive `outdated` with the other's incarnation, and outbid each other."),
    net("transport.outdated.silent", "32", ONE, UNITS, "A node that lost its counter is not sent the newest incarnation."),
    m("transport.budget.unbounded", "33", &[], UNITS, "A peer gets more memory than is left for all."),
    m("transport.probe.any-message", "33", &[], UNITS, "After a timeout, parts of messages for which the receiver may have no room go before those of one that it has begun."),
];
