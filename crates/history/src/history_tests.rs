use rackweave_core::{Payload, Rng, SECTOR, SetId, VolumeId};

use super::history::OpKind;
use super::*;

const V: VolumeId = VolumeId(1);
const S: SetId = SetId(0);
const C: u32 = 1;

/// A sector with value `seed`; zero is a zero sector.
fn sector(seed: u64) -> Payload {
    if seed == 0 { Payload::zero(SECTOR) } else { Payload::elided(SECTOR, seed) }
}

fn write(h: &mut History, seed: u64) -> OpId {
    h.write(C, V, 0, &sector(seed), false, 1)
}

fn wrote(h: &mut History, seed: u64) {
    let op = write(h, seed);
    h.answered(op, Outcome::Done);
}

fn read(h: &mut History, seed: u64) {
    let op = h.read(V, 0, 1);
    h.answered(op, Outcome::Data(&sector(seed)));
}

fn flushed(h: &mut History) {
    let op = h.flush(C, V);
    h.answered(op, Outcome::Done);
}

fn check(h: &History) -> Result<HistoryStats, Box<Violation>> {
    h.check(|_, _| S)
}

#[track_caller]
fn good(h: &History) {
    if let Err(v) = check(h) {
        panic!("{v}");
    }
}

#[track_caller]
fn bad(h: &History) {
    assert!(matches!(check(h).unwrap_err().reason, SearchError::Unexplained { .. }));
}

#[test]
fn a_sector_begins_as_zeroes_and_reads_what_was_written_last() {
    let mut h = History::new();
    read(&mut h, 0);
    wrote(&mut h, 1);
    read(&mut h, 1);
    wrote(&mut h, 0);
    read(&mut h, 0);
    good(&h);
    read(&mut h, 1);
    bad(&h);
}

#[test]
fn a_value_that_nobody_wrote_is_refused() {
    let mut h = History::new();
    wrote(&mut h, 1);
    read(&mut h, 9);
    bad(&h);
}

#[test]
fn reads_beside_a_write_may_see_either_but_not_new_then_old() {
    let mut h = History::new();
    wrote(&mut h, 1);
    let w = write(&mut h, 2);
    read(&mut h, 1);
    read(&mut h, 2);
    good(&h);
    read(&mut h, 1);
    h.answered(w, Outcome::Done);
    bad(&h);
}

#[test]
fn two_overlapping_writes_end_in_either_order() {
    for last in [1, 2] {
        let mut h = History::new();
        let a = write(&mut h, 1);
        let b = write(&mut h, 2);
        h.answered(b, Outcome::Done);
        h.answered(a, Outcome::Done);
        read(&mut h, last);
        good(&h);
        read(&mut h, 3 - last);
        bad(&h);
    }
}

#[test]
fn an_unanswered_write_may_show_up_late_or_never_but_once() {
    let mut h = History::new();
    write(&mut h, 1);
    let failed = write(&mut h, 2);
    h.answered(failed, Outcome::Failed);
    wrote(&mut h, 3);
    read(&mut h, 3);
    read(&mut h, 2);
    read(&mut h, 1);
    good(&h);
    read(&mut h, 2);
    bad(&h);
}

#[test]
fn a_fenced_writer_changes_nothing_any_more() {
    let mut h = History::new();
    wrote(&mut h, 1);
    write(&mut h, 2);
    h.fenced(V, 2);
    read(&mut h, 1);
    good(&h);
    read(&mut h, 2);
    bad(&h);

    let mut h = History::new();
    write(&mut h, 2);
    h.fenced(V, 2);
    read(&mut h, 2);
    good(&h);
}

#[test]
fn a_fenced_write_answered_late_took_effect_before_the_fence() {
    let mut h = History::new();
    let w = write(&mut h, 2);
    h.fenced(V, 2);
    read(&mut h, 0);
    good(&h);
    h.answered(w, Outcome::Done);
    bad(&h);
}

#[test]
fn a_crash_of_all_replicas_rolls_back_to_a_value_since_the_flush() {
    for back_to in [0, 1, 2, 3] {
        let mut h = History::new();
        wrote(&mut h, 1);
        flushed(&mut h);
        wrote(&mut h, 2);
        wrote(&mut h, 3);
        h.set_crashed(S);
        read(&mut h, back_to);
        if back_to == 0 {
            bad(&h)
        } else {
            good(&h)
        }
        read(&mut h, if back_to == 1 { 2 } else { 1 });
        bad(&h);
    }
}

#[test]
fn without_a_crash_nothing_rolls_back() {
    let mut h = History::new();
    wrote(&mut h, 1);
    wrote(&mut h, 2);
    h.set_crashed(SetId(5));
    read(&mut h, 1);
    bad(&h);
}

