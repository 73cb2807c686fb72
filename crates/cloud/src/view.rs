//! A volume's view: who serves it in one epoch (rules 1 and 25).
//!
//! One epoch covers a volume's client, log servers, merger and proxies. It changes when a client attaches, when a server is
//! lost or restarts, and when one comes back; each change seals all servers and decides what becomes of every log entry.

use rackweave_core::{DriveId, Epoch, Incarnation, NodeId, VolumeId};

use crate::types::{EntryId, Extent, Serial};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub drive: DriveId,
}

/// The copies of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The holder that serves it: the segment's proxy.
    pub owner: NodeId,
    /// They have all that was acknowledged.
    pub holders: Vec<NodeId>,
    /// They get every batch, and are filled.
    pub joining: Vec<NodeId>,
}

impl Placement {
    pub fn members(&self) -> impl Iterator<Item = NodeId> {
        self.holders.iter().chain(&self.joining).copied()
    }
}

/// A log entry of an earlier epoch that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopted {
    pub id: EntryId,
    pub extent: Extent,
    pub copies: Vec<NodeId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub volume: VolumeId,
    pub epoch: Epoch,
    /// Counts changes within the epoch: copies that were filled.
    pub revision: u32,
    pub client: NodeId,
    pub client_incarnation: Incarnation,
    /// Every server that answered, in the order of the log's sub-logs.
    pub servers: Vec<Member>,
    pub merger: NodeId,
    pub segments: Vec<Placement>,
    /// Entries of earlier epochs that count; all others are dead for good.
    pub adopted: Vec<Adopted>,
    /// The epoch's first serial.
    pub next: Serial,
}

impl View {
    pub fn member(&self, n: NodeId) -> Option<&Member> {
        self.servers.iter().find(|m| m.node == n)
    }
    /// The servers that have an entry of this epoch: sub-log `k mod n`, and the next as the second copy.
    pub fn pair(&self, serial: Serial, copies: usize) -> impl Iterator<Item = NodeId> {
        let n = self.servers.len();
        let first = (serial.0 % n as u64) as usize;
        (0..copies.min(n)).map(move |i| self.servers[(first + i) % n].node)
    }
    /// The servers that have an entry, of whichever epoch.
    pub fn copies(&self, id: EntryId, copies: usize) -> Vec<NodeId> {
        match self.adopted.iter().find(|a| a.id == id) {
            Some(a) => a.copies.clone(),
            None => self.pair(id.serial, copies).collect(),
        }
    }
}
