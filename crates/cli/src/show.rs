//! Tables for people.

mod tenants;

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use rackweave_config::Size;
use rackweave_core::admin::{SnapshotInfo, VolumeUse};
use rackweave_runtime::control::{
    Explained, Keyspace, Latency, Process, Server, ServerState, Set, Status, SwitchState, Volume, Vssd,
};

use crate::watch::Span;

fn table(head: &[&str], right: &[usize]) -> Table {
    let mut t = Table::new();
    t.load_preset(presets::NOTHING).set_header(head.iter().map(|h| h.to_uppercase()));
    for &i in right {
        if let Some(c) = t.column_mut(i) {
            c.set_cell_alignment(CellAlignment::Right);
        }
    }
    t
}

fn trimmed(t: &Table) -> String {
    t.lines().map(|l| l.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

fn own(v: &Volume) -> Option<String> {
    let change = v.own_change.as_ref().map_or_else(String::new, |c| format!(" ({c})"));
    v.own.as_ref().map(|own| format!("own: {own}{change}"))
}

fn kind(v: &Volume) -> String {
    let Some(cloud) = &v.cloud else { return if v.name.contains('@') { "snapshot" } else { "direct" }.into() };
    let flattens = v.flattening.as_ref().map_or_else(String::new, |f| format!("; being flattened ({f})"));
    format!("cloud, {cloud}{flattens}")
}

pub fn volumes(all: &[Volume]) -> String {
    if all.is_empty() {
        return "no volumes (rackweave volume create NAME --size SIZE creates one)".into();
    }
    let head = ["volume", "kind", "size", "used", "id", "writer generation", "class", "isolation", "limits", "sets"];
    let mut t = table(&head, &[2, 3, 4, 5]);
    for v in all {
        t.add_row([
            v.name.clone(),
            kind(v),
            Size(v.size).to_string(),
            mib(v.used),
            v.id.to_string(),
            v.attach.to_string(),
            v.class.clone(),
            own(v).unwrap_or_else(|| v.isolation.clone()),
            limits(v),
            list(&v.sets),
        ]);
        for s in &v.snapshots {
            let kind = if s.made { "snapshot" } else { "snapshot being made" };
            t.add_row([s.name.to_string(), kind.into(), Size(s.size).to_string(), mib(s.used)]);
        }
    }
    trimmed(&t)
}

pub fn uses(all: &[VolumeUse]) -> String {
    let mut t = table(&["volume or snapshot", "own", "shared"], &[1, 2]);
    for u in all {
        t.add_row([u.name.to_string(), mib(u.own), mib(u.shared)]);
    }
    trimmed(&t)
}

pub fn snapshots(all: &[SnapshotInfo]) -> String {
    if all.is_empty() {
        return "no snapshots (rackweave volume snapshot VOLUME SNAPSHOT makes one)".into();
    }
    let mut t = table(&["snapshot", "size", "used", "state", "clones"], &[1, 2]);
    for s in all {
        let state = if s.made { "made" } else { "being made" };
        t.add_row([s.name.to_string(), Size(s.size).to_string(), mib(s.used), state.into(), s.clones.join(", ")]);
    }
    trimmed(&t)
}

pub fn keyspaces(all: &[Keyspace]) -> String {
    let head = ["number", "keyspace", "replicas", "each log", "longest value", "logs", "partitions that serve"];
    let mut t = table(&head, &[0, 2, 4]);
    for k in all {
        t.add_row([
            k.number.to_string(),
            k.name.clone(),
            k.replicas.to_string(),
            format!("{} {}{}", k.units, k.isolation, if k.units == 1 { "" } else { "s" }),
            Size(u64::from(k.value_max)).to_string(),
            format!("{} of {}", k.logs, k.logs_of),
            format!("{} of {}", k.serving, k.partitions),
        ]);
    }
    trimmed(&t)
}

/// Servers, and how far what moves between them is.
pub fn members(all: &[ServerState]) -> String {
    let head = ["server", "state", "alive", "vssds", "coming", "leaving", "free", "without room elsewhere"];
    let mut t = table(&head, &[0, 3, 4, 5, 6, 7]);
    for s in all {
        let numbers = [s.vssds, s.coming, s.leaving, s.free, s.homeless].map(|n| n.to_string());
        let alive = if s.alive { "yes" } else { "no" };
        t.add_row([s.server.to_string(), s.state.clone(), alive.into()].into_iter().chain(numbers));
    }
    trimmed(&t)
}

/// Whether a volume could be created, and the servers' free units.
pub fn explained(e: &Explained) -> String {
    let verdict = match &e.refused {
        Some(why) => format!("it would be refused: {why}"),
        None => "it would be created".into(),
    };
    let head = [
        "server",
        "free channels",
        "free dies",
        "free software-isolated dies",
        "free soft-planes",
        "being erased",
        "gets vssds",
    ];
    let mut t = table(&head, &[0, 1, 2, 3, 4, 5]);
    for s in &e.servers {
        let numbers = [s.server, s.channels, s.dies, s.software_dies, s.soft_planes, s.clearing].map(|n| n.to_string());
        let gets = s.unfit.as_ref().map_or("yes".into(), |why| format!("no: it {why}"));
        t.add_row(numbers.into_iter().chain([gets]));
    }
    format!("{verdict}\n{}", trimmed(&t))
}

fn limits(v: &Volume) -> String {
    let iops = (v.iops > 0).then(|| format!("{} IOPS", v.iops));
    let bytes = (v.bytes_per_s > 0).then(|| format!("{} MB/s", v.bytes_per_s as f64 / 1e6));
    let both: Vec<String> = iops.into_iter().chain(bytes).collect();
    if both.is_empty() { "none".into() } else { both.join(", ") }
}

/// Virtual SSDs of a drive, and its free units.
pub fn vssds(all: &[serde_json::Value], free: &str) -> String {
    let mut t = table(&["vssd", "isolation", "level", "units", "capacity", "block", "allocated"], &[0, 2, 3, 4, 5, 6]);
    for v in all {
        let number = |k: &str| v[k].as_u64().unwrap_or_default();
        t.add_row([
            number("id").to_string(),
            v["isolation"].as_str().unwrap_or_default().into(),
            number("level").to_string(),
            v["units"].as_array().map_or(0, Vec::len).to_string(),
            Size(number("capacity")).to_string(),
            Size(number("block_size")).to_string(),
            format!("{} of {}", number("allocated"), number("blocks")),
        ]);
    }
    format!("{}\nfree: {free}", trimmed(&t))
}

/// Location and wear of a virtual SSD, from `vssd info --json`.
pub fn wear(v: &serde_json::Value) -> String {
    let e = &v["erases"];
    let dies: Vec<String> = v["dies"].as_array().into_iter().flatten().map(ToString::to_string).collect();
    let mut out = format!(
        "on dies {}; erases per block: {} to {}, mean {:.1}, endurance {}; {} failed blocks",
        dies.join(" "),
        e["least"],
        e["most"],
        e["mean"].as_f64().unwrap_or_default(),
        e["endurance"],
        v["bad_blocks"],
    );
    if v["read_only"] == true {
        out.push_str("\nread-only: a die has no spare erase block left");
    }
    out
}

/// Whole mebibytes, rounded down: what is promised is there.
pub fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Bytes of a new volume that can be written now.
pub fn room_for(v: &Volume, room: u64) -> String {
    if room >= v.size {
        return format!("room for {}", mib(room));
    }
    format!("{} can be written now: volumes are thin, and the rack is overcommitted", mib(room))
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

fn list<T: ToString>(all: &[T]) -> String {
    all.iter().map(T::to_string).collect::<Vec<_>>().join(" ")
}

pub fn status(s: &Status) -> String {
    let mut out = String::new();
    let r = &s.rack;
    let _ = writeln!(
        out,
        "rack in {}, process {}, up {:.0} s, {}, timing {}",
        r.data, r.pid, r.uptime_s, r.driver, r.timing
    );
    for uri in &r.nbd {
        let _ = writeln!(out, "NBD at {uri} ({} connections)", r.connections);
    }
    for uri in &r.resp {
        let _ = writeln!(out, "RESP at {uri}");
    }
    if let Some(h) = &r.http {
        let _ = writeln!(out, "metrics at {h}");
    }
    let _ = writeln!(out, "{} of {} promised to volumes", gib(r.promised), gib(r.promise_limit));
    let _ = writeln!(out, "{} of {} used, room for {}", mib(r.used), mib(r.capacity), mib(r.room));
    if r.own_capacity > 0 {
        let (promised, used) = (mib(r.own_promised), mib(r.own_used));
        let (capacity, room) = (mib(r.own_capacity), mib(r.own_room));
        let _ = writeln!(out, "volumes on units of their own: {promised}, {used} of {capacity} used, room for {room}");
    }
    for (v, change) in s.volumes.iter().filter_map(|v| Some((v, v.own_change.as_ref()?))) {
        let _ = writeln!(out, "volume {} gets {}: {change}", v.name, v.own.as_deref().unwrap_or_default());
    }
    for (v, flattening) in s.volumes.iter().filter_map(|v| Some((v, v.flattening.as_ref()?))) {
        let _ = writeln!(out, "volume {} is being flattened: {flattening}", v.name);
    }
    if let Some(w) = &r.wear {
        let each: Vec<String> = w.erases.iter().map(|(n, e)| format!("server {n} {e:.2}")).collect();
        let (lambda, swaps, given_up) = (w.lambda, w.swaps, w.given_up);
        let _ = writeln!(
            out,
            "wear: λ {lambda:.3}, {swaps} swaps, {given_up} given up; erases a block: {}",
            each.join(", ")
        );
    }
    if r.standstill_s > 0.0 {
        let _ = writeln!(out, "stood still for {:.1} s (machine suspended or process stopped)", r.standstill_s);
    }
    warnings(&mut out, s);
    parts(&mut out, s);
    out.trim_end().to_owned()
}

/// What an operator has to look at.
fn warnings(out: &mut String, s: &Status) {
    let r = &s.rack;
    for link in &r.links_cut {
        let _ = writeln!(out, "WARNING: the link {} is cut (rackweave link mend {link})", link.replace(' ', " – "));
    }
    for (server, fault) in s.servers.iter().filter_map(|s| Some((s.server, s.drive_fault.as_ref()?))) {
        let _ = writeln!(out, "WARNING: server {server}: {fault}");
    }
    if let Some(e) = &r.store_error {
        let _ = writeln!(out, "WARNING: the metadata service cannot write: {e}");
    }
    let twins = s.processes.iter().flat_map(|p| &p.peers).filter(|p| p.twins).map(|p| p.node.as_str());
    for name in twins.collect::<std::collections::BTreeSet<_>>() {
        let _ = writeln!(out, "WARNING: two processes run as {name}: stop one of them");
    }
    for set in s.sets.iter().filter(|set| !set.waits_for.is_empty()) {
        let _ = writeln!(
            out,
            "WARNING: all members of set {} crashed; it waits for server {} (rackweave set recover goes on without servers that never return)",
            set.set,
            list(&set.waits_for)
        );
    }
    for set in s.sets.iter().filter(|set| set.waits_for_word) {
        let _ = writeln!(
            out,
            "WARNING: all members of set {} crashed, and every remaining drive lost records or was replaced. Flushed writes may be \
             missing; the set serves after confirmation only (rackweave set recover {} --yes takes the newest copies)",
            set.set, set.set
        );
    }
    let mut short: std::collections::BTreeMap<u32, Vec<u32>> = std::collections::BTreeMap::new();
    let waits = |set: &&Set| !set.waits_for.is_empty() || set.waits_for_word;
    for set in s.sets.iter().filter(|set| set.copies_missing > 0 && !waits(set)) {
        short.entry(set.copies_missing).or_default().push(set.set);
    }
    for (missing, sets) in short {
        let _ = writeln!(
            out,
            "WARNING: writes to set {} wait: serving copies missing: {missing} (min_copies)",
            list(&sets)
        );
    }
}

/// The switch, processes, servers, sets and volumes.
fn parts(out: &mut String, s: &Status) {
    if let Some(w) = &s.switch {
        let _ = write!(out, "\n{}", switch(w));
    }
    if !s.processes.is_empty() {
        let _ = write!(out, "\n{}\n", processes(&s.processes));
        let _ = write!(out, "\n{}\n", peers(&s.processes));
    }
    for (name, n) in s.network.iter().filter(|(name, n)| *n > 0 && name.starts_with("drop_")) {
        let _ = writeln!(out, "{n} packets dropped: {}", name["drop_".len()..].replace('_', " "));
    }
    for (server, (reason, n)) in s.servers.iter().flat_map(|s| s.refused.iter().map(|r| (s.server, r))) {
        let _ = writeln!(out, "{n} refused by server {server}: {}", reason.replace('_', " "));
    }
    let vssds = || s.servers.iter().flat_map(|server| server.vssds.iter().map(|v| (server.server, v)));
    let (read, healed, lost) = vssds()
        .fold((0, 0, 0), |(read, healed, lost), (_, v)| (read + v.scrubbed, healed + v.healed, lost + v.scrub_lost));
    if read + healed > 0 {
        let _ = writeln!(out, "scrub: {read} blocks read; {healed} healed, {lost} damaged in every copy");
    }
    let (differed, undecided) = vssds().fold((0, 0), |n, (_, v)| (n.0 + v.scrub_mismatches, n.1 + v.scrub_undecided));
    if differed > 0 {
        let _ = writeln!(out, "scrub: copies of {differed} blocks differed, {undecided} of them without a majority");
    }
    for (server, v) in vssds().filter(|(_, v)| v.blocks_retired > 0) {
        let worn = match v.worn_out {
            true => "is worn out".into(),
            false => format!("can lose {} more", v.blocks_reserve),
        };
        let _ = writeln!(out, "server {server}: vSSD {} lost {} erase blocks, {worn}", v.id, v.blocks_retired);
    }
    let (servers, vssds) = (servers(&s.servers), tenants::vssds(&s.servers));
    let _ = write!(out, "\n{servers}\n\n{vssds}\n\n{}\n\n{}\n", sets(&s.sets), volumes(&s.volumes));
    out.push_str(&of_tenants(&s.volumes));
    if s.servers.iter().flat_map(|s| &s.vssds).any(|v| v.store.is_some()) {
        let _ = write!(out, "\n{}\n", stores(&s.servers));
    }
    if s.latency.iter().any(|l| l.count > 0) {
        let _ = write!(out, "\n{}\n", latencies(&s.latency));
    }
}

/// Volumes' clients and their own vSSDs, each table after an empty line.
fn of_tenants(all: &[Volume]) -> String {
    let tables = [tenants::clients(all), tenants::own(all)];
    tables.iter().filter(|t| !t.is_empty()).map(|t| format!("\n{t}\n")).collect()
}

/// A volume, with what `status` knows of it.
pub fn volume(v: &Volume) -> String {
    let one = std::slice::from_ref(v);
    format!("{}\n{}", volumes(one), of_tenants(one)).trim_end().to_owned()
}

/// Activity of one interval.
pub fn span(s: &Span) -> String {
    let mut out = format!("{:.1} s: ", s.at_s);
    if s.uncounted.is_empty() {
        let _ = write!(
            out,
            "{:.0} reads/s P99 {:.0} us, {:.0} writes/s P99 {:.0} us, {:.0} redirected/s; collections: {} granted, {} delayed, {} \
             regular, {} background",
            s.reads_per_s,
            s.read_p99_us,
            s.writes_per_s,
            s.write_p99_us,
            s.redirected_per_s,
            s.granted,
            s.delayed,
            s.regular,
            s.background
        );
    } else {
        let _ =
            write!(out, "nothing counted: {} did not answer both times, or was started again", s.uncounted.join(", "));
    }
    for server in &s.away {
        let _ = write!(out, "; server {server} away");
    }
    for link in &s.links_cut {
        let _ = write!(out, "; link {} cut", link.replace(' ', " – "));
    }
    for (name, n) in &s.refused {
        let _ = write!(out, "; {n} {}", name.replace('_', " "));
    }
    let mut t = table(&["vssd", "server", "set", "gc", "collected", "free", "queue", "redirected/s"], &[4, 5, 6, 7]);
    for v in &s.vssds {
        t.add_row([
            v.vssd.id.to_string(),
            v.server.to_string(),
            set_of(&v.vssd),
            if v.vssd.serving { v.vssd.gc.clone() } else { "not serving".into() },
            v.collected.to_string(),
            format!("{:.0}%", v.vssd.free_ratio * 100.0),
            v.vssd.queued.to_string(),
            format!("{:.0}", v.redirected_per_s),
        ]);
    }
    format!("{out}\n{}\n", trimmed(&t))
}

/// What the switch directs reads by, as `switch.redirect` says it.
fn reads_by(redirect: &str) -> &str {
    match redirect {
        "load" => "load and collection",
        "gc" => "collection",
        _ => "address",
    }
}

fn switch(s: &SwitchState) -> String {
    let mut out =
        format!("switch: {}, reads by {}, {} of {} rows", s.data_plane, reads_by(&s.redirect), s.rows, s.rows_max);
    for (name, state) in &s.interfaces {
        let _ = write!(out, ", {name} {state}");
    }
    for (name, n) in &s.counters {
        let _ = write!(out, ", {n} {name}");
    }
    if let Some(e) = &s.error {
        let _ = write!(out, "\nWARNING: switch: {e}");
    }
    out + "\n"
}

fn processes(all: &[Process]) -> String {
    let mut t = table(&["process", "pid", "address", "up", "keys", "peers", "sockets"], &[1, 3, 5, 6]);
    for p in all {
        let (pid, up) = match &p.error {
            None => (p.pid.to_string(), format!("{:.0} s", p.uptime_s)),
            Some(e) => (String::new(), format!("no answer: {e}")),
        };
        let (peers, sockets) = (p.peers.len().to_string(), p.sockets.to_string());
        t.add_row([p.name.clone(), pid, p.address.clone(), up, list(&p.keys), peers, sockets]);
    }
    trimmed(&t)
}

/// Connections that carried data, each class by itself.
fn peers(all: &[Process]) -> String {
    let head = [
        "from",
        "to",
        "class",
        "rtt us",
        "least",
        "window",
        "sent",
        "again",
        "timeouts",
        "by",
        "datagram",
        "paths changed",
        "bad",
    ];
    let mut t = table(&head, &[3, 4, 5, 6, 7, 8, 10, 11]);
    for p in all {
        for peer in &p.peers {
            for c in peer.classes.iter().filter(|c| c.sent > 0) {
                t.add_row([
                    p.name.clone(),
                    if peer.down { format!("{} (silent)", peer.node) } else { peer.node.clone() },
                    c.class.clone(),
                    format!("{:.0}", c.rtt_us),
                    format!("{:.0}", c.rtt_min_us),
                    format!("{}K", c.window_bytes >> 10),
                    c.sent.to_string(),
                    c.sent_again.to_string(),
                    c.timeouts.to_string(),
                    peer.carrier.clone(),
                    peer.datagram_bytes.to_string(),
                    peer.path_changes.to_string(),
                    list(&peer.bad_paths),
                ]);
            }
        }
    }
    let timed: Vec<&str> = all.iter().map(|p| p.timestamps.as_str()).filter(|t| !t.is_empty()).collect();
    let mut out = trimmed(&t);
    if let Some(first) = timed.first() {
        let same = timed.iter().all(|t| t == first);
        let _ = write!(out, "\nround trips timed: {first}{}", if same { "" } else { " (not by all processes)" });
    }
    out
}

fn servers(all: &[Server]) -> String {
    let head = [
        "server",
        "alive",
        "ssd",
        "vssd",
        "set",
        "role",
        "epoch",
        "gc",
        "collected",
        "erases",
        "free",
        "waf",
        "mapped",
        "cached",
    ];
    let grouped = all.iter().flat_map(|s| &s.vssds).any(|v| v.group.is_some());
    let of_groups: &[&str] = if grouped { &["group", "borrowed", "lent"] } else { &[] };
    let head = [&head, of_groups].concat();
    let mut t = table(&head, &[8, 9, 10, 11, 12, 13, 14, 15, 16][..head.len() - 8]);
    for s in all {
        if s.vssds.is_empty() {
            let alive = if s.alive { "yes" } else { "no" };
            t.add_row([s.server.to_string(), alive.into(), list(&s.ssds)]);
        }
        for (i, v) in s.vssds.iter().enumerate() {
            let first = |x: String| if i == 0 { x } else { String::new() };
            let mut row = vec![
                first(s.server.to_string()),
                first(if s.alive { "yes" } else { "no" }.into()),
                first(list(&s.ssds)),
                v.id.to_string(),
                set_of(v),
                if v.failed {
                    "failed".into()
                } else if v.serving {
                    v.role.clone()
                } else {
                    format!("{} (not serving)", v.role)
                },
                v.epoch.to_string(),
                v.gc.clone(),
                v.gc_runs.to_string(),
                v.erases.to_string(),
                format!("{:.0}%", v.free_ratio * 100.0),
                format!("{:.2}", v.waf),
                format!("{:.1}M", v.mapped_bytes as f64 / f64::from(1 << 20)),
                v.cache_used.to_string(),
            ];
            if grouped {
                row.push(v.group.map_or(String::new(), |g| g.to_string()));
                row.extend([v.blocks_borrowed, v.blocks_lent].map(|n| n.to_string()));
            }
            t.add_row(row);
        }
    }
    trimmed(&t)
}

/// A log vSSD belongs to no set.
fn set_of(v: &Vssd) -> String {
    if v.role == "log" { "–".into() } else { v.set.to_string() }
}

/// Stores on log vSSDs.
fn stores(all: &[Server]) -> String {
    let head = [
        "log vssd",
        "server",
        "contents",
        "channels",
        "keys",
        "partitions",
        "primary of",
        "live",
        "of",
        "free blocks",
        "gets",
        "puts",
        "refused",
    ];
    let mut t = table(&head, &[0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    for (server, v) in all.iter().flat_map(|s| s.vssds.iter().map(|v| (s.server, v))) {
        let Some(s) = &v.store else { continue };
        let contents = match s.keyspace {
            Some(n) if n > 0 => format!("keyspace {n}"),
            _ => s.contents.clone(),
        };
        let mib = |bytes: u64| format!("{:.1}M", bytes as f64 / f64::from(1 << 20));
        let mut row = vec![v.id.to_string(), server.to_string(), contents, list(&v.channels), s.keys.to_string()];
        row.extend([s.partitions.to_string(), s.primary_of.to_string()]);
        row.extend([mib(v.mapped_bytes), mib(v.exported_bytes), format!("{} of {}", s.blocks_free, s.blocks)]);
        row.extend([s.gets, s.puts, s.refused].map(|n| n.to_string()));
        t.add_row(row);
    }
    trimmed(&t)
}

fn sets(all: &[Set]) -> String {
    let own = all.iter().any(|s| s.volume.is_some());
    let head = ["set", "epoch", "members (vssd on server)", "own set of volume"];
    let mut t = table(&head[..if own { 4 } else { 3 }], &[]);
    for s in all {
        let members: Vec<String> = s.members.iter().map(|m| format!("{} on {} {}", m.vssd, m.server, m.role)).collect();
        let volume = own.then(|| s.volume.clone().unwrap_or_default());
        t.add_row([s.set.to_string(), s.epoch.to_string(), members.join(", ")].into_iter().chain(volume));
    }
    trimmed(&t)
}

fn latencies(all: &[Latency]) -> String {
    let mut t = table(&["requests", "count", "mean us", "p50", "p90", "p99", "p99.9", "max"], &[1, 2, 3, 4, 5, 6, 7]);
    for l in all.iter().filter(|l| l.count > 0) {
        let us = |x: f64| format!("{x:.0}");
        t.add_row([
            l.kind.clone(),
            l.count.to_string(),
            us(l.mean_us),
            us(l.p50_us),
            us(l.p90_us),
            us(l.p99_us),
            us(l.p999_us),
            us(l.max_us),
        ]);
    }
    trimmed(&t)
}
