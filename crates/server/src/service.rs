//! The seam between a server and the services of its vSSDs.
//!
//! [`crate::Server`] owns the drive and everything common to all vSSDs: registration and lease, the drive table and
//! slots, the row in the switch, the decision to collect, and the reports of load, wear and room. A [`Service`] owns
//! the operations on one vSSD. Both use the same drive, so each call lends it to the service in a [`Context`].
//!
//! Order of calls: a service is created before the drive is recovered, and gets only [`Service::set_lease`] until then.
//! `now` never decreases. After an event in which [`Context::changed`] was set, the server calls
//! [`Service::poll_programs`], decides about collection, then calls [`Service::poll_answers`].

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use rackweave_core::msg::control::Standing;
use rackweave_core::msg::{LiveVolumes, Packet, View};
use rackweave_core::{BlockAddr, Effects, Incarnation, NodeId, Payload, Time, Timestamp, VssdId};
use rackweave_flash::manager::Done;
use rackweave_flash::{FlashOut, ReadError, Ssd};

use crate::bounds::OverBound;
use crate::config::{ServerConfig, VssdConfig};
use crate::report::VssdStatus;

/// Low bits of a flash token, for a service's own operations; the slot of its vSSD is above them.
const TOKEN_BITS: u32 = 56;

/// The flash token of operation `n` of the service in this slot.
pub fn flash_token(slot: usize, n: u64) -> u64 {
    (slot as u64) << TOKEN_BITS | n
}
/// The slot of the service that gave the token to flash.
pub fn token_slot(token: u64) -> usize {
    (token >> TOKEN_BITS) as usize
}
/// The service's own number of the operation.
pub fn token_number(token: u64) -> u64 {
    token & ((1 << TOKEN_BITS) - 1)
}

/// The server's drive and effects, lent to a service for one call.
pub struct Context<'a> {
    pub now: Time,
    pub ssd: &'a mut Ssd,
    pub out: &'a mut FlashOut,
    pub fx: &'a mut Effects,
    /// Whether the metadata service has admitted this incarnation of the server.
    pub registered: bool,
    /// That incarnation; zero before.
    pub incarnation: Incarnation,
    /// The wall clock at `now` zero, in milliseconds since 1970 ([`crate::Server::set_unix_ms_at_zero`]).
    pub unix_ms_at_zero: u64,
    /// Replica for reads while this vSSD collects, if the controller named one
    /// ([`crate::ServerConfig::forwards_reads`]).
    pub forward_to: Option<(VssdId, NodeId)>,
    /// Set by the service if a change requires [`Service::poll_programs`] or [`Service::poll_answers`].
    pub changed: bool,
}

/// An answer of the drive to the service that gave it this token ([`flash_token`]).
#[derive(Debug)]
pub enum FlashEvent {
    Read {
        token: u64,
        addr: BlockAddr,
        version: Timestamp,
        result: Result<Payload, ReadError>,
    },
    /// A page is programmed. If not `ok`, the drive fails for good, and [`Service::fail`] follows.
    Programmed {
        token: u64,
        ok: bool,
    },
    /// Earlier programs are durable. Not `ok`: as for `Programmed`.
    Synced {
        token: u64,
        ok: bool,
    },
    /// Of a log vSSD's manager.
    Log(Done),
}

/// Why there is more room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// A block of the vSSD was erased, or one was lent to it.
    Block,
    /// The host's disk has room for the drive's file again.
    Host,
}

/// Result of a packet for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// Handled; an answer, if needed, is or will be sent.
    Taken,
    /// A read that is already in progress: one answer serves both.
    Joined,
}

/// Commands that [`Service::poll_programs`] submitted to the drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Programs {
    /// Pages were programmed since the last call: fewer blocks may be free.
    pub allocated: bool,
    /// A program found no free block, and waits for one.
    pub waits_for_block: bool,
    /// Collecting would free nothing now.
    pub no_victim: bool,
}

/// Order of the collection monitor to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    Start,
    /// Takes no further victims while others of its channel group collect.
    Rest,
    /// Takes no further victims.
    Stop,
}

/// Pending requests and pages of a service, for the switch and `status`. Scrubbing waits until there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceLoad {
    /// Reads that have not begun.
    pub reads_waiting: usize,
    /// Reads that have begun and are at the flash or held back before it.
    pub reads_begun: usize,
    /// Writes that have not begun.
    pub writes_waiting: usize,
    /// Pages being programmed.
    pub pages_begun: usize,
}

