//! Faults of the host's files that hold the drives: no space, I/O errors.
//!
//! A command that finds no room on the host's disk is kept and retried unchanged every [`ROOM_RETRY`]. Later commands
//! that change the drive, and syncs, wait behind it in order. Reads go on. The server reports no room, and admits no
//! block that needs a page until there is some. If that takes longer than a lease, its sets go on without it where
//! enough other members are left. An fdatasync that fails is final, whatever the reason (protocol rule 12).

use std::collections::VecDeque;
use std::io;

use rackweave_core::device::{Backend, DeviceError, DeviceOp};
use rackweave_core::{Event, NodeId, Span, Time};
use rackweave_device::{FileIo, FileSsd};

use super::{Engine, Nodes, Waiting};
use crate::store::MetaStore;

/// Retry interval on a full disk.
pub const ROOM_RETRY: Span = Span::from_millis(250);

/// Fault of a drive's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostFault {
    /// The host's disk is full; commands that change the drive wait.
    NoRoom,
    /// A write or an fdatasync failed: the drive is not used until its server starts again.
    Failed { os_error: i32 },
}

impl HostFault {
    /// Text for users; `file` is the drive's file.
    pub fn words(self, file: &str) -> String {
        match self {
            HostFault::NoRoom => format!(
                "{file}: no space left on the host's disk. Writes wait, writes of new blocks fail (ENOSPC), reads go on. The \
                 drive resumes when space is free"
            ),
            HostFault::Failed { os_error } => format!(
                "{file}: a write or sync failed ({}). The drive is not used until its server restarts; its sets go on with other members",
                io::Error::from_raw_os_error(os_error)
            ),
        }
    }
}

/// State of the host file of one drive.
#[derive(Debug)]
pub(super) struct Host {
    /// Commands that wait for room, oldest first.
    held: VecDeque<Waiting>,
    /// A sync found no room.
    pub sync_waits: bool,
    retry_at: Time,
    fault: Option<HostFault>,
    /// Number of failed reads, and the error of the last.
    reads_failed: (u64, i32),
}

impl Host {
    pub fn new() -> Host {
        Host { held: VecDeque::new(), sync_waits: false, retry_at: Time::MAX, fault: None, reads_failed: (0, 0) }
    }
    /// Drops everything that waits for the drive.
    pub fn forget(&mut self) {
        (self.held, self.sync_waits, self.retry_at) = (VecDeque::new(), false, Time::MAX);
    }
    pub fn retry_at(&self) -> Time {
        self.retry_at
    }
}

fn is_read(op: &DeviceOp) -> bool {
    matches!(
        op,
        DeviceOp::ReadSlot { .. }
            | DeviceOp::ReadSlots { .. }
            | DeviceOp::ReadPage { .. }
            | DeviceOp::ReadSpares { .. }
            | DeviceOp::ReadOob { .. }
            | DeviceOp::ReadMeta { .. }
    )
}

impl<N: Nodes, F: FileIo, M: MetaStore> Engine<N, F, M> {
    pub(super) fn execute(&mut self, now: Time, place: usize, w: Waiting) {
        let d = &mut self.devices[place];
        // A server that has ended reports nothing.
        let Some(file) = &mut d.file else { return };
        let read = is_read(&w.command.op);
        if !read && !d.host.held.is_empty() && !mutant!("runtime.host.overtakes") {
            return d.host.held.push_back(w);
        }
        match file.execute(&w.command.op) {
            Err(DeviceError::NoSpace) if !mutant!("runtime.host.full-is-final") => {
                let node = w.node;
                d.host.held.push_back(w);
                self.no_room(now, place, node);
            }
            result => {
                if let Err(DeviceError::Backend { os_error }) = result {
                    self.host_failed(place, read, os_error);
                }
                self.complete(now, w.node, &w.command, result);
            }
        }
    }

