//! `rackweave kv`: the keys of the running rack ([`rack`]), or those on a virtual SSD of a drive in a file.

mod bench;
mod client;
pub mod rack;

use std::ffi::OsStr;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rackweave_core::VssdId;
use rackweave_device::drive;
use rackweave_flash::manager::driver::BlockingDrive;
use rackweave_gateway::resp::Settings;
use rackweave_gateway::resp::info::Facts;
use rackweave_kv::driver::KvDrive;
use rackweave_kv::keys::drive::KeyDrive;
use rackweave_kv::keys::item;
use rackweave_kv::store::{SCAN_KEYS_MAX, Scan, Space, StoreConfig};

use rackweave_runtime::keys::KeyServer;
use rackweave_runtime::net::{Address, Listener};
use rackweave_runtime::up::signals;

use crate::Failure;
use crate::args::{DriveFile, KvCmd, OtherDrive};

/// Tokens of the drive's own calls are those of user 0.
const USER: u16 = 1;

type File = rackweave_device::FileSsd<rackweave_device::OsFile>;

/// The drive and the virtual SSD that the options name; `None`: the rack's keys are meant.
pub fn drive_of(a: &OtherDrive) -> Result<Option<(DriveFile, u32)>, Failure> {
    let Some(drive) = a.drive.clone() else {
        let given = [
            ("--profile", a.profile.is_some()),
            ("--drive-size", a.drive_size.is_some()),
            ("--vssd", a.vssd.is_some()),
        ];
        return match given.iter().find(|g| g.1) {
            Some((option, _)) => {
                Err(format!("{option}: only with --drive: a rack's keys are on all of its drives").into())
            }
            None => Ok(None),
        };
    };
    let file = DriveFile {
        drive,
        profile: a.profile.clone().unwrap_or_else(|| DriveFile::PROFILE.into()),
        drive_size: a.drive_size.unwrap_or(DriveFile::SIZE),
    };
    Ok(Some((file, a.vssd.unwrap_or(1))))
}

pub fn kv(file: &DriveFile, vssd: u32, command: &KvCmd) -> Result<(), Failure> {
    if !file.drive.exists() {
        return Err(format!("{}: there is no drive (rackweave vssd create creates one)", file.drive.display()).into());
    }
    if let KvCmd::Serve { resp, flushall } = command {
        return serve(file, vssd, resp, *flushall);
    }
    if let KvCmd::Bench(_) = command {
        return Err("bench: it measures a running rack; leave --drive out".into());
    }
    let d = drive::open(&file.drive, &file.profile, file.drive_size.0)?;
    let (d, done) = match KvDrive::open(d, StoreConfig::new(VssdId(vssd), USER)) {
        Ok(mut kv) => {
            let done = run(&mut kv, vssd, command);
            (kv.into_drive(), done)
        }
        Err(refused) => {
            let (d, e) = *refused;
            (d, Err(e.into()))
        }
    };
    // The drive is closed in order, after an error as well.
    close(d).and(done)
}

/// Serves until a signal.
fn serve(file: &DriveFile, vssd: u32, resp: &Address, flushall: bool) -> Result<(), Failure> {
    let signal = signals()?;
    let listener = Listener::bind(resp)?;
    let port = listener.tcp_address().map(|a| a.port());
    let at = match listener.tcp_address() {
        Some(a) => format!("redis://{a}"),
        None => resp.to_string(),
    };
    let d = drive::open(&file.drive, &file.profile, file.drive_size.0)?;
    let keys = match KeyDrive::open(d, StoreConfig::new(VssdId(vssd), USER)) {
        Ok(keys) => keys,
        Err(refused) => {
            let (d, e) = *refused;
            return close(d).and(Err(e.into()));
        }
    };
    let facts = Facts { version: env!("CARGO_PKG_VERSION"), pid: std::process::id(), port: port.unwrap_or(0) };
    println!("{} keys at {at}", keys.keys().store().len());
    io::stdout().flush()?;
    let (keys, served) = KeyServer::new(keys, Settings { flushall, keyspaces: false, facts }, listener, signal)?.run();
    close(keys.into_drive()).and(Ok(served?))
}

fn close(d: BlockingDrive<File>) -> Result<(), Failure> {
    Ok(d.close()?.close()?)
}

