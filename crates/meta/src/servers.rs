//! Servers: registration, heartbeats, leases.

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::admin::ServerState;
use rackweave_core::msg::control::{DriveRefusal, DriveTable, VssdLoss, VssdReport};
use rackweave_core::msg::{Body, Control, LiveVolumes, Packet};
use rackweave_core::{DriveId, Effects, Epoch, Incarnation, Layout, NodeId, SetId, Time};

use crate::codec::{self, DriveRecord};
use crate::members::{Place, Server, Servers};
use crate::node::Meta;

/// Nonces remembered per server, to recognize a delayed registration of an earlier incarnation.
const NONCES_MAX: usize = 16;

/// Servers by node id; a rack has few.
#[derive(Default)]
pub(crate) struct ServerTable {
    unknown: Server,
    pub(crate) known: BTreeMap<NodeId, Server>,
}

impl Servers for ServerTable {
    fn server(&self, n: NodeId) -> &Server {
        self.known.get(&n).unwrap_or(&self.unknown)
    }
}

impl Meta {
    pub(crate) fn server_hello(
        &mut self,
        now: Time,
        src: NodeId,
        nonce: u64,
        (drive, losses, table): (DriveId, Vec<VssdLoss>, DriveTable),
        reports: &[VssdReport],
        fx: &mut Effects,
    ) {
        match self.moves.nodes.get(&src) {
            None => return,
            Some(ServerState::Removed) => return self.say(src, 0, Control::ServerRefused { nonce }),
            Some(ServerState::In | ServerState::Draining) => {}
        }
        let record = self.records.entry(src).or_default();
        if record.nonces.last() == Some(&nonce) {
            let incarnation = record.incarnation;
            if record.drive == drive && table.known == incarnation {
                let earlier = u64::from(mutant!("meta.drive.not-raised"));
                self.keep_drive(src, drive, DriveTable { generation: table.generation - earlier, ..table });
            }
            self.welcome(now, src, nonce, incarnation);
            return;
        }
        if record.nonces.contains(&nonce) && !mutant!("meta.hello.replayed") {
            return;
        }
        if let Err(why) = self.check_drive(src, drive, &table) {
            if matches!(why, DriveRefusal::StoreOlder { .. }) {
                self.store_older = Some(format!("server {}: {why}", Layout::server_number(src)).into());
            }
            return self.say(src, 0, Control::DriveRefused { nonce, why: Box::new(why) });
        }
        if table.known == Incarnation(0) {
            self.give_back_unplanned(src, &table.slots);
        }
        self.keep_drive(src, drive, table);
        let incarnation = self.next_incarnation();
        let record = self.records.get_mut(&src).expect("entered above");
        record.incarnation = incarnation;
        if record.nonces.len() == NONCES_MAX {
            record.nonces.remove(0);
        }
        record.nonces.push(nonce);
        (record.drive, record.losses) = (drive, losses.clone());
        if !mutant!("meta.incarnation.not-durable") {
            self.out.put(codec::server_key(src), Some(codec::encode_server(record)));
        }
        let server = Server {
            incarnation,
            registered_at: now,
            heard_at: Some(now),
            alive_at: None,
            unacked: VecDeque::new(),
            live_since: now,
            lease_ends: now + self.cfg.lease_bound(),
            ended: false,
            drive,
            losses,
            drive_write: 0,
        };
        self.servers.known.insert(src, server);
        self.note_losses(src);
        for p in self.sets.iter_mut().flat_map(|s| &mut s.places).filter(|p| p.node == src) {
            (p.complete_in, p.epoch) =
                if mutant!("meta.hello.keeps-complete") { (p.complete_in, p.epoch) } else { (None, Epoch(0)) };
            (p.failed, p.read_only, p.no_room, p.unreached, p.worn_out) = (false, false, false, false, false);
        }
        for r in reports {
            self.note(src, r);
        }
        self.welcome(now, src, nonce, incarnation);
        self.forget_plan(src);
        self.remind(now, src);
        self.review_server(now, src, fx);
    }

