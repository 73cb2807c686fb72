//! The switch's tables of partitions of keys (NI2, NI7): which members it may send gets to, and which it copies puts to.
//!
//! A share of a partition's gets has a row like a vSSD's. Its server is one of the members that answer any get, its peers are that
//! member's vSSD and up to two further ones; the switch chooses among them as it does for blocks. A row says nothing about a
//! state of its own. Nothing rests on it (rule 28): members answer by their own views.
//!
//! A switch that has taken a row keeps it until it restarts, and then has lost all of them. An idle keyspace therefore sends a
//! *probe*, the announcement of one row that the switch has, numbered as an earlier one: a switch that has the row ignores it,
//! and one that has restarted takes it and answers. The probe is of the row that the switch took first: if it has lost any, it has
//! lost that one.

use std::collections::BTreeMap;

use rackweave_core::msg::{Body, Class, Header, Op, PEERS_MAX, PROBE, Packet, Table, TableError, VssdRow};
use rackweave_core::{Effects, Epoch, Incarnation, Layout, NodeId, SetId, Span, Time, VssdId};
use rackweave_kv_replica::msg::{Body as KeyMessage, Packet as KeyPacket};
use rackweave_kv_replica::types::{Partition, View};

/// A row without an answer is announced again after this time: a rack has a few hundred.
const ROW_RETRY_INTERVAL: Span = Span::from_millis(100);
/// Interval of probes. As often, a row that the switch had no room for is announced again, and one partition with its multicast
/// group, which has no answer.
const PROBE_EVERY: Span = Span::from_millis(500);

/// Number of announcements but probes: of two with one epoch, the switch ignores the lower if it has taken the higher.
const ANNOUNCEMENT: u64 = PROBE + 1;

struct Announced {
    epoch: Epoch,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// To be announced again then.
    Again(Time),
    /// The switch took it, and answered then.
    Taken(Time),
}

/// Announcements of rows to the switch.
#[derive(Default)]
pub(crate) struct KeyRows {
    rows: BTreeMap<VssdId, Announced>,
    probe_at: Time,
    /// The partition that was announced again last.
    repeated: Partition,
}

impl KeyRows {
    /// Announces the rows of these durable views that are due; `log`: a server's log vSSD.
    pub(crate) fn announce<'a>(
        &mut self,
        now: Time,
        me: Incarnation,
        (views, shares): (impl Iterator<Item = &'a View> + Clone, usize),
        log: &impl Fn(NodeId) -> VssdId,
        fx: &mut Effects,
    ) {
        let (mut repeated, mut probed) = (None, None);
        if now >= self.probe_at {
            self.probe_at = now + PROBE_EVERY;
            let all = || views.clone().map(|v| v.partition);
            repeated = all().filter(|p| *p > self.repeated).min().or_else(|| all().min());
            self.repeated = repeated.unwrap_or_default();
            let others = views.clone().filter(|v| Some(v.partition) != repeated);
            probed = self.first_taken(others, shares).filter(|_| !mutant!("meta.keys.switch-not-probed"));
        }
        for view in views {
            for share in 0..shares {
                let vssd = view.partition.row(share as u32);
                let row = self.rows.entry(vssd).or_insert(Announced { epoch: Epoch(0), state: State::Again(now) });
                let due = matches!(row.state, State::Again(at) if at <= now);
                let request = if row.epoch != view.epoch || due || repeated == Some(view.partition) {
                    *row = Announced { epoch: view.epoch, state: State::Again(now + ROW_RETRY_INTERVAL) };
                    ANNOUNCEMENT
                } else if probed == Some(vssd) {
                    PROBE
                } else {
                    continue;
                };
                let header = Header {
                    class: Class::Gold,
                    set: SetId(view.partition.0),
                    epoch: view.epoch,
                    incarnation: me,
                    request,
                    ..Header::addressed(Op::CreateVssd, vssd)
                };
                let body = Body::Table(Table::Create(Box::new(row_of(view, share, log))));
                fx.send(Packet { src: Layout::META, dst: Layout::SWITCH, header, body });
                if share == 0 && request == ANNOUNCEMENT {
                    fx.send(announced(me, view));
                }
            }
        }
    }
    /// Of these views the row that the switch took before all others.
    fn first_taken<'a>(&self, views: impl Iterator<Item = &'a View>, shares: usize) -> Option<VssdId> {
        let rows = views.flat_map(|v| (0..shares).map(move |share| (v.partition.row(share as u32), v.epoch)));
        let taken = rows.filter_map(|(vssd, epoch)| match self.rows.get(&vssd)? {
            Announced { epoch: known, state: State::Taken(at) } if *known == epoch => Some((*at, vssd)),
            _ => None,
        });
        taken.min().map(|(_, vssd)| vssd)
    }
    /// The switch has answered an announcement: that it took the row, or that its tables are full.
    pub(crate) fn answered(&mut self, now: Time, me: Incarnation, header: &Header, answer: Result<(), TableError>) {
        if header.incarnation != me {
            return;
        }
        if header.request == PROBE {
            // It did not have the row that it had taken: it has none of them.
            self.rows.values_mut().for_each(|row| row.state = State::Again(now));
        } else if let Some(row) = self.rows.get_mut(&header.vssd).filter(|row| row.epoch == header.epoch) {
            row.state = if answer.is_ok() { State::Taken(now) } else { State::Again(now + PROBE_EVERY) };
        }
    }
}

