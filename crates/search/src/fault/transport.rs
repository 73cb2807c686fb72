//! The same plans with the transport between nodes.

use rackweave_core::Rng;

use crate::fault::plan::{Fault, FaultAt, Plan};
use rackweave_rack::wire::{Authentication, TransportConfig};

impl Plan {
    /// This plan with the transport between its nodes, and with faults of datagrams, paths, keys and counters beside its own. None for
    /// two racks: their nodes share a process.
    pub fn over_transport(mut self) -> Option<Plan> {
        if self.params.racks > 1 {
            return None;
        }
        let mut rng = Rng::stream(self.seed, 0x7472_616e);
        let authentication = *rng.pick(&[Authentication::None, Authentication::Tags, Authentication::Encrypted]);
        self.params.transport = Some(TransportConfig {
            one_machine: rng.chance(0.2),
            datagram_bytes: *rng.pick(&[1_200, 1_472, 8_972]),
            authentication,
            trains: rng.chance(0.5),
            damage: *rng.pick(&[0.0, 0.001, 0.01]),
        });
        let (servers, span_us) = (self.params.servers, self.params.span_ms * 1000);
        let mut add = |at_us: u64, fault| self.faults.push(FaultAt { at_us, fault });
        if authentication != Authentication::None {
            (0..2).for_each(|_| add(rng.below(span_us), Fault::Rekey));
        }
        for _ in 0..2 {
            let (permille, ms) = (rng.between(50, 500), rng.between(20, 400));
            add(rng.below(span_us), Fault::DarkPaths { permille, ms });
        }
        // Without keys a late datagram of an earlier life is believed by nodes that have restarted.
        if authentication != Authentication::None {
            let (at_us, server) = (rng.below(span_us), rng.below(u64::from(servers)) as u32);
            add(at_us, Fault::LoseCounter { node: 2 + server });
            add(at_us + 1, Fault::Crash { server, down_ms: rng.between(5, 100) });
        }
        self.faults.sort_by_key(|f| f.at_us);
        Some(self)
    }
}
