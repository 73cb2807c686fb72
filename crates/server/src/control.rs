//! Exchange with the metadata service: registration, heartbeats, the lease.

use std::collections::VecDeque;

use rackweave_core::msg::control::{DriveTable, VssdLoss, VssdReport};
use rackweave_core::msg::{Control, ServerHello};
use rackweave_core::rng::mix64;
use rackweave_core::{DriveId, Incarnation, RackId, Span, Time};

/// Heartbeats whose sending time is remembered: a lease answers one of the last few or is too late to matter.
const SENT_MAX: usize = 64;
/// Interval at which an unanswered registration is repeated: ten a second for a server.
const HELLO_RETRY_INTERVAL: Span = Span::from_millis(100);

/// The rack of the drive, and the rack here.
#[derive(Clone, Copy, Debug)]
struct Owner {
    drive: Option<RackId>,
    rack: Option<RackId>,
}

/// The server's registration with the rack, in one run.
#[derive(Debug)]
pub struct Registration {
    nonce: u64,
    pub drive: DriveId,
    /// Losses of the drive, once it is recovered.
    pub losses: Vec<VssdLoss>,
    /// The drive table, once it is recovered.
    pub table: DriveTable,
    /// The device began empty without being declared so; the metadata service refuses it if the server has run before.
    empty: bool,
    pub refused: bool,
    /// `None`: the rack's identity is not requested.
    owner: Option<Owner>,
    heartbeat_every: Span,
    drift_ppm: u32,
    pub incarnation: Option<Incarnation>,
    /// The drive is recovered, or its failure can be reported.
    pub ready: bool,
    again_at: Time,
    sequence: u64,
    sent: VecDeque<(u64, Time)>,
    /// The first heartbeat that reported the drive's failure.
    failure_sent: Option<u64>,
    /// Serves before this time of its own clock (protocol rule 2).
    pub lease_until: Time,
    /// Span of the last lease.
    span: Span,
    /// Number of the service's last message, which heartbeats name to show that this incarnation received it.
    last_stamp: u64,
}

