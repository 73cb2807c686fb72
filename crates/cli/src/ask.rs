//! Commands that ask the running rack.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use rackweave_flash::isolation::Isolation;
use rackweave_net::ask::Target;
use rackweave_runtime::control::{Answer, Command, ServerState};

use crate::args::{self, Link, PolicyCmd, Server, Set, Volume, VolumeClass};
use crate::{Failure, lost, show};

/// A rack that does not answer administration by then has lost its majority, or hangs.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("{0}")]
    Because(String),
    #[error("the rack's answer does not fit the question")]
    Unexpected,
}

/// How the rack is reached, and the file of its keys.
pub fn way(
    data: impl Fn() -> Result<PathBuf, Failure>,
    a: &args::Target,
) -> Result<(Target, Option<PathBuf>), Failure> {
    match &a.config {
        Some(path) => Ok(Target::of_config(path)?),
        None => Ok(Target::of_data(&data()?)),
    }
}

fn ask(way: &Target, command: &Command) -> Result<Answer, Failure> {
    match rackweave_net::ask::ask(way, command, ANSWER_WAIT)? {
        Answer::Error { message } => Err(Refused::Because(message).into()),
        a => Ok(a),
    }
}

fn classify(name: &str, class: VolumeClass) -> Command {
    Command::VolumeClass { name: name.into(), offline: class == VolumeClass::Offline }
}

pub fn volume(way: &Target, command: &Volume) -> Result<(), Failure> {
    let (ask_for, json) = match command {
        Volume::Lost { name, json } => return lost(way, name, json),
        Volume::Create { name, size, isolation, json, .. } => {
            let isolation = isolation.map(|i| Isolation::from(i).to_string());
            (Command::VolumeCreate { name: name.clone(), size: size.0, isolation }, json)
        }
        Volume::Class { name, class, json } => (classify(name, *class), json),
        Volume::Set { name, iops, mbps, json } => {
            let bytes_per_s = mbps.map(|m| m * 1_000_000);
            (Command::VolumeLimit { name: name.clone(), iops: *iops, bytes_per_s }, json)
        }
        Volume::Grow { name, size, json } => (Command::VolumeGrow { name: name.clone(), size: size.0 }, json),
        Volume::Delete { name, force, json } => (Command::VolumeDelete { name: name.clone(), force: *force }, json),
        Volume::Info { name, json } => (Command::VolumeInfo { name: name.clone() }, json),
        Volume::List(json) => (Command::VolumeList, json),
    };
    let mut answer = ask(way, &ask_for)?;
    if let Volume::Create { name, class: class @ VolumeClass::Offline, .. } = command {
        answer = ask(way, &classify(name, *class))?;
    }
    let mut out = std::io::stdout().lock();
    match (&answer, json.json) {
        (Answer::Volume(v), true) => writeln!(out, "{}", serde_json::to_string(v)?)?,
        (Answer::Volumes(v), true) => writeln!(out, "{}", serde_json::to_string(v)?)?,
        (Answer::Done, true) => writeln!(out, "{{}}")?,
        (Answer::Volume(v), false) => writeln!(out, "{}", show::volumes(std::slice::from_ref(v)))?,
        (Answer::Volumes(v), false) => writeln!(out, "{}", show::volumes(v))?,
        (Answer::Done, false) => {}
        _ => return Err(Refused::Unexpected.into()),
    }
    if let (Answer::Volume(v), Volume::Create { .. }, false) = (&answer, command, json.json)
        && let Ok(Answer::Status(s)) = ask(way, &Command::Status)
        && s.rack.capacity > 0
    {
        writeln!(out, "{}", show::room_for(v, s.rack.room))?;
    }
    Ok(())
}

/// Marks of lost blocks are with the servers: their vSSDs name them.
fn lost(way: &Target, name: &str, json: &args::Json) -> Result<(), Failure> {
    let Answer::Volume(volume) = ask(way, &Command::VolumeInfo { name: name.into() })? else {
        return Err(Refused::Unexpected.into());
    };
    let Answer::Status(status) = ask(way, &Command::Status)? else { return Err(Refused::Unexpected.into()) };
    let lost = lost::extents(&volume, &status);
    let mut out = std::io::stdout().lock();
    if json.json {
        let extents: Vec<_> =
            lost.extents.iter().map(|e| serde_json::json!({ "offset": e.offset, "bytes": e.bytes })).collect();
        writeln!(out, "{}", serde_json::json!({ "extents": extents, "unnamed": lost.unnamed }))?;
        return Ok(());
    }
    for e in &lost.extents {
        writeln!(out, "{} {}", e.offset, e.bytes)?;
    }
    if lost.unnamed > 0 {
        writeln!(out, "up to {} blocks more are not named: write or trim these first", lost.unnamed)?;
    }
    Ok(())
}

/// What giving up a member means, for people.
const WARNING: &str = "what these servers alone keep is given up for good: writes that were answered and that no FLUSH or FUA \
     covered may be lost, flushed ones are not; should they come back, what they hold is overwritten. Repeat the \
     command with --yes if they never come back";

const WITHOUT_WITNESS: &str = "nothing tells what was flushed on drives that lost records: the newest copies that are left are taken, \
     and flushed writes may be missing without an error. Repeat the command with --yes if no drive comes back that lost nothing";

