//! Mutants of the volume client: order, flushes, attach, sending again.

use super::plans::*;
use super::{Mutant, m};

const UNITS: &[&str] = &["block"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("block.disk.not-grown", "26", &[], &["search"], "A client that has a cloud disk attached does not reach the end to which it grew."),
    m("block.order.none", "8", FEW, UNITS, "Overlapping mutations go out in any order."),
    m("block.fua.dropped", "12", ONE, UNITS, "FUA writes go out as others."),
    m("block.flush.one-set", "12", CUTS, UNITS, "A flush goes to the first set only."),
    m("block.status.outdated-fences", "14", &[], &["search"], "A client of a cloud disk takes the end of a generation for the disk's, and is fenced.").tested(),
    m("block.status.newest-generation", "27", &[], &["block", "search"], "What only an earlier generation of a snapshot or disk has, or its log or overlay, counts as a hole."),
    m("block.flush.clean", "12", CUTS, UNITS, "A flush skips sets that were written."),
    m("block.fence.ignored", "14", ONE, UNITS, "A writer that was fenced goes on as if it were not."),
    m("block.attach.no-fence", "14", ONE, UNITS, "An attach fences one set only."),
    m("block.attach.keeps-unanswered", "14", ONE, UNITS, "Mutations of the last generation go again under the new one."),
    m("block.attach.keeps-unflushed", "14", ONE, UNITS, "What was written before another writer came is sent again after a crash of its set."),
    m("block.resend.none", "11", CUTS, UNITS, "What a set's recovery may have lost is not sent again."),
    m("block.resend.overwritten", "11", CUTS, UNITS, "What was overwritten meanwhile is sent again."),
    m("block.resend.any-job", "11", CUTS, UNITS, "A write that waits to be sent again is sent although a later one is to be sent again in its place."),
    m("block.resend.flush-at-once", "11", CUTS, UNITS, "A flush does not wait for what is sent again."),
    m("block.resend.answer-at-once", "11", CUTS, UNITS, "Answers do not wait for what is sent again."),
    m("block.resend.read-at-once", "11", CUTS, UNITS, "Reads do not wait for what is sent again."),
    m("block.read.any-try", "11", CUTS, UNITS, "A read is answered by a try from before the recovery."),
    m("block.unflushed.all-flushed", "11", CUTS, UNITS, "A flush covers what was answered after it was asked for."),
    m("block.unflushed.keeps-older", "11", CUTS, UNITS, "Contents that were overwritten are kept beside the newer ones."),
    m("block.lost.silent", "11", CUTS, UNITS, "Writes that are lost are not reported."),
    m("block.failed.no-copies", "11", &[], UNITS, "A mutation that failed counts as one that never takes effect."),
    m("block.stripe.read-short", "13", ONE, UNITS, "An answer of another length is taken."),
    m("block.attach.passes-release", "26", &[], UNITS, "A volume is attached again before its release is answered, and counts as unused afterwards.").tested(),
    m("block.status.all-at-once", "27", &[], &["block", "search"], "A disk's generations are asked at once for what they have allocated: what moves to a newer one and is given back meanwhile is a hole.").tested(),
];
