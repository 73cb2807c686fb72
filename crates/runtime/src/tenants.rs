//! What each volume's clients saw, and what the volume's own vSSDs did.
//!
//! A gateway knows its clients' latencies, a server its vSSDs, and the metadata service which vSSDs are a volume's own.
//! With a process per node these are three answers, which [`Status::join`] puts together.

use std::collections::BTreeMap;

use rackweave_core::latency::{Latencies, Percentiles};
use rackweave_core::{Span, VolumeId};
use rackweave_gateway::metrics::{Kind as MetricKind, Sample};
use serde::{Deserialize, Serialize};

use crate::control::{Status, Volume, Vssd};
use crate::latency::Kind;
use crate::stats::{Metric, exported};
use crate::status::{Labels, samples, total};

/// Volumes whose latencies a process keeps, at about 20 KiB each. Above it the oldest volume is forgotten.
const VOLUMES_MAX: usize = 1024;

exported! {
    /// Number of requests and their latency, in microseconds.
    #[derive(Copy)]
    pub struct Requests from Percentiles {
        count: u64 = |p| p.count;
        mean_us: f64 = |p| us(p.mean);
        p50_us: f64 = |p| us(p.p50);
        p90_us: f64 = |p| us(p.p90);
        p99_us: f64 = |p| us(p.p99);
        p999_us: f64 = |p| us(p.p999);
        max_us: f64 = |p| us(p.max);
    }
}

fn us(s: Span) -> f64 {
    s.0 as f64 / 1e3
}

/// Requests of a volume's clients, from their arrival at the gateway to the answer, by kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Clients {
    /// The volume's id.
    pub volume: u32,
    pub reads: Requests,
    pub writes: Requests,
    pub flushes: Requests,
    pub trims: Requests,
}

impl Clients {
    fn all(&self) -> [(Kind, &Requests); 4] {
        let Clients { reads, writes, flushes, trims, .. } = self;
        [(Kind::Read, reads), (Kind::Write, writes), (Kind::Flush, flushes), (Kind::Trim, trims)]
    }
    fn requests(&self) -> u64 {
        self.all().iter().map(|(_, r)| r.count).sum()
    }
    /// What several gateways saw of a volume. Percentiles cannot be added: they are the busiest gateway's.
    fn of_all(all: &[Clients]) -> Option<Clients> {
        let mut sum = all.iter().max_by_key(|c| c.requests())?.clone();
        let of = [&mut sum.reads, &mut sum.writes, &mut sum.flushes, &mut sum.trims];
        for (i, r) in of.into_iter().enumerate() {
            r.count = all.iter().map(|c| c.all()[i].1.count).sum();
        }
        Some(sum)
    }
}

/// Latencies of the volumes' requests, as the gateway here sees them.
#[derive(Debug, Default)]
pub struct VolumeLatencies(BTreeMap<VolumeId, [Latencies; 4]>);

impl VolumeLatencies {
    pub fn record(&mut self, volume: VolumeId, kind: Kind, took: Span) {
        if self.0.len() >= VOLUMES_MAX && !self.0.contains_key(&volume) {
            self.0.pop_first();
        }
        self.0.entry(volume).or_default()[kind as usize].record(took);
    }
    pub fn clients(&self) -> Vec<Clients> {
        let of = |(volume, l): (&VolumeId, &[Latencies; 4])| {
            let [reads, writes, flushes, trims] = Kind::ALL.map(|k| Requests::of(&l[k as usize].percentiles()));
            Clients { volume: volume.0, reads, writes, flushes, trims }
        };
        self.0.iter().map(of).collect()
    }
}

