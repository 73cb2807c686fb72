//! Random faults by seed: loss, duplicates, reordering, crashes, cut-off members, epoch changes. Histories are checked
//! by sector.

use rackweave_core::msg::IoReply;
use rackweave_core::rng::seeds;
use rackweave_core::trace::Coverage;
use rackweave_core::{BlockAddr, Epoch, Rng, Span, TracePoint};
use rackweave_replica::trace;

use crate::cluster::{Cluster, Net, VOLUME};

/// Number of blocks of each writer.
const BLOCKS: u64 = 6;

#[derive(Clone, Copy)]
struct Plan {
    servers: usize,
    writers: usize,
    steps: u32,
    /// All writers use the same blocks, one block per write.
    shared: bool,
    crashes: bool,
    /// Members are cut off from each other but not from clients, and return.
    cuts: bool,
    loss: f64,
}

const CRASHES: Plan = Plan { servers: 3, writers: 3, steps: 260, shared: false, crashes: true, cuts: true, loss: 0.05 };

fn overlap(c: &Cluster, writer: usize, first: u32, end: u32) -> bool {
    use rackweave_core::msg::IoRequest;
    c.clients[writer].pending.values().filter(|p| !p.acked).any(|p| match &p.io {
        IoRequest::Write(w) => {
            let (a, b) = (w.range.first / 8, (w.range.first + u64::from(w.range.count)).div_ceil(8));
            a < u64::from(end) && u64::from(first) < b
        }
        IoRequest::Zero { range, .. } => range.first < end && first < range.end(),
        _ => false,
    })
}

/// Submits one mutation or read by a random client. As in a volume client, mutations of one block stay in order.
fn step(c: &mut Cluster, rng: &mut Rng, plan: &Plan) {
    let servers = plan.servers as u64;
    let to = rng.below(servers) as usize;
    let client = rng.below(plan.writers as u64) as usize;
    let base = if plan.shared { 0 } else { client as u64 * BLOCKS * 8 };
    let all = if plan.shared { BLOCKS * 8 } else { plan.writers as u64 * BLOCKS * 8 };
    if c.waiting(client) >= 4 {
        return;
    }
    match rng.below(20) {
        0..=8 => {
            let first = rng.below(all - 8);
            c.read(client, to, first, rng.between(1, 8) as u32);
        }
        9..=17 => {
            let whole = rng.chance(0.5);
            let block = rng.below(BLOCKS);
            let (first, count) = match (whole, plan.shared) {
                (true, true) => (block * 8, 8),
                (true, false) => (block * 8, 8 * rng.between(1, BLOCKS - block) as u32),
                (false, true) => (block * 8 + rng.below(4), rng.between(1, 4) as u32),
                (false, false) => {
                    let first = rng.below(BLOCKS * 8 - 1);
                    (first, rng.between(1, (BLOCKS * 8 - first).min(20)) as u32)
                }
            };
            let (from, to_block) = ((base + first) / 8, (base + first + u64::from(count)).div_ceil(8));
            if !overlap(c, client, from as u32, to_block as u32) {
                c.write(client, to, base + first, count, rng.chance(0.1));
            }
        }
        18 => {
            let block = rng.below(BLOCKS) as u32;
            let count = if plan.shared { 1 } else { rng.between(1, BLOCKS - u64::from(block)) as u32 };
            let first = (base / 8) as u32 + block;
            if !plan.shared && !overlap(c, client, first, first + count) {
                c.zero(client, to, first, count);
            }
        }
        _ => {
            c.flush(client, to);
        }
    }
}

fn disturb(c: &mut Cluster, rng: &mut Rng, plan: &Plan) {
    let i = rng.below(plan.servers as u64) as usize;
    let well = c.view.members.iter().filter(|m| m.role == rackweave_core::msg::Role::Member).count();
    let down = c.servers.iter().filter(|s| !s.up || s.cut_off).count();
    // One replica always stays up: another test covers the loss of all.
    if plan.crashes && down == 0 && well == plan.servers && rng.chance(0.5) {
        c.crash(i);
    } else if plan.cuts && down == 0 && well == plan.servers {
        c.cut_off(i, true);
    } else if down > 0 {
        for i in 0..plan.servers {
            c.restart(i);
            c.cut_off(i, false);
        }
    }
}

