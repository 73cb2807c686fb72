//! `rackweave kv` on the running rack, through the address of its Redis clients.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::ffi::OsStrExt;

use rackweave_core::keyspace::KeyspaceId;
use rackweave_net::ask::Target;
use rackweave_runtime::control::Status;

use super::client::{At, Client, Error, Value};
use crate::args::KvCmd;
use crate::{Failure, ask, keyspaces};

/// Keys of one SCAN or MGET.
const PAGE: usize = 256;
/// Puts of `load` without an answer.
const LOADING_MAX: usize = 64;

/// Where the rack's Redis clients connect.
fn uri(status: &Status) -> Result<&str, Failure> {
    status.rack.resp.first().map(String::as_str).ok_or_else(|| {
        "the rack has no keys: `rackweave up --keys` gives them to a new rack. --drive FILE works on a drive without a rack".into()
    })
}

/// `keyspace`: its name or number; `None`: the first.
pub fn kv(way: &Target, keyspace: Option<&str>, command: &KvCmd) -> Result<(), Failure> {
    let status = ask::rack_status(way)?;
    let uri = uri(&status)?;
    let mut out = io::stdout();
    if let KvCmd::Bench(bench) = command {
        return super::bench::run(At { uri, keyspace }, bench, &mut out);
    }
    let mut rack = Client::connect(At { uri, keyspace })?;
    match command {
        KvCmd::Put { key, value: Some(value) } => _ = rack.call(&[b"SET", key.as_bytes(), value.as_bytes()])?,
        KvCmd::Put { key, value: None } => {
            let mut value = Vec::new();
            io::stdin().read_to_end(&mut value)?;
            rack.call(&[b"SET", key.as_bytes(), &value])?;
        }
        KvCmd::Load => load(&mut rack, &mut out)?,
        KvCmd::Get { key } => match rack.call(&[b"GET", key.as_bytes()])? {
            Value::Text(value) => out.write_all(&value)?,
            _ => return Err(super::missing(key)),
        },
        KvCmd::Delete { key } => {
            if rack.call(&[b"DEL", key.as_bytes()])? != Value::Number(1) {
                return Err(super::missing(key));
            }
        }
        KvCmd::Scan { from, limit, json } => {
            let found = scan(&mut rack, from.as_bytes(), *limit)?;
            super::print_pairs(&found.entries, found.more.as_deref(), json.json, &mut out)?;
        }
        KvCmd::Info(json) => {
            let log_set = keyspace.map(|name| keyspaces::info(way, name)).transpose()?.and_then(|k| k.log_set);
            info(&mut rack, uri, (&status, log_set), json.json, &mut out)?;
        }
        KvCmd::Serve { .. } => {
            return Err("serve: a rack serves Redis clients itself (`up --resp`); this command takes --drive".into());
        }
        KvCmd::Bench(_) => {}
    }
    Ok(())
}

/// Stores the pairs of standard input, several at a time, and prints each key once it is durable.
fn load(rack: &mut Client, out: &mut impl Write) -> Result<(), Failure> {
    let mut pending = std::collections::VecDeque::new();
    // After such an error it is not known which line an answer belongs to.
    let mut broken = false;
    let mut answered = |rack: &mut Client, (number, key): (u64, Vec<u8>)| -> Result<(), Failure> {
        if broken {
            return Ok(());
        }
        rack.answer().map_err(|e| {
            broken = !matches!(e, Error::Refused(_));
            format!("line {number}: {e}")
        })?;
        out.write_all(&[&key[..], b"\n"].concat())?;
        Ok(out.flush()?)
    };
    let mut send = |rack: &mut Client, line: io::Result<Vec<u8>>, number: u64| -> Result<(), Failure> {
        let line = line?;
        let (key, value) = super::pair(&line, number)?;
        rack.send(&[b"SET", key, value])?;
        pending.push_back((number, key.to_vec()));
        let oldest = if pending.len() >= LOADING_MAX { pending.pop_front() } else { None };
        oldest.map_or(Ok(()), |p| answered(rack, p))
    };
    let sent = io::stdin().lock().split(b'\n').zip(1..).try_for_each(|(line, number)| send(rack, line, number));
    // A bad line ends the work, not the report on the lines that were sent.
    let rest: Vec<Result<(), Failure>> = pending.into_iter().map(|p| answered(rack, p)).collect();
    rest.into_iter().fold(sent, Result::and)
}

struct Found {
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// The next key.
    more: Option<Vec<u8>>,
}

/// The first pairs from a key on, in key order. A rack has no order of keys: all are read, and the first ones kept.
fn scan(rack: &mut Client, from: &[u8], limit: usize) -> Result<Found, Failure> {
    let mut first: BTreeMap<Vec<u8>, ()> = BTreeMap::new();
    let (mut cursor, count) = (b"0".to_vec(), PAGE.to_string());
    loop {
        let (next, keys) = match rack.call(&[b"SCAN", &cursor, b"COUNT", count.as_bytes()])? {
            Value::List(mut page) if page.len() == 2 => (page.swap_remove(0), page.swap_remove(0)),
            other => return Err(format!("SCAN: {other:?} is no page of keys").into()),
        };
        let (Value::Text(next), Value::List(keys)) = (next, keys) else { return Err("SCAN: no page of keys".into()) };
        for key in keys {
            if let Value::Text(key) = key
                && key[..] >= *from
            {
                first.insert(key, ());
            }
            if first.len() > limit + 1 {
                first.pop_last();
            }
        }
        cursor = next;
        if cursor == b"0" {
            break;
        }
    }
    let keys: Vec<Vec<u8>> = first.into_keys().collect();
    let mut entries = Vec::new();
    for page in keys[..keys.len().min(limit)].chunks(PAGE) {
        values(rack, page, &mut entries)?;
    }
    Ok(Found { entries, more: keys.get(limit).cloned() })
}

