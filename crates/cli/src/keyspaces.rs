//! Commands about keyspaces.

use std::io::Write;
use std::time::{Duration, Instant};

use rackweave_core::admin;
use rackweave_net::ask::Target;
use rackweave_runtime::control::{Answer, Keyspace};

use crate::args::{Json, KeyspaceCmd};
use crate::ask::{Refused, ask, rack_status};
use crate::{Failure, show};

/// How often a keyspace that is being made is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Longest wait for a new keyspace to serve.
const SERVING_WAIT: Duration = Duration::from_secs(60);

/// The command that opens the keyspace at an address of the rack's Redis clients.
fn opened_by(uri: Option<&str>, number: u32) -> String {
    match uri {
        Some(uri) if uri.starts_with("redis://") && uri != "redis://127.0.0.1:6379" => {
            format!("redis-cli -u {uri}/{number}")
        }
        Some(uri) if uri.starts_with("unix:") => format!("redis-cli -s {} -n {number}", &uri["unix:".len()..]),
        _ => format!("redis-cli -n {number}"),
    }
}

pub fn info(way: &Target, name: &str) -> Result<Keyspace, Failure> {
    match ask(way, admin::Op::KeyspaceInfo { name: name.into() })? {
        Answer::Keyspace(k) => Ok(k),
        _ => Err(Refused::Unexpected.into()),
    }
}

/// Waits until a new keyspace serves.
fn serving(way: &Target, mut k: Keyspace) -> Result<Keyspace, Failure> {
    let until = Instant::now() + SERVING_WAIT;
    while !k.serves() {
        if Instant::now() >= until {
            let Keyspace { name, number, serving, partitions, logs, logs_of, .. } = &k;
            let why = format!(
                "keyspace {name} (number {number}) is created, but {serving} of {partitions} partitions serve after {} s, and {logs} of \
                 {logs_of} servers have its log; rackweave keyspace info {name} shows when it serves",
                SERVING_WAIT.as_secs()
            );
            return Err(Refused::Because(why).into());
        }
        std::thread::sleep(LOOK_INTERVAL);
        k = info(way, &k.name)?;
    }
    Ok(k)
}

fn print(json: &Json, value: serde_json::Value, text: impl FnOnce() -> String) -> Result<(), Failure> {
    let said = if json.json { value.to_string() } else { text() };
    writeln!(std::io::stdout(), "{said}")?;
    Ok(())
}

fn created(way: &Target, k: &Keyspace) -> String {
    let status = rack_status(way).ok();
    let uri = status.as_ref().and_then(|s| s.rack.resp.first());
    let state = if k.serves() { "serves" } else { "does not serve yet" };
    format!("keyspace {} has number {} and {state}: {}", k.name, k.number, opened_by(uri.map(String::as_str), k.number))
}

pub fn keyspace(way: &Target, command: &KeyspaceCmd) -> Result<(), Failure> {
    match command {
        KeyspaceCmd::Create { name, replicas, logs, no_wait, json } => {
            let (isolation, units) = logs.units().map_err(Refused::Because)?;
            let op = admin::Op::KeyspaceCreate { name: name.as_str().into(), replicas: *replicas, isolation, units };
            let Answer::Keyspace(mut k) = ask(way, op)? else { return Err(Refused::Unexpected.into()) };
            if !no_wait {
                k = serving(way, k)?;
            }
            print(json, serde_json::to_value(&k)?, || created(way, &k))
        }
        KeyspaceCmd::Ls(json) => {
            let Answer::Keyspaces(all) = ask(way, admin::Op::KeyspaceList)? else {
                return Err(Refused::Unexpected.into());
            };
            print(json, serde_json::to_value(&all)?, || show::keyspaces(&all))
        }
        KeyspaceCmd::Info { name, json } => {
            let k = info(way, name)?;
            print(json, serde_json::to_value(&k)?, || show::keyspaces(std::slice::from_ref(&k)))
        }
        KeyspaceCmd::Delete { name, json } => {
            let Answer::Done = ask(way, admin::Op::KeyspaceDelete { name: name.as_str().into() })? else {
                return Err(Refused::Unexpected.into());
            };
            print(json, serde_json::json!({}), || format!("keyspace {name} is deleted"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_opens_it_has_the_address_unless_it_is_that_of_redis() {
        assert_eq!(opened_by(None, 3), "redis-cli -n 3");
        assert_eq!(opened_by(Some("redis://127.0.0.1:6379"), 3), "redis-cli -n 3");
        assert_eq!(opened_by(Some("redis://10.0.0.1:7000"), 3), "redis-cli -u redis://10.0.0.1:7000/3");
        assert_eq!(opened_by(Some("unix:/tmp/r.sock"), 3), "redis-cli -s /tmp/r.sock -n 3");
    }
}
