//! Packets that wait for the switch's egress ports (RB8). Which goes next is [`rackweave_sched::egress`]'s to say.

use rackweave_core::msg::Packet;
use rackweave_core::{Effects, Time};
use rackweave_sched::egress::{EgressConfig, EgressCounters, Envelope, Ports};

/// The ports: one to each node, a flow for each node that sends.
#[derive(Debug)]
pub(crate) struct Queues {
    ports: Ports<Packet>,
}

impl Queues {
    pub fn new(cfg: EgressConfig) -> Queues {
        Queues { ports: Ports::new(cfg) }
    }
    pub fn counters(&self) -> EgressCounters {
        self.ports.counters()
    }
    pub fn next(&self) -> Time {
        self.ports.next().unwrap_or(Time::MAX)
    }

    /// Sends what has left its port by now. Its time there is a hop's, as any other (RB6).
    pub fn release(&mut self, now: Time, fx: &mut Effects) {
        while let Some(sent) = self.ports.poll(now) {
            let mut p = sent.what;
            p.header.lat = p.header.lat.saturating_add(u32::try_from(sent.took.0).unwrap_or(u32::MAX));
            fx.send(p);
        }
    }
    /// Packets to be sent from the `first` on wait for their ports instead.
    pub fn hold(&mut self, now: Time, first: usize, fx: &mut Effects) {
        for p in fx.packets.drain(first..) {
            let class = p.header.class as usize;
            let envelope = Envelope { port: p.dst.0, flow: p.src.0, class, bytes: p.bytes() };
            self.ports.push(now, envelope, p);
        }
        self.release(now, fx);
    }
}
