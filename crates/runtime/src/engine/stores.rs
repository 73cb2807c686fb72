//! Durable writes of the metadata service, on their way to its store.

use std::collections::VecDeque;

use rackweave_core::node::{STORES_MAX, StoreWrite};
use rackweave_core::{Event, NodeId};
use rackweave_device::FileIo;

use super::{Engine, Nodes};
use crate::store::{MetaStore, StoreError, StoreEvent};

#[derive(Debug, Default)]
pub(super) struct Writes {
    /// Their nodes and tags, in their order.
    under_way: VecDeque<(NodeId, u64)>,
    no_room: Option<StoreError>,
    failed: Option<StoreError>,
    /// What the metadata service knows.
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

    /// Takes in what became of the writes under way.
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

    /// Reports to the metadata service whether it may write.
    pub fn look_at_store(&mut self) {
        let w = &mut self.writes;
        let error = w.failed.as_ref().or(w.no_room.as_ref());
        let problem = error.map(ToString::to_string).or_else(|| self.store.problem());
        w.news |= problem.is_some() != w.problem.is_some();
        w.problem = problem;
        self.nodes.set_store_full(w.problem.as_deref());
    }
    /// True once after that has changed.
    pub fn take_store_news(&mut self) -> bool {
        std::mem::take(&mut self.writes.news)
    }
    /// Why the metadata service cannot write, or should not.
    pub fn store_problem(&self) -> Option<&str> {
        self.writes.problem.as_deref()
    }
    /// The store takes no write any more.
    pub fn store_failed(&self) -> bool {
        self.writes.failed.is_some()
    }
    /// Why.
    pub fn take_store_failure(&mut self) -> Option<StoreError> {
        self.writes.failed.take()
    }
}
