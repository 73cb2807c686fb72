//! State of one peer: one connection per pair of hosts, shared by all users of the hosts (PN6).

use std::collections::VecDeque;

use rackweave_core::msg::Class;
use rackweave_core::{NodeId, Time};

use crate::config::Config;
use crate::paths::Paths;
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::window::Window;

/// Number of datagrams by which those of one sender may overtake each other, over all its peers.
pub(crate) const REPLAY_SPAN: u64 = 16_384;
/// Keep-alives end after this many without other traffic to a peer.
pub(crate) const IDLE_KEEP_ALIVES: u64 = 60;
/// Most queued control messages per peer; more would be of no use.
const CONTROLS_MAX: usize = 16;

/// One class of a connection. Each has its own queue in the switches, so its own delay and window (PN10).
#[derive(Debug)]
pub(crate) struct Flow {
    pub tx: Sender,
    pub rx: Receiver,
}

/// Path number in the low bits of a ping's token: the ping went by the stream, and so does its answer.
pub(crate) const STREAM_PATH: u16 = u16::MAX;

/// Flag in a ping's token: it tests whether datagrams get through again.
pub(crate) const TRIAL_TOKEN: u64 = 1 << 16;

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// On that path; [`STREAM_PATH`] is the stream.
    Ping {
        path: u16,
        token: u64,
    },
    Pong {
        token: u64,
    },
    /// By the stream if the doubtful datagram came there.
    Challenge {
        token: u64,
        by_stream: bool,
    },
    Proof {
        answer: u64,
        token: u64,
    },
    /// By the stream if the refused incarnation came there.
    Outdated {
        refused: u64,
        newest: u64,
        by_stream: bool,
    },
}

/// The carrier of packets to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    Datagrams,
    /// Datagrams, while the driver opens the requested stream.
    StreamWanted,
    Stream,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub node: NodeId,
    pub flows: [Flow; 3],
    /// The peer's accepted incarnation.
    pub incarnation: Option<u64>,
    /// A challenged incarnation: its number, the token, the time.
    pub challenge: Option<(u64, u64, Time)>,
    /// When a challenge by the peer was last answered.
    pub challenged: Time,
    /// When an older incarnation was last answered with the newest one.
    pub outdated: Time,
    pub replay: Window,
    /// The previous incarnation: its last counter, and when the current one was met.
    pub former: Option<(u64, u64, Time)>,
    /// When the previous incarnation was last seen to go on sending.
    pub twins: Option<Time>,
    /// Newest version that the peer speaks, as it reports.
    pub newest: u8,
    pub heard: Time,
    /// Since when an answer of the peer is outstanding.
    pub owed: Option<Time>,
    /// When something other than a ping was last sent.
    pub used: Time,
    pub ping_at: Time,
    pub down: bool,
    pub paths: Paths,
    /// When a ping was last sent because an acknowledgement was overdue.
    pub path_asked: Time,
    /// When a datagram was last seen to arrive on the current path.
    pub path_works: Time,
    /// Largest datagram known to get through.
    pub datagram: usize,
    /// Large datagrams lost in a row.
    pub large_lost: u32,
    /// When a larger size is tried again.
    pub larger_at: Time,
    pub carrier: Carrier,
    /// Datagrams with chunks sent and lost since `loss_at`; on the stream, pings of the test.
    pub loss_sent: u32,
    pub loss_lost: u32,
    pub loss_at: Time,
    /// When a silent peer is next tried by a stream.
    pub stream_at: Time,
    pub stream_uses: u64,
    /// When the current stream was first used.
    pub stream_since: Time,
    pub controls: VecDeque<Control>,
    /// Groups that wait for room in this peer's windows.
    pub holds_up: Vec<(NodeId, Class)>,
    /// Whether it is in the endpoint's queue of peers with control messages.
    pub talking: bool,
    /// The endpoint's entry for this peer's next deadline.
    pub deadline: Time,
}

impl Peer {
    /// Datagrams go this way from now on.
    pub fn carry_by(&mut self, carrier: Carrier) {
        self.carrier = carrier;
        self.flows.iter_mut().for_each(|f| f.tx.use_stream(carrier == Carrier::Stream));
    }
    pub fn new(node: NodeId, cfg: &Config, path: u16, now: Time) -> Peer {
        let flow = || Flow { tx: Sender::new(cfg, cfg.is_switch(node)), rx: Receiver::new() };
        Peer {
            node,
            flows: [flow(), flow(), flow()],
            incarnation: None,
            challenge: None,
            challenged: Time::ZERO,
            outdated: Time::ZERO,
            replay: Window::new(REPLAY_SPAN),
            former: None,
            twins: None,
            newest: crate::VERSION - 1,
            heard: now,
            owed: None,
            used: now,
            ping_at: Time::MAX,
            down: false,
            paths: Paths::new(cfg.paths, path),
            path_asked: Time::ZERO,
            path_works: now,
            datagram: cfg.datagram_bytes_max,
            large_lost: 0,
            larger_at: Time::MAX,
            carrier: Carrier::Datagrams,
            loss_sent: 0,
            loss_lost: 0,
            loss_at: now,
            stream_at: Time::ZERO,
            stream_uses: 0,
            stream_since: Time::ZERO,
            controls: VecDeque::new(),
            holds_up: Vec::new(),
            talking: false,
            deadline: Time::MAX,
        }
    }
    pub fn flow(&mut self, class: Class) -> &mut Flow {
        &mut self.flows[class as usize]
    }
    pub fn queued_bytes(&self) -> usize {
        self.flows.iter().map(|f| f.tx.bytes).sum()
    }
    pub fn half_bytes(&self) -> usize {
        self.flows.iter().map(|f| f.rx.bytes).sum()
    }
    pub fn in_flight(&self) -> u64 {
        self.flows.iter().map(|f| f.tx.in_flight()).sum()
    }
    pub fn chunk_bytes(&self) -> usize {
        Config::chunk_bytes(self.datagram)
    }
    pub fn say(&mut self, c: Control) {
        if self.controls.len() < CONTROLS_MAX && !self.controls.contains(&c) {
            self.controls.push_back(c);
        }
    }
    /// Whether nothing of it is worth keeping.
    pub fn idle(&self) -> bool {
        self.queued_bytes() == 0 && self.half_bytes() == 0 && self.controls.is_empty()
    }
}
