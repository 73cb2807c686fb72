//! Ageing: before measuring, the volume is written whole and half of the spare blocks are consumed (RB16), so that
//! collection runs in the measured part and finds pages worth moving.
//!
//! Every member of a set gets the same blocks at the same versions: first each block once, in order; then blocks
//! drawn at random, until every member's free ratio has the target value.

use rackweave_block::Striping;
use rackweave_core::volume::VolumeInfo;
use rackweave_core::{BLOCK, BlockAddr, Epoch, Rng, SetId, Timestamp};
use rackweave_rack::sim::Sim;

use super::run::Members;

/// Free ÷ spare blocks when measuring begins (RB16: half of the free blocks are consumed).
pub(crate) const FREE_AFTER: f64 = 0.5;
/// Blocks overwritten between two checks of the free ratio: 1 MiB, a small part of any device's spare blocks.
const OVERWRITE_STEP: u64 = 256;
/// Most overwrites of the volume: spare blocks that are still free then cannot be consumed at all.
const OVERWRITES_MAX: u64 = 4;
/// Stream of the seed for ageing.
const STREAM: u64 = 2;

/// Capacity in bytes of the smallest member of the sets.
pub(crate) fn set_room(sim: &Sim, sets: &[Members]) -> u64 {
    let slots = sets
        .iter()
        .flat_map(|m| &m.vssds)
        .filter_map(|&(vssd, server)| sim.server(server).map(|s| s.ssd().space(vssd).exported_slots));
    slots.min().unwrap_or(0) * u64::from(BLOCK)
}

/// Fills the volumes on every member and consumes spare blocks until `free_after` of the set's are free.
pub(crate) fn age(
    sim: &mut Sim,
    volumes: &[VolumeInfo],
    sets: &[Members],
    free_after: impl Fn(usize) -> f64,
    seed: u64,
) {
    for (i, members) in sets.iter().enumerate() {
        // With two racks, a set has the volumes of its own home rack.
        let here: Vec<&VolumeInfo> = volumes.iter().filter(|v| v.sets.contains(&SetId(i as u32))).collect();
        // Blocks of each volume in a set; volumes have equal sizes.
        let each = here.first().map_or(0, |v| v.size / u64::from(BLOCK) / v.sets.len() as u64);
        let blocks = each * here.len() as u64;
        let entry = |b: u64, version| entry(here[(b / each) as usize], b % each, version);
        let mut rng = Rng::stream(seed, STREAM + i as u64);
        let mut version = 0;
        let fill: Vec<_> = (0..blocks).map(|b| entry(b, 0)).collect();
        write(sim, members, &fill);
        while free_most(sim, members) > free_after(i) && version * OVERWRITE_STEP < OVERWRITES_MAX * blocks {
            version += 1;
            let step: Vec<_> = (0..OVERWRITE_STEP).map(|_| entry(rng.below(blocks), version)).collect();
            write(sim, members, &step);
        }
    }
}

/// Fills the volumes on every member and then overwrites what `draw` gives, the number of a volume and a block of it,
/// `turns` times as many blocks as the volumes have, while collection keeps `free_ratio` of each set's spare blocks free.
/// The data's layout is then that of long use under this law, and the amount that collection moves is stable.
pub(crate) fn wear_in(
    sim: &mut Sim,
    volumes: &[VolumeInfo],
    sets: &[Members],
    free_ratio: impl Fn(usize) -> f64,
    turns: f64,
    mut draw: impl FnMut() -> (usize, u64),
) {
    let blocks_each = volumes.first().map_or(0, |v| v.size) / u64::from(BLOCK);
    let mut of_set = vec![Vec::new(); sets.len()];
    let mut place = |volume: usize, block: u64, version: u64| {
        let v = &volumes[volume];
        let striping = Striping::new(v.sets.len() as u32, v.stripe_blocks).expect("a volume has sets");
        let (stripe, local) = striping.locate(block);
        let set = sets.iter().position(|s| s.set == v.sets[stripe as usize]).expect("the rack's sets are known");
        of_set[set].push(entry(v, local, version));
    };
    for volume in 0..volumes.len() {
        (0..blocks_each).for_each(|b| place(volume, b, 0));
    }
    let overwrites = (turns * (blocks_each * volumes.len() as u64) as f64) as u64;
    for n in 0..overwrites {
        let (volume, block) = draw();
        place(volume, block, 1 + n);
    }
    for (i, (members, blocks)) in sets.iter().zip(of_set).enumerate() {
        for &(vssd, server) in &members.vssds {
            if let Some(server) = sim.server_mut(server) {
                server.ssd_mut().prefill_to(vssd, free_ratio(i), blocks.iter().copied());
            }
        }
    }
}

/// Versions of epoch zero: older than anything the rack will write.
fn entry(volume: &VolumeInfo, block: u64, version: u64) -> (BlockAddr, Timestamp) {
    (BlockAddr::new(volume.id, block as u32), Timestamp::new(Epoch(0), 2 + 2 * version, 0))
}

fn write(sim: &mut Sim, members: &Members, blocks: &[(BlockAddr, Timestamp)]) {
    for &(vssd, server) in &members.vssds {
        if let Some(server) = sim.server_mut(server) {
            server.ssd_mut().prefill(vssd, blocks.iter().copied());
        }
    }
}

/// The largest free ratio of the members.
fn free_most(sim: &Sim, members: &Members) -> f64 {
    let ratios =
        members.vssds.iter().filter_map(|&(vssd, server)| sim.server(server).map(|s| s.ssd().space(vssd).free_ratio()));
    ratios.fold(0.0, f64::max)
}
