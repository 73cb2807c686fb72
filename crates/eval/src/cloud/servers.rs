//! The servers of the model: each has a link, a core and a drive, which proxies, logs and storage share.

use rackweave_core::rng::mix64;
use rackweave_core::{Span, Time};

use super::SERVERS;
use super::params::{Model, Params};
use super::workload::Trace;

/// A resource that serves one request after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pipe {
    free: Time,
    pub busy: Span,
}

impl Pipe {
    /// Takes the resource for a span, behind all earlier requests; returns when it is done.
    pub fn take(&mut self, ready: Time, span: Span) -> Time {
        self.busy += span;
        self.free = self.free.max(ready) + span;
        self.free
    }
}

/// One server.
#[derive(Clone, Debug, Default)]
pub struct Server {
    pub ingress: Pipe,
    pub egress: Pipe,
    pub cpu: Pipe,
    pub drive: Pipe,
    /// Requests of clients being forwarded …
    pub serving: i64,
    /// … and waiting at clients, as they last reported (GQD is the sum).
    pub waiting: i64,
    /// Its mean queue, as replies report it (C3).
    pub reported: f64,
}

/// Times that the parameters give.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    pub link_bytes_per_s: f64,
    pub one_way: Span,
    message_cpu: Span,
    cpu_ns_per_kib: f64,
    write: Span,
    read: Span,
    write_bytes_per_s: f64,
    read_bytes_per_s: f64,
}

impl Costs {
    /// Link rates follow from the unbalanced load: what enters servers, from clients and from each other, is `utilization` of
    /// all links. No scheme has others.
    pub fn new(p: &Params, trace: Trace, utilization: f64) -> Costs {
        let m: &Model = &p.model;
        let (read, write) = trace.rates(p);
        // A proxy's chunk is on its own server in one of five cases.
        let elsewhere = 1.0 - 1.0 / SERVERS as f64;
        let entering = write * (1.0 + elsewhere + (m.storage_copies as f64 - 1.0)) + read * elsewhere;
        Costs {
            link_bytes_per_s: entering / SERVERS as f64 / utilization,
            one_way: Span::from_micros(m.one_way_us),
            message_cpu: Span((m.message_cpu_us * 1e3) as u64),
            cpu_ns_per_kib: m.cpu_us_per_kib * 1e3,
            write: Span::from_micros(m.ssd_write_us),
            read: Span::from_micros(m.ssd_read_us),
            write_bytes_per_s: m.ssd_write_mb_s as f64 * 1e6,
            read_bytes_per_s: m.ssd_read_mb_s as f64 * 1e6,
        }
    }
    pub fn link(&self, bytes: u32) -> Span {
        Span((f64::from(bytes) / self.link_bytes_per_s * 1e9) as u64)
    }
    pub fn cpu(&self, bytes: u32) -> Span {
        self.message_cpu + Span((f64::from(bytes) / 1024.0 * self.cpu_ns_per_kib) as u64)
    }
    /// The drive is busy for the transfer; the latency comes on top.
    pub fn drive(&self, pipe: &mut Pipe, ready: Time, bytes: u32, write: bool) -> Time {
        let (latency, rate) =
            if write { (self.write, self.write_bytes_per_s) } else { (self.read, self.read_bytes_per_s) };
        pipe.take(ready, Span((f64::from(bytes) / rate * 1e9) as u64)) + latency
    }
}

/// The server of copy `copy` of a chunk.
pub fn chunk_server(disk: u32, chunk: u64, copy: usize) -> usize {
    let mixed = mix64(u64::from(disk) << 40 ^ chunk);
    (mixed as usize % SERVERS + copy * (1 + (mixed >> 32) as usize % (SERVERS - 1))) % SERVERS
}