pub fn set(way: &Target, command: &Set) -> Result<(), Failure> {
    let Set::Recover { set, without, yes, json } = command;
    if !yes {
        if let Answer::Status(s) = ask(way, &Command::Status)?
            && !s.sets.is_empty()
            && !s.sets.iter().any(|known| known.set == *set)
        {
            let all: Vec<String> = s.sets.iter().map(|s| s.set.to_string()).collect();
            return Err(Refused::Because(format!("there is no set {set}: the rack's are {}", all.join(", "))).into());
        }
        return Err(Refused::Because(if without.is_empty() { WITHOUT_WITNESS } else { WARNING }.into()).into());
    }
    let Answer::Done = ask(way, &Command::SetRecover { set: *set, without: without.clone() })? else {
        return Err(Refused::Unexpected.into());
    };
    let mut out = std::io::stdout().lock();
    let done = format!("set {set} recovers from its other members");
    writeln!(out, "{}", if json.json { "{}" } else { &done })?;
    Ok(())
}

/// Asks for something that is done or not, and says what was.
fn done(way: &Target, command: &Command, json: &args::Json, what: &str) -> Result<(), Failure> {
    let Answer::Done = ask(way, command)? else { return Err(Refused::Unexpected.into()) };
    writeln!(std::io::stdout(), "{}", if json.json { "{}" } else { what })?;
    Ok(())
}

fn servers(way: &Target, command: &Command, json: &args::Json) -> Result<Vec<ServerState>, Failure> {
    let Answer::Servers(all) = ask(way, command)? else { return Err(Refused::Unexpected.into()) };
    let text = if json.json { serde_json::to_string(&all)? } else { show::members(&all) };
    writeln!(std::io::stdout(), "{text}")?;
    Ok(all)
}

pub fn server(way: &Target, command: &Server) -> Result<(), Failure> {
    match command {
        Server::List(json) => servers(way, &Command::ServerList, json).map(drop),
        Server::Add(json) => {
            let added = servers(way, &Command::ServerAdd, json)?;
            let Some(server) = added.first().map(|s| s.server) else { return Err(Refused::Unexpected.into()) };
            let Answer::Done = ask(way, &Command::ServerStart { server })? else {
                return Err(Refused::Unexpected.into());
            };
            Ok(())
        }
        Server::Drain { server, json } => {
            let what = format!("server {server} gives its vSSDs away (rackweave server list shows how far it is)");
            done(way, &Command::ServerDrain { server: *server }, json, &what)
        }
        Server::Remove { server, json } => {
            let what = format!("server {server} belongs to the rack no more");
            done(way, &Command::ServerRemove { server: *server }, json, &what)?;
            // It may not run.
            let _ = ask(way, &Command::ServerKill { server: *server });
            Ok(())
        }
        Server::Move { vssd, to, json } => {
            let what = format!("vSSD {vssd} moves (rackweave server list shows when it is done)");
            done(way, &Command::VssdMove { vssd: *vssd, to: *to }, json, &what)
        }
        Server::Kill { server, json } => {
            let what = format!("server {server} has crashed (rackweave server start {server} starts it again)");
            done(way, &Command::ServerKill { server: *server }, json, &what)
        }
        Server::Start { server, json } => {
            let what = format!("server {server} starts (rackweave status shows when it serves)");
            done(way, &Command::ServerStart { server: *server }, json, &what)
        }
    }
}

pub fn policy(way: &Target, command: &PolicyCmd) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match command {
        PolicyCmd::Show(json) => {
            let Answer::Policy(p) = ask(way, &Command::PolicyShow)? else { return Err(Refused::Unexpected.into()) };
            if json.json {
                writeln!(out, "{}", serde_json::to_string(&p)?)?;
            } else {
                writeln!(out, "{}", p.policy)?;
                p.otherwise.iter().try_for_each(|key| writeln!(out, "but {key}"))?;
            }
        }
        PolicyCmd::Set { name, json } => {
            let asked = Command::PolicySet { policy: name.clone() };
            let Answer::Changed(changes) = ask(way, &asked)? else { return Err(Refused::Unexpected.into()) };
            if json.json {
                writeln!(out, "{}", serde_json::json!({ "policy": name, "changed": changes }))?;
            } else if changes.is_empty() {
                writeln!(out, "{name}: nothing differs")?;
            } else {
                changes.iter().try_for_each(|c| writeln!(out, "{c}"))?;
            }
        }
    }
    Ok(())
}

pub fn link(way: &Target, command: &Link) -> Result<(), Failure> {
    let (Link::Cut(e) | Link::Mend(e)) = command;
    let (a, b) = (e.a.clone(), e.b.clone());
    let (asked, what) = match command {
        Link::Cut(_) => (Command::LinkCut { a, b }, format!("nothing gets through between {} and {}", e.a, e.b)),
        Link::Mend(_) => (Command::LinkMend { a, b }, format!("packets get through between {} and {}", e.a, e.b)),
    };
    done(way, &asked, &e.json, &what)
}

pub fn status(way: &Target, json: bool) -> Result<(), Failure> {
    let Answer::Status(s) = ask(way, &Command::Status)? else { return Err(Refused::Unexpected.into()) };
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&s)?)?;
    } else {
        writeln!(out, "{}", show::status(&s))?;
    }
    Ok(())
}
