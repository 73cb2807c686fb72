//! Edits between starts (protocol rule 30): the rack stops, something is edited, and it starts. What must be refused is
//! refused with its reason, and what is accepted is harmless. Then the rack stops, the edit is undone, and it starts
//! again.

use std::sync::Arc;

use bytes::Bytes;
use rackweave_config::fixed;
use rackweave_core::{Layout, NodeId, NodeKind, Span};
use rackweave_flash::table;
use rackweave_rack::build;
use rackweave_rack::sim::{Drive, Edited, Sim, SimConfig};

use super::{Agenda, Run};
use crate::fault::edit::{Edit, Refusal, Wanted};
use crate::fault::plan::Fault;
use crate::fault::report::Failure;
use crate::fault::workload::Kind;

/// Runtime of the rack that a foreign drive comes from, until its drives have served.
const FOREIGN_SPAN: Span = Span::from_millis(400);
/// Offset of the first vSSD in a copy of a drive table.
const TABLE_ENTRY: u64 = 128;

/// Drives and store as of an earlier edit.
type Older = (Vec<Drive>, Vec<(Bytes, Bytes)>);

/// Edits of a run.
#[derive(Default)]
pub(super) struct Edits {
    now: Option<UnderWay>,
    older: Option<Older>,
}

struct UnderWay {
    fault: usize,
    /// The edited start has run; the next step undoes the edit.
    tried: bool,
    /// Why no node started.
    refusal: Option<Refusal>,
    /// Drives to put back.
    drives: Vec<(u32, Drive)>,
    store: Option<Vec<(Bytes, Bytes)>>,
}

