//! Cloud disks of a rack: their parameters, which servers, clients and the metadata service must agree on, and the node on each
//! server's log vSSD. It is a client of the replica sets that the disks' contents are on.

use rackweave_client::SetClientConfig;
use rackweave_cloud::Config;
use rackweave_cloud::log::LogLimits;
use rackweave_cloud::msg::Packet;
use rackweave_cloud::record::RecordError;
use rackweave_cloud::replica_sets::ReplicaSets;
use rackweave_config::RackConfig;
use rackweave_core::msg::cloud::ENTRIES_MAX;
use rackweave_core::msg::{self, Block, Body, Control};
use rackweave_core::records::StoredRecord;
use rackweave_core::{DriveId, Effects, Event, Incarnation, Layout, MESSAGE_MAX, Node, NodeId, Span, Time};
use rackweave_flash::log_blocks;
use rackweave_kv::replicated::Logged;
use rackweave_kv::store::BLOCKS_MIN;
use rackweave_kv_replica::LogRoom;
use rackweave_meta::CloudConfig;
use rackweave_server::StoreStatus;

use crate::build::{self, heartbeat_every};

/// Share of a log's blocks, beyond those that a store needs anyway, that logs and overlays of disks may take: the rest is for its
/// compaction, and for what a block cannot be filled with.
const ROOM_PERCENT: u64 = 60;
/// Largest sub-log of a disk on a server, largest overlay of a segment, and largest batch.
const LOG_MAX: u64 = 16 << 20;
const OVERLAY_MAX: u64 = 4 << 20;
const BATCH_MAX: u64 = 1 << 20;
/// Contents that have not changed for this long leave the log: longer than the rewrites of a busy block are apart.
const MOVE_AFTER: Span = Span::from_millis(200);

/// `None`: the rack has no cloud disks.
pub fn config(cfg: &RackConfig) -> Option<CloudConfig> {
    (cfg.cloud.channels > 0).then(|| {
        // The profile's problems were reported when the rack was built.
        let (blocks, bytes) = build::profile(cfg).map_or((0, 0), |p| log_blocks(&p, cfg.cloud.channels));
        let room = u64::from(blocks.saturating_sub(BLOCKS_MIN)) * bytes * ROOM_PERCENT / 100;
        let message = u64::from(MESSAGE_MAX);
        // A flush to a drive takes milliseconds; between processes the transport retransmits losses.
        let (retry, give_up) = match cfg.hosts {
            Some(_) => (Span::from_millis(100), Span::from_millis(1_000)),
            None => (Span::from_millis(50), Span::from_millis(500)),
        };
        let log = LogLimits {
            bytes: (room / 32).clamp(4 * message, LOG_MAX),
            entries: ENTRIES_MAX / cfg.servers_max().max(1) as usize,
            ..LogLimits::default()
        };
        let protocol = Config {
            copies: cfg.replicas as usize,
            min_copies: cfg.min_copies as usize,
            lease: cfg.lease(),
            drift_ppm: cfg.lease.drift_ppm,
            heartbeat: heartbeat_every(cfg),
            retry,
            give_up,
            by_multicast: cfg.multicasts_appends(),
            merge_foreground_bytes: log.bytes / 2,
            log,
            batch_bytes: (room / 256).clamp(message, BATCH_MAX),
            overlay_bytes: (room / 128).clamp(2 * message, OVERLAY_MAX),
            move_after: MOVE_AFTER,
            ..Config::default()
        };
        CloudConfig { protocol, room, flatten_at: cfg.cloud.flatten_at }
    })
}

/// What a server of cloud disks must know.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub protocol: Config,
    /// Of a client of replica sets. Its node is filled in.
    pub sets: SetClientConfig,
}

/// `None`: the rack has no cloud disks.
pub fn server_config(cfg: &RackConfig) -> Option<ServerConfig> {
    let protocol = config(cfg)?.protocol;
    let timeout = Span::from_millis(cfg.client.timeout_ms);
    let mut sets = SetClientConfig::new(Layout::META, 0);
    (sets.layout, sets.window, sets.timeout, sets.timeout_max) =
        (build::layout(cfg), cfg.client.window, timeout, timeout * 10);
    Some(ServerConfig { protocol, sets })
}

/// A message of cloud disks, or one of a client of replica sets.
#[derive(Debug)]
pub enum Message {
    Disks(Packet),
    Sets(msg::Packet),
}

