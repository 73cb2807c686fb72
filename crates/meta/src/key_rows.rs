//! The switch's tables of partitions of keys (NI2, NI7): which members it may send gets to, and which it copies puts to.
//!
//! A share of a partition's gets has a row like a vSSD's. Its server is one of the members that answer any get, its peers are that
//! member's vSSD and up to two further ones; the switch chooses among them as it does for blocks. A row says nothing about a
//! state of its own. Nothing rests on it (rule 28): members answer by their own views.

use std::collections::BTreeMap;

use rackweave_core::msg::{Body, Class, Header, Op, PEERS_MAX, Packet, Table, VssdRow};
use rackweave_core::{Effects, Epoch, Incarnation, Layout, NodeId, SetId, Span, Time, VssdId};
use rackweave_kv_replica::msg::{Body as KeyMessage, Packet as KeyPacket};
use rackweave_kv_replica::types::View;

/// A row without an answer is announced again after this time: a rack has a few hundred.
const ROW_RETRY_INTERVAL: Span = Span::from_millis(100);
/// A switch that has restarted knows all rows after this time.
const ANNOUNCE_EVERY: Span = Span::from_millis(500);

struct Announced {
    epoch: Epoch,
    again_at: Time,
}

/// Announcements of rows to the switch.
#[derive(Default)]
pub(crate) struct KeyRows(BTreeMap<VssdId, Announced>);

impl KeyRows {
    /// Announces the rows of this durable view that are due; `log`: a server's log vSSD.
    pub(crate) fn announce(
        &mut self,
        now: Time,
        me: Incarnation,
        (view, shares): (&View, usize),
        log: &impl Fn(NodeId) -> VssdId,
        fx: &mut Effects,
    ) {
        for share in 0..shares {
            let vssd = view.partition.row(share as u32);
            let row = self.0.entry(vssd).or_insert(Announced { epoch: Epoch(0), again_at: now });
            if row.epoch == view.epoch && row.again_at > now {
                continue;
            }
            *row = Announced { epoch: view.epoch, again_at: now + ROW_RETRY_INTERVAL };
            let header = Header {
                op: Op::CreateVssd,
                vssd,
                lat: 0,
                class: Class::Gold,
                original_vssd: vssd,
                set: SetId(view.partition.0),
                epoch: view.epoch,
                incarnation: me,
                request: 0,
            };
            let body = Body::Table(Table::Create(Box::new(row_of(view, share, log))));
            fx.send(Packet { src: Layout::META, dst: Layout::SWITCH, header, body });
            if share == 0 {
                fx.send(announced(me, view));
            }
        }
    }
    /// The switch has answered an announcement: that it took the row, or that its tables are full.
    pub(crate) fn answered(&mut self, now: Time, me: Incarnation, header: &Header) {
        let current = |row: &&mut Announced| row.epoch == header.epoch && header.incarnation == me;
        if let Some(row) = self.0.get_mut(&header.vssd).filter(current) {
            row.again_at = now + ANNOUNCE_EVERY;
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
    use rackweave_kv_replica::types::{Epochs, Member, Partition, Role};

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
    #[test]
    fn rows_are_repeated_until_they_are_answered_then_seldom() {
        let v = view(&[(0, Role::Home, true), (1, Role::Home, true)]);
        let (mut rows, mut fx, me) = (KeyRows::default(), Effects::new(), Incarnation(7));
        let mut announced = |rows: &mut KeyRows, ms: u64, v: &View| {
            rows.announce(Time::ZERO + Span::from_millis(ms), me, (v, 2), &log, &mut fx);
            let rows = std::mem::take(&mut fx.packets).into_iter();
            rows.filter(|p| p.header.op == Op::CreateVssd).collect::<Vec<_>>()
        };
        let first = announced(&mut rows, 0, &v);
        assert_eq!(first.len(), 2);
        assert_eq!(announced(&mut rows, 99, &v).len(), 0);
        assert_eq!(announced(&mut rows, 100, &v).len(), 2);
        rows.answered(Time::ZERO + Span::from_millis(101), me, &first[0].header);
        assert_eq!(announced(&mut rows, 250, &v).len(), 1, "one has no answer");
        assert_eq!(announced(&mut rows, 601, &v).len(), 2);
        let next = View { epoch: Epoch(6), ..v };
        assert_eq!(announced(&mut rows, 602, &next).len(), 2, "a new view at once");
        rows.answered(Time::ZERO + Span::from_millis(603), me, &first[0].header);
        assert_eq!(announced(&mut rows, 702, &next).len(), 2, "that was an answer about the old view");
    }
}
