//! The contents of `status` and of the metrics, assembled from the nodes' reports.

use std::collections::BTreeMap;
use std::path::Path;

use rackweave_core::admin::{MemberStatus, RackStatus, SetStatus, WearStatus};
use rackweave_core::msg::Role;
use rackweave_core::msg::control::DriveTable;
use rackweave_core::volume::VolumeInfo;
use rackweave_core::{DriveId, Layout, NodeId, RackId, SetId, Span, Time};
use rackweave_gateway::metrics::{Kind as Metric, Sample, render};
use rackweave_server::DriveProblem;
use rackweave_transport::PeerStatus;

use super::control::{
    Member, Memory, Peer, PeerClass, Process, RackFacts, Server, Set, Status, SwitchState, Volume, Vssd, Wear,
};
use super::engine::{Engine, HostFault, Nodes};
use super::latency::{Kind, Latencies};
use super::store::MetaStore;
use super::up::device_name;
use crate::network::Network;
use crate::stats::OfPeer;
use rackweave_config::{Isolation, RackConfig};
use rackweave_device::FileIo;
use rackweave_rack::plan;

/// Nodes that report the state of their vSSDs.
pub trait Describe {
    /// The vSSDs of a server, in order; empty for any other node.
    fn vssds(&self, server: NodeId, now: Time) -> Vec<Vssd>;
    /// Number of requests that a server refused, by reason.
    fn refused(&self, _server: NodeId, _now: Time) -> Vec<(String, u64)> {
        Vec::new()
    }
    /// The switch, if it is here.
    fn switch(&self) -> Option<SwitchState>;
    /// Whether the metadata service has admitted the only server that runs here, once known.
    fn admitted(&self) -> Option<bool> {
        Some(true)
    }
    /// Why the drive of the server here is not used.
    fn drive_problem(&self) -> Option<DriveProblem> {
        None
    }
    /// Why the drive of this server, which runs here, is not used.
    fn drive_refused(&self, _server: u32) -> Option<DriveProblem> {
        None
    }
    /// Whether the metadata service that runs here admits the server with this drive.
    fn check_drive(&self, _server: NodeId, _drive: DriveId, _table: &DriveTable) -> Result<(), DriveProblem> {
        Ok(())
    }
    /// Whether the metadata service has admitted this server, which runs here, once known.
    fn taken_in(&self, _server: u32) -> Option<bool> {
        Some(true)
    }
    /// The rack's identity, as reported to the only server that runs here.
    fn rack(&self) -> Option<RackId> {
        None
    }
    /// The incarnation of the only server that runs here; 0 is none.
    fn incarnation(&self) -> u64 {
        0
    }
}

/// Facts about the rack that are constant while it runs.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub data: String,
    pub timing: String,
    /// The rack's replica sets, and the isolation of their vSSDs.
    pub sets: BTreeMap<SetId, Isolation>,
    /// Number of members that a set needs to serve writes.
    pub min_copies: u32,
    pub driver: String,
    pub nbd: Vec<String>,
    pub http: Option<String>,
    /// Name and address of the node, if each has its own process.
    pub node: Option<(String, String)>,
    /// Names of all nodes, by id.
    pub names: Vec<String>,
}

impl Facts {
    pub fn of(cfg: &RackConfig) -> Facts {
        let layout = rackweave_config::racks::layout(cfg, 1);
        Facts {
            timing: cfg.ssd.timing.name().into(),
            sets: plan::sets(cfg).into_iter().map(|s| (s.set, s.level)).collect(),
            min_copies: cfg.min_copies,
            names: layout.places().iter().map(|p| p.name.to_string()).collect(),
            ..Facts::default()
        }
    }
    pub fn name(&self, n: NodeId) -> String {
        self.names.get(n.0 as usize).cloned().unwrap_or_else(|| n.to_string())
    }
    pub fn node_named(&self, name: &str) -> Option<NodeId> {
        self.names.iter().position(|n| n == name).map(|i| NodeId(i as u32))
    }
    /// Description of a fault of a server's drive file.
    pub fn words_of(&self, server: u32, fault: HostFault) -> String {
        fault.words(&self.drive_file(server))
    }
    /// Path of a server's drive file.
    pub fn drive_file(&self, server: u32) -> String {
        Path::new(&self.data).join(device_name(server)).display().to_string()
    }
}

