//! Invariants that no answer shows: of views that leave the metadata role, of leases, and of batches. They are checked after every
//! step of a search.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use rackweave_cloud::log::Kind;
use rackweave_cloud::msg::{Body, Packet};
use rackweave_cloud::types::EntryId;
use rackweave_cloud::view::{Member, View};
use rackweave_core::{Epoch, NodeId, Time};

use crate::world::{META, VOLUME, World};

/// Most heartbeats, and most reports, that a server sends in a heartbeat's time. Two nodes that answer each other at once do so without end
/// on a machine; in the search the links slow them down.
const AT_ONCE_MAX: u32 = 16;

enum Sent {
    View(Box<View>),
    /// What a sealed server has: entries that were given up.
    Report {
        member: Member,
        epoch: Epoch,
        voids: BTreeSet<EntryId>,
    },
    /// An owner has its copies take writes.
    Batch {
        from: NodeId,
        epoch: Epoch,
        segment: u32,
    },
}

/// Packets on their way.
#[derive(Default)]
pub(crate) struct Watch {
    sent: RefCell<Vec<Sent>>,
    /// Heartbeats and reports that servers sent since the last look.
    sent_lately: RefCell<BTreeMap<(NodeId, bool), u32>>,
}

impl Watch {
    pub fn note(&self, p: &Packet) {
        let (from, epoch) = (p.from, p.epoch);
        if let Body::Heartbeat { .. } | Body::Sealed { .. } = p.body {
            let is_report = matches!(p.body, Body::Sealed { .. });
            *self.sent_lately.borrow_mut().entry((from, is_report)).or_default() += 1;
        }
        let sent = match &p.body {
            Body::View(view) if from == META => Sent::View(view.clone()),
            Body::Sealed { incarnation, drive, metas, .. } => {
                let member = Member { node: from, incarnation: *incarnation, drive: *drive };
                let voids = metas.iter().filter(|m| m.kind == Kind::Void).map(|m| m.id).collect();
                Sent::Report { member, epoch, voids }
            }
            // What joins gets the last batch of the epochs before.
            Body::Replicate { segment, batch, joins: false, .. } if !batch.writes.is_empty() => {
                Sent::Batch { from, epoch, segment: *segment }
            }
            _ => return,
        };
        self.sent.borrow_mut().push(sent);
    }
}

#[derive(Default)]
pub(crate) struct Checks {
    /// The last view that left the metadata role.
    view: Option<Box<View>>,
    /// The role may have recorded a view that nobody has: it ended since the last one.
    unseen: bool,
    /// Reports of the epoch that begins.
    reports: BTreeMap<NodeId, (Member, Epoch, BTreeSet<EntryId>)>,
    broken: Option<String>,
    /// When the next look at what servers sent is due.
    look_at: Time,
}

impl Checks {
    fn view(&mut self, view: Box<View>) {
        let Some(last) = self.view.as_ref().filter(|_| self.broken.is_none()) else {
            self.view = Some(view);
            return;
        };
        let (known, new) = ((last.epoch, last.revision), (view.epoch, view.revision));
        if new == known && view != *last {
            self.broken = Some(format!("two views of epoch {}, revision {}", view.epoch, view.revision));
        }
        if new <= known {
            return;
        }
        if view.epoch > last.epoch {
            let own = |id: EntryId| id.generation == last.epoch || last.adopted.iter().any(|a| a.id == id);
            self.broken = if let Some(a) = view.adopted.iter().find(|a| !own(a.id)) {
                Some(format!("epoch {} adopts {:?}, which is dead since epoch {}", view.epoch, a.id, last.epoch))
            } else {
                self.given_up(&view).map(|id| format!("epoch {} adopts {id:?}, which was given up", view.epoch))
            };
            self.unseen = false;
            self.reports.clear();
        }
        self.view = Some(view);
    }
    /// An entry of the view that a server recorded as given up. It has the drive that it had in the view before.
    fn given_up(&self, view: &View) -> Option<EntryId> {
        let last = self.view.as_ref().filter(|_| !self.unseen)?;
        let same = |m: &Member| last.member(m.node).is_some_and(|l| l.drive == m.drive);
        let reports = view.servers.iter().filter(|m| same(m)).filter_map(|m| {
            self.reports.get(&m.node).filter(|(of, epoch, _)| (of, *epoch) == (m, view.epoch)).map(|r| (m.node, &r.2))
        });
        let counts = |n: NodeId, id: &EntryId| {
            id.generation == last.epoch || last.adopted.iter().any(|a| a.id == *id && a.copies.contains(&n))
        };
        let adopted: BTreeSet<EntryId> = view.adopted.iter().map(|a| a.id).collect();
        reports
            .flat_map(|(n, voids)| voids.iter().filter(move |id| counts(n, id)))
            .find(|id| adopted.contains(id))
            .copied()
    }
}

impl World {
    pub(crate) fn look_at_nodes(&mut self) {
        for sent in self.watch.sent.take() {
            match sent {
                Sent::View(view) => self.checks.view(view),
                Sent::Report { member, epoch, voids } => {
                    self.checks.reports.insert(member.node, (member, epoch, voids));
                }
                Sent::Batch { from, epoch, segment } => self.copies_take_writes(from, epoch, segment),
            }
        }
        if self.engine.now() >= self.checks.look_at {
            self.checks.look_at = self.engine.now() + self.config.heartbeat;
            let most = self.watch.sent_lately.take().into_iter().max_by_key(|(_, n)| *n);
            if let Some(((node, is_report), n)) = most.filter(|(_, n)| *n > AT_ONCE_MAX) {
                let what = if is_report { "reports" } else { "heartbeats" };
                self.checks.broken = Some(format!("{node} sent {n} {what} at once"));
            }
        }
        let Some(epoch) = self.checks.view.as_ref().map(|v| v.epoch) else { return };
        for n in &self.hosts.servers {
            let Some(server) = self.server(*n) else { continue };
            let behind = server.view(VOLUME).map(|v| v.epoch).filter(|e| *e < epoch);
            if let Some(old) = behind.filter(|_| server.is_leased(self.engine.local_time(*n))) {
                self.checks.broken = Some(format!("{n} serves epoch {old} while epoch {epoch} lasts"));
            }
        }
    }
    /// Holders only become more in an epoch (rule 4).
    fn copies_take_writes(&mut self, from: NodeId, epoch: Epoch, segment: u32) {
        let view = self.server(from).and_then(|s| s.view(VOLUME)).filter(|v| v.epoch == epoch);
        let few = view.map(|v| v.segments[segment as usize].holders.len()).filter(|n| *n < self.config.min_copies);
        if let Some(n) = few {
            self.checks.broken = Some(format!("segment {segment} takes writes with {n} copies"));
        }
    }
    pub(crate) fn meta_ended(&mut self) {
        self.checks.unseen = true;
        self.snapshots.meta_ended();
    }
    /// # Errors
    /// The invariant that was broken.
    pub(crate) fn sound(&self) -> Result<(), String> {
        let storage = self.storage.borrow();
        let broken = self.checks.broken.as_ref().or(storage.broken.as_ref()).or(self.snapshots.broken());
        broken.map_or(Ok(()), |e| Err(e.clone()))
    }
}