impl ServiceLoad {
    /// Whether no read here will be answered.
    pub fn without_reads(&self) -> bool {
        self.reads_waiting == 0 && self.reads_begun == 0
    }
    /// Whether anything waits for the vSSD's flash.
    pub fn is_busy(&self) -> bool {
        !self.without_reads() || self.pages_begun > 0
    }
}

/// Room of a vSSD in blocks: the reported value admits writes (protocol rule 34).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    pub capacity: u64,
    pub used: u64,
}

type Make = dyn Fn(&ServerConfig, &VssdConfig, usize) -> Box<dyn Service> + Send + Sync;

/// Creates the service of the vSSD in a slot.
#[derive(Clone)]
pub struct MakeService(Arc<Make>);

impl MakeService {
    pub fn new(make: impl Fn(&ServerConfig, &VssdConfig, usize) -> Box<dyn Service> + Send + Sync + 'static) -> Self {
        MakeService(Arc::new(make))
    }
    pub(crate) fn make(&self, server: &ServerConfig, vssd: &VssdConfig, slot: usize) -> Box<dyn Service> {
        (self.0)(server, vssd, slot)
    }
}

impl Debug for MakeService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MakeService")
    }
}

/// A service that a server offers on one vSSD.
pub trait Service: Any + Debug + Send {
    fn load(&self) -> ServiceLoad;
    /// Free ÷ spare (protocol rule 19).
    fn free_ratio(&self, ssd: &Ssd) -> f64;
    /// Carries out an order; it collects at no other time.
    fn collect(&mut self, cx: &mut Context<'_>, order: Collect);
    /// Whether a victim is in progress.
    fn collecting(&self, ssd: &Ssd) -> bool;
    /// Whether an erase of its collection is under way.
    fn erasing(&self, ssd: &Ssd) -> bool;
    fn room(&self, ssd: &Ssd) -> Room;
    /// Its part of the vSSD's line in the next heartbeat.
    fn standing(&self) -> Standing;
    /// Fills in its own counters.
    fn status(&self, now: Time, ssd: &Ssd, status: &mut VssdStatus);
    /// Checks every bound, using counters only.
    ///
    /// # Errors
    /// The first bound that is exceeded.
    fn check(&self, ssd: &Ssd) -> Result<(), OverBound>;
    /// Whether it does not know the live volumes, so that the server requests them again.
    fn wants_volumes(&self) -> bool {
        false
    }
    /// Whether it can take the next block of a scrub.
    fn scrub_ready(&self) -> bool {
        true
    }

    /// Whether it takes this packet, whose set is none of vSSDs.
    fn takes(&self, p: &Packet) -> bool {
        _ = p;
        false
    }
    /// Handles a client's request or a message of another member of the set.
    fn handle_packet(&mut self, cx: &mut Context<'_>, p: Packet) -> Admitted;
    fn handle_flash(&mut self, cx: &mut Context<'_>, event: FlashEvent);
    /// Only records it; [`Service::poll_programs`] and [`Service::poll_answers`] follow.
    fn handle_freed(&mut self, what: Freed) {
        _ = what;
    }
    fn handle_timer(&mut self, cx: &mut Context<'_>);

    // Of members of replica sets; other services do nothing here.

    /// Installs a newer view of the set; `me`: the server's incarnation.
    fn install_view(&mut self, cx: &mut Context<'_>, view: &View, me: Incarnation) {
        _ = (cx, view, me);
    }
    /// Serves before this time (protocol rule 2).
    fn set_lease(&mut self, until: Time) {
        _ = until;
    }
    fn learn_volumes(&mut self, cx: &mut Context<'_>, volumes: &LiveVolumes) {
        _ = (cx, volumes);
    }
    /// Reads a block at rest, and heals it from another member if it is damaged.
    fn scrub(&mut self, cx: &mut Context<'_>, a: BlockAddr) {
        _ = (cx, a);
    }
    /// The scrub leaves this vSSD.
    fn end_scrub(&mut self, cx: &mut Context<'_>) {
        _ = cx;
    }
    /// The metadata service knows that the drive has failed.
    fn failure_known(&mut self) {}

    /// The drive has failed for good (protocol rule 12), or is not used: from now on the service neither serves nor
    /// acknowledges.
    fn fail(&mut self);
    /// The vSSD is given back, and its slot becomes `free`. Pending flash commands still complete; all other state is
    /// dropped.
    fn vacate(&mut self, server: &ServerConfig, free: &VssdConfig);

    /// Programs and syncs as far as possible now.
    fn poll_programs(&mut self, cx: &mut Context<'_>) -> Programs;
    /// Continues what waited for the drive's answers or for room. Returns when [`Service::handle_timer`] is to be called.
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> Time;
}