/// The sources of a status.
pub struct View<'a> {
    pub now: Time,
    pub facts: &'a Facts,
    /// Refused servers and the reasons.
    pub refused: &'a BTreeMap<u32, String>,
    pub uptime: Span,
    pub standstill: Span,
    pub connections: u64,
    pub memory: Memory,
    pub latencies: &'a Latencies,
    /// The network to nodes in other processes.
    pub network: Option<&'a dyn Network>,
    /// Counters of network and listeners, by name.
    pub counted: Vec<(String, u64)>,
    /// Ids of the cluster keys, the sending key first.
    pub keys: Vec<u8>,
    pub rack: &'a RackStatus,
    pub volumes: &'a [VolumeInfo],
}

impl View<'_> {
    fn refused(&self, server: u32) -> Option<String> {
        let why = self.refused.get(&server)?;
        Some(format!("refused: {why}. Mend it, then: rackweave server start {server}"))
    }
    pub fn status<N: Nodes + Describe, F: FileIo, M: MetaStore>(&self, now: Time, engine: &Engine<N, F, M>) -> Status {
        let servers = self.rack.servers.iter().map(|s| {
            let (server, vssds) = (Layout::server_number(s.node), engine.nodes.vssds(s.node, now));
            let fault = engine.drive_fault(server);
            Server {
                server,
                alive: s.alive,
                ssds: s.ssds.iter().map(|i| i.0).collect(),
                refused: engine.nodes.refused(s.node, now),
                drive_fault: fault
                    .map(|f| self.facts.words_of(server, f) + &left_out(f, &vssds))
                    .or_else(|| self.refused(server)),
                vssds,
            }
        });
        let alive = |node| self.rack.servers.iter().any(|s| s.node == node && s.alive);
        let serving = |s: &SetStatus| s.members.iter().filter(|m| m.role == Role::Member && alive(m.server)).count();
        let sets = self.rack.sets.iter().map(|s| Set {
            copies_missing: self.facts.min_copies.saturating_sub(serving(s) as u32),
            set: s.set.0,
            epoch: s.epoch.0,
            members: s.members.iter().map(member).collect(),
            waits_for: s.waits_for.iter().filter(|n| **n != Layout::META).map(|n| Layout::server_number(*n)).collect(),
            waits_for_word: s.waits_for.contains(&Layout::META),
        });
        Status {
            rack: RackFacts {
                data: self.facts.data.clone(),
                pid: std::process::id(),
                uptime_s: self.uptime.as_secs_f64(),
                standstill_s: self.standstill.as_secs_f64(),
                driver: self.facts.driver.clone(),
                timing: self.facts.timing.clone(),
                nbd: self.facts.nbd.clone(),
                http: self.facts.http.clone(),
                promise_limit: self.rack.promise_limit,
                promised: self.rack.promised,
                capacity: self.rack.capacity,
                used: self.rack.used,
                room: self.rack.room,
                wear: wear(&self.rack.wear),
                connections: self.connections,
                memory: self.memory,
                links_cut: engine.links_cut().map(|(a, b)| [a, b].map(|n| self.facts.name(n)).join(" ")).collect(),
                store_error: engine.store_problem().map(Into::into),
            },
            servers: servers.collect(),
            sets: sets.collect(),
            volumes: self.volumes.iter().map(|v| Volume::of(v, self.facts)).collect(),
            latency: Kind::ALL.iter().map(|&k| self.latencies.summary(k)).collect(),
            network: self.counted.clone(),
            switch: engine.nodes.switch(),
            processes: self.process().into_iter().collect(),
            counters: engine.counts().seen().map(|(p, n)| (p.name().into(), n)).collect(),
        }
    }
}