fn run(kv: &mut KvDrive<File>, vssd: u32, command: &KvCmd) -> Result<(), Failure> {
    let mut out = io::stdout();
    match command {
        KvCmd::Put { key, value: Some(value) } => {
            kv.put(key.as_bytes(), item::plain(value.clone().into_vec().into()))?
        }
        KvCmd::Put { key, value: None } => {
            let mut value = Vec::new();
            io::stdin().read_to_end(&mut value)?;
            kv.put(key.as_bytes(), item::plain(value.into()))?;
        }
        KvCmd::Load => {
            for (line, number) in io::stdin().lock().split(b'\n').zip(1..) {
                let line = line?;
                let (key, value) = pair(&line, number)?;
                kv.put(key, item::plain(Bytes::copy_from_slice(value))).map_err(|e| format!("line {number}: {e}"))?;
                out.write_all(&[key, b"\n"].concat())?;
                out.flush()?;
            }
        }
        KvCmd::Get { key } => match kv.get(key.as_bytes())?.and_then(unexpired) {
            Some(value) => out.write_all(&value)?,
            None => return Err(missing(key)),
        },
        KvCmd::Delete { key } => {
            if !kv.delete(key.as_bytes())? {
                return Err(missing(key));
            }
        }
        KvCmd::Scan { from, limit, json } => {
            let found = scan(kv, from.as_bytes(), *limit)?;
            print_pairs(&found.entries, found.more.as_deref(), json.json, &mut out)?;
        }
        KvCmd::Info(json) => info(kv, vssd, json.json, &mut out)?,
        KvCmd::Serve { .. } | KvCmd::Bench(_) => {}
    }
    Ok(())
}

/// The value of what the store has, if it has not expired. Expired values are deleted by `serve` alone.
fn unexpired(raw: Bytes) -> Option<Bytes> {
    let found = item::decode(&raw);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64);
    found.expires.is_none_or(|at| at > now).then_some(found.value)
}

/// A line of pairs.
fn pair(line: &[u8], number: u64) -> Result<(&[u8], &[u8]), Failure> {
    let tab = line.iter().position(|b| *b == b'\t');
    let pair = tab.map(|t| (&line[..t], &line[t + 1..]));
    pair.ok_or_else(|| format!("line {number} has no tab; a line is KEY, tab, VALUE").into())
}
fn missing(key: &OsStr) -> Failure {
    format!("{key:?} is not in the store").into()
}

/// As many pairs as requested, however many the store returns at a time.
fn scan(kv: &mut KvDrive<File>, from: &[u8], limit: usize) -> Result<Scan, Failure> {
    let mut all = kv.scan(from, limit.min(SCAN_KEYS_MAX))?;
    let kept = |s: &mut Scan| s.entries = s.entries.drain(..).filter_map(|(k, v)| Some((k, unexpired(v)?))).collect();
    kept(&mut all);
    while let Some(from) = all.more.clone().filter(|_| all.entries.len() < limit) {
        let mut next = kv.scan(&from, (limit - all.entries.len()).min(SCAN_KEYS_MAX))?;
        kept(&mut next);
        all.entries.extend(next.entries);
        all.more = next.more;
    }
    Ok(all)
}

/// `more`: the next key.
fn print_pairs<B: AsRef<[u8]>>(
    pairs: &[(B, B)],
    more: Option<&[u8]>,
    json: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    if json {
        let entry = |(k, v): &(B, B)| json_object([("key", Some(k.as_ref())), ("value", Some(v.as_ref()))]);
        let mut all = json_object([("more", more)]);
        all.insert("entries".into(), pairs.iter().map(entry).collect());
        return writeln!(out, "{}", serde_json::Value::Object(all));
    }
    pairs.iter().try_for_each(|(key, value)| out.write_all(&[key.as_ref(), b"\t", value.as_ref(), b"\n"].concat()))
}

/// JSON has no bytes: those that are not UTF-8 are hexadecimal, under the name with `_hex` behind it.
fn json_object<const N: usize>(all: [(&str, Option<&[u8]>); N]) -> serde_json::Map<String, serde_json::Value> {
    let member = |(name, bytes): (&str, Option<&[u8]>)| match bytes.map(std::str::from_utf8) {
        None => (name.to_owned(), serde_json::Value::Null),
        Some(Ok(text)) => (name.to_owned(), text.into()),
        Some(Err(_)) => (format!("{name}_hex"), hex(bytes.unwrap_or_default()).into()),
    };
    all.into_iter().map(member).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn info(kv: &KvDrive<File>, vssd: u32, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let Space { blocks, free, reserve, live, tombstones } = kv.store().space();
    let keys = kv.store().len();
    if json {
        let all = serde_json::json!({
            "vssd": vssd, "keys": keys, "blocks": blocks, "free": free, "reserve": reserve, "live": live,
            "tombstones": tombstones,
        });
        writeln!(out, "{all}")?;
    } else {
        writeln!(out, "{keys} keys, {live} bytes; {free} of {blocks} blocks free, {reserve} of them reserved")?;
    }
    Ok(())
}
