//! The contents of `status` and of the metrics, assembled from the nodes' reports.

use std::collections::BTreeMap;
use std::path::Path;

use rackweave_core::admin::{RackStatus, SetStatus};
use rackweave_core::msg::Role;
use rackweave_core::msg::control::DriveTable;
use rackweave_core::volume::VolumeInfo;
use rackweave_core::{DriveId, Incarnation, Layout, NodeId, RackId, SetId, Span, Time};
use rackweave_gateway::metrics::{Kind as MetricKind, Sample, render};
use rackweave_kv::replicated::ClockAhead;
use rackweave_server::DriveProblem;

use super::control::{
    Memory, Peer, PeerClass, Process, RackFacts, Server, Set, Status, Store, SwitchState, Volume, Vssd,
};
use super::engine::{Engine, HostFault, Nodes};
use super::latency::{Kind, Latencies};
use super::store::MetaStore;
use super::up::device_name;
use crate::network::Network;
use crate::stats::{Metric, OfNode, OfProcess, OfRack, OfSet};
use crate::tenants::{VSSD_REQUESTS, VolumeLatencies, request_samples};
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
    /// Servers here at whose start the wall clock was far ahead of their keys.
    fn clocks_ahead(&self) -> Vec<(u32, Incarnation, ClockAhead)> {
        Vec::new()
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
    /// Addresses for Redis clients.
    pub resp: Vec<String>,
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
    /// Latencies of each volume's requests.
    pub by_volume: &'a VolumeLatencies,
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
            let drive_fault =
                fault.map(|f| self.facts.words_of(server, f) + &left_out(f, &vssds)).or_else(|| self.refused(server));
            Server::of(&OfNode { status: s, vssds, refused: engine.nodes.refused(s.node, now), drive_fault })
        });
        let alive = |node| self.rack.servers.iter().any(|s| s.node == node && s.alive);
        let serving = |s: &SetStatus| s.members.iter().filter(|m| m.role == Role::Member && alive(m.server)).count();
        let copies_missing = |s: &SetStatus| self.facts.min_copies.saturating_sub(serving(s) as u32);
        let own = |set: &SetStatus| self.volumes.iter().find(|v| v.own.is_some() && v.sets.contains(&set.set));
        let sets = self.rack.sets.iter().map(|set| {
            Set::of(&OfSet { set, copies_missing: copies_missing(set), volume: own(set).map(|v| &*v.name) })
        });
        let mut status = Status {
            rack: RackFacts::of(&OfRack {
                view: self,
                links_cut: engine.links_cut().map(|(a, b)| [a, b].map(|n| self.facts.name(n)).join(" ")).collect(),
                store_error: engine.store_problem().map(Into::into),
            }),
            servers: servers.collect(),
            sets: sets.collect(),
            volumes: self.volumes.iter().map(|v| Volume::of(&(v, self.facts))).collect(),
            latency: Kind::ALL.iter().map(|&k| self.latencies.summary(k)).collect(),
            network: self.counted.clone(),
            switch: engine.nodes.switch(),
            processes: self.process().into_iter().collect(),
            counters: engine.counts().seen().map(|(p, n)| (p.name().into(), n)).collect(),
            clients: self.by_volume.clients(),
        };
        status.join();
        status
    }
    fn process(&self) -> Option<Process> {
        let (name, address) = self.facts.node.clone()?;
        Some(Process::of(&OfProcess { name, address, view: self, net: self.network? }))
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

pub(crate) type Labels = Vec<(&'static str, String)>;

/// Each metric of each item.
pub(crate) fn samples<T>(all: &mut Vec<Sample>, metrics: &[Metric<T>], items: &[(Labels, &T)]) {
    for &(kind, name, help, value) in metrics {
        let of =
            |(labels, item): &(Labels, &T)| Sample { name, help, kind, labels: labels.clone(), value: value(item) };
        all.extend(items.iter().map(of));
    }
}

pub(crate) fn total(name: &'static str, help: &'static str, labels: Labels, n: u64) -> Sample {
    Sample { name, help, kind: MetricKind::Counter, labels, value: n as f64 }
}

impl Status {
    /// The same in Prometheus' text format; docs/metrics.md lists the names.
    pub fn metrics(&self) -> String {
        let mut all = Vec::new();
        samples(&mut all, RackFacts::METRICS, &[(vec![], &self.rack)]);
        self.server_samples(&mut all);
        for (name, n) in self.switch.iter().flat_map(|s| &s.counters) {
            let labels = vec![("counter", name.clone())];
            all.push(total("rackweave_switch_total", "Counters of the switch, by name", labels, *n));
        }
        let sets: Vec<_> = self.sets.iter().map(|s| (vec![("set", s.set.to_string())], s)).collect();
        samples(&mut all, Set::METRICS, &sets);
        self.volume_samples(&mut all);
        self.tenant_samples(&mut all);
        self.latency_samples(&mut all);
        self.network_samples(&mut all);
        for (name, n) in &self.counters {
            let help = "Events inside the rack, by name, since the start";
            all.push(total("rackweave_events_total", help, vec![("event", name.clone())], *n));
        }
        // Names and order are constants of this crate, and a test renders them all.
        render(&all).unwrap_or_default()
    }

    fn server_samples(&self, all: &mut Vec<Sample>) {
        let labels = |s: &Server| vec![("server", s.server.to_string())];
        let servers: Vec<_> = self.servers.iter().map(|s| (labels(s), s)).collect();
        samples(all, Server::METRICS, &servers);
        for (s, (reason, n)) in self.servers.iter().flat_map(|s| s.refused.iter().map(move |r| (s, r))) {
            let labels = [labels(s), vec![("reason", reason.clone())]].concat();
            all.push(total(
                "rackweave_server_refused_total",
                "Requests that the server refused, by reason",
                labels,
                *n,
            ));
        }
        let of = |v: &Vssd| vec![("vssd", v.id.to_string()), ("set", v.set.to_string())];
        let vssds = self.servers.iter().flat_map(|s| s.vssds.iter().map(move |v| ([labels(s), of(v)].concat(), v)));
        let vssds: Vec<_> = vssds.collect();
        samples(all, Vssd::METRICS, &vssds);
        let of = |s: &Store| s.keyspace.map(|n| ("keyspace", n.to_string()));
        let stores = vssds.iter().filter_map(|(l, v)| {
            let s = v.store.as_ref()?;
            Some((l.iter().cloned().chain(of(s)).collect(), s))
        });
        samples(all, Store::METRICS, &stores.collect::<Vec<_>>());
        let requests = |(l, v): &(Labels, &Vssd)| [(l.clone(), "read", v.reads), (l.clone(), "write", v.writes)];
        request_samples(all, &VSSD_REQUESTS, &vssds.iter().flat_map(requests).collect::<Vec<_>>());
    }

    fn volume_samples(&self, all: &mut Vec<Sample>) {
        let labels = |v: &Volume| vec![("volume", v.name.clone())];
        let volumes: Vec<_> = self.volumes.iter().map(|v| (labels(v), v)).collect();
        samples(all, Volume::METRICS, &volumes);
        const LIMITS: [Metric<Volume>; 2] = [
            (MetricKind::Gauge, "rackweave_volume_limit_iops", "Limit of requests per second", |v| v.iops as f64),
            (MetricKind::Gauge, "rackweave_volume_limit_bytes", "Limit of bytes per second", |v| v.bytes_per_s as f64),
        ];
        for limit in LIMITS {
            let limited: Vec<_> = volumes.iter().filter(|(_, v)| limit.3(v) > 0.0).cloned().collect();
            samples(all, &[limit], &limited);
        }
    }

    /// Of each process in this status: all that answered, or the one whose metrics these are.
    fn network_samples(&self, all: &mut Vec<Sample>) {
        let labels = |p: &Process| vec![("process", p.name.clone())];
        let processes: Vec<_> = self.processes.iter().filter(|p| p.error.is_none()).map(|p| (labels(p), p)).collect();
        samples(all, Process::METRICS, &processes);
        let of = |p: &Peer| vec![("peer", p.node.clone())];
        let peers = processes.iter().flat_map(|(l, p)| p.peers.iter().map(move |p| ([l.clone(), of(p)].concat(), p)));
        let peers: Vec<_> = peers.collect();
        samples(all, Peer::METRICS, &peers);
        let of = |c: &PeerClass| vec![("class", c.class.clone())];
        let classes = peers.iter().flat_map(|(l, p)| p.classes.iter().map(move |c| ([l.clone(), of(c)].concat(), c)));
        samples(all, PeerClass::METRICS, &classes.collect::<Vec<_>>());
        for (l, (counter, n)) in processes.iter().flat_map(|(l, p)| p.network.iter().map(move |n| (l, n))) {
            let help = "Counters of the process's network, by name";
            let labels = [l.clone(), vec![("counter", counter.clone())]].concat();
            all.push(total("rackweave_network_total", help, labels, *n));
        }
    }

    fn latency_samples(&self, all: &mut Vec<Sample>) {
        for l in &self.latency {
            let labels = vec![("kind", l.kind.clone())];
            all.push(total("rackweave_requests_total", "Requests answered", labels, l.count));
        }
        for l in &self.latency {
            let quantiles =
                [("0.5", l.p50_us), ("0.9", l.p90_us), ("0.99", l.p99_us), ("0.999", l.p999_us), ("1", l.max_us)];
            for (q, us) in quantiles {
                let (kind, labels) = (MetricKind::Gauge, vec![("kind", l.kind.clone()), ("quantile", q.into())]);
                let (name, help) =
                    ("rackweave_request_seconds", "Time from a request's arrival to its answer, since the start");
                all.push(Sample { name, help, kind, labels, value: us / 1e6 });
            }
        }
    }
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
                own: None,
                own_change: None,
                flattening: None,
                cloud: None,
                iops: 500,
                bytes_per_s: 1_000_000,
                used: 1,
                snapshots: Vec::new(),
                clients: Some(Box::default()),
                own_vssds: Some(Box::default()),
            }],
            latency: Kind::ALL.iter().map(|&k| Latencies::default().summary(k)).collect(),
            counters: vec![("Redirect".into(), 3), ("GcStart".into(), 1)],
            processes: vec![Process {
                name: "gateway-0".into(),
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
        assert!(text.contains("rackweave_peer_down{process=\"gateway-0\",peer=\"server-0\"} 0"), "{text}");
        assert!(text.contains("rackweave_network_total{process=\"gateway-0\",counter=\"drop_replay\"} 2"), "{text}");
        assert!(text.contains("rackweave_network_peers{process=\"gateway-0\"} 1"), "{text}");
        assert!(text.contains("rackweave_network_sockets{process=\"gateway-0\"} 9"), "{text}");
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
