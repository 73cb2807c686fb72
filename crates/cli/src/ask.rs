//! Commands to the running rack.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use rackweave_config::Size;
use rackweave_core::admin::{self, OwnUnit, OwnUnits, VolumeCreate};
use rackweave_core::{SetId, VssdId};
use rackweave_flash::isolation::ThroughputLevels;
use rackweave_net::ask::Target;
use rackweave_runtime::control::{Answer, Command, Local, ServerState, Status};

use crate::args::{self, IsolationLevel, Link, PolicyCmd, Server, Set, Volume, VolumeClass, VolumeKind};
use crate::{Failure, lost, show};

/// A rack that does not answer administration by then has lost its majority, or hangs.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("{0}")]
    Because(String),
    #[error("the rack's answer does not match the command")]
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

pub fn ask(way: &Target, command: impl Into<Command>) -> Result<Answer, Failure> {
    match rackweave_net::ask::ask(way, &command.into(), ANSWER_WAIT)? {
        Answer::Error { message } => Err(Refused::Because(message).into()),
        a => Ok(a),
    }
}

/// The state of the running rack.
pub fn rack_status(way: &Target) -> Result<Box<Status>, Failure> {
    match ask(way, Local::Status)? {
        Answer::Status(s) => Ok(s),
        _ => Err(Refused::Unexpected.into()),
    }
}

fn classify(name: &str, class: VolumeClass) -> admin::Op {
    admin::Op::VolumeClass { name: name.into(), offline: class == VolumeClass::Offline }
}

/// A segment unless one is named.
const SEGMENT: u64 = 64 << 30;

/// The creation of a cloud disk.
pub fn disk(
    name: &str,
    size: Size,
    (class, isolation): (VolumeClass, Option<IsolationLevel>),
    own: &args::Own,
    cloud: &args::Cloud,
) -> Result<admin::Op, Refused> {
    let units = own.channels.or(own.dies).or(own.soft_planes).or(own.replicas).is_some() || own.bandwidth.is_some();
    let other = match (class, isolation) {
        (VolumeClass::Offline, _) => Some("--class offline"),
        (_, Some(_)) => Some("--isolation"),
        _ if units => Some("--channels, --dies, --soft-planes, --bandwidth or --replicas"),
        _ => None,
    };
    if let Some(option) = other {
        return Err(Refused::Because(format!("{option} with --kind cloud: only direct volumes have that")));
    }
    let (segment, log_copies) = (cloud.segment.map_or(SEGMENT, |s| s.0), cloud.log_copies.unwrap_or(2));
    Ok(admin::Op::CloudCreate { name: name.into(), size: size.0, segment, log_copies })
}
pub fn only_direct(cloud: &args::Cloud) -> Result<(), Refused> {
    let option = cloud.segment.map(|s| format!("--segment {s}"));
    match option.or(cloud.log_copies.map(|n| format!("--log-copies {n}"))) {
        Some(option) => Err(Refused::Because(format!("{option}: only with --kind cloud"))),
        None => Ok(()),
    }
}

/// The unit and number of a bandwidth level.
fn units_of_level(isolation: Option<IsolationLevel>, bandwidth: usize) -> Result<(OwnUnit, u32), Refused> {
    let all = ThroughputLevels::default();
    let (unit, levels) = match isolation {
        None | Some(IsolationLevel::Channel) => (OwnUnit::Channel, all.channels),
        Some(IsolationLevel::Die) => (OwnUnit::Die, all.dies),
        Some(IsolationLevel::Software) => (OwnUnit::Software, all.dies),
        Some(IsolationLevel::SoftPlane) => (OwnUnit::SoftPlane, all.soft_planes),
        Some(IsolationLevel::None) => {
            let why = "nothing limits such virtual SSDs, so they have no bandwidth levels";
            return Err(Refused::Because(format!("--bandwidth {bandwidth} with --isolation none: {why}")));
        }
    };
    let known = || format!("--bandwidth {bandwidth}: {unit}s have levels 0 to {}", levels.len() - 1);
    let count = levels.get(bandwidth).ok_or_else(|| Refused::Because(known()))?;
    Ok((unit, *count))
}

