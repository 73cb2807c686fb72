//! The ageing model of a rack, compared with its SSDs: small drives, written through FlashBlox's calls and balanced by
//! the same decisions, block by block.

use std::collections::VecDeque;

use rackweave_core::{NodeId, Payload, SsdId, Time, VssdId};
use rackweave_eval::ageing::{DAY_S, RackAged, RackLoad, age_rack};
use rackweave_flash::backend::Memory;
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::ManagerConfig;
use rackweave_flash::manager::api::{Block, BlockError, VirtualSsds};
use rackweave_flash::manager::driver::BlockingDrive;
use rackweave_flash::{Geometry, Profile, Timing};
use rackweave_meta::wear::{Balancer, DAY, Rule, WearConfig};

const SERVERS: usize = 3;
const SSDS: usize = 2;
const VSSDS: usize = 2;
/// Erases per block of its SSD and per day that each vSSD causes; two vSSDs an SSD.
const RATES: [f64; SERVERS * SSDS * VSSDS] = [4.0, 1.0, 0.5, 0.0, 0.25, 0.25, 0.75, 0.25, 2.0, 1.5, 1.0, 0.25];
const DAYS: u32 = 240;
/// Greatest relative difference in the erases of each SSD, and of all.
const AGREE: f64 = 0.02;

const GEOMETRY: Geometry = Geometry {
    channels: 2,
    dies_per_channel: 1,
    planes_per_die: 1,
    blocks_per_plane: 32,
    pages_per_block: 2,
    page_bytes: 4096,
};

fn capacity() -> f64 {
    (GEOMETRY.block_bytes() * u64::from(GEOMETRY.channels) * u64::from(GEOMETRY.blocks_per_channel())) as f64
}

fn drive(id: usize) -> BlockingDrive<Memory> {
    let mut p = Profile::builtin("p-ssd").expect("built in");
    (p.geometry, p.endurance) = (GEOMETRY, 60_000);
    let mut cfg = ManagerConfig::new(SsdId(id as u32), p);
    cfg.timing = Timing::None;
    BlockingDrive::open(cfg, Memory::new(GEOMETRY)).expect("new")
}

/// A vSSD that is always full; its contents may have moved here from another SSD. A write replaces its oldest block.
struct Log {
    vssd: VssdId,
    blocks: VecDeque<Block>,
}

impl Log {
    fn write(&mut self, d: &mut BlockingDrive<Memory>, data: &Payload) {
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
        d.write(self.vssd, block, data).expect("written");
        self.blocks.push_back(block);
    }
}

struct Ssd {
    drive: BlockingDrive<Memory>,
    logs: [Log; VSSDS],
}

impl Ssd {
    fn new(id: usize) -> Ssd {
        let mut drive = drive(id);
        let logs = [0; VSSDS].map(|_| {
            let vssd = drive.alloc_vssd(Isolation::Channel, 0, 1).expect("a channel each");
            Log { vssd, blocks: VecDeque::new() }
        });
        let mut ssd = Ssd { drive, logs };
        for log in 0..VSSDS {
            let vssd = ssd.logs[log].vssd;
            for _ in 0..ssd.drive.manager().blocks(vssd).expect("live").0 {
                ssd.write(log, id * VSSDS + log);
            }
        }
        ssd
    }
    /// Writes data that names vSSD `by` in its seed.
    fn write(&mut self, log: usize, by: usize) {
        let size = self.drive.block_size(self.logs[log].vssd).expect("live");
        self.logs[log].write(&mut self.drive, &Payload::elided(size as u32, by as u64));
    }
    /// Mean erases of a block.
    fn wear(&self) -> f64 {
        let bytes: u64 = self.drive.manager().leveler().dies().iter().map(|d| d.total).sum();
        bytes as f64 / capacity()
    }
    /// All contents, log by log, oldest block first.
    fn read(&mut self) -> Vec<Vec<Payload>> {
        let all = |log: &Log| {
            let size = self.drive.block_size(log.vssd).expect("live");
            log.blocks.iter().map(|b| self.drive.read(*b, 0, size).expect("readable")).collect::<Vec<_>>()
        };
        self.logs.iter().map(all).collect()
    }
}

/// A rack of SSDs, written day by day.
struct Rack {
    ssds: Vec<Ssd>,
    /// The SSD whose original contents each SSD has.
    on: Vec<usize>,
    /// Blocks, with fractions, that each vSSD still has to write.
    owed: Vec<f64>,
    swaps: [u64; 2],
}

