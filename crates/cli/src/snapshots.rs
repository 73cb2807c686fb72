//! Commands about snapshots of cloud disks.

use std::io::Write;
use std::time::{Duration, Instant};

use rackweave_core::admin::{self, SnapshotInfo};
use rackweave_net::ask::Target;
use rackweave_runtime::control::Answer;

use crate::args::{CloudVolume, Json, Snapshot};
use crate::ask::{Refused, ask};
use crate::{Failure, show, transfer};

/// How often a snapshot that is being made is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How often the bytes of a disk that is being flattened are shown at most.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

fn list(way: &Target, volume: Option<&str>) -> Result<Vec<SnapshotInfo>, Failure> {
    match ask(way, admin::Op::SnapshotList { volume: volume.map(Into::into) })? {
        Answer::Snapshots(all) => Ok(all),
        _ => Err(Refused::Unexpected.into()),
    }
}

/// Makes a snapshot, and waits until it is made: it has what was written before.
fn make(way: &Target, volume: &str, name: &str) -> Result<SnapshotInfo, Failure> {
    let snapshot = format!("{volume}@{name}");
    ask(way, admin::Op::SnapshotCreate { snapshot: snapshot.as_str().into() })?;
    loop {
        let known = list(way, Some(volume))?.into_iter().find(|s| *s.name == *snapshot);
        match known {
            Some(s) if s.made => return Ok(s),
            Some(_) => std::thread::sleep(LOOK_INTERVAL),
            None => {
                let why = "servers did not answer, or a replica set has no room; the disk goes on without it";
                return Err(Refused::Because(format!("snapshot {snapshot:?} was given up: {why}")).into());
            }
        }
    }
}

/// Flattens a disk, and waits until that is done. An interrupted command leaves the rack to go on.
fn flatten(way: &Target, name: &str, json: &Json) -> Result<(), Failure> {
    let mut shown = (String::new(), Instant::now());
    loop {
        match ask(way, admin::Op::VolumeFlatten { name: name.into() })? {
            Answer::Done => {
                return print(json, &serde_json::json!({ "name": name }), &format!("{name} shares nothing"));
            }
            Answer::Use(all) => {
                let own = all.first().map_or(0, |v| v.own);
                let line = format!("{name}: {} on flash are its own", show::mib(own));
                if line != shown.0 && Instant::now() >= shown.1 {
                    eprintln!("{line}");
                    shown = (line, Instant::now() + PROGRESS_INTERVAL);
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
            _ => return Err(Refused::Unexpected.into()),
        }
    }
}

fn print(json: &Json, value: &serde_json::Value, text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match json.json {
        true => writeln!(out, "{}", value)?,
        false if text.is_empty() => {}
        false => writeln!(out, "{text}")?,
    }
    Ok(())
}

pub fn volume(way: &Target, command: &CloudVolume) -> Result<(), Failure> {
    let (op, json) = match command {
        CloudVolume::Snapshot { name, snapshot, json } => {
            let made = make(way, name, snapshot)?;
            return print(json, &serde_json::to_value(&made)?, &show::snapshots(std::slice::from_ref(&made)));
        }
        CloudVolume::Clone { snapshot, name, json } => {
            (admin::Op::VolumeClone { snapshot: snapshot.as_str().into(), name: name.as_str().into() }, json)
        }
        CloudVolume::Rollback { snapshot, json } => {
            (admin::Op::VolumeRollback { snapshot: snapshot.as_str().into() }, json)
        }
        CloudVolume::Flatten { name, json } => return flatten(way, name, json),
        CloudVolume::Export { volume, file, json } => return transfer::export(way, volume, file, json),
        CloudVolume::Import { file, name, cloud, json } => return transfer::import(way, file, name, cloud, json),
        CloudVolume::Du { name, json } => (admin::Op::VolumeUse { name: name.as_str().into() }, json),
        CloudVolume::Rename { name, to, json } => {
            (admin::Op::VolumeRename { name: name.as_str().into(), to: to.as_str().into() }, json)
        }
    };
    match ask(way, op)? {
        Answer::Volume(v) => print(json, &serde_json::to_value(&v)?, &show::volume(&v)),
        Answer::Use(all) => print(json, &serde_json::to_value(&all)?, &show::uses(&all)),
        Answer::Done => print(json, &serde_json::json!({}), ""),
        _ => Err(Refused::Unexpected.into()),
    }
}

pub fn snapshot(way: &Target, command: &Snapshot) -> Result<(), Failure> {
    match command {
        Snapshot::Ls { volume, json } => {
            let all = list(way, volume.as_deref())?;
            print(json, &serde_json::to_value(&all)?, &show::snapshots(&all))
        }
        Snapshot::Rm { snapshot, json } => {
            ask(way, admin::Op::SnapshotRemove { snapshot: snapshot.as_str().into() })?;
            print(json, &serde_json::json!({}), "")
        }
    }
}