/// Reads the values of keys. The rack refuses more bytes at once than a connection may hold: then they are read in halves.
fn values(rack: &mut Client, keys: &[Vec<u8>], to: &mut Vec<(Vec<u8>, Vec<u8>)>) -> Result<(), Failure> {
    let command: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(keys.iter().map(Vec::as_slice)).collect();
    let values = match rack.call(&command) {
        Ok(Value::List(values)) => values,
        Ok(_) => return Err("MGET: no values".into()),
        Err(Error::Refused(_)) if keys.len() > 1 => {
            let (first, second) = keys.split_at(keys.len() / 2);
            self::values(rack, first, to)?;
            return self::values(rack, second, to);
        }
        Err(e) => return Err(e.into()),
    };
    // A key that was deleted meanwhile has none.
    let there = |(k, v): (&Vec<u8>, Value)| if let Value::Text(v) = v { Some((k.clone(), v)) } else { None };
    to.extend(keys.iter().zip(values).filter_map(there));
    Ok(())
}

/// `log_set`: of the keyspace's logs; `None`: they are the first's.
fn info(
    rack: &mut Client,
    uri: &str,
    (status, log_set): (&Status, Option<u32>),
    json: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let Value::Number(keys) = rack.call(&[b"DBSIZE"])? else { return Err("DBSIZE: no number".into()) };
    let its_own = |set: u32| log_set.map_or(set < KeyspaceId::FIRST.log_set().0, |own| set == own);
    let stores = || {
        let all = status.servers.iter().flat_map(|s| s.vssds.iter().map(move |v| (s.server, v)));
        let stores = all.filter(|(_, v)| its_own(v.set)).filter_map(|(server, v)| Some((server, v.store.as_ref()?)));
        // Others are logs of cloud disks.
        stores.filter(|(_, s)| s.keyspace.is_some())
    };
    if json {
        let of = |(server, s): (u32, _)| -> Result<_, Failure> {
            let mut all = serde_json::to_value(s)?;
            all["server"] = server.into();
            Ok(all)
        };
        let servers = stores().map(of).collect::<Result<Vec<_>, _>>()?;
        writeln!(out, "{}", serde_json::json!({ "address": uri, "keys": keys, "servers": servers }))?;
        return Ok(());
    }
    writeln!(out, "{keys} keys at {uri}")?;
    for (server, s) in stores() {
        let [live, room] = [s.live_bytes, s.room_bytes].map(|bytes| bytes as f64 / f64::from(1 << 20));
        writeln!(
            out,
            "server {server}: {} keys in {} partitions, primary of {}; {live:.1} MiB live, room for {room:.1} MiB, {} of {} blocks free",
            s.keys, s.partitions, s.primary_of, s.blocks_free, s.blocks
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Answers MGET with each key as its value, at most three of them at once; the key `gone` has no value.
    fn serve(stream: &UnixStream) -> Option<()> {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        loop {
            let args: usize = lines.next()?.strip_prefix('*')?.parse().ok()?;
            let args: Vec<String> = (0..args).filter_map(|_| lines.nth(1)).collect();
            let answer = |key: &String| match key.as_str() {
                "gone" => "$-1\r\n".into(),
                key => format!("${}\r\n{key}\r\n", key.len()),
            };
            let said = match args.len() - 1 {
                n if n > 3 => "-ERR the command takes 99 bytes of memory\r\n".into(),
                _ if args.contains(&"bad".into()) => "-ERR the device failed\r\n".into(),
                n => format!("*{n}\r\n{}", args[1..].iter().map(answer).collect::<String>()),
            };
            (&mut &*stream).write_all(said.as_bytes()).ok()?;
        }
    }

    #[test]
    fn values_that_are_too_long_together_are_read_in_parts() {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        let server = std::thread::spawn(move || serve(&theirs));
        let mut rack = Client::over(ours);
        let keys = |all: &str| all.split(' ').map(|k| k.as_bytes().to_vec()).collect::<Vec<_>>();
        let mut found = Vec::new();
        values(&mut rack, &keys("a b c gone d e f g h i j"), &mut found).expect("read");
        assert!(found.iter().all(|(k, v)| k == v));
        assert_eq!(found.into_iter().map(|f| f.0).collect::<Vec<_>>(), keys("a b c d e f g h i j"));
        let error = values(&mut rack, &keys("a b c d e bad"), &mut Vec::new()).expect_err("no value");
        assert_eq!(error.to_string(), "ERR the device failed");
        drop(rack);
        assert_eq!(server.join().expect("served"), None);
    }
}