#[test]
fn a_flush_covers_what_completed_before_it_began() {
    let mut h = History::new();
    let f = h.flush(C, V);
    wrote(&mut h, 1);
    h.answered(f, Outcome::Done);
    h.set_crashed(S);
    read(&mut h, 0);
    good(&h);

    let mut h = History::new();
    wrote(&mut h, 1);
    let f = h.flush(C, V);
    h.set_crashed(S);
    h.answered(f, Outcome::Done);
    read(&mut h, 1);
    good(&h);
    read(&mut h, 0);
    bad(&h);
}

#[test]
fn a_write_with_fua_does_not_roll_back() {
    let mut h = History::new();
    wrote(&mut h, 1);
    let w = h.write(C, V, 0, &sector(2), true, 1);
    h.answered(w, Outcome::Done);
    wrote(&mut h, 3);
    h.set_crashed(S);
    read(&mut h, 2);
    good(&h);
    let mut h2 = History::new();
    wrote(&mut h2, 1);
    let w = h2.write(C, V, 0, &sector(2), true, 1);
    h2.answered(w, Outcome::Done);
    h2.set_crashed(S);
    read(&mut h2, 1);
    bad(&h2);
}

#[test]
fn an_answer_sent_before_the_crash_may_arrive_after_it() {
    for late in [false, true] {
        let mut h = History::new();
        let w = write(&mut h, 1);
        let crash = h.set_crashed(S);
        if late {
            h.silent(crash);
        }
        h.answered(w, Outcome::Done);
        if !late {
            h.silent(crash);
        }
        read(&mut h, 0);
        if late { bad(&h) } else { good(&h) }
    }
}

/// The part in the crashed set may have been answered, and lost, while the other part was pending.
#[test]
fn a_request_across_two_sets_may_lose_a_part_to_the_crash_of_one() {
    let mut h = History::new();
    let w = h.write(C, V, 0, &Payload::elided(2 * SECTOR, 1), false, 1);
    let crash = h.set_crashed(S);
    h.silent(crash);
    h.answered(w, Outcome::Done);
    read(&mut h, 0);
    h.check(|_, sector| SetId(sector as u32)).unwrap();
    bad(&h);
}

/// Its set answered before the crash; another set of the volume, which had crashed itself, delayed the answer.
#[test]
fn an_answer_that_its_client_held_back_counts_from_when_it_came() {
    for (held_before, read_old) in [(Some(true), true), (Some(false), false), (None, false)] {
        let mut h = History::new();
        let w = write(&mut h, 1);
        if held_before == Some(true) {
            h.held(w);
        }
        let crash = h.set_crashed(S);
        h.silent(crash);
        if held_before == Some(false) {
            h.held(w);
        }
        h.answered(w, Outcome::Done);
        read(&mut h, 0);
        if read_old {
            good(&h)
        } else {
            bad(&h)
        }
        if read_old {
            flushed(&mut h);
            good(&h);
            read(&mut h, 0);
            bad(&h);
        }
    }
}

#[test]
fn a_write_answered_after_the_crash_stands() {
    let mut h = History::new();
    let w = write(&mut h, 1);
    read(&mut h, 1);
    let crash = h.set_crashed(S);
    h.silent(crash);
    read(&mut h, 0);
    h.answered(w, Outcome::Done);
    read(&mut h, 1);
    good(&h);
    read(&mut h, 0);
    bad(&h);
}

/// A register under a random serial schedule with delayed answers is always explained; with one read changed to a
/// long-overwritten value, never.
#[test]
fn random_histories_of_a_true_register_pass_and_stale_reads_are_caught() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut h = History::new();
        let mut value = 0;
        let mut open: Vec<(OpId, Option<u64>)> = Vec::new();
        for i in 1..150 {
            if rng.chance(0.4) {
                let v = if rng.chance(0.1) { 0 } else { i };
                open.push((write(&mut h, v), None));
                value = v;
            } else {
                open.push((h.read(V, 0, 1), Some(value)));
            }
            while open.len() > rng.below(5) as usize {
                let k = rng.below(open.len() as u64) as usize;
                let (op, read) = open.remove(k);
                match read {
                    Some(v) => h.answered(op, Outcome::Data(&sector(v))),
                    None => h.answered(op, Outcome::Done),
                }
            }
        }
        good(&h);
        for (op, _) in open {
            h.answered(op, Outcome::Failed);
        }
        wrote(&mut h, 1000);
        wrote(&mut h, 1001);
        read(&mut h, 1000);
        bad(&h);
    }
}

fn failed_flush(h: &mut History, client: u32) {
    let op = h.flush(client, V);
    h.answered(op, Outcome::Failed);
}