/// Runs a seed. `Err` says what went wrong.
fn run(seed: u64, plan: &Plan) -> Result<Cluster, String> {
    let mut rng = Rng::stream(seed, 1);
    // The slower value makes writes outlast an epoch change.
    let delay_us = *rng.pick(&[300, 1_800]);
    let mut c = Cluster::new(plan.servers, plan.writers, seed, Net { loss: plan.loss, delay_us, ..Net::BAD });
    for s in &mut c.servers {
        s.store().forget_ranges = true;
    }
    for n in 0..plan.steps {
        for _ in 0..rng.between(1, 3) {
            step(&mut c, &mut rng, plan);
        }
        if n % 20 == 10 && rng.chance(0.6) {
            disturb(&mut c, &mut rng, plan);
        }
        let pause = Span::from_micros(rng.between(10, 8_000));
        c.run_for(pause);
    }
    c.calm();
    let idle = c.run_idle(Span::from_secs(30));
    let calm = c.converge(Span::from_secs(10));
    for client in 0..plan.writers {
        for i in 0..plan.servers {
            c.read(client, i, 0, 64);
        }
    }
    let read = c.run_idle(Span::from_secs(5));
    c.close();
    if let Some((sector, h)) = c.history.violation() {
        return Err(format!("seed {seed}: sector {sector} has no order: {h:?}"));
    }
    if !idle || !read {
        return Err(format!("seed {seed}: requests were not answered: {}", c.describe()));
    }
    calm.map_err(|e| format!("seed {seed}: {e}"))?;
    Ok(c)
}

/// Runs the plan with each seed. With the `usual` seeds, every trace point of `must` must occur.
fn search(plan: &Plan, usual: std::ops::Range<u64>, must: &[TracePoint]) {
    let mut seen = Coverage::default();
    let of = seeds(usual.clone());
    for seed in of.clone() {
        let c = run(seed, plan).unwrap_or_else(|e| panic!("{e}"));
        seen.merge(c.coverage());
    }
    for t in must.iter().filter(|_| of == usual) {
        assert!(seen.get(*t) > 0, "{} never happened", t.name());
    }
}

#[test]
fn lossy_network_alone() {
    use trace::*;
    let plan = Plan { crashes: false, cuts: false, ..CRASHES };
    search(&plan, 0..40, &[INV_RETRANSMIT, DUPLICATE_MUTATION, WRITE_REPLAY, READ_STALLED]);
}

#[test]
fn writers_in_conflict() {
    let plan = Plan { crashes: false, cuts: false, shared: true, ..CRASHES };
    search(&plan, 100..140, &[trace::RMW_RETRY, trace::WRITE_CONFLICT]);
}

#[test]
fn crashes_and_epoch_changes() {
    use trace::*;
    let must = [WRITE_REPLAY, SHADOW_COMPLETE, MEMBER_REMOVED, FLUSH_RESTART, STALE_EPOCH, FILL_OLDER_IGNORED];
    search(&CRASHES, 200..280, &must);
}

#[test]
fn crashes_while_writers_conflict() {
    search(&Plan { shared: true, ..CRASHES }, 300..360, &[]);
}

#[test]
fn two_copies() {
    search(&Plan { servers: 2, ..CRASHES }, 400..420, &[]);
}

#[test]
fn four_copies() {
    search(&Plan { servers: 4, ..CRASHES }, 420..440, &[]);
}

#[test]
fn half_done_writes_of_crashed_coordinators_over_a_lossy_network() {
    search(&Plan { loss: 0.35, cuts: false, ..CRASHES }, 500..520, &[]);
}

