//! The nodes of a rack with their packets, timers, device commands and durable writes, on any clock. Packets for nodes
//! in other processes wait in [`Engine::take_outbound`].
//!
//! [`Engine`] takes the time and runs what is due. The loop around it ([`super::event_loop`]) waits, polls sockets and
//! finishes syncs. Tests drive it directly, in virtual time, over recording files.

mod faults;
mod host;
mod stores;

use faults::Links;
pub use faults::Stopped;
use host::Host;
pub use host::{HostFault, ROOM_RETRY};
use rackweave_transport::Keys;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::os::fd::RawFd;
use stores::Writes;

use rackweave_core::device::{Completion, DeviceCommand, DeviceData, DeviceError, DeviceOp};
use rackweave_core::msg::Packet;
use rackweave_core::request::{Reply, Request};
use rackweave_core::trace::Coverage;
use rackweave_core::{DriveId, Effects, Event, Layout, NodeId, RackId, SsdId, Time};

use super::control::PolicyState;
use super::network::Local;
use super::policy::PolicyError;
use super::store::MetaStore;
use rackweave_config::policy::Policy;
use rackweave_device::{FileIo, FileSsd, OpenError, SyncTicket};
use rackweave_rack::build::BuildError;

/// Events handled before the loop polls its sockets again.
pub const EVENTS_PER_TURN: usize = 4096;

/// The nodes that run in this process.
pub trait Nodes {
    /// Called only for hosted nodes.
    fn handle(&mut self, node: NodeId, now: Time, event: Event, fx: &mut Effects);
    /// A node ends at once, as if its process had been killed.
    fn end(&mut self, _node: NodeId) {}
    /// Sets the drive of the server with this device; called before the server starts.
    fn set_drive(&mut self, _server: u32, _drive: DriveId) {}
    /// Sets the wall clock at time zero, in milliseconds since 1970. The nodes are woken afterwards.
    fn set_unix_ms_at_zero(&mut self, _ms: u64) {}
    /// Whether the host's disk has room for writes to this server's drive.
    fn set_host_room(&mut self, _now: Time, _server: u32, _room: bool) {}
    /// Whether the metadata service may store changes; `Some` is the reason why not.
    fn set_store_full(&mut self, _why: Option<&str>) {}
    /// Whether a node that ended may start again; checked before its device is opened.
    fn may_begin(&self, _node: NodeId) -> Result<(), BuildError> {
        Ok(())
    }
    /// Starts a node again after it ended, with the contents of its device.
    fn begin(&mut self, node: NodeId) -> Result<(), BuildError> {
        Err(BuildError::NotHere { node })
    }
    /// The cluster keys have changed.
    fn set_keys(&mut self, _keys: &Keys) {}
    /// Number of nodes in the rack, in all processes. All ids are below it.
    fn count(&self) -> u32;
    /// The rack's table of nodes.
    fn layout(&self) -> Layout {
        Layout::new(0, self.count())
    }
    /// The policy of the nodes here, and the keys that differ from it.
    fn policy(&self) -> Option<PolicyState> {
        None
    }
    /// Changes the policy; returns what differs. The affected nodes are woken afterwards.
    fn set_policy(&mut self, _now: Time, _policy: Policy) -> Result<Vec<String>, PolicyError> {
        Err(PolicyError::Nobody)
    }
    /// Whether `node` runs here.
    fn hosts(&self, node: NodeId) -> bool {
        node.0 < self.count()
    }
}

/// A completion that waits for its time; ordered by time, then by age.
#[derive(Debug)]
struct Due {
    at: Time,
    sequence: u64,
    node: NodeId,
    completion: Completion,
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Due) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// A sync whose completion a node waits for.
#[derive(Debug)]
struct Waiting {
    node: NodeId,
    command: DeviceCommand,
}

