//! Checks once a second: late clients, memory that others wait for, changed certificates.

use std::io::{self, Write};

use rackweave_core::Time;
use rackweave_device::FileIo;

use super::{EventLoop, SWEEP};
use crate::budget;
use crate::engine::Nodes;
use crate::secure::Renewing;
use crate::status::Describe;
use crate::store::MetaStore;

impl<N: Nodes + Describe, F: FileIo, M: MetaStore> EventLoop<N, F, M> {
    pub(super) fn sweep(&mut self, now: Time) {
        self.next_sweep = now + SWEEP;
        self.latencies.turn();
        self.engine.write_back();
        self.engine.look_at_store();
        self.say_reads_failed();
        self.look_for_refused();
        self.renew_certificates();
        if let Some(message) = self.wall.step(self.clock.unix_ms_at_zero()) {
            let _ = writeln!(io::stderr(), "rackweave: {message}");
        }
        for (server, run, ahead) in self.engine.nodes.clocks_ahead() {
            if let Some(message) = self.wall.ahead(server, run, ahead) {
                let _ = writeln!(io::stderr(), "rackweave: {message}");
            }
        }
        let late: Vec<usize> = self.conns.iter().filter(|(_, c)| c.1.overdue(now)).map(|(k, _)| k).collect();
        for key in late {
            self.drop_conn(key);
        }
        self.close_stalled(now);
        if self.budget.has_shrunk() {
            budget::give_back();
        }
    }

    /// Closes connections that hold memory without progress while others wait.
    fn close_stalled(&mut self, now: Time) {
        if self.budget.waiting() == 0 {
            return;
        }
        let stalled: Vec<usize> = self.conns.iter().filter(|(_, c)| c.1.stalled(now)).map(|(k, _)| k).collect();
        if !stalled.is_empty() {
            let _ = writeln!(
                io::stderr(),
                "rackweave: {} connections closed: idle for {} with memory that {} others waited for",
                stalled.len(),
                budget::STALL_MAX,
                self.budget.waiting()
            );
        }
        for key in stalled {
            self.budget.count_closed();
            self.drop_conn(key);
        }
        // The next waiting connection continues.
        self.touched.extend(self.budget.next_waiting());
    }

    /// New connections get the certificates that are in the files now.
    fn renew_certificates(&mut self) {
        for (_, protocol) in &mut self.listeners {
            if let Some(Err(e)) = protocol.tls.as_mut().map(Renewing::look) {
                let _ = writeln!(io::stderr(), "rackweave: {e}; the certificates read before stay in use");
            }
        }
    }
}