    /// A sync found no room, before its fdatasync or for the write after it; all of it is repeated.
    pub(super) fn sync_waits(&mut self, now: Time, place: usize, mut waiting: Vec<Waiting>) {
        let Some(node) = waiting.first().map(|w| w.node) else { return };
        let syncs = &mut self.devices[place].syncs;
        waiting.append(&mut syncs.next);
        syncs.next = waiting;
        self.devices[place].host.sync_waits = true;
        self.no_room(now, place, node);
    }

    fn no_room(&mut self, now: Time, place: usize, node: NodeId) {
        let host = &mut self.devices[place].host;
        host.retry_at = host.retry_at.min(now + ROOM_RETRY);
        if host.fault.is_none() {
            self.set_host_fault(now, place, node, Some(HostFault::NoRoom));
        }
    }

    fn set_host_fault(&mut self, now: Time, place: usize, node: NodeId, fault: Option<HostFault>) {
        self.devices[place].host.fault = fault;
        let server = self.first_ssd + place as u32;
        self.host_news.push((server, fault));
        self.nodes.set_host_room(now, server, fault.is_none());
        self.queue.push_back((node, Event::Timer));
    }

    /// Retries the commands that found no room.
    pub(super) fn retry_hosts(&mut self, now: Time) {
        for place in 0..self.devices.len() {
            let host = &mut self.devices[place].host;
            if host.retry_at > now {
                continue;
            }
            (host.retry_at, host.sync_waits) = (Time::MAX, false);
            let mut node = None;
            while let Some(w) = self.devices[place].host.held.pop_front() {
                node = Some(w.node);
                let waited = std::mem::take(&mut self.devices[place].host.held);
                self.execute(now, place, w);
                self.devices[place].host.held.extend(waited);
                if self.devices[place].host.retry_at != Time::MAX {
                    break;
                }
            }
            node = node.or(self.devices[place].syncs.next.first().map(|w| w.node));
            self.start_syncs(now);
            let host = &self.devices[place].host;
            if let (Some(node), Some(HostFault::NoRoom), Time::MAX) = (node, host.fault, host.retry_at) {
                self.set_host_fault(now, place, node, None);
            }
        }
    }

    pub(super) fn host_failed(&mut self, place: usize, read: bool, os_error: i32) {
        let host = &mut self.devices[place].host;
        if read {
            host.reads_failed = (host.reads_failed.0 + 1, os_error);
        } else if !matches!(host.fault, Some(HostFault::Failed { .. })) {
            let fault = Some(HostFault::Failed { os_error });
            host.fault = fault;
            self.host_news.push((self.first_ssd + place as u32, fault));
        }
    }

    /// The fault of this server's drive file, if the drive is here.
    pub fn drive_fault(&self, server: u32) -> Option<HostFault> {
        self.devices.get(server.wrapping_sub(self.first_ssd) as usize).and_then(|d| d.host.fault)
    }
    /// Servers whose drive's fault has changed.
    pub fn take_host_news(&mut self) -> Vec<(u32, Option<HostFault>)> {
        std::mem::take(&mut self.host_news)
    }
    /// Failed reads since the last call: server, number, and error of the last.
    pub fn take_reads_failed(&mut self) -> Vec<(u32, u64, i32)> {
        let take = |d: &mut super::Device<F>| std::mem::take(&mut d.host.reads_failed);
        let all = (self.first_ssd..).zip(self.devices.iter_mut().map(take));
        all.filter(|(_, (n, _))| *n > 0).map(|(server, (n, os_error))| (server, n, os_error)).collect()
    }

    /// Writes the devices' buffered data to the file system, so that only a power cut can lose it. A device that fails
    /// to do so keeps its data; its next sync reports the failure.
    pub fn write_back(&mut self) {
        for file in self.devices.iter_mut().filter(|d| !d.dead).filter_map(|d| d.file.as_mut()) {
            let _ = FileSsd::write_tails(file);
        }
    }
}
