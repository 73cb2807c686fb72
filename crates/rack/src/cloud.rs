//! Cloud disks of a rack: their parameters, which servers, clients and the metadata service must agree on, and the node on each
//! server's log vSSD.

use bytes::Bytes;
use rackweave_cloud::Config;
use rackweave_cloud::log::LogLimits;
use rackweave_cloud::msg::Packet;
use rackweave_cloud::record::RecordError;
use rackweave_config::RackConfig;
use rackweave_core::msg::cloud::ENTRIES_MAX;
use rackweave_core::msg::{self, Body};
use rackweave_core::{DriveId, Effects, Event, Incarnation, Layout, MESSAGE_MAX, Node, NodeId, Span, Time};
use rackweave_flash::log_blocks;
use rackweave_kv::replicated::Logged;
use rackweave_kv::store::BLOCKS_MIN;
use rackweave_meta::CloudConfig;
use rackweave_server::StoreStatus;

use crate::build::{self, heartbeat_every};

/// Share of a log's blocks, beyond those that a store needs anyway, that disks may promise: the rest is for its compaction, and
/// for what a block cannot be filled with.
const ROOM_PERCENT: u64 = 60;
/// Largest sub-log of a disk on a server, and largest batch.
const LOG_MAX: u64 = 16 << 20;
const BATCH_MAX: u64 = 1 << 20;

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
            bytes: (room / 16).clamp(4 * message, LOG_MAX),
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
            merge_foreground_bytes: log.bytes / 2,
            log,
            batch_bytes: (room / 64).clamp(message, BATCH_MAX),
            ..Config::default()
        };
        CloudConfig { protocol, room }
    })
}

/// A server of cloud disks.
pub struct CloudServer(pub rackweave_cloud::Server);

impl Node<Packet> for CloudServer {
    fn handle(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects<Packet>) {
        self.0.handle(now, event, fx);
    }
}

impl Logged for CloudServer {
    type Packet = Packet;
    type Config = Config;
    type Error = RecordError;

    fn begin(
        me: NodeId,
        config: &Config,
        run: (Incarnation, DriveId),
        saved: &[(Bytes, Bytes)],
    ) -> Result<CloudServer, RecordError> {
        rackweave_cloud::Server::new(me, Layout::META, config.clone(), run, saved).map(CloudServer)
    }
    fn set_space(&mut self, for_puts: u64, _: u64) {
        self.0.set_room(for_puts);
    }
    /// Nothing of a disk depends on it.
    fn set_unix_ms_at_zero(&mut self, _: u64) {}
    /// `status` shows the store alone.
    fn count(&self, _: &mut StoreStatus) {}
    fn takes(body: &Body) -> bool {
        matches!(body, Body::Cloud(_))
    }
    fn of_message(p: msg::Packet) -> Option<Packet> {
        Packet::of_message(p)
    }
    fn into_message(p: Packet) -> msg::Packet {
        p.into_message()
    }
}
