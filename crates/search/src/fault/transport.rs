//! The same plans with the transport between nodes.

use rackweave_core::Rng;

use crate::fault::plan::{Fault, FaultAt, Plan};
use rackweave_rack::wire::{Authentication, TransportConfig};
use rackweave_sim::LinkFaults;

/// Id of the first switch.
const SWITCH: u32 = 1;

impl Plan {
    /// This plan with the transport between its nodes, and with additional faults of datagrams, paths, keys and
    /// counters.
    pub fn over_transport(mut self) -> Plan {
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
        // A node must not start by itself between an edit and its end, or between damage and its repair.
        let by_itself =
            |f: &FaultAt| matches!(f.fault, Fault::Edit { .. } | Fault::StandStill { .. } | Fault::LastCopies { .. });
        let ends = !self.faults.iter().any(by_itself);
        let mut add = |at_us: u64, fault| {
            if ends || !matches!(fault, Fault::Crash { .. }) {
                self.faults.push(FaultAt { at_us, fault });
            }
        };
        if authentication != Authentication::None {
            (0..2).for_each(|_| add(rng.below(span_us), Fault::Rekey));
        }
        for _ in 0..2 {
            let (permille, ms) = (rng.between(50, 500), rng.between(20, 400));
            add(rng.below(span_us), Fault::DarkPaths { permille, ms });
        }
        // Without keys, restarted nodes accept a late datagram of an earlier incarnation.
        if authentication != Authentication::None {
            let (at_us, server) = (rng.below(span_us), rng.below(u64::from(servers)) as u32);
            add(at_us, Fault::LoseCounter { node: 2 + server });
            add(at_us + 1, Fault::Crash { server, down_ms: rng.between(5, 100) });
        }
        let server = |rng: &mut Rng| rng.below(u64::from(servers)) as u32;
        if authentication != Authentication::None {
            for _ in 0..2 {
                let (at_us, server, down_ms) = (rng.below(span_us), server(&mut rng), rng.between(5, 300));
                let back_us = at_us + 1000 * down_ms + 1;
                add(at_us, Fault::Crash { server, down_ms });
                add(back_us, Fault::Replay { node: 2 + server });
                add(back_us + rng.between(20_000, 500_000), Fault::Replay { node: 2 + server });
            }
            add(rng.below(span_us), Fault::Replay { node: rng.next_u64() as u32 });
        }
        // Runs so short that acknowledgements for one arrive in the next.
        let (at_us, server) = (rng.below(span_us), server(&mut rng));
        let links = LinkFaults {
            loss: 0.2,
            duplicate: 0.4,
            reorder: 0.5,
            reorder_extra_ns: 8_000_000,
            duplicate_extra_ns: 10_000_000,
        };
        add(at_us, Fault::Noise { links, ms: 60 });
        (0..6).for_each(|i| add(at_us + 2_000 + 9_000 * i, Fault::Crash { server, down_ms: 1 }));
        let transport = self.params.transport.as_ref().filter(|t| !t.one_machine);
        if let Some(least) = transport.and_then(|t| [1_472, 1_200].into_iter().find(|b| *b < t.datagram_bytes)) {
            add(rng.below(span_us), Fault::NarrowPaths { bytes: least, ms: rng.between(100, 600) });
        }
        if authentication != Authentication::None {
            add_forgeries(&mut self.faults, &mut rng, span_us);
        }
        self.faults.sort_by_key(|f| f.at_us);
        self
    }
}

/// Each plan has two for a node of any kind, and one for a switch, which alone receives every `gc_op`.
fn add_forgeries(faults: &mut Vec<FaultAt>, rng: &mut Rng, span_us: u64) {
    for node in [rng.next_u64() as u32, rng.next_u64() as u32, SWITCH] {
        // Late enough for datagrams to be recorded.
        let at_us = rng.between(span_us / 4, span_us);
        faults.push(FaultAt { at_us, fault: Fault::Forge { node } });
    }
}
