//! Packets that wait for the switch's egress ports (RB8). Which goes next is [`rackweave_sched::egress`]'s to say.

use rackweave_core::msg::{Body, IoReply, IoRequest, Packet, Peer};
use rackweave_core::{Effects, Time};
use rackweave_sched::egress::{EgressConfig, EgressCounters, Envelope, Ports};

/// Bytes of Ethernet, IP, UDP and Rackweave headers of a packet.
pub const HEADER_BYTES: u32 = 150;

/// Bytes of a packet on a link.
pub fn packet_bytes(p: &Packet) -> u32 {
    let body = match &p.body {
        Body::Io(IoRequest::Write(w)) => w.data.len(),
        Body::Reply(IoReply::Data(d)) => d.len(),
        Body::Peer(Peer::Inv(i)) => i.data.len() + 20 * i.blocks.len() as u32,
        Body::Peer(Peer::Block { data: Some(d), .. }) => d.len(),
        Body::Peer(Peer::Digests { entries, .. }) => 16 * entries.len() as u32,
        Body::Peer(Peer::Scan { entries, .. }) => 21 * entries.len() as u32,
        _ => 0,
    };
    body + HEADER_BYTES
}

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
    pub fn waiting(&self) -> usize {
        self.ports.waiting()
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
    /// What was to be sent from the `first` packet on waits for its port instead.
    pub fn hold(&mut self, now: Time, first: usize, fx: &mut Effects) {
        for p in fx.packets.drain(first..) {
            let class = p.header.class as usize;
            let envelope = Envelope { port: p.dst.0, flow: p.src.0, class, bytes: packet_bytes(&p) };
            self.ports.push(now, envelope, p);
        }
        self.release(now, fx);
    }
}
