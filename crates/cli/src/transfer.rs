//! `volume export` and `volume import`: a volume's contents to a file and back, through the rack's NBD server.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rackweave_config::Size;
use rackweave_core::admin;
use rackweave_device::private;
use rackweave_net::ask::Target;
use rackweave_runtime::control::{Answer, Volume};

use crate::args::{self, Json, VolumeClass, VolumeKind};
use crate::ask::{self, Refused, ask};
use crate::image::{self, EXTENT_MAX, Reader, Writer};
use crate::nbd::Client;
use crate::{Failure, show};

/// The gateway releases a volume soon after its last session has ended.
const RELEASE_WAIT: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes of which the allocation is looked at together.
const LOOK_BYTES: u64 = 1 << 30;
/// A file has this behind its name while it is exported.
const PARTIAL: &str = ".partial";
/// A volume has this behind its name while it is imported.
const UNFINISHED: &str = ".import";

fn client(way: &Target, name: &str) -> Result<Client, Failure> {
    let status = ask::rack_status(way)?;
    let why = || Refused::Because("the rack serves no NBD clients (up --nbd)".into());
    let uri = status.rack.nbd.first().ok_or_else(why)?;
    Ok(Client::open(uri, name)?)
}

fn said(file: &Path, e: impl std::fmt::Display) -> Failure {
    format!("{}: {e}", file.display()).into()
}

/// Exports a volume or a snapshot to a new file.
pub fn export(way: &Target, name: &str, path: &Path, json: &Json) -> Result<(), Failure> {
    if path.exists() {
        return Err(said(path, "the file exists already"));
    }
    let mut from = client(way, name)?;
    // The file has its final name only when it is complete.
    let mut partial = path.as_os_str().to_owned();
    partial.push(PARTIAL);
    let partial = Path::new(&partial);
    let file = private::create_new(partial).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => {
            said(partial, "the file exists: an export is under way, or was killed; if none runs, remove it first")
        }
        _ => said(partial, e),
    })?;
    let whole = copy_out(&mut from, &file).map_err(|e| said(partial, e));
    let done = whole.and_then(|bytes| named(partial, path).map(|()| bytes).map_err(|e| said(path, e)));
    let bytes = match done {
        Ok(bytes) => bytes,
        Err(e) => {
            // It is ours, and is of no use.
            _ = std::fs::remove_file(partial);
            return Err(e);
        }
    };
    let size = from.size;
    from.close()?;
    let mut out = std::io::stdout().lock();
    match json.json {
        true => writeln!(out, "{}", serde_json::json!({ "name": name, "size": size, "bytes": bytes }))?,
        false => writeln!(out, "{name}: {} of {} are not zero", show::mib(bytes), Size(size))?,
    }
    Ok(())
}