impl View<'_> {
    fn process(&self) -> Option<Process> {
        let (name, address) = self.facts.node.clone()?;
        let net = self.network?;
        let peer = |peer: &PeerStatus| Peer::of(&OfPeer { now: self.now, name: self.facts.name(peer.peer), peer });
        Some(Process {
            name,
            address,
            pid: std::process::id(),
            uptime_s: self.uptime.as_secs_f64(),
            error: None,
            timestamps: net.timestamps(),
            peers: net.peers().iter().map(peer).collect(),
            sockets: net.sockets() as u64,
            network: self.counted.clone(),
            keys: self.keys.clone(),
        })
    }
}

/// Names the sets that go on without a drive that waits for room.
fn left_out(fault: HostFault, vssds: &[Vssd]) -> String {
    let sets: Vec<String> = vssds.iter().filter(|v| v.role == "none").map(|v| v.set.to_string()).collect();
    match fault {
        HostFault::NoRoom if !sets.is_empty() => format!(". Sets that go on without it: {}", sets.join(", ")),
        HostFault::NoRoom | HostFault::Failed { .. } => String::new(),
    }
}

fn member(m: &MemberStatus) -> Member {
    let role = match m.role {
        rackweave_core::msg::Role::Member => "member",
        rackweave_core::msg::Role::Shadow => "shadow",
    };
    Member { vssd: m.vssd.0, server: Layout::server_number(m.server), role: role.into() }
}

impl Status {
    /// The same in Prometheus' text format; docs/metrics.md lists the names.
    pub fn metrics(&self) -> String {
        let mut all = Vec::new();
        self.rack_samples(&mut all);
        self.vssd_samples(&mut all);
        self.latency_samples(&mut all);
        self.network_samples(&mut all);
        for (name, n) in &self.counters {
            let help = "Events inside the rack, by name, since the start";
            all.push(sample("rackweave_events_total", help, Metric::Counter, vec![("event", name.clone())], *n as f64));
        }
        // Names and order are constants of this file, and a test renders all of them.
        render(&all).unwrap_or_default()
    }

    fn rack_samples(&self, all: &mut Vec<Sample>) {
        let r = &self.rack;
        let mut gauge = |name, help, value| all.push(sample(name, help, Metric::Gauge, vec![], value));
        gauge("rackweave_uptime_seconds", "Time since the rack was started", r.uptime_s);
        gauge(
            "rackweave_standstill_seconds",
            "Time in which the machine was suspended or the process stopped",
            r.standstill_s,
        );
        gauge("rackweave_connections", "NBD connections", r.connections as f64);
        let m = &r.memory;
        gauge("rackweave_memory_budget_bytes", "Limit of memory held by all connections", m.budget as f64);
        gauge("rackweave_memory_held_bytes", "Memory held by all connections", m.held as f64);
        gauge("rackweave_memory_waiting", "Connections that are not read until memory is free", m.waiting as f64);
        gauge("rackweave_promise_limit_bytes", "Greatest sum of the sizes of all volumes", r.promise_limit as f64);
        gauge("rackweave_promised_bytes", "Sum of the sizes of all volumes", r.promised as f64);
        gauge("rackweave_capacity_bytes", "Capacity of all replica sets, one copy counted", r.capacity as f64);
        gauge("rackweave_used_bytes", "Used part of the capacity, one copy counted", r.used as f64);
        gauge("rackweave_room_bytes", "Bytes that can be written now, anywhere in a volume", r.room as f64);
        gauge(
            "rackweave_store_failing",
            "1 while the metadata service cannot write",
            f64::from(u8::from(r.store_error.is_some())),
        );
        let help = "Connections closed because they held memory that others waited for";
        all.push(sample("rackweave_memory_closed_total", help, Metric::Counter, vec![], m.closed as f64));
        for s in &self.servers {
            let labels = vec![("server", s.server.to_string())];
            let help = "1 while the server's heartbeats arrive";
            all.push(sample("rackweave_server_alive", help, Metric::Gauge, labels, f64::from(u8::from(s.alive))));
        }
        for s in &self.servers {
            let labels = vec![("server", s.server.to_string())];
            let help = "1 while the file of the server's drive has no room on the host's disk, or has failed";
            let value = f64::from(u8::from(s.drive_fault.is_some()));
            all.push(sample("rackweave_drive_failing", help, Metric::Gauge, labels, value));
        }
        for s in &self.servers {
            for (reason, n) in &s.refused {
                let labels = vec![("server", s.server.to_string()), ("reason", reason.clone())];
                let help = "Requests that the server refused, by reason";
                all.push(sample("rackweave_server_refused_total", help, Metric::Counter, labels, *n as f64));
            }
        }
        self.switch_and_set_samples(all);
        self.volume_samples(all);
    }