exported! {
    /// The vSSDs that belong to one volume alone, together. Those of servers that do not answer are missing.
    pub struct OwnVssds from [&Vssd] {
        vssds: u64 = |v| v.len() as u64, Gauge "rackweave_volume_vssds" "vSSDs of the volume's own that are reported";
        serving: u64 = |v| v.iter().filter(|v| v.serving).count() as u64,
            Gauge "rackweave_volume_vssds_serving" "Those of them that serve";
        collecting: u64 = |v| v.iter().filter(|v| v.gc == "collecting").count() as u64,
            Gauge "rackweave_volume_vssds_collecting" "Those of them that collect garbage";
        reads: u64 = |v| v.iter().map(|v| v.reads.count).sum(),
            Counter "rackweave_volume_vssd_reads_total" "Reads that its own vSSDs answered";
        writes: u64 = |v| v.iter().map(|v| v.writes.count).sum(),
            Counter "rackweave_volume_vssd_writes_total" "Writes that its own vSSDs answered";
        host_slots: u64 = |v| v.iter().map(|v| v.host_slots).sum(),
            Counter "rackweave_volume_host_slots_total" "Slots that its own vSSDs programmed for the host";
        moved_slots: u64 = |v| v.iter().map(|v| v.moved_slots).sum(),
            Counter "rackweave_volume_moved_slots_total" "Slots that its own vSSDs programmed for themselves";
        waf: f64 = |v| {
            let of = |n: fn(&Vssd) -> u64| v.iter().map(|v| n(v)).sum::<u64>() as f64;
            let (host, moved) = (of(|v| v.host_slots), of(|v| v.moved_slots));
            if host == 0.0 { 1.0 } else { (host + moved) / host }
        }, Gauge "rackweave_volume_write_amplification" "Slots programmed by slots written, of its own vSSDs";
        gc_runs: u64 = |v| v.iter().map(|v| v.gc_runs).sum(),
            Counter "rackweave_volume_gc_runs_total" "Victim blocks that its own vSSDs collected";
        erases: u64 = |v| v.iter().map(|v| v.erases).sum(),
            Counter "rackweave_volume_erases_total" "Blocks that its own vSSDs erased";
        /// Mean erase count of an erase block, and the greatest.
        wear_mean: f64 = |v| {
            let blocks: u64 = v.iter().map(|v| v.blocks).sum();
            v.iter().map(|v| v.wear_mean * v.blocks as f64).sum::<f64>() / blocks.max(1) as f64
        }, Gauge "rackweave_volume_wear_mean" "Mean erase count of its own vSSDs' blocks";
        wear_max: u64 = |v| v.iter().map(|v| v.wear_max).max().unwrap_or(0),
            Gauge "rackweave_volume_wear_max" "Greatest erase count of its own vSSDs' blocks";
        /// Longest recovery of one of them at its server's last start.
        recovery_ms: f64 = |v| v.iter().map(|v| v.recovery_ms).fold(0.0, f64::max),
            Gauge "rackweave_volume_recovery_seconds" "Longest recovery of one of its own vSSDs" = |o| o.recovery_ms / 1e3;
    }
}

impl Status {
    /// Names the volume of each vSSD that is a volume's own, and gives each volume its clients' latencies and the sums of
    /// its own vSSDs. Repeating it changes nothing.
    pub fn join(&mut self) {
        let owners: BTreeMap<u32, String> = self.sets.iter().filter_map(|s| Some((s.set, s.volume.clone()?))).collect();
        for v in self.servers.iter_mut().flat_map(|s| &mut s.vssds) {
            v.volume = owners.get(&v.set).cloned();
        }
        for volume in &mut self.volumes {
            let seen: Vec<Clients> = self.clients.extract_if(.., |c| c.volume == volume.id).collect();
            volume.clients = Clients::of_all(&seen).map(Box::new).or(volume.clients.take());
            let vssds = self.servers.iter().flat_map(|s| &s.vssds);
            let own: Vec<&Vssd> = vssds.filter(|v| v.volume.as_ref() == Some(&volume.name)).collect();
            volume.own_vssds = (!own.is_empty()).then(|| Box::new(OwnVssds::of(&own[..])));
        }
        if !self.volumes.is_empty() {
            // Of deleted volumes.
            self.clients.clear();
        }
    }

    pub(crate) fn tenant_samples(&self, all: &mut Vec<Sample>) {
        let labels = |v: &Volume| vec![("volume", v.name.clone())];
        let clients = |v: &Volume| {
            let seen = v.clients.as_deref().map(Clients::all);
            seen.into_iter().flatten().map(move |(kind, r)| (labels(v), kind.name(), *r)).collect::<Vec<_>>()
        };
        request_samples(all, &VOLUME_REQUESTS, &self.volumes.iter().flat_map(clients).collect::<Vec<_>>());
        let own: Vec<_> = self.volumes.iter().filter_map(|v| Some((labels(v), v.own_vssds.as_deref()?))).collect();
        samples(all, OwnVssds::METRICS, &own);
    }
}