/// Units of a volume's own, if it is to have any.
fn own_units(isolation: Option<IsolationLevel>, own: &args::Own) -> Result<Option<OwnUnits>, Refused> {
    let &args::Own { channels, dies, soft_planes, bandwidth, shared: _, replicas } = own;
    if let Some(bandwidth) = bandwidth {
        let (unit, count) = units_of_level(isolation, bandwidth)?;
        return Ok(Some(OwnUnits { unit, count, replicas }));
    }
    let of = |unit, count: Option<u32>| Some(OwnUnits { unit, count: count?, replicas });
    let of_dies = if isolation == Some(IsolationLevel::Software) { OwnUnit::Software } else { OwnUnit::Die };
    let own =
        of(OwnUnit::Channel, channels).or_else(|| of(of_dies, dies)).or_else(|| of(OwnUnit::SoftPlane, soft_planes));
    let refused = |why: String| Err(Refused::Because(why));
    match (own, isolation, replicas) {
        (None, Some(IsolationLevel::SoftPlane), _) => refused(
            "--isolation soft-plane: name the number with --soft-planes or --bandwidth; shared sets have no soft-planes".into(),
        ),
        (None, _, Some(n)) => refused(format!(
            "--replicas {n}: only with --channels, --dies, --soft-planes or --bandwidth: volumes on shared sets have the rack's \
             replicas"
        )),
        (Some(OwnUnits { unit, count, .. }), Some(level), _) if level_name(level) != unit.level() => {
            let why = match level {
                IsolationLevel::None => "nothing limits such virtual SSDs, so a volume has none of its own",
                _ => "the units determine the level; leave --isolation out",
            };
            let flag = match unit {
                OwnUnit::Channel => "channels",
                OwnUnit::Die | OwnUnit::Software => "dies",
                OwnUnit::SoftPlane => "soft-planes",
            };
            refused(format!("--isolation {} with --{flag} {count}: {why}", level_name(level)))
        }
        (own, ..) => Ok(own),
    }
}
fn level_name(level: IsolationLevel) -> &'static str {
    match level {
        IsolationLevel::SoftPlane => OwnUnit::SoftPlane.level(),
        other => admin::Isolation::from(other).name(),
    }
}

fn units(name: &str, unit: OwnUnit, count: u32) -> admin::Op {
    admin::Op::VolumeUnits { name: name.into(), unit, count }
}

pub fn volume(way: &Target, command: &Volume) -> Result<(), Failure> {
    let (ask_for, json) = match command {
        Volume::Lost { name, json } => return lost(way, name, json),
        Volume::Cloud(command) => return crate::snapshots::volume(way, command),
        Volume::Explain { size, isolation, own, json } => {
            let own = own_units(*isolation, own)?;
            (admin::Op::VolumeExplain { size: size.0, isolation: isolation.map(Into::into), own }, json)
        }
        Volume::Create { name, size, class, isolation, own, cloud, json } if cloud.kind == VolumeKind::Cloud => {
            (disk(name, *size, (*class, *isolation), own, cloud)?, json)
        }
        Volume::Create { name, size, isolation, own, cloud, json, .. } => {
            only_direct(cloud)?;
            let own = own_units(*isolation, own)?;
            let isolation = isolation.map(Into::into);
            let create = VolumeCreate { name: name.as_str().into(), size: size.0, isolation, own };
            (admin::Op::VolumeCreate(create), json)
        }
        Volume::Class { name, class, json } => (classify(name, *class), json),
        Volume::Set { name, channels: Some(count), json, .. } => (units(name, OwnUnit::Channel, *count), json),
        Volume::Set { name, dies: Some(count), json, .. } => (units(name, OwnUnit::Die, *count), json),
        Volume::Set { name, iops, mbps, json, .. } => {
            let bytes_per_s = mbps.map(|m| m * 1_000_000);
            (admin::Op::VolumeLimit { name: name.as_str().into(), iops: *iops, bytes_per_s }, json)
        }
        Volume::Grow { name, size, json } => (admin::Op::VolumeGrow { name: name.as_str().into(), size: size.0 }, json),
        Volume::Delete { name, force, json } => {
            (admin::Op::VolumeDelete { name: name.as_str().into(), force: *force }, json)
        }
        Volume::Info { name, json } => (admin::Op::VolumeInfo { name: name.as_str().into() }, json),
        Volume::List(json) => (admin::Op::VolumeList, json),
    };
    let mut answer = ask(way, ask_for)?;
    if let Volume::Create { name, class: class @ VolumeClass::Offline, .. } = command {
        answer = ask(way, classify(name, *class))?;
    }
    if let (Answer::Volume(v), Volume::Info { .. }) = (&mut answer, command)
        && let Ok(Answer::Status(s)) = ask(way, Local::Status)
        && let Some(known) = s.volumes.into_iter().find(|known| known.id == v.id)
    {
        *v = known;
    }
    let mut out = std::io::stdout().lock();
    match (&answer, json.json) {
        (Answer::Volume(v), true) => writeln!(out, "{}", serde_json::to_string(v)?)?,
        (Answer::Volumes(v), true) => writeln!(out, "{}", serde_json::to_string(v)?)?,
        (Answer::Explained(e), true) => writeln!(out, "{}", serde_json::to_string(e)?)?,
        (Answer::Explained(e), false) => writeln!(out, "{}", show::explained(e))?,
        (Answer::Done, true) => writeln!(out, "{{}}")?,
        (Answer::Volume(v), false) => writeln!(out, "{}", show::volume(v))?,
        (Answer::Volumes(v), false) => writeln!(out, "{}", show::volumes(v))?,
        (Answer::Done, false) => {}
        _ => return Err(Refused::Unexpected.into()),
    }
    if let (Answer::Volume(v), Volume::Create { .. }, false) = (&answer, command, json.json)
        && v.own.is_none()
        && let Ok(Answer::Status(s)) = ask(way, Local::Status)
        && s.rack.capacity > 0
    {
        writeln!(out, "{}", show::room_for(v, s.rack.room))?;
    }
    Ok(())
}