    fn switch_and_set_samples(&self, all: &mut Vec<Sample>) {
        if let Some(w) = &self.switch {
            let help = "Counters of the switch, by name";
            for (name, n) in &w.counters {
                let labels = vec![("counter", name.clone())];
                all.push(sample("rackweave_switch_total", help, Metric::Counter, labels, *n as f64));
            }
        }
        for s in &self.sets {
            let labels = vec![("set", s.set.to_string())];
            all.push(sample(
                "rackweave_set_epoch",
                "Epoch of the replica set",
                Metric::Gauge,
                labels,
                f64::from(s.epoch),
            ));
        }
    }

    fn volume_samples(&self, all: &mut Vec<Sample>) {
        for v in &self.volumes {
            let labels = vec![("volume", v.name.clone())];
            all.push(sample("rackweave_volume_size_bytes", "Size of the volume", Metric::Gauge, labels, v.size as f64));
        }
        for v in &self.volumes {
            let (name, help) = ("rackweave_volume_used_bytes", "Bytes of the volume on flash, one copy counted");
            all.push(sample(name, help, Metric::Gauge, vec![("volume", v.name.clone())], v.used as f64));
        }
        type Limit = (&'static str, &'static str, fn(&Volume) -> u64);
        const LIMITS: [Limit; 2] = [
            ("rackweave_volume_limit_iops", "Limit of requests per second", |v| v.iops),
            ("rackweave_volume_limit_bytes", "Limit of bytes per second", |v| v.bytes_per_s),
        ];
        for (name, help, of) in LIMITS {
            for v in self.volumes.iter().filter(|v| of(v) > 0) {
                all.push(sample(name, help, Metric::Gauge, vec![("volume", v.name.clone())], of(v) as f64));
            }
        }
    }

    fn vssd_samples(&self, all: &mut Vec<Sample>) {
        for &(kind, name, help, value) in Vssd::METRICS {
            for s in &self.servers {
                for v in &s.vssds {
                    let labels =
                        vec![("server", s.server.to_string()), ("vssd", v.id.to_string()), ("set", v.set.to_string())];
                    all.push(sample(name, help, kind, labels, value(v)));
                }
            }
        }
    }

    /// Counters of the process that answers, among those of this status.
    fn network_samples(&self, all: &mut Vec<Sample>) {
        for p in &self.processes {
            let (connections, sockets) = (p.peers.len() as f64, p.sockets as f64);
            let of = |name, help, value| sample(name, help, Metric::Gauge, vec![], value);
            all.push(of("rackweave_network_peers", "Connected nodes", connections));
            all.push(of("rackweave_network_sockets", "Open sockets between nodes", sockets));
        }
        let peers = || self.processes.iter().flat_map(|p| &p.peers);
        for &(kind, name, help, value) in Peer::METRICS {
            all.extend(peers().map(|p| sample(name, help, kind, vec![("peer", p.node.clone())], value(p))));
        }
        for &(kind, name, help, value) in PeerClass::METRICS {
            for p in peers() {
                all.extend(p.classes.iter().map(|c| {
                    let labels = vec![("peer", p.node.clone()), ("class", c.class.clone())];
                    sample(name, help, kind, labels, value(c))
                }));
            }
        }
        for (counter, n) in self.processes.iter().flat_map(|p| &p.network) {
            let help = "Counters of this process's network, by name";
            let labels = vec![("counter", counter.clone())];
            all.push(sample("rackweave_network_total", help, Metric::Counter, labels, *n as f64));
        }
    }

