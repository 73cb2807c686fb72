//! Durable records of the membership service, format version 1, written as those of nodes ([`crate::record`]).
//!
//! | key | record |
//! |---|---|
//! | `r` | version u8, the nodes on the ring: u32 × u32 |
//! | `s` node u32 | version u8, incarnation u64, drive u64 |
//! | `v` partition u32 | version u8, flags u8 (1: stopped, 2: the view is active), the view: epoch u32, primary u32, last active epoch before it u32, members: u32 × [node u32, incarnation
//! u64, drive u64, role u8 (0 home, 1 hand-off, 2 leaving), holds, wants, since u32, witness u8]; who holds what: u32 × [node
//! u32, drive u64, epochs]; epochs without decisions; the members of the last active view: u32 × [node u32, drive u64]. Epochs are u32 × [first u32,
//! last u32] |

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::{DriveId, Epoch, Incarnation, NodeId};

use crate::record::{Reader, RecordError, VERSION, Writer, read_as};
use crate::types::{Epochs, Member, Partition, Role, View};

pub(crate) const RING_KEY: &[u8] = b"r";

/// Epochs that a node holds completely, on this drive.
pub type Holds = BTreeMap<NodeId, (DriveId, Epochs)>;

/// The members of the last active view, and their drives then.
pub type Witnesses = BTreeMap<NodeId, DriveId>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberRecord {
    Ring(Vec<NodeId>),
    Node(NodeId, Incarnation, DriveId),
    Partition { view: View, holds: Holds, void: Epochs, stopped: bool, active: bool, witnesses: Witnesses },
}

impl MemberRecord {
    /// Its key and its value, as [`read`] takes them.
    pub fn write(&self) -> (Bytes, Bytes) {
        match self {
            MemberRecord::Ring(nodes) => (Bytes::from_static(RING_KEY), ring(nodes)),
            MemberRecord::Node(n, incarnation, drive) => (node_key(*n), node(*incarnation, *drive)),
            MemberRecord::Partition { view, holds, void, stopped, active, witnesses } => {
                (partition_key(view.partition), partition(view, holds, void, witnesses, (*stopped, *active)))
            }
        }
    }
}

pub(crate) fn node_key(n: NodeId) -> Bytes {
    [b"s", &n.0.to_be_bytes()[..]].concat().into()
}

pub(crate) fn partition_key(p: Partition) -> Bytes {
    [b"v", &p.0.to_be_bytes()[..]].concat().into()
}

pub(crate) fn ring(nodes: &[NodeId]) -> Bytes {
    nodes.iter().fold(Writer::default().u8(VERSION).u32(nodes.len() as u32), |w, n| w.u32(n.0)).end()
}

pub(crate) fn node(incarnation: Incarnation, drive: DriveId) -> Bytes {
    Writer::default().u8(VERSION).u64(incarnation.0).u64(drive.0).end()
}

fn epochs(w: Writer, e: &Epochs) -> Writer {
    e.ranges().iter().fold(w.u32(e.ranges().len() as u32), |w, (a, b)| w.u32(*a).u32(*b))
}

pub(crate) fn partition(
    view: &View,
    holds: &Holds,
    void: &Epochs,
    witnesses: &Witnesses,
    (stopped, active): (bool, bool),
) -> Bytes {
    let flags = u8::from(stopped) | u8::from(active) << 1;
    let mut w = Writer::default().u8(VERSION).u8(flags).u32(view.epoch.0).u32(view.primary.0).u32(view.active.0);
    w = w.u32(view.members.len() as u32);
    for m in &view.members {
        let role = match m.role {
            Role::Home => 0,
            Role::Handoff => 1,
            Role::Leaving => 2,
        };
        w = w.u32(m.node.0).u64(m.incarnation.0).u64(m.drive.0).u8(role);
        w = epochs(epochs(w, &m.holds), &m.wants).u32(m.since.0).u8(u8::from(m.witness));
    }
    w = w.u32(holds.len() as u32);
    w = holds.iter().fold(w, |w, (n, (drive, e))| epochs(w.u32(n.0).u64(drive.0), e));
    w = epochs(w, void);
    witnesses.iter().fold(w.u32(witnesses.len() as u32), |w, (n, drive)| w.u32(n.0).u64(drive.0)).end()
}

fn read_epochs(r: &mut Reader) -> Option<Epochs> {
    let mut e = Epochs::none();
    for _ in 0..r.u32()? {
        let (first, last) = (r.u32()?, r.u32()?);
        (first <= last).then(|| e.add(Epoch(first), Epoch(last)))?;
    }
    Some(e)
}