    /// Whether the server has served with a drive.
    pub fn has_drive(&self, node: NodeId) -> bool {
        self.drives.contains_key(&node)
    }
    /// Whether the server may serve with this drive (protocol rule 30): from now on it must be the one that it had. A
    /// drive that never served may take another's place.
    ///
    /// # Errors
    /// The difference from what is known of the drive.
    pub fn check_drive(&self, node: NodeId, drive: DriveId, table: &DriveTable) -> Result<(), DriveRefusal> {
        if table.digest == 0 {
            // The server's version reports no table.
            return Ok(());
        }
        // Checked before the incarnations: another server's drive may have served under a later one.
        let of_another = self.drives.iter().any(|(n, copy)| *n != node && copy.drive == drive);
        if let Some(copy) = self.drives.get(&node).filter(|c| of_another && c.drive != drive)
            && !mutant!("meta.drive.any-drive")
        {
            return Err(DriveRefusal::OtherDrive { found: drive, wanted: copy.drive });
        }
        let store = self.records.get(&node).map_or(Incarnation(0), |l| l.incarnation);
        if table.known > store && !mutant!("meta.drive.older-store") {
            return Err(DriveRefusal::StoreOlder { drive: table.known, store });
        }
        // Includes an image from before its first run.
        if let Some(copy) = self.drives.get(&node).filter(|c| c.drive == drive)
            && table.generation < copy.generation
            && !mutant!("meta.drive.older-drive")
        {
            return Err(DriveRefusal::DriveOlder { found: table.generation, wanted: copy.generation });
        }
        if table.known == Incarnation(0) {
            // Divided by a configuration without the rack's keys: its vSSDs have another size than those that they join.
            let divided = table.slots.is_empty() || table.slots.len() == usize::from(self.cfg.all_slots());
            return if divided || mutant!("meta.drive.any-division") { Ok(()) } else { Err(DriveRefusal::Layout) };
        }
        if let Some(copy) = self.drives.get(&node) {
            if copy.drive != drive && !mutant!("meta.drive.any-drive") {
                return Err(DriveRefusal::OtherDrive { found: drive, wanted: copy.drive });
            }
            if table.digest != copy.digest && !mutant!("meta.drive.any-layout") {
                return Err(DriveRefusal::Layout);
            }
        }
        for (slot, s) in (0..).zip(&table.slots).filter(|(_, s)| s.in_use) {
            let known = |p: &Place| p.node == node && p.slot == slot && p.vssd == s.vssd;
            let placed = self.places().any(|(set, p)| set == s.set && known(p));
            if !placed && !mutant!("meta.drive.any-vssd") {
                return Err(DriveRefusal::Unknown { vssd: s.vssd });
            }
        }
        Ok(())
    }
    fn keep_drive(&mut self, node: NodeId, drive: DriveId, t: DriveTable) {
        let now = DriveRecord { drive, generation: t.generation, digest: t.digest, known: t.known, slots: t.slots };
        if now.digest != 0 && self.drives.get(&node) != Some(&now) {
            if !mutant!("meta.drive.not-durable") {
                let write = self.out.put(codec::drive_key(node), Some(codec::encode_drive(&now)));
                self.servers.known.entry(node).or_default().drive_write = write;
            }
            self.drives.insert(node, now);
        }
    }

    /// Whether the drive of the server's current incarnation holds that incarnation (protocol rule 30), so that an
    /// image of it from an earlier one is refused from now on. Before, nothing may be acknowledged on it.
    fn is_confirmed(&self, node: NodeId, incarnation: Incarnation) -> bool {
        let known = self.drives.get(&node).map_or(incarnation, |d| d.known);
        known >= incarnation || mutant!("meta.drive.unconfirmed")
    }

