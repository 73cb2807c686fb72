//! Power cuts at any command of the drive, recovery included. The file system found afterwards has everything synced,
//! and equals the state after some operation since the last sync. A seed names a run.

use rackweave_core::Rng;
use rackweave_flash::backend::Memory;
use rackweave_flash::manager::ManagerConfig;
use rackweave_vlfs::Broken;

use crate::model::digest;
use crate::random::Run;
use crate::rig::{Cut, config, mount, new};

/// Counts of situations: the test fails if one is never met.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    cuts: u64,
    cuts_in_recovery: u64,
    /// Recoveries that kept operations after the last sync.
    newer: u64,
    lost_operations: u64,
    moved_slots: u64,
    checkpoints: u64,
    failed_blocks: u64,
}

/// Runs a seed, with one rule broken or none. `Err` says what was lost or wrong.
fn run(cfg: &ManagerConfig, seed: u64, broken: Broken) -> Result<Seen, String> {
    let mut seen = Seen::default();
    let mut rng = Rng::new(seed);
    let mut r = Run::new(new(cfg), Rng::stream(seed, 1));
    r.fs.break_rule(broken);
    r.fs.sync().map_err(|e| e.to_string())?;
    r.synced();
    for _ in 0..4 {
        let (left, failed) = until_cut(&mut r, &mut rng)?;
        seen.failed_blocks += failed;
        let s = r.fs.stats();
        seen.moved_slots += s.moved_slots;
        seen.checkpoints += s.checkpoints;
        let mut memory = left;
        let mut bad = r.fs.disk_mut().backend_mut().disk.bad.clone();
        seen.cuts += 1;
        // Sometimes the power fails again during recovery.
        while rng.chance(0.3) {
            let Some(left) = cut_in_recovery(cfg, memory.clone(), &mut rng, broken)? else { break };
            memory = left;
            seen.cuts_in_recovery += 1;
        }
        r.fs = mount(cfg, memory)?;
        r.fs.disk_mut().backend_mut().disk.bad.append(&mut bad);
        r.fs.check()?;
        r.fs.break_rule(broken);
        let found = digest(&mut r.fs)?;
        let Some(at) = r.states.iter().rposition(|(d, _)| *d == found) else {
            return Err(format!("it is in none of the {} states since the last sync", r.states.len()));
        };
        seen.newer += u64::from(at > 0);
        seen.lost_operations += (r.states.len() - 1 - at) as u64;
        r.model = r.states[at].1.clone();
        r.states = vec![(found, r.model.clone())];
    }
    r.compare()?;
    Ok(seen)
}

/// Runs operations until the power fails in one of them.
fn until_cut(r: &mut Run, rng: &mut Rng) -> Result<(Memory, u64), String> {
    let disk = r.fs.disk_mut().backend_mut();
    let most = if rng.chance(0.3) { 40 } else { 1500 };
    let at = disk.commands + 1 + rng.below(most);
    disk.cut = Some(Cut { at, rng: Rng::new(rng.next_u64()), left: None });
    if rng.chance(0.1) {
        disk.fail_in = Some(rng.below(200));
    }
    for _ in 0..5000 {
        let syncs = r.syncs;
        r.act()?;
        let disk = r.fs.disk_mut().backend_mut();
        if let Some(left) = disk.cut.take_if(|c| c.left.is_some()).and_then(|c| c.left) {
            if r.syncs > syncs {
                // The power failed during the sync, so a state from before it may also be found.
                let newer = std::mem::take(&mut r.states);
                r.states = std::mem::take(&mut r.earlier);
                r.states.extend(newer);
            }
            return Ok((left, disk.disk.bad.len() as u64));
        }
    }
    Err("5000 operations gave the drive no command".into())
}

fn cut_in_recovery(
    cfg: &ManagerConfig,
    memory: Memory,
    rng: &mut Rng,
    broken: Broken,
) -> Result<Option<Memory>, String> {
    let mut fs = mount(cfg, memory)?;
    fs.break_rule(broken);
    let disk = fs.disk_mut().backend_mut();
    disk.cut = Some(Cut { at: disk.commands + 1 + rng.below(30), rng: Rng::new(rng.next_u64()), left: None });
    // A change without effect makes it write its first checkpoint.
    let root = fs.getattr(rackweave_vlfs::ROOT).map_err(|e| e.to_string())?;
    let same = rackweave_vlfs::SetAttr { mode: Some(root.mode & 0o7777), ..Default::default() };
    fs.setattr(rackweave_vlfs::ROOT, &same, root.ctime).map_err(|e| e.to_string())?;
    fs.sync().map_err(|e| e.to_string())?;
    Ok(fs.disk_mut().backend_mut().cut.take().and_then(|c| c.left))
}

#[test]
fn nothing_synced_is_lost_and_nothing_is_half_done() {
    let mut all = Seen::default();
    for seed in 0..SEEDS {
        let cfg = config(13 + (seed % 6) as u32);
        let s = run(&cfg, seed, Broken::Nothing).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        for (a, b) in [
            (&mut all.cuts, s.cuts),
            (&mut all.cuts_in_recovery, s.cuts_in_recovery),
            (&mut all.newer, s.newer),
            (&mut all.lost_operations, s.lost_operations),
            (&mut all.moved_slots, s.moved_slots),
            (&mut all.checkpoints, s.checkpoints),
            (&mut all.failed_blocks, s.failed_blocks),
        ] {
            *a += b;
        }
    }
    eprintln!("{SEEDS} seeds: {all:?}");
    let counts =
        [all.cuts_in_recovery, all.newer, all.lost_operations, all.moved_slots, all.checkpoints, all.failed_blocks];
    assert!(counts.iter().all(|c| *c > 0), "a situation was never met: {all:?}");
}

/// Number of seeds of the search.
const SEEDS: u64 = 60;

#[test]
fn a_broken_rule_is_found() {
    let all = [Broken::NoSync, Broken::CheckpointEarly, Broken::SplitRename, Broken::OneEpoch];
    for broken in all {
        let found = (0..SEEDS).find_map(|seed| {
            let cfg = config(13 + (seed % 6) as u32);
            run(&cfg, seed, broken).err().map(|e| (seed, e))
        });
        eprintln!("{broken:?}: {found:?}");
        assert!(found.is_some(), "{broken:?} was not noticed in {SEEDS} seeds");
    }
}