/// Gives the whole file its final name, which no other file has. Some file systems have no links.
fn named(partial: &Path, path: &Path) -> std::io::Result<()> {
    match std::fs::hard_link(partial, path) {
        Ok(()) => std::fs::remove_file(partial)?,
        Err(e) if e.kind() == ErrorKind::AlreadyExists => return Err(e),
        Err(_) => std::fs::rename(partial, path)?,
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

fn copy_out(from: &mut Client, file: &File) -> Result<u64, Failure> {
    let mut to = Writer::new(BufWriter::new(file), from.size)?;
    let mut data = vec![0; EXTENT_MAX];
    // Ends of parts, and whether they are zero.
    let mut parts = VecDeque::new();
    // Extents of the file begin and end where they did if all of it were read.
    for offset in (0..from.size).step_by(EXTENT_MAX) {
        let end = (offset + EXTENT_MAX as u64).min(from.size);
        let (mut at, mut read) = (offset, false);
        while at < end {
            if parts.is_empty() {
                let len = (from.size - at).min(LOOK_BYTES) as u32;
                let ends = from.allocation(at, len)?.into_iter().scan(at, |end, (len, is_zero)| {
                    *end += len;
                    Some((*end, is_zero))
                });
                parts.extend(ends);
            }
            let &(until, is_zero) = parts.front().expect("an answer about allocation has a part");
            let stop = until.min(end);
            if !is_zero {
                if !read {
                    data.fill(0);
                }
                from.read(at, &mut data[(at - offset) as usize..(stop - offset) as usize])?;
                read = true;
            }
            if stop == until {
                parts.pop_front();
            }
            at = stop;
        }
        if read {
            to.contents(offset, &data[..(end - offset) as usize])?;
        }
    }
    let bytes = to.bytes;
    to.end()?.flush()?;
    file.sync_all()?;
    Ok(bytes)
}

/// Reads all of a file. Its volume's size.
fn check(file: &File) -> Result<u64, image::Error> {
    let mut from = Reader::new(BufReader::new(file))?;
    let mut data = Vec::new();
    while from.next_extent(&mut data)?.is_some() {}
    Ok(from.size)
}

/// It may be another's, who is at work: only the user knows.
fn left_behind(name: &str, unfinished: &str) -> String {
    format!(
        "volume {unfinished:?} exists: an import to {name:?} is under way, or was killed. If none runs, remove it first: rackweave \
         volume delete {unfinished}"
    )
}

/// Imports a file as a new volume. The volume has another name until all of it is durable.
pub fn import(way: &Target, path: &Path, name: &str, cloud: &args::Cloud, json: &Json) -> Result<(), Failure> {
    let mut file = File::open(path).map_err(|e| said(path, e))?;
    let size = check(&file).map_err(|e| said(path, e))?;
    file.seek(SeekFrom::Start(0)).map_err(|e| said(path, e))?;
    if let Ok(Answer::Volume(_)) = ask(way, admin::Op::VolumeInfo { name: name.into() }) {
        return Err(Refused::Because(format!("a volume named {name:?} exists already")).into());
    }
    let unfinished = format!("{name}{UNFINISHED}");
    let most = admin::NAME_MAX - UNFINISHED.len();
    if name.len() > most {
        let why = format!(
            "name {name:?} has {} characters, an imported volume's at most {most}: until it is complete its name is {unfinished:?}",
            name.len()
        );
        return Err(Refused::Because(why).into());
    }
    if let Ok(Answer::Volume(_)) = ask(way, admin::Op::VolumeInfo { name: unfinished.as_str().into() }) {
        return Err(Refused::Because(left_behind(name, &unfinished)).into());
    }
    let create = match cloud.kind {
        VolumeKind::Cloud => {
            ask::disk(&unfinished, Size(size), (VolumeClass::Online, None), &args::Own::default(), cloud)?
        }
        VolumeKind::Direct => {
            ask::only_direct(cloud)?;
            admin::Op::create(unfinished.as_str(), size)
        }
    };
    ask(way, create)?;
    let done =
        copy_in(way, &file, &unfinished, size).map_err(|e| said(path, e)).and_then(|()| rename(way, &unfinished, name));
    match done {
        Ok(v) => {
            let mut out = std::io::stdout().lock();
            match json.json {
                true => writeln!(out, "{}", serde_json::to_string(&v)?)?,
                false => writeln!(out, "{}", show::volume(&v))?,
            }
            Ok(())
        }
        Err(e) => {
            if let Err(left) = ask(way, admin::Op::VolumeDelete { name: unfinished.as_str().into(), force: true }) {
                return Err(format!("{e}; volume {unfinished:?} is left: {left}").into());
            }
            Err(e)
        }
    }
}

fn copy_in(way: &Target, file: &File, name: &str, size: u64) -> Result<(), Failure> {
    let mut to = client(way, name)?;
    let mut from = Reader::new(BufReader::new(file))?;
    if (from.size, to.size) != (size, size) {
        return Err(format!("its volume has {} bytes, and the new volume {}", from.size, to.size).into());
    }
    let mut data = Vec::new();
    while let Some(offset) = from.next_extent(&mut data)? {
        to.write(offset, &data)?;
    }
    to.flush()?;
    Ok(to.close()?)
}

/// Once no session uses the volume.
fn rename(way: &Target, old: &str, new: &str) -> Result<Volume, Failure> {
    let until = Instant::now() + RELEASE_WAIT;
    loop {
        match ask(way, admin::Op::VolumeRename { name: old.into(), to: new.into() }) {
            Ok(_) => break,
            Err(e) if Instant::now() >= until => return Err(e),
            Err(_) => std::thread::sleep(LOOK_INTERVAL),
        }
    }
    match ask(way, admin::Op::VolumeInfo { name: new.into() })? {
        Answer::Volume(v) => Ok(v),
        _ => Err(Refused::Unexpected.into()),
    }
}