impl Rack {
    fn day(&mut self) {
        for (ssd, contents) in self.on.iter().copied().enumerate() {
            for log in 0..VSSDS {
                let by = contents * VSSDS + log;
                let drive = &self.ssds[ssd].drive;
                let block = drive.block_size(self.ssds[ssd].logs[log].vssd).expect("live");
                self.owed[by] += RATES[by] * capacity() / block as f64;
                while self.owed[by] >= 1.0 {
                    self.owed[by] -= 1.0;
                    self.ssds[ssd].write(log, by);
                }
            }
        }
    }
    /// Exchanges the whole contents of two SSDs through memory.
    fn swap(&mut self, x: usize, y: usize) {
        let (from_x, from_y) = (self.ssds[x].read(), self.ssds[y].read());
        for (to, data) in [(x, from_y), (y, from_x)] {
            let Ssd { drive, logs } = &mut self.ssds[to];
            for (log, blocks) in logs.iter_mut().zip(data) {
                blocks.iter().for_each(|b| log.write(drive, b));
            }
        }
        self.on.swap(x, y);
    }
    /// Checks that every block belongs to the vSSD whose contents should be there.
    fn verify(&mut self) {
        for ssd in 0..self.ssds.len() {
            for (log, blocks) in self.ssds[ssd].read().into_iter().enumerate() {
                let by = (self.on[ssd] * VSSDS + log) as u64;
                assert!(!blocks.is_empty());
                for b in blocks {
                    assert_eq!(b.identity(0), Payload::elided(b.len(), by).identity(0), "SSD {ssd}, log {log}");
                }
            }
        }
    }
}

fn on_the_drives(cfg: Option<WearConfig>) -> (Vec<f64>, [u64; 2]) {
    let n = SERVERS * SSDS;
    let mut rack =
        Rack { ssds: (0..n).map(Ssd::new).collect(), on: (0..n).collect(), owed: vec![0.0; n * VSSDS], swaps: [0; 2] };
    // The writes that filled the drives are not part of the load.
    let first: Vec<f64> = rack.ssds.iter().map(Ssd::wear).collect();
    let mut balancer = cfg.map(|cfg| Balancer::new(cfg, Time::ZERO));
    let tell = |rack: &Rack, b: &mut Balancer| {
        for (ssd, contents) in rack.on.iter().enumerate() {
            b.worn(SsdId(ssd as u32), NodeId((ssd / SSDS) as u32), rack.ssds[ssd].wear() - first[ssd]);
            b.lie(VssdId(*contents as u32), SsdId(ssd as u32), 1.0);
        }
    };
    for day in 1..=DAYS {
        let before: Vec<f64> = rack.ssds.iter().map(Ssd::wear).collect();
        rack.day();
        let Some(b) = &mut balancer else { continue };
        tell(&rack, b);
        for (ssd, before) in before.into_iter().enumerate() {
            b.erased(VssdId(rack.on[ssd] as u32), rack.ssds[ssd].wear() - before);
        }
        for swap in b.plan(Time::ZERO + DAY * u64::from(day), |_, _| true) {
            let at = |c: VssdId| rack.on.iter().position(|on| *on == c.0 as usize).expect("somewhere");
            rack.swaps[usize::from(swap.between_servers)] += 1;
            rack.swap(at(swap.hot), at(swap.cold));
        }
        tell(&rack, b);
    }
    rack.verify();
    for s in &mut rack.ssds {
        s.drive.settle();
        assert_eq!(s.drive.backend_mut().violations(), []);
    }
    (rack.ssds.iter().zip(first).map(|(s, first)| s.wear() - first).collect(), rack.swaps)
}

fn agree(cfg: Option<WearConfig>) -> RackAged {
    let load = RackLoad::new(SERVERS, SSDS, RATES.map(|r| r / DAY_S).to_vec());
    let model = age_rack(&load, cfg, None, &[Time::ZERO + DAY * u64::from(DAYS)]).remove(0);
    let (wear, swaps) = on_the_drives(cfg);
    for (ssd, (ours, model)) in wear.iter().zip(&model.wear).enumerate() {
        assert!(
            (ours / model - 1.0).abs() <= AGREE,
            "SSD {ssd}: {ours} erases a block on the drive, {model} in the model"
        );
    }
    let total: f64 = wear.iter().sum();
    assert!((total / (model.mean() * wear.len() as f64) - 1.0).abs() <= AGREE, "{total}");
    for (ours, model) in swaps.into_iter().zip(model.swaps) {
        assert!(ours.abs_diff(model) <= 1 + model / 10, "{ours} swaps, {model} in the model");
    }
    model
}

#[test]
fn model_and_drives_of_a_rack_agree_without_swaps() {
    assert!(agree(None).imbalance() > 2.0);
}

#[test]
fn model_and_drives_of_a_rack_agree_while_contents_are_swapped() {
    for rule in [Rule::RackBlox, Rule::MostHelp] {
        let aged = agree(Some(WearConfig { rule, ..WearConfig::default() }));
        assert!(aged.swaps[0] > 10 && aged.swaps[1] > 0, "{rule:?}: {:?}", aged.swaps);
        assert!(aged.moved_part() > 0.02, "swaps count as wear: {}", aged.moved_part());
    }
}