fn read_member(r: &mut Reader) -> Option<Member> {
    let (node, incarnation, drive) = (NodeId(r.u32()?), Incarnation(r.u64()?), DriveId(r.u64()?));
    let role = match r.u8()? {
        0 => Role::Home,
        1 => Role::Handoff,
        2 => Role::Leaving,
        _ => return None,
    };
    let (holds, wants) = (read_epochs(r)?, read_epochs(r)?);
    let (since, witness) = (Epoch(r.u32()?), r.u8().filter(|w| *w <= 1)? == 1);
    Some(Member { node, incarnation, drive, role, holds, wants, since, witness })
}

fn contents(kind: u8, k: &mut Reader, r: &mut Reader) -> Option<MemberRecord> {
    match kind {
        b'r' => {
            let count = r.u32()?;
            Some(MemberRecord::Ring((0..count).map(|_| r.u32().map(NodeId)).collect::<Option<_>>()?))
        }
        b's' => Some(MemberRecord::Node(NodeId(k.big32()?), Incarnation(r.u64()?), DriveId(r.u64()?))),
        b'v' => {
            let partition = Partition(k.big32()?);
            let flags = r.u8().filter(|f| *f <= 3)?;
            let (stopped, active) = (flags & 1 != 0, flags & 2 != 0);
            let (epoch, primary, before) = (Epoch(r.u32()?), NodeId(r.u32()?), Epoch(r.u32()?));
            let count = r.u32()?;
            let members = (0..count).map(|_| read_member(r)).collect::<Option<_>>()?;
            let mut holds = Holds::new();
            for _ in 0..r.u32()? {
                holds.insert(NodeId(r.u32()?), (DriveId(r.u64()?), read_epochs(r)?));
            }
            let void = read_epochs(r)?;
            let count = r.u32()?;
            let witness = |_| Some((NodeId(r.u32()?), DriveId(r.u64()?)));
            let witnesses = (0..count).map(witness).collect::<Option<_>>()?;
            let view = View { partition, epoch, primary, active: before, members };
            Some(MemberRecord::Partition { view, holds, void, stopped, active, witnesses })
        }
        _ => None,
    }
}

/// Reads a record.
///
/// # Errors
/// It is no record of this version.
pub fn read(key: &[u8], value: &[u8]) -> Result<MemberRecord, RecordError> {
    read_as(key, value, b"rsv", contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_these_bytes() {
        let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let holds = Epochs::range(Epoch(1), Epoch(4));
        let member = Member {
            node: NodeId(2),
            incarnation: Incarnation(3),
            drive: DriveId(9),
            role: Role::Handoff,
            holds: holds.clone(),
            wants: Epochs::none(),
            since: Epoch(5),
            witness: true,
        };
        let view = View {
            partition: Partition(6),
            epoch: Epoch(5),
            primary: NodeId(2),
            active: Epoch(3),
            members: vec![member],
        };
        let all: Holds = [(NodeId(2), (DriveId(9), holds))].into();
        let witnesses: Witnesses = [(NodeId(2), DriveId(9))].into();
        let void = Epochs::range(Epoch(4), Epoch(4));
        let value = partition(&view, &all, &void, &witnesses, (true, false));
        let golden = "0101050000000200000003000000010000000200000003000000000000000900000000000000010100000001000000040000000000\
                      0000050000000101000000020000000900000000000000010000000100000004000000010000000400000004000000\
                      01000000020000000900000000000000";
        assert_eq!(hex(&value), golden.replace(' ', ""));
        let key = partition_key(Partition(6));
        assert_eq!(
            read(&key, &value),
            Ok(MemberRecord::Partition { view, holds: all, void, stopped: true, active: false, witnesses })
        );
        for cut in 0..value.len() {
            assert!(read(&key, &value.slice(..cut)).is_err(), "cut to {cut}");
        }
        let nodes = vec![NodeId(2), NodeId(7)];
        assert_eq!(hex(&ring(&nodes)), "01020000000200000007000000");
        assert_eq!(read(RING_KEY, &ring(&nodes)), Ok(MemberRecord::Ring(nodes)));
        let one = node(Incarnation(3), DriveId(9));
        assert_eq!(hex(&one), "0103000000000000000900000000000000");
        let expected = MemberRecord::Node(NodeId(7), Incarnation(3), DriveId(9));
        assert_eq!(read(&node_key(NodeId(7)), &one), Ok(expected));
    }
}