/// Syncs of one device. One fdatasync runs at a time; all syncs submitted meanwhile share the next.
#[derive(Debug, Default)]
struct SyncQueue {
    running: Option<(SyncTicket, Vec<Waiting>)>,
    next: Vec<Waiting>,
}

#[derive(Debug)]
struct Device<F> {
    /// `None` after its server has ended.
    file: Option<FileSsd<F>>,
    syncs: SyncQueue,
    host: Host,
    /// Its server has ended.
    dead: bool,
}

impl<F> Device<F> {
    fn new(file: FileSsd<F>) -> Device<F> {
        Device { file: Some(file), syncs: SyncQueue::default(), host: Host::new(), dead: false }
    }
}

/// An fdatasync for the loop to run outside the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncJob {
    /// Device number for [`Engine::sync_finished`].
    pub device: usize,
    pub fd: RawFd,
}

pub struct Engine<N, F, M> {
    pub nodes: N,
    pub store: M,
    devices: Vec<Device<F>>,
    /// SSD of `devices[0]`; further devices follow in order.
    first_ssd: u32,
    queue: VecDeque<(NodeId, Event)>,
    /// Packets for nodes in other processes.
    outbound: Vec<Packet>,
    /// Timer of each node; nodes elsewhere have none.
    wakes: Vec<Time>,
    due: BinaryHeap<Reverse<Due>>,
    sequence: u64,
    fx: Effects,
    replies: Vec<Reply>,
    jobs: Vec<SyncJob>,
    host_news: Vec<(u32, Option<HostFault>)>,
    writes: Writes,
    counts: Coverage,
    links: Links,
}

impl<N: Nodes, F: FileIo, M: MetaStore> Engine<N, F, M> {
    /// `devices[i]` is the device of SSD `i`. The first [`Engine::run`] boots every node.
    pub fn new(nodes: N, devices: Vec<FileSsd<F>>, store: M) -> Engine<N, F, M> {
        Engine::with_ssds_from(SsdId(0), nodes, devices, store)
    }

    /// As [`Engine::new`], but `devices[i]` is the device of SSD `first + i`.
    pub fn with_ssds_from(first: SsdId, mut nodes: N, devices: Vec<FileSsd<F>>, store: M) -> Engine<N, F, M> {
        (first.0..).zip(&devices).for_each(|(i, d)| nodes.set_drive(i, d.drive_id()));
        let (n, layout) = (nodes.count(), nodes.layout());
        let queue = (0..n).map(NodeId).filter(|&i| nodes.hosts(i)).map(|i| (i, Event::Timer)).collect();
        Engine {
            nodes,
            store,
            devices: devices.into_iter().map(Device::new).collect(),
            first_ssd: first.0,
            queue,
            outbound: Vec::new(),
            wakes: vec![Time::MAX; n as usize],
            due: BinaryHeap::new(),
            sequence: 0,
            fx: Effects::new(),
            replies: Vec::new(),
            jobs: Vec::new(),
            host_news: Vec::new(),
            writes: Writes::default(),
            counts: Coverage::default(),
            links: Links::new(layout),
        }
    }

    /// Assigns the drives to this rack, durably; true if one of them belonged to none before.
    pub fn adopt(&mut self, rack: RackId) -> Result<bool, OpenError> {
        let mut files = self.devices.iter_mut().filter_map(|d| d.file.as_mut());
        files.try_fold(false, |any, f| Ok(f.adopt(rack)? || any))
    }

    /// Queues a request for a node; [`Engine::run`] delivers it.
    pub fn submit(&mut self, node: NodeId, request: Request) {
        self.queue.push_back((node, Event::Request(request)));
    }

    /// Changes the policy of the nodes here; returns what differs.
    pub fn set_policy(&mut self, now: Time, policy: Policy) -> Result<Vec<String>, PolicyError> {
        let changes = self.nodes.set_policy(now, policy)?;
        self.wake_all();
        Ok(changes)
    }
    /// Sets the wall clock at time zero, in milliseconds since 1970, for all nodes here.
    pub fn set_unix_ms_at_zero(&mut self, ms: u64) {
        self.nodes.set_unix_ms_at_zero(ms);
        self.wake_all();
    }
    fn wake_all(&mut self) {
        let here = (0..self.nodes.count()).map(NodeId).filter(|&n| self.nodes.hosts(n));
        self.queue.extend(here.map(|n| (n, Event::Timer)));
    }