fn flushed_by(h: &mut History, client: u32) {
    let op = h.flush(client, V);
    h.answered(op, Outcome::Done);
}

/// Flushed, overwritten, and lost.
fn lost() -> History {
    let mut h = History::new();
    wrote(&mut h, 1);
    flushed(&mut h);
    wrote(&mut h, 2);
    let crash = h.set_crashed(S);
    h.silent(crash);
    read(&mut h, 1);
    good(&h);
    h
}

#[test]
fn a_client_that_lives_on_has_what_it_wrote_back_when_its_flush_is_done() {
    let mut h = lost();
    flushed(&mut h);
    good(&h);
    read(&mut h, 2);
    good(&h);

    // It may be seen before. Once it is there and flushed, it stays.
    let mut h = lost();
    read(&mut h, 2);
    flushed(&mut h);
    h.set_crashed(S);
    read(&mut h, 2);
    good(&h);
    read(&mut h, 1);
    bad(&h);

    let mut h = lost();
    flushed(&mut h);
    read(&mut h, 1);
    bad(&h);
}

#[test]
fn the_flush_of_another_client_owes_nothing() {
    let mut h = lost();
    flushed_by(&mut h, C + 1);
    read(&mut h, 1);
    good(&h);
    flushed(&mut h);
    read(&mut h, 1);
    bad(&h);
}

#[test]
fn a_client_told_of_the_loss_is_owed_nothing_more() {
    let mut h = lost();
    failed_flush(&mut h, C);
    read(&mut h, 1);
    flushed(&mut h);
    read(&mut h, 1);
    good(&h);
    // Nor does it send it again.
    read(&mut h, 2);
    bad(&h);
}

#[test]
fn what_was_written_anew_is_not_undone_by_what_comes_back() {
    let mut h = lost();
    wrote(&mut h, 3);
    flushed(&mut h);
    read(&mut h, 3);
    good(&h);
    read(&mut h, 2);
    bad(&h);
}

#[test]
fn a_fenced_client_sends_nothing_again() {
    let mut h = lost();
    h.fenced(V, 2);
    read(&mut h, 1);
    good(&h);
    read(&mut h, 2);
    bad(&h);

    let mut h = lost();
    h.fenced(V, 2);
    read(&mut h, 1);
    flushed(&mut h);
    bad_flush(&h);
}

#[track_caller]
fn bad_flush(h: &History) {
    assert!(matches!(check(h).unwrap_err().reason, SearchError::Unflushed { .. }));
}

/// The flush must restore a part in another set, even if the request was answered after the crash.
#[test]
fn the_lost_part_of_a_request_across_two_sets_is_owed_by_the_next_flush() {
    let mut h = History::new();
    let w = h.write(C, V, 0, &Payload::elided(2 * SECTOR, 1), false, 1);
    let crash = h.set_crashed(S);
    h.silent(crash);
    h.answered(w, Outcome::Done);
    read(&mut h, 0);
    let apart = |_, sector: u64| SetId(sector as u32);
    h.check(apart).unwrap();
    flushed(&mut h);
    read(&mut h, 0);
    h.check(apart).unwrap_err();
}

/// For a small history: without reductions, more make too many states.
const WRITES_MAX: usize = 6;

/// Few values, so that unanswered writes are alike; crashes, flushes, fences; occasionally a wrong read.
fn small_history(seed: u64) -> History {
    let mut rng = Rng::new(seed);
    let mut h = History::new();
    let (mut value, mut flushed, mut attach) = (0, 0, 1);
    let mut open: Vec<(OpId, u64, bool)> = Vec::new();
    for _ in 0..rng.between(6, 16) {
        match rng.below(20) {
            0..7 if h.ops.iter().filter(|o| matches!(o.kind, OpKind::Write { .. })).count() < WRITES_MAX => {
                let v = rng.below(3);
                let client = 1 + rng.below(2) as u32;
                let generation = if rng.chance(0.8) { attach } else { 1 };
                let op = h.write(client, V, 0, &sector(v), rng.chance(0.1), generation);
                // Many are never answered.
                open.push((op, v, rng.chance(0.5)));
            }
            7..10 if !open.is_empty() => {
                let (op, v, answered) = open.remove(rng.below(open.len() as u64) as usize);
                if rng.chance(0.7) {
                    value = v;
                }
                if answered {
                    h.answered(op, Outcome::Done);
                }
            }
            10..14 => {
                let v = if rng.chance(0.85) { value } else { rng.below(3) };
                read(&mut h, v);
            }
            14..16 => {
                let op = h.flush(1 + rng.below(2) as u32, V);
                flushed = value;
                h.answered(op, if rng.chance(0.9) { Outcome::Done } else { Outcome::Failed });
            }
            16..18 => {
                let crash = if rng.chance(0.7) { h.set_crashed(S) } else { h.view_crashed(S) };
                value = if rng.chance(0.5) { flushed } else { value };
                if rng.chance(0.7) {
                    h.silent(crash);
                }
            }
            18 => {
                attach += 1;
                h.fenced(V, attach);
            }
            _ => {}
        }
    }
    h
}

