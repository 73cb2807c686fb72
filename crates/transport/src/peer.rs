//! All that is known of one peer: one connection a pair of hosts, shared by everything on them (PN6).

use std::collections::VecDeque;

use rackweave_core::msg::Class;
use rackweave_core::{NodeId, Time};

use crate::config::Config;
use crate::paths::Paths;
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::window::Window;

/// Datagrams of one sender that may overtake each other by so many, over all its peers.
pub(crate) const REPLAY_SPAN: u64 = 16_384;
/// Keep-alives stop when nothing was sent to a peer for so many of them.
pub(crate) const IDLE_KEEP_ALIVES: u64 = 60;
/// What waits for a peer besides chunks and acknowledgements; what is beyond it is not worth sending.
const CONTROLS_MAX: usize = 16;

/// One class of a connection: each has its own queue in the switches, so its own delay and window (PN10).
#[derive(Debug)]
pub(crate) struct Flow {
    pub tx: Sender,
    pub rx: Receiver,
}

/// In the low bits of a ping's token, where the path's number is: it went by the stream, and so goes its answer.
pub(crate) const STREAM_PATH: u16 = u16::MAX;

/// In a ping's token: it belongs to the trial whether datagrams get through again.
pub(crate) const TRIAL_TOKEN: u64 = 1 << 16;

/// What is said besides chunks and acknowledgements.
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
    /// By the stream if what is doubted came there.
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

/// How packets get to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    Datagrams,
    /// Datagrams, while the driver opens the stream it was asked for.
    StreamWanted,
    Stream,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub node: NodeId,
    pub flows: [Flow; 3],
    /// The life of the peer that is accepted.
    pub incarnation: Option<u64>,
    /// A life that was challenged: which, the token, when.
    pub challenge: Option<(u64, u64, Time)>,
    /// When a challenge of the peer was heeded last.
    pub challenged: Time,
    /// When an older incarnation was last answered with the newest one.
    pub outdated: Time,
    pub replay: Window,
    /// The life before this one: its last counter, and when this one was met.
    pub former: Option<(u64, u64, Time)>,
    /// When datagrams of the life before were last found to go on.
    pub twins: Option<Time>,
    /// Newest version the peer speaks, as it said.
    pub newest: u8,
    pub heard: Time,
    /// Since when an answer is owed.
    pub owed: Option<Time>,
    /// When something that is not a sign of life was sent last.
    pub used: Time,
    pub ping_at: Time,
    pub down: bool,
    pub paths: Paths,
    /// When a sign of life was last asked for, since something waited long for its acknowledgement.
    pub path_asked: Time,
    /// When it was last seen that what takes the current path arrives.
    pub path_works: Time,
    /// Largest datagram that gets through, as far as known.
    pub datagram: usize,
    /// Large datagrams lost in a row.
    pub large_lost: u32,
    /// When a larger size is tried again.
    pub larger_at: Time,
    pub carrier: Carrier,
    /// Datagrams with chunks sent and lost since `loss_at`; pings of a trial while on the stream.
    pub loss_sent: u32,
    pub loss_lost: u32,
    pub loss_at: Time,
    /// A peer that is silent is tried by a stream again from then on.
    pub stream_at: Time,
    pub stream_uses: u64,
    /// When the stream was first used, this time.
    pub stream_since: Time,
    pub controls: VecDeque<Control>,
    /// Groups that wait for room in this peer's windows.
    pub holds_up: Vec<(NodeId, Class)>,
    /// In the endpoint's queue of those with something to say.
    pub talking: bool,
    /// The endpoint's entry for this peer's next deadline.
    pub deadline: Time,
}

impl Peer {
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
    /// Nothing of it is worth keeping.
    pub fn idle(&self) -> bool {
        self.queued_bytes() == 0 && self.half_bytes() == 0 && self.controls.is_empty()
    }
}
