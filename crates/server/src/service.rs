//! The seam between a server and the services of its vSSDs.
//!
//! [`crate::Server`] owns the drive and everything that is the same for all vSSDs: registration and lease, the drive's
//! table and slots, the row in the switch, the decision to collect, and the reports of load, wear and room. A [`Service`]
//! owns what is done with one vSSD. Both use the same drive, so each call lends it to the service in a [`Context`].
//!
//! Order of calls: a service is made before the drive is recovered, and gets only [`Service::set_lease`] until then.
//! `now` never goes back. After an event in which [`Context::changed`] was set the server calls
//! [`Service::poll_programs`], decides about collection, then calls [`Service::poll_answers`].

use std::any::Any;
use std::fmt::Debug;

use rackweave_core::msg::control::VssdReport;
use rackweave_core::msg::{LiveVolumes, Packet, View};
use rackweave_core::{BlockAddr, Effects, Incarnation, NodeId, Payload, Time, Timestamp, VssdId};
use rackweave_flash::{FlashOut, ReadError, Ssd};

use crate::bounds::OverBound;
use crate::config::{ServerConfig, VssdConfig};
use crate::report::VssdStatus;

/// Bits of a flash token that number a service's own operations; above them is the slot of its vSSD.
const TOKEN_BITS: u32 = 56;

/// The flash token of operation `n` of the service in this slot.
pub fn flash_token(slot: usize, n: u64) -> u64 {
    (slot as u64) << TOKEN_BITS | n
}
/// The slot whose service gave the token to flash.
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
    /// The metadata service has welcomed this incarnation of the server.
    pub registered: bool,
    /// The replica that reads go to while this vSSD collects, if the controller named one ([`crate::ServerConfig::forwards_reads`]).
    pub forward_to: Option<(VssdId, NodeId)>,
    /// Set by the service: something changed that [`Service::poll_programs`] or [`Service::poll_answers`] acts on.
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
    /// A page is programmed. Not `ok`: the drive fails for good, and [`Service::fail`] follows.
    Programmed {
        token: u64,
        ok: bool,
    },
    /// Earlier programs are durable. Not `ok`: as above.
    Synced {
        token: u64,
        ok: bool,
    },
}

/// Why there is more room than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// A block of the vSSD was erased, or one was lent to it.
    Block,
    /// The host's disk has room for the drive's file again.
    Host,
}

/// Result of a packet given to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// It is handled; an answer that it needs is sent or will be.
    Taken,
    /// A read that is under way already: one answer is for both.
    Joined,
}

/// Commands that [`Service::poll_programs`] submitted to the drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Programs {
    /// Pages were programmed since the last call: fewer blocks may be free.
    pub allocated: bool,
    /// A program found no free block, and waits for one.
    pub waits_for_block: bool,
}

/// Pending requests and pages of a service: reported to the switch and shown by `status`; scrubbing waits until there
/// are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceLoad {
    /// Reads that have not begun.
    pub reads_waiting: usize,
    /// Reads that have begun and are at the flash or held back before it.
    pub reads_begun: usize,
    /// Writes that have not begun.
    pub writes_waiting: usize,
    /// Pages that are being programmed.
    pub pages_begun: usize,
}

impl ServiceLoad {
    /// No read is here that will be answered.
    pub fn without_reads(&self) -> bool {
        self.reads_waiting == 0 && self.reads_begun == 0
    }
    /// Something waits for the vSSD's flash.
    pub fn is_busy(&self) -> bool {
        !self.without_reads() || self.pages_begun > 0
    }
}

/// Room of a vSSD, in blocks: the reported value admits writes (protocol rule 34).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    pub capacity: u64,
    pub used: u64,
}

/// Makes the service of the vSSD in this slot.
pub type MakeService = fn(&ServerConfig, &VssdConfig, usize) -> Box<dyn Service>;

/// A service that a server offers on one vSSD.
pub trait Service: Any + Debug + Send {
    fn load(&self) -> ServiceLoad;
    fn room(&self, ssd: &Ssd) -> Room;
    /// Its line in the server's next heartbeat.
    fn report(&self) -> VssdReport;
    /// Fills in what it counts itself.
    fn status(&self, now: Time, ssd: &Ssd, status: &mut VssdStatus);
    /// Whether every bound holds. Looks at counters only.
    ///
    /// # Errors
    /// The first bound that is exceeded.
    fn check(&self, ssd: &Ssd) -> Result<(), OverBound>;
    /// When [`Service::handle_timer`] is to be called.
    fn deadline(&self, now: Time) -> Time;
    /// It does not know which volumes live: the server requests them again.
    fn wants_volumes(&self) -> bool;
    /// It can take the next block of a scrub.
    fn scrub_ready(&self) -> bool;

    /// A client's request or a message of another member of the set.
    fn handle_packet(&mut self, cx: &mut Context<'_>, p: Packet) -> Admitted;
    fn handle_flash(&mut self, cx: &mut Context<'_>, event: FlashEvent);
    /// Takes note only; [`Service::poll_programs`] and [`Service::poll_answers`] follow.
    fn handle_freed(&mut self, what: Freed);
    fn handle_timer(&mut self, cx: &mut Context<'_>);

    /// A newer view of the set; `me`: the server's incarnation.
    fn install_view(&mut self, cx: &mut Context<'_>, view: &View, me: Incarnation);
    /// It serves before this (protocol rule 2).
    fn set_lease(&mut self, until: Time);
    fn learn_volumes(&mut self, cx: &mut Context<'_>, volumes: &LiveVolumes);
    /// Reads a block that lies still, and heals it from another member if it is damaged.
    fn scrub(&mut self, cx: &mut Context<'_>, a: BlockAddr);
    /// The scrub leaves this vSSD.
    fn end_scrub(&mut self, cx: &mut Context<'_>);
    /// The drive has failed for good (protocol rule 12), or is not used: the service neither serves nor acknowledges
    /// from now on.
    fn fail(&mut self);
    /// The metadata service knows that the drive has failed.
    fn failure_known(&mut self);
    /// The vSSD is given back, and its slot is `free` from now on. Pending flash commands still complete; all other
    /// state is dropped.
    fn give_back(&mut self, server: &ServerConfig, free: &VssdConfig);

    /// Programs and syncs what may be now.
    fn poll_programs(&mut self, cx: &mut Context<'_>) -> Programs;
    /// Goes on with what waited for the drive's answers or for room.
    fn poll_answers(&mut self, cx: &mut Context<'_>);
}