/// The view for the switch's multicast ring, with one of the rows, whose answer says that the switch is there.
fn announced(me: Incarnation, view: &View) -> Packet {
    let body = KeyMessage::NewView(Box::new(view.clone()));
    let (from, to) = (Layout::META, Layout::SWITCH);
    let p = KeyPacket { from, to, partition: view.partition, epoch: view.epoch, body }.into_message();
    Packet { header: Header { incarnation: me, ..p.header }, ..p }
}

/// The members that the gets of a share go to. While nobody holds everything the primary decides.
fn row_of(view: &View, share: usize, log: &impl Fn(NodeId) -> VssdId) -> VssdRow {
    let mut members: Vec<NodeId> = view.readable().collect();
    if mutant!("meta.keys.rows-of-all") {
        members = view.members.iter().map(|m| m.node).collect();
    }
    let Some(turn) = share.checked_rem(members.len()) else {
        return VssdRow { server: view.primary, readable: false, peers: Vec::new() };
    };
    members.rotate_left(turn);
    let log = |n: &NodeId| (log(*n), *n);
    VssdRow { server: members[0], readable: false, peers: members.iter().take(PEERS_MAX).map(log).collect() }
}

#[cfg(test)]
mod tests {
    use rackweave_core::DriveId;
    use rackweave_kv_replica::types::{Epochs, Member, Role};

    use super::*;
    use crate::ids;

    fn log(n: NodeId) -> VssdId {
        ids::log(0, Layout::server_number(n)).0
    }

    /// A view in epoch 5 of servers with these roles; those that hold all epochs before it are full.
    fn view(members: &[(u32, Role, bool)]) -> View {
        let member = |&(number, role, full): &(u32, Role, bool)| Member {
            node: Layout::numbered_server(number),
            incarnation: Incarnation(1),
            drive: DriveId(1),
            role,
            holds: if full { Epochs::range(Epoch(1), Epoch(4)) } else { Epochs::none() },
            wants: Epochs::none(),
            since: Epoch(1),
            witness: true,
        };
        let (partition, primary) = (Partition(3), Layout::numbered_server(members[0].0));
        let members = members.iter().map(member).collect();
        View { partition, epoch: Epoch(5), primary, active: Epoch(4), members }
    }
    fn peers(row: &VssdRow) -> Vec<u32> {
        row.peers.iter().map(|p| Layout::server_number(p.1)).collect()
    }