/// An old writer keeps sending while a new one fences it. Its requests after the fence fail, and its earlier ones
/// change nothing after the fence.
fn fenced(seed: u64) -> Result<(), String> {
    let mut rng = Rng::stream(seed, 2);
    let mut c = Cluster::new(3, 2, seed, Net::BAD);
    for _ in 0..20 {
        let to = rng.below(3) as usize;
        let first = rng.below(4) * 8;
        c.write(0, to, first, rng.between(1, 8) as u32, false);
        c.run_for(Span::from_micros(rng.between(10, 500)));
    }
    let f = c.fence(1, rng.below(3) as usize, 2);
    while c.reply(1, f).is_none() {
        c.run_for(Span::from_millis(1));
        if c.now().0 > 20_000_000_000 {
            return Err(format!("seed {seed}: the fence never ends"));
        }
    }
    let before: Vec<_> = (0..3).map(|i| c.read(1, i, 0, 32)).collect();
    let late: Vec<_> = (0..6).map(|i| c.write(0, i % 3, 0, 4, false)).collect();
    c.set_net(Net::GOOD);
    c.run_idle(Span::from_secs(10));
    let after: Vec<_> = (0..3).map(|i| c.read(1, i, 0, 32)).collect();
    c.run_idle(Span::from_secs(10));
    for op in late {
        if c.reply(0, op) == Some(&IoReply::Done) {
            return Err(format!("seed {seed}: an old writer wrote"));
        }
    }
    let first = c.reply(1, before[0]).cloned();
    if before.iter().chain(&after).any(|&r| c.reply(1, r) != first.as_ref()) {
        return Err(format!("seed {seed}: contents changed after the fence"));
    }
    Ok(())
}

#[test]
fn a_fence_ends_the_old_writer() {
    for seed in seeds(0..60) {
        fenced(seed).unwrap();
    }
}

/// All replicas lose power. They agree on the newest version of every block, and nothing flushed is lost.
fn all_crash(seed: u64) -> Result<(), String> {
    let mut rng = Rng::stream(seed, 3);
    let mut c = Cluster::new(3, 1, seed, Net::BAD);
    c.track = false;
    let mut values: Vec<Vec<u64>> = vec![vec![0]; 8];
    let mut flushed = vec![0; 8];
    let mut last = Vec::new();
    for round in 0..60 {
        let b = rng.below(8) as usize;
        let op = if rng.chance(0.15) {
            let z = c.zero(0, rng.below(3) as usize, b as u32, 1);
            values[b].push(0);
            z
        } else {
            let w = c.write(0, rng.below(3) as usize, b as u64 * 8, 8, false);
            let rackweave_core::msg::IoRequest::Write(x) = &c.clients[0].pending[&w].io else { unreachable!() };
            values[b].push(x.data.identity(0));
            w
        };
        if round < 55 {
            if !c.run_idle(Span::from_secs(10)) {
                return Err(format!("seed {seed}: stuck before the crash"));
            }
        } else {
            last.push(op);
        }
        if round == 30 {
            c.flush(0, rng.below(3) as usize);
            c.run_idle(Span::from_secs(10));
            flushed = values.iter().map(|v| v.len() - 1).collect();
        }
    }
    c.run_for(Span::from_micros(rng.below(2_000)));
    for i in 0..3 {
        c.crash(i);
    }
    c.clients[0].pending.clear();
    c.run_for(Span::from_millis(rng.between(1, 200)));
    for i in 0..3 {
        c.run_for(Span::from_millis(rng.between(1, 40)));
        c.restart(i);
    }
    c.converge(Span::from_secs(20)).map_err(|e| format!("seed {seed}: {e}"))?;
    for b in 0..8 {
        let mut seen = Vec::new();
        for i in 0..3 {
            let r = c.read(0, i, b as u64 * 8, 8);
            c.run_idle(Span::from_secs(10));
            let Some(IoReply::Data(d)) = c.reply(0, r) else { return Err(format!("seed {seed}: no answer")) };
            seen.push(d.identity(0));
        }
        if !values[b][flushed[b]..].contains(&seen[0]) || seen.iter().any(|v| *v != seen[0]) {
            return Err(format!("seed {seed}: block {b} is {seen:?}, of {:?} from {}", values[b], flushed[b]));
        }
    }
    if c.count(trace::SET_RECOVERED) == 0 {
        return Err(format!("seed {seed}: not recovered"));
    }
    Ok(())
}