    fn latency_samples(&self, all: &mut Vec<Sample>) {
        for l in &self.latency {
            let labels = vec![("kind", l.kind.clone())];
            all.push(sample("rackweave_requests_total", "Requests answered", Metric::Counter, labels, l.count as f64));
        }
        for l in &self.latency {
            let quantiles =
                [("0.5", l.p50_us), ("0.9", l.p90_us), ("0.99", l.p99_us), ("0.999", l.p999_us), ("1", l.max_us)];
            for (q, us) in quantiles {
                let labels = vec![("kind", l.kind.clone()), ("quantile", q.into())];
                let help = "Time from a request's arrival to its answer, since the start";
                all.push(sample("rackweave_request_seconds", help, Metric::Gauge, labels, us / 1e6));
            }
        }
    }
}

fn sample(
    name: &'static str,
    help: &'static str,
    kind: Metric,
    labels: Vec<(&'static str, String)>,
    value: f64,
) -> Sample {
    Sample { name, help, kind, labels, value }
}

fn wear(w: &WearStatus) -> Option<Wear> {
    w.balanced.then(|| Wear {
        lambda: f64::from(w.milli_lambda) / 1e3,
        swaps: w.swaps,
        given_up: w.given_up,
        erases: w.servers.iter().map(|s| (Layout::server_number(s.node), s.milli_erases as f64 / 1e3)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Status {
        Status {
            servers: vec![
                Server {
                    vssds: vec![Vssd { gc: "idle".into(), ..Vssd::default() }; 2],
                    refused: vec![("stale_epoch".into(), 4)],
                    ..Server::default()
                };
                1
            ],
            switch: Some(SwitchState { counters: vec![("gc_foreign".into(), 5)], ..SwitchState::default() }),
            sets: vec![Set::default(); 2],
            volumes: vec![Volume {
                id: 1,
                name: "a".into(),
                size: 1,
                attach: 0,
                stripe_bytes: 1,
                sets: vec![],
                class: "online".into(),
                isolation: "channel".into(),
                iops: 500,
                bytes_per_s: 1_000_000,
                used: 1,
            }],
            latency: Kind::ALL.iter().map(|&k| Latencies::default().summary(k)).collect(),
            counters: vec![("Redirect".into(), 3), ("GcStart".into(), 1)],
            processes: vec![Process {
                peers: vec![Peer {
                    node: "server-0".into(),
                    classes: vec![PeerClass::default(); 3],
                    ..Peer::default()
                }],
                sockets: 9,
                network: vec![("drop_replay".into(), 2)],
                ..Process::default()
            }],
            ..Status::default()
        }
    }

    #[test]
    fn a_drive_without_room_names_the_sets_that_go_on_without_it() {
        let of = |set, role: &str| Vssd { set, role: role.into(), ..Vssd::default() };
        let vssds = [of(3, "none"), of(4, "member"), of(5, "none"), of(6, "shadow")];
        assert_eq!(left_out(HostFault::NoRoom, &vssds), ". Sets that go on without it: 3, 5");
        assert_eq!(left_out(HostFault::NoRoom, &vssds[1..2]), "");
        assert_eq!(left_out(HostFault::Failed { os_error: 5 }, &vssds), "");
    }

    #[test]
    fn every_metric_is_rendered() {
        let text = full().metrics();
        assert!(text.contains("rackweave_events_total{event=\"Redirect\"} 3"), "{text}");
        assert!(text.contains("rackweave_request_seconds"));
        assert!(text.contains("rackweave_server_refused_total{server=\"0\",reason=\"stale_epoch\"} 4"), "{text}");
        assert!(text.contains("rackweave_switch_total{counter=\"gc_foreign\"} 5"), "{text}");
        assert!(text.contains("rackweave_peer_down{peer=\"server-0\"} 0"), "{text}");
        assert!(text.contains("rackweave_network_total{counter=\"drop_replay\"} 2"), "{text}");
        assert!(text.contains("rackweave_network_peers 1") && text.contains("rackweave_network_sockets 9"), "{text}");
    }

    #[test]
    fn every_metric_is_in_the_docs() {
        let docs = include_str!("../../../docs/metrics.md");
        for line in full().metrics().lines().filter_map(|l| l.strip_prefix("# TYPE ")) {
            let name = line.split(' ').next().unwrap_or_default();
            assert!(docs.contains(&format!("`{name}`")), "{name} is not in docs/metrics.md");
        }
    }
}