    /// Delivers what is due at `now` and its consequences, at most [`EVENTS_PER_TURN`] events. False if more is ready.
    pub fn run(&mut self, now: Time) -> bool {
        self.poll_store();
        if self.host_retry() <= now {
            self.retry_hosts(now);
        }
        while self.due.peek().is_some_and(|d| d.0.at <= now) {
            let Some(Reverse(d)) = self.due.pop() else { break };
            self.queue.push_back((d.node, Event::Completion(d.completion)));
        }
        for i in 0..self.wakes.len() {
            if self.wakes[i] <= now {
                self.wakes[i] = Time::MAX;
                self.queue.push_back((NodeId(i as u32), Event::Timer));
            }
        }
        for _ in 0..EVENTS_PER_TURN {
            let Some((node, event)) = self.queue.pop_front() else { return true };
            self.handle(now, node, event);
        }
        self.queue.is_empty()
    }

    fn handle(&mut self, now: Time, node: NodeId, event: Event) {
        let mut fx = std::mem::take(&mut self.fx);
        fx.clear();
        self.nodes.handle(node, now, event, &mut fx);
        if let Some(at) = fx.take_wake() {
            self.wakes[node.0 as usize] = at;
        }
        let nodes = self.wakes.len() as u32;
        for p in fx.packets.drain(..) {
            if self.links.lose(&p) {
                continue;
            }
            let to = p.dst.first_hop();
            if self.nodes.hosts(to) {
                self.queue.push_back((to, Event::Packet(p)));
            } else if to.0 < nodes {
                self.outbound.push(p);
            }
        }
        for c in fx.commands.drain(..) {
            self.command(now, node, c);
        }
        for w in fx.stores.drain(..) {
            self.begin_write(node, w);
        }
        self.replies.append(&mut fx.replies);
        for t in fx.traces.drain(..) {
            self.counts.count(t.point);
        }
        self.fx = fx;
    }

    fn command(&mut self, now: Time, node: NodeId, command: DeviceCommand) {
        let place = command.ssd.0.wrapping_sub(self.first_ssd) as usize;
        let Some(device) = self.devices.get_mut(place) else {
            let result = Err(DeviceError::Backend { os_error: libc::ENODEV });
            return self.complete(now, node, &command, result);
        };
        if matches!(command.op, DeviceOp::Sync) {
            device.syncs.next.push(Waiting { node, command });
            return self.start_syncs(now);
        }
        self.execute(now, place, Waiting { node, command });
    }

    fn complete(&mut self, now: Time, node: NodeId, c: &DeviceCommand, result: Result<DeviceData, DeviceError>) {
        let completion = Completion { ssd: c.ssd, tag: c.tag, result };
        if c.done_at <= now {
            self.queue.push_back((node, Event::Completion(completion)));
            return;
        }
        self.sequence += 1;
        self.due.push(Reverse(Due { at: c.done_at, sequence: self.sequence, node, completion }));
    }

    /// Starts the waiting syncs of every device without a running one.
    fn start_syncs(&mut self, now: Time) {
        for i in 0..self.devices.len() {
            let d = &mut self.devices[i];
            if d.syncs.running.is_some() || d.syncs.next.is_empty() || d.host.sync_waits {
                continue;
            }
            let Some(file) = &mut d.file else { continue };
            let waiting = std::mem::take(&mut d.syncs.next);
            match (file.begin_sync(), file.sync_fd()) {
                (Ok(ticket), Some(fd)) => {
                    d.syncs.running = Some((ticket, waiting));
                    self.jobs.push(SyncJob { device: i, fd });
                }
                (Ok(ticket), None) => {
                    let result = file.sync_blocking(ticket);
                    self.answer_syncs(now, i, waiting, result);
                }
                (Err(e), _) => self.answer_syncs(now, i, waiting, Err(e)),
            }
        }
    }