/// Marks of lost blocks are with the servers: their vSSDs name them.
fn lost(way: &Target, name: &str, json: &args::Json) -> Result<(), Failure> {
    let Answer::Volume(volume) = ask(way, admin::Op::VolumeInfo { name: name.into() })? else {
        return Err(Refused::Unexpected.into());
    };
    let Answer::Status(status) = ask(way, Local::Status)? else { return Err(Refused::Unexpected.into()) };
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
        writeln!(out, "up to {} further blocks are not listed; write or trim the listed ones first", lost.unnamed)?;
    }
    Ok(())
}

/// Why the set needs no operator's word, as far as the status shows.
fn needs_no_recovery(sets: &[rackweave_runtime::control::Set], set: u32) -> Option<String> {
    let Some(known) = sets.iter().find(|known| known.set == set) else {
        let all: Vec<String> = sets.iter().map(|s| s.set.to_string()).collect();
        return (!all.is_empty()).then(|| format!("there is no set {set}; the sets of this rack: {}", all.join(", ")));
    };
    let serves = known.waits_for.is_empty() && !known.waits_for_word && known.copies_missing == 0;
    serves.then(|| format!("set {set} serves: there is nothing to recover"))
}

/// Consequences of giving up a member.
const WARNING: &str = "this discards the data that only these servers have, for good: answered writes that no FLUSH or FUA covered \
     may be lost, flushed ones are kept. If the servers return, their contents are overwritten. Repeat the command \
     with --yes if they never return";

const WITHOUT_WITNESS: &str = "every remaining drive lost records, so the set recovers from the newest copies that are left, and flushed \
     writes may be missing without an error. Repeat the command with --yes if no intact drive returns";

pub fn set(way: &Target, command: &Set) -> Result<(), Failure> {
    let Set::Recover { set, without, yes, json } = command;
    if !yes {
        if let Answer::Status(s) = ask(way, Local::Status)?
            && let Some(why) = needs_no_recovery(&s.sets, *set)
        {
            return Err(Refused::Because(why).into());
        }
        return Err(Refused::Because(if without.is_empty() { WITHOUT_WITNESS } else { WARNING }.into()).into());
    }
    let without = without.iter().map(|&n| admin::server(n)).collect::<Result<_, _>>()?;
    let Answer::Done = ask(way, admin::Op::SetRecover { set: SetId(*set), without })? else {
        return Err(Refused::Unexpected.into());
    };
    let mut out = std::io::stdout().lock();
    let done = format!("set {set} recovers from its other members");
    writeln!(out, "{}", if json.json { "{}" } else { &done })?;
    Ok(())
}