impl Run<'_> {
    /// Whether drives are edited: they must not be failed or replaced meanwhile.
    pub(super) fn is_edited(&self) -> bool {
        self.edits.now.is_some()
    }

    fn edit_of(&self, i: usize) -> Option<(Edit, bool, u64)> {
        match self.plan.faults[i].fault {
            Fault::Edit { edit, servers_only, tried_ms, .. } => Some((edit, servers_only, tried_ms)),
            _ => None,
        }
    }

    fn nodes_of_rack(&self) -> Vec<NodeId> {
        let layout = self.sim.engine().layout();
        let servers = layout.ids(NodeKind::Server).iter().copied().take(self.plan.params.servers as usize);
        [Layout::META].into_iter().chain(layout.switches()).chain(servers).collect()
    }

    fn stop_rack(&mut self) {
        self.servers_down(&(0..self.plan.params.servers).collect::<Vec<_>>(), false);
        self.sim.engine().layout().switches().for_each(|s| self.node_down(s));
        self.node_down(Layout::META);
    }

    /// Stops the rack and makes the edit; false if that is not possible now.
    pub(super) fn begin_edit(&mut self, i: usize) -> bool {
        let Some((edit, servers_only, _)) = self.edit_of(i) else { return false };
        let free = self.edits.now.is_none() && !self.breakage.is_broken() && self.down.is_empty();
        let granting = edit == Edit::OlderStore && self.pending.values().any(|p| p.kind == Kind::Attach);
        if !free || granting || !self.watch.all_full(&self.sim) || !self.all_have_served() {
            return false;
        }
        self.stop_rack();
        let present = self.files();
        let older = self.edits.older.take();
        let mut now = UnderWay { fault: i, tried: false, refusal: None, drives: Vec::new(), store: None };
        self.apply(edit, servers_only, &present.0, older.as_ref(), &mut now);
        self.edits.older = Some(present);
        self.edits.now = Some(now);
        true
    }

    /// Whether each server got an incarnation from the present store, and its drive holds it.
    fn all_have_served(&self) -> bool {
        (0..self.plan.params.servers).all(|i| {
            let known = self.sim.server(i).map(|s| (s.ssd().table().incarnation, s.incarnation().0));
            known.is_some_and(|(drive, incarnation)| drive == incarnation && incarnation > 0)
        })
    }

    fn files(&mut self) -> (Vec<Drive>, Vec<(Bytes, Bytes)>) {
        let drives = (0..self.plan.params.servers).filter_map(|i| self.sim.drive(i)).collect();
        (drives, self.sim.engine().saved(Layout::META))
    }

    fn apply(&mut self, edit: Edit, servers_only: bool, drives: &[Drive], older: Option<&Older>, now: &mut UnderWay) {
        if let Some(config) = edit.config(self.sim.config()) {
            return self.sim.edit(Some(Edited { config: Arc::new(config), servers_only }));
        }
        let drive = |i: u32| drives[i as usize].clone();
        let mut put = |run: &mut Self, i: u32, d: Drive| {
            now.drives.push((i, drive(i)));
            run.sim.put_drive(i, d);
        };
        match edit {
            Edit::Swapped { a, b } => {
                put(self, a, drive(b));
                put(self, b, drive(a));
            }
            Edit::Doubled { from, to } => put(self, to, drive(from)),
            Edit::MixedUp { a, b } => {
                put(self, a, Drive { id: drive(a).id, disk: drive(b).disk });
                put(self, b, Drive { id: drive(b).id, disk: drive(a).disk });
            }
            Edit::Foreign { server } => {
                if let Some(d) = self.foreign(server) {
                    put(self, server, d);
                }
            }
            Edit::OlderDrive { server } => {
                // Another drive may have replaced it since.
                let same = |o: &&(Vec<Drive>, _)| o.0[server as usize].id == drive(server).id;
                if let Some((older, _)) = older.filter(same) {
                    put(self, server, older[server as usize].clone());
                }
            }
            Edit::OlderStore => {
                if let Some((_, store)) = older {
                    now.store = Some(self.sim.engine().saved(Layout::META));
                    self.sim.engine_mut().put_saved(Layout::META, store.clone());
                }
            }
            Edit::Table { server, both } => {
                let Ok(profile) = build::profile(self.sim.config()) else { return };
                let copy = table::copy_bytes(&profile.geometry);
                let mut d = drive(server);
                let first = self.rng.below(2);
                let copies = if both { vec![0, 1] } else { vec![first] };
                copies.iter().for_each(|n| d.disk.flip_meta(n * copy + TABLE_ENTRY + 8, 4));
                put(self, server, d);
            }
            _ => {}
        }
    }

    /// A drive that has served in another rack with this configuration.
    fn foreign(&self, server: u32) -> Option<Drive> {
        let contents = rackweave_rack::sim::Contents::Memory;
        let config = SimConfig { contents, ..SimConfig::new(!self.plan.seed) };
        let mut other = Sim::new(self.sim.config(), config).ok()?;
        other.run_until(other.now() + FOREIGN_SPAN);
        other.crash(self.node_of(server));
        other.drive(server)
    }

    /// The fault's next step: the start with the edit, or its end.
    pub(super) fn next_of_edit(&mut self, i: usize) -> Result<(), Failure> {
        let Some((edit, servers_only, tried_ms)) = self.edit_of(i) else { return Ok(()) };
        let Some(now) = self.edits.now.as_mut().filter(|n| n.fault == i) else { return Ok(()) };
        if std::mem::replace(&mut now.tried, true) {
            return self.undo_edit();
        }
        self.start_edited(edit, servers_only);
        self.plan_at(self.sim.now() + Span::from_millis(tried_ms), Agenda::Over(i));
        Ok(())
    }

    /// Starts every node that nothing else keeps down, unless the metadata service refuses its configuration.
    fn start_edited(&mut self, edit: Edit, servers_only: bool) {
        let lifted: Vec<NodeId> = self.nodes_of_rack().into_iter().filter(|&n| self.lift(n)).collect();
        let kept = self.sim.config();
        let edited = edit.config(kept).filter(|_| !servers_only);
        if let Some(key) = edited.and_then(|c| fixed::changed(kept, &c)) {
            return self.refuse_start(Refusal::Fixed(key));
        }
        for n in lifted {
            if let Err(e) = self.sim.restart(n) {
                return self.refuse_start(e.into());
            }
        }
    }

    /// A node does not start: the others end too, as in one process, until the edit is undone.
    pub(super) fn refuse_start(&mut self, why: Refusal) {
        for n in self.nodes_of_rack() {
            self.end(n);
            *self.down.entry(n).or_default() += 1;
        }
        if let Some(now) = &mut self.edits.now {
            now.refusal = Some(why);
        }
    }

    /// Whether the metadata service runs with an older store: its grants are reverted when the edit is undone.
    pub(super) fn store_is_older(&self) -> bool {
        self.edits.now.as_ref().is_some_and(|n| n.store.is_some())
    }

    fn undo_edit(&mut self) -> Result<(), Failure> {
        let Some(now) = self.edits.now.take() else { return Ok(()) };
        let Some((edit, ..)) = self.edit_of(now.fault) else { return Ok(()) };
        let nothing = edit.config(self.sim.config()).is_none() && now.drives.is_empty() && now.store.is_none();
        if let Some(why) = &now.refusal {
            if !edit.is_of_layout(self.sim.config()) && !matches!(why, Refusal::Fixed(_)) {
                return Err(Failure::Unexpected(format!("after {edit:?} the rack does not start: {why}")));
            }
            self.note_edit(edit, "refused");
        } else {
            for i in 0..self.plan.params.servers {
                if !nothing {
                    self.judge(edit, i)?;
                }
            }
            self.stop_rack();
        }
        self.sim.edit(None);
        for (i, drive) in now.drives {
            // A server admitted with the drive may have written to it since.
            if matches!(edit.wanted(self.sim.config(), i), Wanted::Refused(_)) {
                self.sim.put_drive(i, drive);
            }
        }
        if let Some(store) = now.store {
            self.sim.engine_mut().put_saved(Layout::META, store);
        }
        for n in self.nodes_of_rack() {
            self.node_up(n)?;
        }
        Ok(())
    }

    /// Compares the result for the server with the required one.
    fn judge(&mut self, edit: Edit, i: u32) -> Result<(), Failure> {
        let wanted = edit.wanted(self.sim.config(), i);
        let Some(s) = self.sim.server(i) else { return Ok(()) };
        let (taken, why) = (s.admitted() == Some(true), s.drive_refused());
        let wrong = |what: String| Err(Failure::Invariant(format!("after {edit:?} server {i} {what}")));
        match (wanted, why) {
            (Wanted::Refused(_), None) if taken => return wrong("is taken in".into()),
            (Wanted::Refused(named), Some(why)) if !named(&why) => return wrong(format!("is refused by {why}")),
            (Wanted::Taken, Some(why)) => return wrong(format!("is refused by {why}")),
            _ => {}
        }
        if why.is_some() {
            self.note_edit(edit, "refused");
        }
        Ok(())
    }

    fn note_edit(&mut self, edit: Edit, what: &str) {
        let name = format!("{edit:?}");
        let name = name.split([' ', '{']).next().unwrap_or_default();
        *self.stats.edits.entry(format!("{name} {what}")).or_default() += 1;
    }
}