    #[test]
    fn rows_have_the_members_that_answer_any_get_in_turn() {
        let home = |n| (n, Role::Home, true);
        let five = view(&[home(0), home(1), home(2), home(3), home(4)]);
        let rows: Vec<_> = (0..5).map(|share| row_of(&five, share, &log)).collect();
        let all: Vec<_> = rows.iter().map(peers).collect();
        assert_eq!(all, [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 0], [4, 0, 1]]);
        assert_eq!(rows[3].server, Layout::numbered_server(3));
        assert_eq!(rows[3].peers[2], (ids::log(0, 0).0, Layout::numbered_server(0)));
        assert!(rows.iter().all(|r| !r.readable), "a row has no state of its own");
    }
    #[test]
    fn members_that_may_not_answer_every_get_are_in_no_row() {
        let v =
            view(&[(0, Role::Home, false), (1, Role::Home, true), (2, Role::Handoff, false), (3, Role::Leaving, true)]);
        (0..3).for_each(|share| assert_eq!(peers(&row_of(&v, share, &log)), [1]));
        let none = view(&[(0, Role::Home, false), (2, Role::Handoff, false)]);
        assert_eq!(
            (peers(&row_of(&none, 1, &log)), row_of(&none, 1, &log).server),
            (vec![], Layout::numbered_server(0))
        );
    }
    /// Announcements to a switch that may or may not answer; of the rows, not of the groups.
    struct Idle {
        rows: KeyRows,
        views: Vec<View>,
    }

    const ME: Incarnation = Incarnation(7);

    impl Idle {
        fn new(partitions: u32) -> Idle {
            let v = view(&[(0, Role::Home, true), (1, Role::Home, true)]);
            let views = (0..partitions).map(|p| View { partition: Partition(p), ..v.clone() }).collect();
            Idle { rows: KeyRows::default(), views }
        }
        fn at(ms: u64) -> Time {
            Time::ZERO + Span::from_millis(ms)
        }
        fn announced(&mut self, ms: u64) -> Vec<Header> {
            let mut fx = Effects::new();
            self.rows.announce(Idle::at(ms), ME, (self.views.iter(), 2), &log, &mut fx);
            let rows = fx.packets.into_iter().map(|p| p.header);
            rows.filter(|h| h.op == Op::CreateVssd).collect()
        }
        fn answered(&mut self, ms: u64, rows: &[Header], answer: Result<(), TableError>) {
            rows.iter().for_each(|h| self.rows.answered(Idle::at(ms), ME, h, answer));
        }
    }

    #[test]
    fn rows_are_announced_until_they_are_answered() {
        let mut one = Idle::new(1);
        let first = one.announced(0);
        assert_eq!(first.len(), 2);
        assert_eq!(one.announced(99).len(), 0);
        assert_eq!(one.announced(100).len(), 2);
        one.answered(101, &first[..1], Ok(()));
        assert_eq!(one.announced(250).len(), 1, "one has no answer");
        one.views[0].epoch = Epoch(6);
        assert_eq!(one.announced(300).len(), 2, "a new view at once");
        one.answered(301, &first, Ok(()));
        assert_eq!(one.announced(400).len(), 2, "that was an answer about the old view");
    }
    #[test]
    fn a_switch_that_has_all_rows_gets_a_probe_and_one_partition_again() {
        let mut idle = Idle::new(8);
        let all = idle.announced(0);
        assert_eq!(all.len(), 16);
        idle.answered(1, &all, Ok(()));
        let mut again = Vec::new();
        for tick in 1..=8 {
            assert!(idle.announced(500 * tick - 1).is_empty());
            let due = idle.announced(500 * tick);
            let (probes, rows): (Vec<_>, Vec<_>) = due.into_iter().partition(|h| h.request == PROBE);
            assert_eq!((probes.len(), rows.len()), (1, 2));
            idle.answered(500 * tick + 1, &rows, Ok(()));
            again.push(rows[0].set);
        }
        again.sort();
        assert_eq!(again, (0..8).map(SetId).collect::<Vec<_>>(), "each partition once in eight times");
    }
    /// A row that a restarted switch already has would hide that it lacks the others.
    #[test]
    fn the_probe_is_of_the_row_that_the_switch_took_first() {
        let mut idle = Idle::new(8);
        let all = idle.announced(0);
        let (later, sooner): (Vec<_>, Vec<_>) = all.into_iter().partition(|h| h.set == SetId(5));
        idle.answered(1, &sooner, Ok(()));
        idle.answered(2, &later, Ok(()));
        // The switch restarts, and takes new views of all partitions but one.
        idle.views.iter_mut().filter(|v| v.partition != Partition(5)).for_each(|v| v.epoch = Epoch(6));
        let changed = idle.announced(3);
        assert_eq!(changed.len(), 14);
        idle.answered(4, &changed, Ok(()));
        let due = idle.announced(500);
        let probe = due.iter().find(|h| h.request == PROBE).copied().expect("a probe");
        assert_eq!(probe.set, SetId(5));
        // A view that changes meanwhile does not matter.
        idle.views[5].epoch = Epoch(7);
        idle.announced(501);
        idle.answered(502, &[probe], Ok(()));
        assert_eq!(idle.announced(503).len(), 16);
    }
    #[test]
    fn a_switch_that_answers_a_probe_gets_all_rows() {
        let mut idle = Idle::new(8);
        let all = idle.announced(0);
        idle.answered(1, &all, Ok(()));
        let due = idle.announced(500);
        let probe: Vec<_> = due.iter().filter(|h| h.request == PROBE).copied().collect();
        idle.answered(501, &due, Ok(()));
        assert_eq!(probe.len(), 1);
        assert_eq!(idle.announced(502).len(), 14, "all but the partition that it has taken again");
    }
    #[test]
    fn rows_that_the_switch_has_no_room_for_are_announced_twice_a_second() {
        let mut full = Idle::new(8);
        let all = full.announced(0);
        full.answered(1, &all, Err(TableError::Full { rows: 8 }));
        assert_eq!(full.announced(400).len(), 0);
        let again = full.announced(501);
        assert_eq!((again.len(), again.iter().all(|h| h.request == ANNOUNCEMENT)), (16, true));
    }
}
