//! The ageing model, compared with the device: a small drive, written to its end of life through FlashBlox's calls.

use rackweave_core::{Payload, SsdId, VssdId};
use rackweave_eval::ageing::{Aged, Device, Load, age, ideal_life_s};
use rackweave_flash::backend::Memory;
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::ManagerConfig;
use rackweave_flash::manager::api::{Block, BlockError, VirtualSsds};
use rackweave_flash::manager::driver::BlockingDrive;
use rackweave_flash::wear::WearPolicy;
use rackweave_flash::{Geometry, Profile, Timing};

const ENDURANCE: u32 = 800;
/// Erase cycles of a channel after which a swap is due.
const GAMMA_CYCLES: u64 = 60;
/// Relative write rates of the vSSDs. Each has a channel.
const RATES: [u64; 4] = [6, 2, 1, 0];
/// Greatest relative difference. The vSSDs are always full, so a swap moves whole channels, as in the model.
const AGREE: f64 = 0.02;

fn config(policy: fn(u64) -> WearPolicy) -> ManagerConfig {
    let mut p = Profile::builtin("p-ssd").expect("built in");
    p.geometry = Geometry {
        channels: 4,
        dies_per_channel: 2,
        planes_per_die: 2,
        blocks_per_plane: 32,
        pages_per_block: 4,
        page_bytes: 4096,
    };
    p.endurance = ENDURANCE;
    let mut cfg = ManagerConfig::new(SsdId(0), p);
    cfg.timing = Timing::None;
    cfg.verify = false;
    cfg.wear = policy(GAMMA_CYCLES * device(&cfg).channel_bytes());
    cfg
}

fn device(cfg: &ManagerConfig) -> Device {
    let g = cfg.profile.geometry;
    Device {
        channels: g.channels,
        dies_per_channel: g.dies_per_channel,
        die_bytes: u64::from(g.blocks_per_die()) * g.block_bytes(),
        endurance: cfg.profile.endurance,
    }
}

/// A log that is always full: a write replaces its oldest block.
struct Log {
    vssd: VssdId,
    blocks: std::collections::VecDeque<Block>,
    written: u64,
}

impl Log {
    fn write(&mut self, d: &mut BlockingDrive<Memory>) {
        let size = d.block_size(self.vssd).expect("live");
        let block = loop {
            match d.alloc_block(self.vssd) {
                Ok(b) => break b,
                Err(BlockError::NoFreeBlock { .. }) => {
                    let oldest = self.blocks.pop_front().expect("it is full");
                    d.free_block(self.vssd, oldest).expect("allocated");
                }
                Err(e) => panic!("{e}"),
            }
        };
        d.write(self.vssd, block, &Payload::elided(size as u32, 7)).expect("written");
        self.blocks.push_back(block);
        self.written += size;
    }
}

/// Bytes erased of every die, and the number of swaps, when the first die is worn out.
fn on_the_device(cfg: &ManagerConfig) -> (Vec<u64>, u64) {
    let mut d = BlockingDrive::open(cfg.clone(), Memory::new(cfg.profile.geometry)).expect("new");
    let mut logs = RATES.map(|_| {
        let vssd = d.alloc_vssd(Isolation::Channel, 0, 1).expect("a channel each");
        Log { vssd, blocks: Default::default(), written: 0 }
    });
    for l in &mut logs {
        let all = d.manager().blocks(l.vssd).expect("live").0;
        (0..all).for_each(|_| l.write(&mut d));
        l.written = 0;
    }
    while !d.manager().leveler().worn_out() {
        // The next to write is the vSSD furthest behind its rate.
        let behind = (0..RATES.len()).filter(|&i| RATES[i] > 0).min_by_key(|&i| logs[i].written / RATES[i]);
        logs[behind.expect("someone writes")].write(&mut d);
    }
    d.settle();
    assert_eq!(d.backend_mut().violations(), []);
    (d.manager().leveler().dies().iter().map(|d| d.total).collect(), d.manager().stats().swaps)
}

fn in_the_model(cfg: &ManagerConfig) -> (Device, Load, Aged) {
    let device = device(cfg);
    let mut load = Load::none(&device);
    for (c, rate) in (0..).zip(RATES) {
        load.add_channels(&device, c..c + 1, rate as f64 * 1e6);
    }
    let aged = age(&device, &load, cfg.wear, None);
    (device, load, aged)
}

fn agree(policy: fn(u64) -> WearPolicy) -> Aged {
    let cfg = config(policy);
    let (dies, swaps) = on_the_device(&cfg);
    let (device, _, aged) = in_the_model(&cfg);
    let life = device.die_life() as f64;
    for (die, (&ours, &model)) in dies.iter().zip(&aged.dies).enumerate() {
        let apart = (ours as f64 - model as f64).abs() / life;
        assert!(apart <= AGREE, "die {die}: {ours} on the device, {model} in the model; {dies:?}, {:?}", aged.dies);
    }
    let (total, model): (u64, u64) = (dies.iter().sum(), aged.dies.iter().sum());
    assert!((total as f64 / model as f64 - 1.0).abs() <= AGREE, "{total} on the device, {model} in the model");
    assert!(swaps.abs_diff(aged.swaps) <= 1 + aged.swaps / 10, "{swaps} swaps, {} in the model", aged.swaps);
    aged
}

#[test]
fn model_and_device_agree_without_swaps() {
    let aged = agree(|_| WearPolicy::NO_SWAP);
    assert!(aged.imbalance > 2.6);
}

#[test]
fn model_and_device_agree_with_wear_leveling() {
    let aged = agree(WearPolicy::adaptive);
    assert!(aged.swaps > 20 && aged.imbalance < 1.05, "{} swaps, {}", aged.swaps, aged.imbalance);
    let cfg = config(WearPolicy::adaptive);
    let (device, load, _) = in_the_model(&cfg);
    assert!(aged.life_s > 0.9 * ideal_life_s(&device, &load));
}