    fn answer_syncs(&mut self, now: Time, place: usize, waiting: Vec<Waiting>, result: Result<(), DeviceError>) {
        match result {
            Err(DeviceError::NoSpace) if !mutant!("runtime.host.full-is-final") => {
                return self.sync_waits(now, place, waiting);
            }
            Err(DeviceError::Backend { os_error }) => self.host_failed(place, false, os_error),
            _ => {}
        }
        for w in waiting {
            self.complete(now, w.node, &w.command, result.map(|()| DeviceData::None));
        }
    }

    /// fdatasyncs to run outside the engine; each is answered with [`Engine::sync_finished`].
    pub fn take_jobs(&mut self) -> std::vec::Drain<'_, SyncJob> {
        self.jobs.drain(..)
    }

    pub fn sync_finished(&mut self, now: Time, device: usize, result: io::Result<()>) {
        let Some(d) = self.devices.get_mut(device) else { return };
        let Some((ticket, waiting)) = d.syncs.running.take() else { return };
        if d.dead {
            d.file = None;
            return;
        }
        let Some(file) = &mut d.file else { return };
        let result = file.finish_sync(ticket, result);
        self.answer_syncs(now, device, waiting, result);
        self.start_syncs(now);
    }

    /// When [`Engine::run`] has work next if nothing arrives from outside.
    pub fn next_deadline(&self) -> Option<Time> {
        if !self.queue.is_empty() {
            return Some(Time::ZERO);
        }
        let wake = self.wakes.iter().copied().min().unwrap_or(Time::MAX);
        let due = self.due.peek().map_or(Time::MAX, |d| d.0.at);
        Some(wake.min(due).min(self.host_retry())).filter(|&t| t != Time::MAX)
    }
    /// When a drive next retries the commands that found no room.
    fn host_retry(&self) -> Time {
        self.devices.iter().map(|d| d.host.retry_at()).min().unwrap_or(Time::MAX)
    }

    pub fn take_replies(&mut self, into: &mut Vec<Reply>) {
        into.append(&mut self.replies);
    }

    /// Number of reports of each trace point since the start.
    pub fn counts(&self) -> &Coverage {
        &self.counts
    }

    /// Whether no sync is running.
    pub fn syncs_idle(&self) -> bool {
        self.devices.iter().all(|d| d.syncs.running.is_none())
    }

    /// Closes the devices: everything is durable, and the next start need not check them. Devices of servers that have
    /// ended are left as they are.
    pub fn close(self) -> Vec<Result<(), DeviceError>> {
        let close = |d: Device<F>| d.file.filter(|_| !d.dead).map_or(Ok(()), FileSsd::close);
        self.devices.into_iter().map(close).collect()
    }
}

impl<N: Nodes, F: FileIo, M: MetaStore> Local for Engine<N, F, M> {
    fn take_outbound(&mut self) -> std::vec::Drain<'_, Packet> {
        self.outbound.drain(..)
    }

    fn deliver(&mut self, packet: Packet) {
        let node = packet.dst.first_hop();
        if self.nodes.hosts(node) && !self.links.lose(&packet) {
            self.queue.push_back((node, Event::Packet(packet)));
        }
    }

    /// Delivered ahead of the queue: packets through a switch must not wait behind other nodes' work.
    fn pass(&mut self, now: Time, packet: Packet) {
        let node = packet.dst.first_hop();
        if self.nodes.hosts(node) && !self.links.lose(&packet) {
            self.handle(now, node, Event::Packet(packet));
        }
    }
}

/// The node that takes administration requests if the metadata service runs here.
pub const ADMIN: NodeId = Layout::META;

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