#[test]
fn after_the_loss_of_all_the_newest_counts() {
    for seed in seeds(0..40) {
        all_crash(seed).unwrap();
    }
}

#[test]
fn a_returning_member_loses_what_its_source_lacks() {
    let mut c = Cluster::new(3, 1, 5, Net::GOOD);
    for b in 0..6 {
        c.write(0, 0, b * 8, 8, false);
    }
    c.flush(0, 0);
    assert!(c.run_idle(Span::from_secs(2)));
    c.crash(2);
    c.run_for(Span::from_millis(200));
    c.zero(0, 0, 0, 4);
    assert!(c.run_idle(Span::from_secs(5)));
    for s in &mut c.servers {
        s.store().forget_ranges = true;
    }
    c.run_for(Span::from_millis(20));
    c.restart(2);
    c.converge(Span::from_secs(5)).unwrap();
    assert_eq!(c.servers[2].store().contents().keys().map(|a| a.block).collect::<Vec<_>>(), [4, 5]);
    assert!(c.servers[2].store().contents().contains_key(&BlockAddr::new(VOLUME, 5)));
}

/// All members crash after a newer write was flushed; then a late copy of an older, answered write arrives. Returns the
/// flushed contents and those of a read afterwards.
fn late_copy_after_all_crashed() -> (IoReply, IoReply) {
    let mut c = Cluster::new(3, 1, 5, Net::GOOD);
    c.run_for(Span::from_millis(50));
    let older = c.write(0, 0, 0, 8, false);
    assert!(c.run_idle(Span::from_secs(1)));
    c.write(0, 1, 0, 8, false);
    assert!(c.run_idle(Span::from_secs(1)));
    c.flush(0, 0);
    assert!(c.run_idle(Span::from_secs(1)));
    let before = c.read(0, 0, 0, 8);
    assert!(c.run_idle(Span::from_secs(1)));
    let flushed = c.reply(0, before).expect("read").clone();
    (0..3).for_each(|i| c.crash(i));
    c.run_for(Span::from_millis(200));
    (0..3).for_each(|i| c.restart(i));
    c.converge(Span::from_secs(10)).expect("recovered");
    for to in 0..3 {
        c.late_copy(0, older, to);
    }
    c.run_for(Span::from_millis(100));
    let after = c.read(0, 1, 0, 8);
    assert!(c.run_idle(Span::from_secs(1)));
    (flushed, c.reply(0, after).expect("read").clone())
}

#[test]
fn a_late_copy_of_an_answered_write_does_nothing_after_all_members_crashed() {
    let (flushed, read) = late_copy_after_all_crashed();
    assert_eq!(read, flushed, "the late copy undid a flushed write");
}

#[test]
fn answers_name_the_epoch_in_which_all_members_were_lost() {
    let mut c = Cluster::new(3, 1, 6, Net::GOOD);
    c.run_for(Span::from_millis(50));
    let told = |c: &mut Cluster, to: usize| {
        let op = c.write(0, to, 0, 8, false);
        assert!(c.run_idle(Span::from_secs(1)));
        assert_eq!(c.reply(0, op), Some(&IoReply::Done));
        c.told
    };
    assert_eq!(told(&mut c, 0), Epoch(0));
    c.crash(2);
    c.run_for(Span::from_millis(200));
    c.restart(2);
    c.converge(Span::from_secs(5)).unwrap();
    assert_eq!(told(&mut c, 2), Epoch(0), "two members never stopped");
    (0..3).for_each(|i| c.crash(i));
    c.run_for(Span::from_millis(200));
    (0..3).for_each(|i| c.restart(i));
    c.converge(Span::from_secs(10)).unwrap();
    let recovered = told(&mut c, 0);
    assert!(recovered > Epoch(0) && recovered < c.view.epoch);
    c.crash(1);
    c.run_for(Span::from_millis(200));
    c.restart(1);
    c.converge(Span::from_secs(5)).unwrap();
    assert_eq!(told(&mut c, 1), recovered, "a member that joined later knows it, too");
}
