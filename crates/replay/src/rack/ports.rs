//! Network scheduling in the switch (RB8): slow ports at which requests queue, and traffic of higher priority.

use rackweave_config::{EgressSection, FlowSection, RackConfig, SchedulingKind};
use rackweave_core::msg::HEADER_BYTES;
use rackweave_core::msg::{Block, Body, Class, Header, IoReply, Op, Packet};
use rackweave_core::{BLOCK, Layout, NodeKind, Payload, Span, Time};
use rackweave_rack::sim::Sim;

use super::load::Load;

/// Length and period of a burst of higher priority, which occupies a port for a fifth of the time (assumed; the paper
/// says "periodically").
const BURST: Span = Span::from_millis(2);
const BURST_EVERY: Span = Span::from_millis(10);
/// Bytes of a packet with a block, and of one without.
const FULL: u32 = BLOCK + HEADER_BYTES;
/// Messages without contents per write and replica: an acknowledgement or a validation.
const SMALL_PER_WRITE: f64 = 1.0;

/// Ports of a rack with two replicas of everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ports {
    pub scheduling: SchedulingKind,
    /// Fraction of time that a server's port is busy with the cell's own load.
    pub busy: f64,
    /// Whether there is traffic of higher priority beside it.
    pub bursts: bool,
}

impl Ports {
    /// Gives the rack's switch these queues. With token buckets and fair queueing, each client has an equal share of a
    /// server's port; the other replica, which sends as many writes as all clients together, has as much as all of them.
    pub(super) fn apply(self, rack: &mut RackConfig, rate: f64, load: &Load, clients: u32) -> Option<Bursts> {
        let (full, small) = (f64::from(FULL), f64::from(HEADER_BYTES));
        // Each server receives every write, from a client or from its peer, and its share of the reads.
        let replicas = f64::from(rack.replicas) / f64::from(rack.servers);
        let writes = rate * load.writes * replicas * (full + SMALL_PER_WRITE * small);
        let reads = rate * (1.0 - load.writes) * small / f64::from(rack.servers);
        // Answers leave through the clients' ports, which must not be the bottleneck.
        let answers = rate * (1.0 - load.writes) * full / f64::from(clients);
        let bytes_per_s = (writes + reads).max(answers) / self.busy;
        let mbit = (bytes_per_s * 8.0 / 1e6).ceil().max(1.0) as u64;
        let mut egress = EgressSection::of_rate(mbit);
        let servers = 0..rack.servers;
        let of_server = |i: u32| FlowSection { from: format!("server-{i}"), ..FlowSection::default() };
        match self.scheduling {
            SchedulingKind::Priority => {}
            SchedulingKind::Tb => {
                egress.flow_mbit_per_s = Some(mbit.div_ceil(u64::from(clients)));
                egress.flows = servers.map(|i| FlowSection { mbit_per_s: Some(mbit), ..of_server(i) }).collect();
            }
            SchedulingKind::Fq => {
                egress.flows = servers.map(|i| FlowSection { weight: Some(clients), ..of_server(i) }).collect();
            }
        }
        (rack.switch.scheduling, rack.switch.egress) = (self.scheduling, Some(egress));
        let packets = bytes_per_s * BURST.as_secs_f64() / full;
        self.bursts.then(|| Bursts { packets: packets.round() as u32, next: None })
    }
}

/// Bursts of packets of the highest class to every server, which ignores them.
#[derive(Clone, Debug)]
pub(crate) struct Bursts {
    packets: u32,
    next: Option<Time>,
}

impl Bursts {
    /// Sends the bursts up to `until`.
    pub(crate) fn until(&mut self, until: Time, sim: &mut Sim) {
        let mut at = self.next.unwrap_or(sim.now());
        while at <= until {
            let layout = sim.engine().layout();
            for &server in layout.ids(NodeKind::Server).iter().take(sim.config().servers as usize) {
                let header = Header { class: Class::Gold, ..Header::new(Op::Reply) };
                let body = Body::Block(Block::Reply(IoReply::Data(Payload::elided(BLOCK, 0))));
                let packet = Packet { src: Layout::META, dst: server, header, body };
                (0..self.packets).for_each(|_| sim.engine_mut().inject(at, packet.clone()));
            }
            at += BURST_EVERY;
        }
        self.next = Some(at);
    }
}