    /// Numbers the next message to the server, which its heartbeats then name.
    fn stamp(&mut self, now: Time, src: NodeId) -> u64 {
        self.stamps += 1;
        // Late heartbeats may name messages of an earlier run.
        let stamp = self.me.0 << 32 | self.stamps;
        if let Some(s) = self.servers.known.get_mut(&src) {
            s.sent(now, stamp);
        }
        stamp
    }
    fn welcome(&mut self, now: Time, src: NodeId, nonce: u64, incarnation: Incarnation) {
        // Sent after the writes of the volumes that it lists, and of those it does not.
        let volumes = LiveVolumes { first_unused: self.first_unused_volume(), writers: self.fences() };
        let stamp = self.stamp(now, src);
        self.say(src, stamp, Control::ServerWelcome { nonce, incarnation, volumes });
    }

    /// Records a report; true if it may change the set's membership.
    fn note(&mut self, src: NodeId, r: &VssdReport) -> bool {
        let Some(&(set, place)) = self.by_vssd.get(&r.vssd) else { return false };
        let s = &mut self.sets[set];
        let p = &mut s.places[place];
        if p.node != src {
            return false;
        }
        let complete_in = r.complete.then_some(r.epoch);
        let news = (p.failed, p.read_only, p.no_room) != (r.failed, r.read_only, r.no_room)
            || (p.complete_in, p.epoch) != (complete_in, r.epoch);
        (p.failed, p.complete_in, p.epoch) =
            ((p.failed && !mutant!("meta.failure.forgotten")) || r.failed, complete_in, r.epoch);
        p.no_room = r.no_room;
        p.read_only |= r.read_only;
        news || r.epoch != s.view.epoch
    }

    /// The server's supervisor reports that its process has ended: no lease of that incarnation is waited for. A
    /// restarted service does not know this, and the lease then ends by itself.
    pub(crate) fn server_ended(&mut self, now: Time, node: NodeId, incarnation: Incarnation, fx: &mut Effects) {
        let Some(server) = self.servers.known.get_mut(&node) else { return };
        if server.incarnation != incarnation || incarnation == Incarnation(0) {
            return;
        }
        server.ended = true;
        server.lease_ends = server.lease_ends.min(now);
        self.review_server(now, node, fx);
    }

    /// The common case costs two map look-ups per vSSD and one message.
    pub(crate) fn heartbeat(
        &mut self,
        now: Time,
        src: NodeId,
        incarnation: Incarnation,
        (sequence, answers): (u64, u64),
        reports: &[VssdReport],
        fx: &mut Effects,
    ) {
        let bound = self.cfg.lease_bound();
        if !self.is_confirmed(src, incarnation) && !reports.iter().any(|r| r.failed) {
            return;
        }
        let Some(server) = self.servers.known.get_mut(&src) else { return };
        let other = server.incarnation != incarnation && !mutant!("meta.heartbeat.other-incarnation");
        if other || server.ended {
            return;
        }
        let (back, first) = (now >= server.lease_ends, server.heard_at.is_none());
        if back || first {
            server.live_since = now;
        }
        server.heard_at = Some(now);
        server.acked(now, answers);
        server.lease_ends = now + bound;
        let mut news = back || first;
        for r in reports {
            news |= self.note(src, r);
        }
        if news {
            self.review_server(now, src, fx);
        }
        self.remind(now, src);
        let mut views = Vec::new();
        for r in reports {
            if let Some(&(i, _)) = self.by_vssd.get(&r.vssd)
                && self.sets[i].view.epoch > r.epoch
            {
                views.push(self.sets[i].view.clone());
            }
        }
        // A server that reports the newest views has received them, so they are durable, and its lease need not wait
        // for the store. A lease with a newer view waits: a server that is not in that view must not continue to serve
        // in the old one.
        let drive_waits = self.servers.known.get(&src).is_some_and(|s| !self.out.is_durable(s.drive_write));
        let waits = drive_waits || (!views.is_empty() && !mutant!("meta.lease.ahead-of-view"));
        let stamp = self.stamp(now, src);
        let header = self.header(stamp, SetId(0), Epoch(0));
        let body = Body::Control(Control::Lease { sequence, span: self.cfg.lease, views });
        let lease = Packet { src: Layout::META, dst: src, header, body };
        if waits { self.out.send(lease) } else { self.out.send_at_once(lease) }
    }
}