impl Registration {
    pub fn new(nonce: u64, drive: DriveId, empty: bool, heartbeat_every: Span, drift_ppm: u32) -> Registration {
        Registration {
            nonce,
            drive,
            losses: Vec::new(),
            table: DriveTable::default(),
            empty,
            refused: false,
            owner: None,
            heartbeat_every,
            drift_ppm,
            incarnation: None,
            ready: false,
            again_at: Time::ZERO,
            // A late lease of an earlier run then names no heartbeat of this one.
            sequence: mix64(nonce),
            sent: VecDeque::new(),
            failure_sent: None,
            lease_until: Time::ZERO,
            span: Span::ZERO,
            last_stamp: 0,
        }
    }
    /// Requests the rack's identity until it is answered, then registers; `drive` is the drive's rack.
    pub fn request_identity(&mut self, drive: Option<RackId>) {
        self.owner = Some(Owner { drive, rack: None });
    }
    /// Sets the rack's identity. A drive of another rack is not used.
    pub fn rack_is(&mut self, now: Time, nonce: u64, rack: RackId) {
        let Some(o) = self.owner.as_mut().filter(|o| nonce == self.nonce && o.rack.is_none()) else { return };
        o.rack = Some(rack);
        self.refused |= o.drive.is_some_and(|d| d != rack);
        self.again_at = now;
    }
    /// The rack's identity, once known.
    pub fn rack(&self) -> Option<RackId> {
        self.owner.and_then(|o| o.rack)
    }
    fn asks_whose(&self) -> bool {
        self.owner.is_some_and(|o| o.rack.is_none())
    }
    /// Whether the drive may be used: it belongs to this rack, or that is not compared. Before the answer nothing on it
    /// is changed.
    pub fn may_use_drive(&self) -> bool {
        !self.refused && (!self.asks_whose() || mutant!("server.drive.before-owner"))
    }
    pub fn deadline(&self) -> Time {
        if (self.ready || self.asks_whose()) && !self.refused { self.again_at } else { Time::MAX }
    }
    /// Sends the next message at once.
    pub fn hurry(&mut self, now: Time) {
        self.again_at = now;
    }
    /// Registers, or renews the lease. `failed`: the drive has failed, as `vssds` report.
    pub fn message(&mut self, now: Time, vssds: Vec<VssdReport>, failed: bool) -> Control {
        if self.incarnation.is_none() {
            self.again_at = now + HELLO_RETRY_INTERVAL;
            let nonce = self.nonce;
            if self.asks_whose() {
                return Control::RackRequest { nonce };
            }
            return self.hello_with(vssds);
        }
        self.again_at = now + self.heartbeat_every;
        self.sequence = self.sequence.wrapping_add(1);
        if self.sent.len() == SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((self.sequence, now));
        if failed {
            self.failure_sent.get_or_insert(self.sequence);
        }
        Control::Heartbeat { sequence: self.sequence, vssds }
    }
    /// A welcome or a lease with this number arrived.
    pub fn received(&mut self, stamp: u64) {
        self.last_stamp = self.last_stamp.max(stamp);
    }
    /// The number that the next heartbeat names.
    pub fn last_received(&self) -> u64 {
        self.last_stamp
    }
    /// The drive holds this incarnation durably, but the service has granted no lease yet: it may not know.
    pub fn is_unconfirmed(&self) -> bool {
        self.span == Span::ZERO && self.incarnation == Some(self.table.known)
    }
    /// Registers again: for the contents of the welcome, or to report that the drive holds this incarnation.
    pub fn hello(&self) -> Control {
        self.hello_with(Vec::new())
    }
    fn hello_with(&self, vssds: Vec<VssdReport>) -> Control {
        let (nonce, drive, empty, losses) = (self.nonce, self.drive, self.empty, self.losses.clone());
        let table = self.table.clone();
        Control::ServerHello(Box::new(ServerHello { nonce, drive, empty, losses, table, vssds }))
    }
    /// True if the incarnation is new.
    pub fn welcomed(&mut self, now: Time, nonce: u64, incarnation: Incarnation) -> bool {
        if (nonce != self.nonce && !mutant!("server.welcome.other-incarnation")) || self.incarnation.is_some() {
            return false;
        }
        self.incarnation = Some(incarnation);
        self.again_at = now;
        true
    }
    /// This run is refused. True if that is new.
    pub fn refused(&mut self, nonce: u64) -> bool {
        let mine = nonce == self.nonce && self.incarnation.is_none();
        self.refused |= mine;
        mine
    }
    /// Whether the answer is to a heartbeat of this run; the lease then runs from its sending time, shortened by how
    /// slow this clock may be.
    pub fn leased(&mut self, sequence: u64, span: Span) -> bool {
        let Some(&(_, sent_at)) = self.sent.iter().find(|(s, _)| *s == sequence || mutant!("server.lease.any-answer"))
        else {
            return false;
        };
        let million = 1_000_000;
        let sent_at =
            if mutant!("server.lease.from-newest") { self.sent.back().map_or(sent_at, |s| s.1) } else { sent_at };
        let until = sent_at
            + span.scale(
                million - if mutant!("server.lease.no-drift") { 0 } else { u64::from(self.drift_ppm).min(million) },
                million,
            );
        self.lease_until = self.lease_until.max(until);
        self.span = span;
        true
    }
    /// Whether the drive has waited for room on the host's disk for longer than a lease: the set's other members would
    /// wait no longer for a silent member either.
    pub fn waits_too_long(&self, now: Time, since: Option<Time>) -> bool {
        let span = self.span;
        since.is_some_and(|at| span > Span::ZERO && now >= at + span) && !mutant!("server.no-room.never-said")
    }
    /// Whether the heartbeat with this number, now answered, reported the drive's failure.
    pub fn knows_failure(&self, sequence: u64) -> bool {
        let sent = |s: u64| self.sent.iter().position(|x| x.0 == s);
        let Some(first_sent) = self.failure_sent else { return false };
        // A heartbeat that is no longer remembered is older than all that are.
        sent(sequence).is_some_and(|at| sent(first_sent).is_none_or(|first| first <= at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(c: Control) -> u64 {
        match c {
            Control::Heartbeat { sequence, .. } => sequence,
            other => panic!("no heartbeat: {other:?}"),
        }
    }

    #[test]
    fn a_lease_runs_from_the_sending_of_its_heartbeat() {
        let mut r = Registration::new(7, DriveId(9), false, Span::from_millis(100), 1000);
        assert!(matches!(r.message(Time(0), vec![], false), Control::ServerHello(h) if h.nonce == 7));
        assert!(!r.welcomed(Time(1), 6, Incarnation(1)), "another life's welcome");
        assert!(r.welcomed(Time(1), 7, Incarnation(2)));
        let first = sequence(r.message(Time(1_000), vec![], false));
        let second = sequence(r.message(Time(5_000), vec![], false));
        assert!(r.leased(first, Span::from_nanos(1_000_000)));
        assert_eq!(r.lease_until, Time(1_000 + 999_000), "though another has left since");
        assert!(r.leased(second, Span::from_nanos(1_000_000)));
        assert_eq!(r.lease_until, Time(5_000 + 999_000));
        assert!(r.leased(first, Span::from_nanos(1_000_000)));
        assert_eq!(r.lease_until, Time(5_000 + 999_000), "an older answer never shortens");
    }

    #[test]
    fn a_failure_is_known_when_a_heartbeat_that_told_it_is_answered() {
        let mut r = Registration::new(7, DriveId(9), false, Span::from_millis(100), 0);
        r.welcomed(Time(0), 7, Incarnation(2));
        let before = sequence(r.message(Time(1), vec![], false));
        let first = sequence(r.message(Time(2), vec![], true));
        let second = sequence(r.message(Time(3), vec![], true));
        assert!(!r.knows_failure(before), "that was sent before");
        assert!(r.knows_failure(first) && r.knows_failure(second));
        assert!(!r.knows_failure(second.wrapping_add(1)), "never sent");
        for t in 4..4 + SENT_MAX as u64 {
            r.message(Time(t), vec![], true);
        }
        let last = sequence(r.message(Time(100), vec![], true));
        assert!(r.knows_failure(last) && !r.knows_failure(before), "the first is forgotten");
    }

    #[test]
    fn a_drive_without_room_is_waited_for_as_long_as_a_lease_lasts() {
        let mut r = Registration::new(7, DriveId(9), false, Span::from_millis(100), 0);
        let full_at = Some(Time(1_000));
        assert!(!r.waits_too_long(Time(u64::MAX), full_at), "nobody counts on who never had a lease");
        r.welcomed(Time(0), 7, Incarnation(2));
        let beat = sequence(r.message(Time(1), vec![], false));
        assert!(r.leased(beat, Span::from_nanos(500)));
        assert!(!r.waits_too_long(Time(1_499), full_at) && r.waits_too_long(Time(1_500), full_at));
        assert!(!r.waits_too_long(Time(1_500), None), "there is room");
    }

    #[test]
    fn an_empty_device_says_so_until_it_is_welcome() {
        let mut r = Registration::new(7, DriveId(9), true, Span::from_millis(100), 0);
        r.ready = true;
        assert!(matches!(r.message(Time(0), vec![], false), Control::ServerHello(h) if h.nonce == 7 && h.empty));
        r.refused(6);
        assert!(!r.refused, "another life's answer");
        r.refused(7);
        assert!(r.refused && r.deadline() == Time::MAX, "asks no more");
        let mut r = Registration::new(8, DriveId(9), true, Span::from_millis(100), 0);
        assert!(r.welcomed(Time(0), 8, Incarnation(3)));
        r.refused(8);
        assert!(!r.refused, "a late answer to what was asked twice");
    }

    #[test]
    fn it_asks_whose_rack_it_is_and_registers_with_no_other() {
        let asking = |drive| {
            let mut r = Registration::new(7, DriveId(9), false, Span::from_millis(100), 0);
            r.request_identity(drive);
            assert!(r.deadline() == Time::ZERO && !r.may_use_drive(), "before the drive is used");
            assert!(matches!(r.message(Time(0), vec![], false), Control::RackRequest { nonce: 7 }));
            r
        };
        let (own, other) = (RackId(1 << 100), RackId(2));
        for drive in [None, Some(own)] {
            let mut r = asking(drive);
            r.rack_is(Time(5), 6, other);
            assert_eq!(r.rack(), None, "another life's answer");
            r.rack_is(Time(5), 7, own);
            r.rack_is(Time(6), 7, other);
            assert!(r.may_use_drive() && r.deadline() == Time::MAX, "registers when it knows what is on it");
            r.ready = true;
            assert_eq!((r.rack(), r.refused, r.deadline()), (Some(own), false, Time(5)), "the first answer counts");
            assert!(matches!(r.message(Time(6), vec![], false), Control::ServerHello(h) if h.nonce == 7));
        }
        let mut r = asking(Some(other));
        r.rack_is(Time(5), 7, own);
        assert_eq!((r.rack(), r.refused, r.deadline()), (Some(own), true, Time::MAX), "it never registers");
        assert!(!r.may_use_drive());
        // Without an answer nothing else is sent, and the drive is left unchanged, however long that takes.
        let mut r = asking(Some(own));
        r.ready = true;
        assert!((0..100).all(|t| matches!(r.message(Time(t), vec![], false), Control::RackRequest { nonce: 7 })));
        assert!(!r.may_use_drive());
        assert_eq!(r.deadline(), Time(99) + HELLO_RETRY_INTERVAL);
        r.rack_is(Time(200), 7, own);
        assert!(r.may_use_drive());
        assert!(matches!(r.message(Time(200), vec![], false), Control::ServerHello(_)));
    }

    #[test]
    fn a_lease_of_an_earlier_life_counts_for_nothing() {
        let mut old = Registration::new(1, DriveId(9), false, Span::from_millis(100), 0);
        old.welcomed(Time(0), 1, Incarnation(1));
        let late = sequence(old.message(Time(0), vec![], false));
        let mut new = Registration::new(2, DriveId(9), false, Span::from_millis(100), 0);
        new.welcomed(Time(0), 2, Incarnation(2));
        for t in 0..50 {
            new.message(Time(t), vec![], false);
        }
        assert!(!new.leased(late, Span::from_secs(1)));
        assert_eq!(new.lease_until, Time::ZERO);
    }
}
