//! What servers do beside clients' requests: merging of logs (DF4) and migration of segments (DF7).

use super::super::SERVERS;
use super::super::scheme::{Kind, Merge, Predict};
use super::{Event, MIGRATE_EVERY, Op, Parent, Run, SMALL, Stage};

/// Segments moved at a time, at most.
const MOVES_MAX: usize = 16;
/// Greatest predicted load ÷ mean at which nothing is moved.
const EVEN: f64 = 1.05;

impl Run<'_> {
    pub(super) fn merge_mode(&self) -> Option<Merge> {
        match self.cfg.scheme.kind {
            Kind::DiffForward { merge, .. } => Some(merge),
            _ => None,
        }
    }

    /// An entry of the disk's log can be merged.
    pub(super) fn ready_to_merge(&mut self, disk: u32) {
        let home = self.conns[self.disks[disk as usize].conns].server;
        if self.merge_mode() == Some(Merge::None) {
            let log = &mut self.disks[disk as usize].log;
            while log.oldest().is_some_and(|serial| log.is_sealed(serial)) {
                if let Some(serial) = log.take_next() {
                    log.merged(serial);
                }
            }
            return;
        }
        self.mergers[home].longest.retain(|(_, d)| *d != disk);
        self.mergers[home].longest.insert((self.disks[disk as usize].log.unmerged, disk));
        self.pump(home);
    }

    /// Starts merges of the longest log while the scheme permits.
    pub(super) fn pump(&mut self, home: usize) {
        let Some(mode) = self.merge_mode() else { return };
        let window = self.params.model.merge_window_kib << 10;
        loop {
            let (s, merger) = (&self.servers[home], &mut self.mergers[home]);
            let idle = s.serving + s.waiting == 0;
            if mode != Merge::Asap && merger.inflight >= window || mode == Merge::Prioritized && !idle {
                return;
            }
            let Some((_, disk)) = merger.longest.pop_last() else { return };
            let log = &mut self.disks[disk as usize].log;
            let Some(serial) = log.take_next() else { continue };
            if log.unmerged > 0 {
                merger.longest.insert((log.unmerged, disk));
            }
            let e = *log.entry(serial);
            merger.inflight += u64::from(e.len);
            let (server, now, parent) = (e.servers[0], self.now, Parent::Merge { home, disk, serial });
            let (first, write, conn) = (Stage::Pull, true, usize::MAX);
            let op = self.ops.insert(Op {
                parent,
                disk,
                conn,
                server,
                first,
                write,
                len: e.len,
                chunk: 0,
                serial,
                acks: 0,
                lqd: 0,
                sent: now,
                received: now,
            });
            self.transfer(now, home, server, SMALL, op, Stage::Pull);
        }
    }

    /// The merger writes an entry's parts through their segments' proxies.
    pub(super) fn pulled(&mut self, home: usize, op: usize) {
        let o = self.ops.remove(op);
        let e = *self.disks[o.disk as usize].log.entry(o.serial);
        let parts = self.parts(o.disk, e.offset, e.len);
        self.mergers[home].parts.insert((o.disk, o.serial), parts.len());
        let ready = self.cpu(home, o.len);
        for (segment, chunk, len) in parts {
            let server = self.conns[self.disks[o.disk as usize].conns + segment].server;
            let op = self.ops.insert(Op { server, chunk, len, first: Stage::Proxy, ..o });
            self.transfer(ready, home, server, len, op, Stage::Proxy);
        }
    }

    pub(super) fn part_merged(&mut self, home: usize, disk: u32, serial: u64) {
        let merger = &mut self.mergers[home];
        let Some(left) = merger.parts.get_mut(&(disk, serial)) else { return };
        *left -= 1;
        if *left == 0 {
            merger.parts.remove(&(disk, serial));
            let log = &mut self.disks[disk as usize].log;
            merger.inflight -= u64::from(log.entry(serial).len);
            log.merged(serial);
            self.pump(home);
        }
    }

    pub(super) fn migrate(&mut self) {
        self.queue.push(self.now + MIGRATE_EVERY, Event::Migrate);
        let Kind::Migration(predict) = self.cfg.scheme.kind else { return };
        let alpha = if predict == Predict::Last { 1.0 } else { self.params.model.ewma_alpha };
        for (p, r) in self.predicted.iter_mut().zip(&mut self.recent) {
            *p = alpha * std::mem::take(r) + (1.0 - alpha) * *p;
        }
        for _ in 0..MOVES_MAX {
            let mut loads = [0.0; SERVERS];
            for (c, p) in self.conns.iter().zip(&self.predicted) {
                loads[c.server] += p;
            }
            let by_load = |a: &usize, b: &usize| loads[*a].total_cmp(&loads[*b]);
            let (Some(from), Some(to)) = ((0..SERVERS).max_by(by_load), (0..SERVERS).min_by(by_load)) else { return };
            let mean = loads.iter().sum::<f64>() / SERVERS as f64;
            if loads[from] <= mean * EVEN {
                return;
            }
            // The largest segment that leaves the receiver below the sender.
            let gap = loads[from] - loads[to];
            let fits = |c: &usize| self.conns[*c].server == from && !self.conns[*c].paused && self.predicted[*c] < gap;
            let most =
                (0..self.conns.len()).filter(fits).max_by(|a, b| self.predicted[*a].total_cmp(&self.predicted[*b]));
            let Some(conn) = most.filter(|c| self.predicted[*c] > 0.0) else { return };
            self.move_segment(conn, from, to);
        }
    }

    /// The segment's clients wait until its map has arrived.
    pub(super) fn move_segment(&mut self, conn: usize, from: usize, to: usize) {
        self.m.migrations += u64::from(self.counts(self.now));
        let span = self.costs.link((self.params.model.map_kib << 10) as u32);
        let gone = self.servers[from].egress.take(self.now, span);
        let there = self.servers[to].ingress.take(self.now.max(gone), span) + self.costs.one_way;
        let c = &mut self.conns[conn];
        // Its reported queue moves with it.
        self.servers[from].waiting -= c.lqd;
        self.servers[to].waiting += c.lqd;
        (c.server, c.paused) = (to, true);
        self.queue.push(there, Event::Resume { conn });
    }
}
