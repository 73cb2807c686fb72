//! `rackweave convert`: converts a rack's drives to this version's format, in place, while the rack is down.

use std::path::{Path, PathBuf};

use rackweave_core::{DriveId, RackId, SetId, SsdId, VssdId};
use rackweave_device::convert::{ConvertError, Outcome, Plan, convert};
use rackweave_device::{OpenError, OsFile};
use rackweave_flash::table::{self, EntryState, Table};
use rackweave_server::config::{NO_SET, free_id};

use super::datadir::DataDir;
use super::rack::shape;
use super::up::{self, CONFIG_FILE, STORE_FILE, UpError};
use rackweave_config::RackConfig;
use rackweave_core::NodeName;
use rackweave_rack::build;

/// Converts the drives of the rack in `data`, or continues an interrupted conversion; `said` is called for each drive.
/// A rack with a process per node keeps its nodes' directories there.
///
/// # Errors
/// The directory is in use or holds no rack, or a drive cannot be converted. Earlier drives are converted by then, and
/// the next run continues.
pub fn convert_all(data: &Path, mut said: impl FnMut(&Path, Outcome)) -> Result<(), UpError> {
    let dir = DataDir::open(data)?;
    let cfg = up::read_config(&dir.file(CONFIG_FILE))?;
    cfg.validate().map_err(UpError::Options)?;
    let apart = dir.file(&NodeName::META.to_string());
    let meta = if apart.exists() { Some(DataDir::open(&apart)?) } else { None };
    let of_store = meta.as_ref().unwrap_or(&dir);
    if !of_store.file(STORE_FILE).exists() {
        return Err(UpError::NothingToConvert { data: data.into() });
    }
    let (mut store, saved, rack) = up::store(of_store)?;
    up::same_as_made(of_store, &mut store, &cfg)?;
    let service = build::meta(&cfg, saved)?;
    for server in service.servers() {
        let node = build::layout(&cfg).server(server);
        let places: Vec<(VssdId, SetId, u8)> =
            service.places().filter(|(_, p)| Some(p.node) == node).map(|(set, p)| (p.vssd, set, p.slot)).collect();
        let own = dir.file(&NodeName::server(server).to_string());
        let held = if own.exists() { Some(DataDir::open(&own)?) } else { None };
        let path = up::device_path(held.as_ref().unwrap_or(&dir), server);
        if up::has_device(&path)? {
            let outcome = one(&path, &cfg, server, &places, rack)?;
            said(&path, outcome);
        }
    }
    Ok(())
}

fn one(
    path: &Path,
    cfg: &RackConfig,
    server: u32,
    places: &[(VssdId, SetId, u8)],
    rack: RackId,
) -> Result<Outcome, UpError> {
    let made = build::server(cfg, server, 1)?;
    let ssd = made.ssd();
    let g = *ssd.geometry();
    let plan = Plan {
        ssd: SsdId(server),
        shape: shape(cfg)?,
        table_bytes: table::area_bytes(&g),
        blocks_per_die: g.blocks_per_die(),
        table: of_places(ssd.table().clone(), places),
        rack,
        drawn: DriveId(up::random_u64()),
    };
    let fail = |error| UpError::Convert { path: PathBuf::from(path), error };
    let file = OsFile::open(path).map_err(|e| fail(ConvertError::Open(OpenError::Io(e))))?;
    convert(file, &plan).map_err(fail)
}

/// The drive table with the vSSDs that the metadata service records for the drive.
fn of_places(mut table: Table, places: &[(VssdId, SetId, u8)]) -> Table {
    for (i, e) in table.entries.iter_mut().enumerate() {
        match places.iter().find(|(_, _, slot)| usize::from(*slot) == i) {
            Some(&(vssd, set, _)) => (e.vssd, e.set, e.state) = (vssd, set, EntryState::InUse),
            None => (e.vssd, e.set, e.state) = (free_id(i), NO_SET, EntryState::Free),
        }
    }
    table
}
