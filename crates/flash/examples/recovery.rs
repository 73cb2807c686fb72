//! CPU time of a recovery of the maps of 1 TB of flash, every erase block in use, from elided out-of-band data:
//! `cargo run --release -p rackweave-flash --example recovery`.

use rackweave_core::SsdId;
use rackweave_core::device::{Backend, BlockOob, Completion, DeviceData, DeviceError, DeviceOp};
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::api::VirtualSsds;
use rackweave_flash::manager::driver::BlockingDrive;
use rackweave_flash::manager::{FlashManager, ManagerConfig, ManagerOut};
use rackweave_flash::{Profile, Timing, oob};

/// What a full drive's out-of-band data says, and its record.
struct Full {
    cfg: ManagerConfig,
    meta: Vec<u8>,
}

impl Backend for Full {
    fn execute(&mut self, op: &DeviceOp) -> Result<DeviceData, DeviceError> {
        Ok(match op {
            DeviceOp::ReadOob { block } => {
                let g = &self.cfg.profile.geometry;
                let (die, within) = (block / g.blocks_per_die(), block % g.blocks_per_die());
                // Stripe by stripe over the planes; the spare blocks are erased.
                let (plane, stripe) = (within / g.blocks_per_plane, within % g.blocks_per_plane);
                let used = stripe < self.cfg.cut().stripes_per_die;
                let number = stripe * u32::from(g.planes_per_die) + plane;
                let logical = if used { oob::logical(die, number) } else { u64::MAX };
                let oob = BlockOob { logical, erase_count: 7, erase_time: u64::from(*block) + 1 };
                DeviceData::Oob { oob, pages: if used { g.pages_per_block } else { 0 } }
            }
            DeviceOp::ReadMeta { offset, len } => {
                let from = (*offset as usize).min(self.meta.len());
                let to = (from + *len as usize).min(self.meta.len());
                DeviceData::Meta(self.meta[from..to].to_vec().into())
            }
            DeviceOp::WriteMeta { offset, data } => {
                let end = *offset as usize + data.len();
                self.meta.resize(self.meta.len().max(end), 0);
                self.meta[*offset as usize..end].copy_from_slice(data);
                DeviceData::None
            }
            _ => DeviceData::None,
        })
    }
}

fn cpu_ms() -> Result<f64, Box<dyn std::error::Error>> {
    // User and system time, in ticks of 10 ms and (schedstat) in ns: the latter.
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    Ok(text.split_whitespace().next().unwrap_or("0").parse::<f64>()? / 1e6)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let profile = Profile::builtin("p-ssd").ok_or("no profile p-ssd")?;
    let mut cfg = ManagerConfig::new(SsdId(0), profile);
    cfg.timing = Timing::None;
    let mut drive = BlockingDrive::open(cfg.clone(), Empty(Full { cfg: cfg.clone(), meta: Vec::new() }))?;
    for isolation in [Isolation::Channel, Isolation::Die, Isolation::Software] {
        drive.alloc_vssd(isolation, 2, 1)?;
    }
    drive.alloc_vssd(Isolation::Channel, 3, 1)?;
    let rest =
        u64::from(drive.manager().free().channels) * drive.manager().config().cut().unit_bytes(Isolation::Channel);
    drive.alloc_vssd(Isolation::Channel, 0, rest)?;
    let Empty(mut backend) = drive.close()?;

    let mut manager = FlashManager::new(cfg)?;
    let mut out = ManagerOut::new();
    let (begin, mut reads) = (cpu_ms()?, 0u64);
    manager.boot(Default::default(), &mut out);
    while !out.commands.is_empty() {
        for c in std::mem::take(&mut out.commands) {
            reads += 1;
            let result = backend.execute(&c.op);
            manager.handle(c.done_at, Completion { ssd: c.ssd, tag: c.tag, result }, &mut out);
        }
    }
    let took = cpu_ms()? - begin;
    println!("{:?}", out.done);
    for v in manager.vssds().collect::<Vec<_>>() {
        let (blocks, allocated) = manager.blocks(v.id)?;
        println!("{}: {} isolation, {allocated} of {blocks} blocks", v.id, v.units.isolation);
    }
    println!(
        "{} erase blocks, {reads} commands: {took:.0} ms of CPU; maps and out-of-band data take {:.1} MB",
        manager.geometry().blocks(),
        manager.state_bytes() as f64 / 1e6
    );
    Ok(())
}

/// The same drive when it is new.
struct Empty(Full);

impl Backend for Empty {
    fn execute(&mut self, op: &DeviceOp) -> Result<DeviceData, DeviceError> {
        match op {
            DeviceOp::ReadOob { .. } => Ok(DeviceData::Oob { oob: BlockOob::default(), pages: 0 }),
            _ => self.0.execute(op),
        }
    }
}