/// Asks for something that is done or not, and says what was.
fn done(way: &Target, command: impl Into<Command>, json: &args::Json, what: &str) -> Result<(), Failure> {
    let Answer::Done = ask(way, command)? else { return Err(Refused::Unexpected.into()) };
    writeln!(std::io::stdout(), "{}", if json.json { "{}" } else { what })?;
    Ok(())
}

fn servers(way: &Target, command: admin::Op, json: &args::Json) -> Result<Vec<ServerState>, Failure> {
    let Answer::Servers(all) = ask(way, command)? else { return Err(Refused::Unexpected.into()) };
    let text = if json.json { serde_json::to_string(&all)? } else { show::members(&all) };
    writeln!(std::io::stdout(), "{text}")?;
    Ok(all)
}

pub fn server(way: &Target, command: &Server) -> Result<(), Failure> {
    match command {
        Server::List(json) => servers(way, admin::Op::Servers, json).map(drop),
        Server::Add(json) => {
            let added = servers(way, admin::Op::ServerAdd, json)?;
            let Some(server) = added.first().map(|s| s.server) else { return Err(Refused::Unexpected.into()) };
            if !way.starts_servers() {
                eprintln!("server {server} is added; start it on its host: rackweave node server --id {server} …");
                return Ok(());
            }
            let Answer::Done = ask(way, Local::ServerStart { server })? else {
                return Err(Refused::Unexpected.into());
            };
            Ok(())
        }
        Server::Drain { server, json } => {
            let what = format!("server {server} drains (rackweave server list shows the progress)");
            done(way, admin::Op::ServerDrain { server: admin::server(*server)? }, json, &what)
        }
        Server::Remove { server, json } => {
            let what = format!("server {server} is removed from the rack");
            done(way, admin::Op::ServerRemove { server: admin::server(*server)? }, json, &what)?;
            // It may not run.
            let _ = ask(way, Local::ServerKill { server: *server });
            Ok(())
        }
        Server::Move { vssd, to, json } => {
            let what = format!("vSSD {vssd} moves (rackweave server list shows when it is done)");
            done(way, admin::Op::VssdMove { vssd: VssdId(*vssd), to: to.map(admin::server).transpose()? }, json, &what)
        }
        Server::Kill { server, json } => {
            let what = format!("server {server} has crashed (rackweave server start {server} starts it again)");
            done(way, Local::ServerKill { server: *server }, json, &what)
        }
        Server::Start { server, json } => {
            let what = format!("server {server} starts (rackweave status shows when it serves)");
            done(way, Local::ServerStart { server: *server }, json, &what)
        }
    }
}

pub fn policy(way: &Target, command: &PolicyCmd) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match command {
        PolicyCmd::Show(json) => {
            let Answer::Policy(p) = ask(way, Local::PolicyShow)? else { return Err(Refused::Unexpected.into()) };
            if json.json {
                writeln!(out, "{}", serde_json::to_string(&p)?)?;
            } else {
                writeln!(out, "{}", p.policy)?;
                p.otherwise.iter().try_for_each(|key| writeln!(out, "but {key}"))?;
            }
        }
        PolicyCmd::Set { name, json } => {
            let asked = Local::PolicySet { policy: name.clone() };
            let Answer::Changed(changes) = ask(way, asked)? else { return Err(Refused::Unexpected.into()) };
            if json.json {
                writeln!(out, "{}", serde_json::json!({ "policy": name, "changed": changes }))?;
            } else if changes.is_empty() {
                writeln!(out, "{name}: no key changes")?;
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
        Link::Cut(_) => (Local::LinkCut { a, b }, format!("the link between {} and {} is cut", e.a, e.b)),
        Link::Mend(_) => (Local::LinkMend { a, b }, format!("the link between {} and {} is mended", e.a, e.b)),
    };
    done(way, asked, &e.json, &what)
}

/// The metrics of all processes of the rack.
pub fn metrics(way: &Target) -> Result<(), Failure> {
    let s = rack_status(way)?;
    write!(std::io::stdout().lock(), "{}", s.metrics())?;
    Ok(())
}

pub fn status(way: &Target, json: bool) -> Result<(), Failure> {
    let Answer::Status(s) = ask(way, Local::Status)? else { return Err(Refused::Unexpected.into()) };
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&s)?)?;
    } else {
        writeln!(out, "{}", show::status(&s))?;
    }
    Ok(())
}