#[test]
fn what_is_left_out_of_the_search_changes_no_verdict() {
    let (mut right, mut wrong) = (0, 0);
    for seed in 0..8_000 {
        let h = small_history(seed);
        let verdict = |plain| h.check_by(plain, |_, _| S).map(|_| ()).map_err(|v| v.reason);
        let (full, less) = (verdict(true), verdict(false));
        assert_eq!(full.is_ok(), less.is_ok(), "seed {seed}: {:?}", h.trail(V, 0, S));
        match full {
            Ok(()) => right += 1,
            Err(_) => wrong += 1,
        }
    }
    assert!(right > 4_000 && wrong > 1_000, "{right} right, {wrong} wrong");
}

#[test]
fn many_writes_of_unknown_fate_are_decided() {
    let mut h = History::new();
    read(&mut h, 0);
    for _ in 0..3 {
        for v in [1, 1, 2, 2, 0] {
            write(&mut h, v);
        }
    }
    h.set_crashed(S);
    wrote(&mut h, 3);
    read(&mut h, 1);
    read(&mut h, 2);
    good(&h);
    read(&mut h, 3);
    bad(&h);
}

/// So many that enumerating every order is infeasible.
const PENDING_WRITES: u64 = 20;

/// Writes that are all pending at once, with `crashes` before and after, answered in turn; then one of them is read.
fn many_pending(crashes: [bool; 2], read_last: u64) -> History {
    let mut h = History::new();
    if crashes[0] {
        h.set_crashed(S);
    }
    wrote(&mut h, 100);
    let ops: Vec<OpId> = (1..=PENDING_WRITES).map(|v| write(&mut h, v)).collect();
    read(&mut h, 3);
    ops.into_iter().for_each(|op| h.answered(op, Outcome::Done));
    read(&mut h, read_last);
    if crashes[1] {
        flushed(&mut h);
        h.set_crashed(S);
        read(&mut h, read_last);
    }
    h
}

#[test]
fn many_answered_writes_pending_at_once_are_decided() {
    for (crashes, last) in [(false, false), (true, false), (false, true), (true, true)]
        .into_iter()
        .flat_map(|(a, b)| [1, 2, 7, PENDING_WRITES].map(|last| ([a, b], last)))
    {
        good(&many_pending(crashes, last));
    }
    // Overwritten before any of them was called.
    bad(&many_pending([true, false], 100));
}

/// Values of a copy that break a promise, among all that were ever written.
fn breaks(h: &History, op: OpId) -> Vec<u64> {
    let promised = h.promised(op, |_| S);
    let p = promised.first().copied();
    (0..6).filter(|&v| p.is_some_and(|p| h.breaks(&p, sector(v).identity(0)))).collect()
}

#[test]
fn a_flush_promises_what_was_answered_before_it_was_asked_for() {
    let mut h = History::new();
    wrote(&mut h, 1);
    wrote(&mut h, 2);
    let late = write(&mut h, 3);
    let f = h.flush(C, V);
    wrote(&mut h, 4);
    h.answered(f, Outcome::Done);
    h.answered(late, Outcome::Done);
    assert_eq!(breaks(&h, f), [0, 1, 5], "never written, overwritten, written by nobody");
}

#[test]
fn a_write_with_fua_promises_itself_and_another_write_nothing() {
    let mut h = History::new();
    wrote(&mut h, 1);
    let open = write(&mut h, 2);
    let fua = h.write(C, V, 0, &sector(3), true, 1);
    h.answered(fua, Outcome::Done);
    assert_eq!(breaks(&h, fua), [0, 1, 4, 5], "one that is open may come after it");
    h.answered(open, Outcome::Done);
    assert_eq!(breaks(&h, open), [0; 0]);
}

#[test]
fn a_flush_promises_nothing_that_a_crash_may_have_undone_but_what_was_flushed_before_it() {
    let mut h = History::new();
    wrote(&mut h, 1);
    flushed(&mut h);
    wrote(&mut h, 2);
    let crash = h.set_crashed(S);
    h.silent(crash);
    let f = h.flush(C, V);
    h.answered(f, Outcome::Done);
    assert_eq!(breaks(&h, f), [0, 3, 4, 5]);
    wrote(&mut h, 3);
    let f = h.flush(C, V);
    h.answered(f, Outcome::Done);
    assert_eq!(breaks(&h, f), [0, 1, 2, 4, 5]);
}
