//! Mutants of a process in the rack: clocks of the simulation, incarnations, memory.

use super::plans::*;
use super::{Mutant, m, net};

const NET: &[&str] = &["net"];
const LINK: &[&str] = &["link"];
const RUNTIME: &[&str] = &["runtime"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("rack.clock.drift-beyond", "2", LEASES, &["search"], "Clocks drift beyond what leases allow for.").tested(),
    m("runtime.budget.unbounded", "33", &[], RUNTIME, "Connections get more memory than their process has for them."),
    m("runtime.budget.unfair", "33", &[], RUNTIME, "A connection that waits for memory is overtaken by others."),
    m("net.incarnation.not-durable", "32", &[], NET, "A process starts an incarnation that it has not stored."),
    net("link.incarnation.below-newest", "32", ONE, NET, "An incarnation may be below one that peers remember."),
    net("link.incarnation.not-drawn", "32", ONE, NET, "Incarnations increase by one, so that a restored directory repeats them."),
    m("net.incarnation.damaged-counts", "32", &[], NET, "A damaged incarnation counter is used."),
    net("link.incarnation.stays-outdated", "32", ONE, NET, "A process that receives `outdated` with a newer incarnation keeps its own."),
    net("link.wait.forgotten", "28", ONE, NET, "A held-back packet is dropped if no other follows."),
    m("link.full.silent", "33", &[], LINK, "A client hears nothing of an answer for which there was no room."),
    m("link.stream.part-lost", "PN5", &[], LINK, "The rest of a part that a socket took in part is dropped."),
    m("link.stream.part-again", "PN5", &[], LINK, "Bytes that a socket took are written again."),
    m("link.stream.unbounded", "33", &[], LINK, "Any amount waits to be written to a stream."),
    m("link.stream.unused", "PN5", &[], LINK, "A connection counts as the peer's stream and is not used."),
    m("link.stream.used-closing", "PN5", &[], LINK, "A connection that is closing becomes a peer's stream again."),
    net("link.stream.down-unsaid", "PN5", FEW, LINK, "The transport does not learn that a stream is gone."),
    m("link.stream.unproven", "18", &[], LINK, "A replayed datagram makes a connection a peer's stream."),
    m("link.stream.strangers", "33", &[], LINK, "Any number of connections may come from strangers."),
    m("runtime.budget.leaks", "33", &[], RUNTIME, "Memory of a connection that closed stays taken."),
    m("runtime.budget.stalled-stays", "33", &[], RUNTIME, "A connection that does nothing with its memory keeps it."),
    m("runtime.host.full-is-final", "12", &[], RUNTIME, "A full host disk fails a drive."),
    m("runtime.store.sync-not-final", "12", &[], RUNTIME, "The metadata service's store goes on after a failed fsync."),
    m("runtime.store.trusts-cache", "12", &[], RUNTIME, "A start takes what it reads of the store for durable."),
    m("runtime.host.overtakes", "12", &[], RUNTIME, "Changes of a drive overtake those that wait for room on the host's disk."),
];
