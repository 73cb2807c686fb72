//! `rackweave vssd`: virtual SSDs of a drive in a file.

use std::io::{self, Write};

use rackweave_config::Size;
use rackweave_core::VssdId;
use rackweave_core::admin;
use rackweave_device::drive;
use rackweave_flash::isolation::{Isolation, ThroughputLevels};
use rackweave_flash::manager::FlashManager;
use rackweave_flash::manager::api::VirtualSsds;

use crate::args::{DriveFile, IsolationLevel, Json, LevelLists, VssdCmd};
use crate::{Failure, show};

impl From<IsolationLevel> for Isolation {
    fn from(l: IsolationLevel) -> Isolation {
        match l {
            IsolationLevel::Channel => Isolation::Channel,
            IsolationLevel::Die => Isolation::Die,
            IsolationLevel::Software | IsolationLevel::SoftPlane => Isolation::Software,
            IsolationLevel::None => Isolation::None,
        }
    }
}

impl From<IsolationLevel> for admin::Isolation {
    fn from(l: IsolationLevel) -> admin::Isolation {
        match l {
            IsolationLevel::Channel => admin::Isolation::Channel,
            IsolationLevel::Die => admin::Isolation::Die,
            IsolationLevel::Software | IsolationLevel::SoftPlane => admin::Isolation::Software,
            IsolationLevel::None => admin::Isolation::None,
        }
    }
}

/// The administrator's throughput levels, the default ones where nothing is said; `None`: nothing is.
fn chosen(l: &LevelLists) -> Option<ThroughputLevels> {
    let LevelLists { channel_levels, die_levels, soft_plane_levels } = l;
    let any = channel_levels.is_some() || die_levels.is_some() || soft_plane_levels.is_some();
    let all = ThroughputLevels::default();
    any.then(|| ThroughputLevels {
        channels: channel_levels.clone().unwrap_or(all.channels),
        dies: die_levels.clone().unwrap_or(all.dies),
        soft_planes: soft_plane_levels.clone().unwrap_or(all.soft_planes),
    })
}

/// A virtual SSD as `--json` shows it.
fn facts(m: &FlashManager, id: VssdId) -> Result<serde_json::Value, Failure> {
    let v = m.vssds().find(|v| v.id == id).ok_or_else(|| format!("{id} is not on the drive"))?;
    let (blocks, allocated) = m.blocks(id)?;
    let block_size = m.block_bytes(id)?;
    Ok(serde_json::json!({
        "id": id.0,
        "isolation": v.units.isolation.to_string(),
        "level": v.level,
        "units": v.units.numbers,
        "capacity": u64::from(blocks) * block_size,
        "block_size": block_size,
        "blocks": blocks,
        "allocated": allocated,
    }))
}

/// As [`facts`], and where it lies and how worn that is.
fn details(m: &FlashManager, id: VssdId) -> Result<serde_json::Value, Failure> {
    let mut one = facts(m, id)?;
    let w = m.vssd_wear(id)?;
    one["dies"] = w.dies.into();
    one["erases"] = serde_json::json!({
        "least": w.least,
        "mean": w.mean,
        "most": w.most,
        "endurance": m.config().profile.endurance,
    });
    let l = &m.config().levels;
    one["levels"] = serde_json::json!({"channels": l.channels, "dies": l.dies, "soft_planes": l.soft_planes});
    one["bad_blocks"] = w.bad.into();
    one["read_only"] = w.read_only.into();
    Ok(one)
}

pub fn vssd(file: &DriveFile, command: &VssdCmd) -> Result<(), Failure> {
    let making = matches!(command, VssdCmd::Create { .. });
    if !making && !file.drive.exists() {
        return Err(format!("{}: there is no drive (rackweave vssd create creates one)", file.drive.display()).into());
    }
    let new = making && !file.drive.exists();
    let levels = if let VssdCmd::Create { levels, .. } = command { chosen(levels) } else { None };
    let mut d = drive::open_with(&file.drive, &file.profile, file.drive_size.0, levels.as_ref())?;
    let mut out = io::stdout();
    let say = |out: &mut io::Stdout, all: &[serde_json::Value], m: &FlashManager, json: &Json| -> Result<(), Failure> {
        if json.json {
            writeln!(out, "{}", serde_json::to_string(all)?)?;
        } else {
            writeln!(out, "{}", show::vssds(all, &m.free().to_string()))?;
        }
        Ok(())
    };
    let done = match command {
        VssdCmd::Create { isolation, level, levels: _, capacity: Size(capacity), json } => {
            let made = d.alloc_vssd((*isolation).into(), *level, *capacity);
            made.map_err(Failure::from).and_then(|id| {
                say(&mut out, &[facts(d.manager(), id)?], d.manager(), json)?;
                warn_of_few_blocks(d.manager().blocks(id)?.0, id)
            })
        }
        VssdCmd::List(json) => {
            let all: Result<Vec<_>, _> = d.manager().vssds().map(|v| facts(d.manager(), v.id)).collect();
            all.and_then(|all| say(&mut out, &all, d.manager(), json))
        }
        VssdCmd::Info { id, json } => details(d.manager(), VssdId(*id)).and_then(|one| {
            let wear = format!("{}\nthroughput levels of the drive: {}", show::wear(&one), d.manager().config().levels);
            say(&mut out, &[one], d.manager(), json)?;
            if !json.json {
                writeln!(out, "{wear}")?;
            }
            Ok(())
        }),
        VssdCmd::Delete { id } => d.dealloc_vssd(VssdId(*id)).map_err(Failure::from),
    };
    // A drive created for a virtual SSD that was refused is removed, while we have its lock.
    if new && d.manager().vssds().next().is_none() {
        std::fs::remove_file(&file.drive)?;
    }
    // The drive is closed in order, after an error as well.
    d.close()?.close()?;
    done
}

/// How many blocks a virtual SSD has follows from the size of the drive.
fn warn_of_few_blocks(blocks: u32, id: VssdId) -> Result<(), Failure> {
    use rackweave_kv::store::BLOCKS_MIN as KV;
    use rackweave_vlfs::BLOCKS_MIN as FILES;
    if blocks < KV {
        let too_few = if blocks < FILES { "too few for `mount`" } else { "enough for `mount`" };
        writeln!(
            io::stderr(),
            "rackweave: {id} has {blocks} blocks: {too_few} ({FILES}), too few for `kv` ({KV}). A larger drive (--drive-size) has \
             more"
        )?;
    }
    Ok(())
}