/// A server of cloud disks with its way to the replica sets.
pub struct CloudServer {
    disks: rackweave_cloud::Server,
    sets: ReplicaSets,
    disks_fx: Effects<Packet>,
    sets_fx: Effects,
    /// When the disks' timer is due.
    due: Time,
}

impl CloudServer {
    /// Requests to replica sets without an answer.
    pub fn pending(&self) -> usize {
        self.sets.pending()
    }
    /// Passes requests to the sets, and answers back, until neither has more.
    fn exchange(&mut self, now: Time) {
        loop {
            for request in self.disks.take_chunk_requests() {
                self.sets.request(now, request, &mut self.sets_fx);
            }
            self.sets.pump(now, &mut self.sets_fx);
            let answers = self.sets.take_answers();
            if answers.is_empty() {
                return;
            }
            for (tag, answer) in answers {
                self.disks.handle_chunk_answer(now, tag, answer, &mut self.disks_fx);
            }
        }
    }
    fn pass(&mut self, fx: &mut Effects<Message>) {
        self.disks_fx.packets.drain(..).for_each(|p| fx.send(Message::Disks(p)));
        self.sets_fx.packets.drain(..).for_each(|p| fx.send(Message::Sets(p)));
        fx.take_rest(&mut self.disks_fx);
        fx.take_rest(&mut self.sets_fx);
        if let Some(at) = self.disks_fx.take_wake() {
            self.due = at;
        }
        self.disks_fx.clear();
        self.sets_fx.clear();
        fx.wake_at(self.due.min(self.sets.deadline()));
    }
}

impl Node<Message> for CloudServer {
    fn handle(&mut self, now: Time, event: Event<Message>, fx: &mut Effects<Message>) {
        match event {
            Event::Packet(Message::Disks(p)) => self.disks.handle(now, Event::Packet(p), &mut self.disks_fx),
            Event::Packet(Message::Sets(p)) => self.sets.handle_packet(now, p, &mut self.sets_fx),
            Event::Stored { tag } => self.disks.handle(now, Event::Stored { tag }, &mut self.disks_fx),
            Event::Timer => {
                if self.due <= now {
                    self.due = Time::MAX;
                    self.disks.handle(now, Event::Timer, &mut self.disks_fx);
                }
                self.sets.handle_timer(now, &mut self.sets_fx);
            }
            Event::Completion(_) | Event::Request(_) => {}
        }
        self.exchange(now);
        self.pass(fx);
    }
}

impl Logged for CloudServer {
    type Packet = Message;
    type Config = ServerConfig;
    type Error = RecordError;
    const CONTENTS: &'static str = "cloud disks";

    fn begin(
        me: NodeId,
        config: &ServerConfig,
        run: (Incarnation, DriveId),
        saved: Vec<StoredRecord>,
    ) -> Result<CloudServer, RecordError> {
        let saved: Vec<_> = saved.into_iter().map(|r| r.parts()).collect();
        let disks = rackweave_cloud::Server::new(me, Layout::META, config.protocol.clone(), run, &saved)?;
        let sets = SetClientConfig { node: me, nonce: run.0.0, ..config.sets.clone() };
        Ok(CloudServer {
            disks,
            sets: ReplicaSets::new(sets, run.0),
            disks_fx: Effects::new(),
            sets_fx: Effects::new(),
            due: Time::ZERO,
        })
    }
    /// A long write stands in the store twice while it is under way.
    fn set_room(&mut self, room: LogRoom) {
        self.disks.set_room(room.for_puts / 2);
    }
    /// Nothing of a disk depends on it.
    fn set_unix_ms_at_zero(&mut self, _: u64) {}
    /// `status` shows the store alone.
    fn count(&self, _: &mut StoreStatus) {}
    fn takes(body: &Body) -> bool {
        matches!(body, Body::Cloud(_) | Body::Block(Block::Reply(_)) | Body::Control(Control::Map(_)))
    }
    fn of_message(p: msg::Packet) -> Option<Message> {
        Some(match p.body {
            Body::Cloud(_) => Message::Disks(Packet::of_message(p)?),
            _ => Message::Sets(p),
        })
    }
    fn into_message(p: Message) -> msg::Packet {
        match p {
            Message::Disks(p) => p.into_message(),
            Message::Sets(p) => p,
        }
    }
}

#[cfg(test)]
#[path = "cloud_tests.rs"]
mod tests;