/// Names and helps of the metrics of a kind of requests: their number, and their latency.
pub(crate) type RequestMetrics = [(&'static str, &'static str); 2];

const VOLUME_REQUESTS: RequestMetrics = [
    ("rackweave_volume_requests_total", "Requests of the volume's clients answered"),
    ("rackweave_volume_request_seconds", "Time from the arrival of a request of the volume to its answer"),
];
pub(crate) const VSSD_REQUESTS: RequestMetrics = [
    ("rackweave_vssd_requests_total", "Reads and writes of clients that the vSSD answered"),
    ("rackweave_vssd_request_seconds", "Time from a request's arrival at the server to the vSSD's answer"),
];

/// Number and latency of requests, by kind.
pub(crate) fn request_samples(
    all: &mut Vec<Sample>,
    names: &RequestMetrics,
    items: &[(Labels, &'static str, Requests)],
) {
    let [(count, count_help), (seconds, seconds_help)] = *names;
    for (labels, kind, r) in items {
        all.push(total(count, count_help, [&labels[..], &[("kind", (*kind).into())]].concat(), r.count));
    }
    for (labels, kind, r) in items {
        for (q, us) in [("0.5", r.p50_us), ("0.9", r.p90_us), ("0.99", r.p99_us), ("0.999", r.p999_us), ("1", r.max_us)]
        {
            let labels = [&labels[..], &[("kind", (*kind).into()), ("quantile", q.into())]].concat();
            all.push(Sample { name: seconds, help: seconds_help, kind: MetricKind::Gauge, labels, value: us / 1e6 });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::control::{Server, Set};

    use super::*;

    fn seen(volume: u32, reads: u64, p99_us: f64) -> Clients {
        Clients { volume, reads: Requests { count: reads, p99_us, ..Requests::default() }, ..Clients::default() }
    }

    #[test]
    fn a_volume_has_its_clients_and_the_sums_of_its_own_vssds() {
        let vssd = |set, host_slots, moved_slots, wear_mean, wear_max| Vssd {
            set,
            host_slots,
            moved_slots,
            wear_mean,
            wear_max,
            blocks: 10,
            ..Vssd::default()
        };
        let vssds = vec![vssd(70_000, 100, 50, 2.0, 5), vssd(70_001, 300, 50, 4.0, 9), vssd(0, 900, 900, 50.0, 99)];
        let set = |set, volume: Option<&str>| Set { set, volume: volume.map(Into::into), ..Set::default() };
        let volume = |id, name: &str| Volume { id, name: name.into(), ..Volume::default() };
        let mut s = Status {
            servers: vec![Server { vssds, ..Server::default() }],
            sets: vec![set(0, None), set(70_000, Some("db")), set(70_001, Some("db"))],
            volumes: vec![volume(1, "db"), volume(2, "shared")],
            ..Status::default()
        };
        let gateways =
            [vec![seen(2, 5, 10.0), seen(9, 1, 1.0)], vec![seen(2, 4, 30.0)], vec![seen(2, 7, 20.0), seen(1, 1, 3.0)]];
        s.clients = gateways.concat();
        for _ in 0..2 {
            s.join();
            let names: Vec<_> = s.servers[0].vssds.iter().map(|v| v.volume.as_deref()).collect();
            assert_eq!(names, [Some("db"), Some("db"), None]);
            let own = s.volumes[0].own_vssds.as_ref().expect("its own");
            assert_eq!((own.vssds, own.host_slots, own.waf), (2, 400, 1.25));
            assert_eq!((own.wear_mean, own.wear_max), (3.0, 9));
            assert_eq!(s.volumes[1].own_vssds, None);
            let reads = |i: usize| s.volumes[i].clients.as_ref().expect("had clients").reads;
            assert_eq!((reads(0).count, reads(1).count, reads(1).p99_us), (1, 16, 20.0));
            assert!(s.clients.is_empty());
        }
    }

    #[test]
    fn no_more_volumes_are_kept_than_may_be() {
        let mut l = VolumeLatencies::default();
        for v in 0..VOLUMES_MAX as u32 + 10 {
            l.record(VolumeId(v), Kind::Write, Span::from_micros(5));
        }
        let kept = l.clients();
        assert_eq!((kept.len(), kept[0].volume, kept[0].writes.count), (VOLUMES_MAX, 10, 1));
    }
}
