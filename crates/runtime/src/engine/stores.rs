//! Durable writes of the metadata service in transit to its store.

use std::collections::VecDeque;

use rackweave_core::node::{STORES_MAX, StoreWrite};
use rackweave_core::{Event, NodeId};
use rackweave_device::FileIo;

use super::{Engine, Nodes};
use crate::store::{MetaStore, StoreError, StoreEvent};

#[derive(Debug, Default)]
pub(super) struct Writes {
    /// Nodes and tags of the pending writes, oldest first.
    under_way: VecDeque<(NodeId, u64)>,
    no_room: Option<StoreError>,
    failed: Option<StoreError>,
    /// The problem last reported to the metadata service.
    problem: Option<String>,
    news: bool,
}

impl<N: Nodes, F: FileIo, M: MetaStore> Engine<N, F, M> {
    pub(super) fn begin_write(&mut self, node: NodeId, w: StoreWrite) {
        self.writes.under_way.push_back((node, w.tag));
        debug_assert!(self.writes.under_way.len() <= STORES_MAX);
        self.store.begin(w.entries);
        self.poll_store();
    }

    /// Collects the results of pending writes.
    pub(super) fn poll_store(&mut self) {
        let w = &mut self.writes;
        let before = w.no_room.is_some() || w.failed.is_some();
        while w.failed.is_none() && !w.under_way.is_empty() {
            match self.store.poll() {
                Some(StoreEvent::Stored) => {
                    w.no_room = None;
                    let stored = w.under_way.pop_front();
                    self.queue.extend(stored.map(|(node, tag)| (node, Event::Stored { tag })));
                }
                Some(StoreEvent::NoRoom(e)) => w.no_room = Some(e),
                Some(StoreEvent::Failed(e)) => w.failed = Some(e),
                None => break,
            }
        }
        if before != (w.no_room.is_some() || w.failed.is_some()) {
            self.look_at_store();
        }
    }

    /// Reports to the metadata service whether it may store changes.
    pub fn look_at_store(&mut self) {
        let w = &mut self.writes;
        let error = w.failed.as_ref().or(w.no_room.as_ref());
        let problem = error.map(ToString::to_string).or_else(|| self.store.problem());
        w.news |= problem.is_some() != w.problem.is_some();
        w.problem = problem;
        self.nodes.set_store_full(w.problem.as_deref());
    }
    /// True once after the problem has changed.
    pub fn take_store_news(&mut self) -> bool {
        std::mem::take(&mut self.writes.news)
    }
    /// Why the metadata service cannot or should not store changes.
    pub fn store_problem(&self) -> Option<&str> {
        self.writes.problem.as_deref()
    }
    /// Whether the store has failed and takes no further write.
    pub fn store_failed(&self) -> bool {
        self.writes.failed.is_some()
    }
    /// The reason for the failure, once.
    pub fn take_store_failure(&mut self) -> Option<StoreError> {
        self.writes.failed.take()
    }
}
