//! Records of the key-value store's nodes, of its membership service, and of the metadata service's keyspaces.

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use rackweave_core::admin::Isolation;
use rackweave_core::keyspace::KeyspaceId;
use rackweave_core::{DriveId, Epoch, Incarnation, NodeId, VssdId};
use rackweave_kv_replica::clients::{ClientState, Ending, Finished};
use rackweave_kv_replica::member_record::{self, MemberRecord};
use rackweave_kv_replica::record::{self, Record};
use rackweave_kv_replica::types::{
    Change, Commit, Condition, Epochs, Expires, Item, Member, Origin, Partition, Put, PutId, Role, Standing, Timestamp,
    Undecided, Verdict, Version, View,
};
use rackweave_meta::keyspace_records::{self, KeyspaceRecord, LogRecord, TableRecord};

use crate::corrupt::{corrupt, rest};
use crate::cost::within;

pub(super) fn record(input: &[u8]) {
    _ = choose(&mut Unstructured::new(input));
}

fn choose(u: &mut Unstructured<'_>) -> Result<()> {
    let (key, value) = match u.int_in_range(0..=3u8)? {
        0 => {
            let mut key = vec![*u.choose(b"nlkcmrsv?")?];
            key.extend_from_slice(&u.arbitrary::<[u8; 24]>()?[..u.int_in_range(0..=24usize)?]);
            return any(&key.into(), &rest(u).into());
        }
        1 => {
            let r = some_record(u)?;
            let (key, value) = r.write();
            assert_eq!(record::read(&key, &value), Ok(r));
            (key, value)
        }
        2 => {
            let r = some_keyspace_record(u)?;
            let (key, value) = keyspace_written(&r);
            assert_eq!(keyspace_records::read(&key, &value), Some(r));
            (key, value)
        }
        _ => {
            let r = some_member_record(u)?;
            let (key, value) = r.write();
            assert_eq!(member_record::read(&key, &value), Ok(r));
            (key, value)
        }
    };
    let (mut key, mut value) = (key.to_vec(), value.to_vec());
    corrupt(u, &mut value)?;
    if u.ratio(1u8, 8u8)? {
        corrupt(u, &mut key)?;
    }
    any(&key.into(), &value.into())
}

/// A decoded value survives a round trip, and takes no more memory than its bytes account for.
fn any(key: &Bytes, value: &Bytes) -> Result<()> {
    let bound = 64 * (key.len() + value.len()) + 4096;
    match within(bound, || record::read(key, value)) {
        Ok(r) => {
            let (key, value) = r.write();
            assert_eq!(record::read(&key, &value), Ok(r));
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    if let Ok(r) = within(bound, || member_record::read(key, value)) {
        let (key, value) = r.write();
        assert_eq!(member_record::read(&key, &value), Ok(r));
    }
    if let Some(r) = within(bound, || keyspace_records::read(key, value)) {
        let (key, value) = keyspace_written(&r);
        assert_eq!(keyspace_records::read(&key, &value), Some(r));
    }
    Ok(())
}

fn keyspace_written(r: &keyspace_records::Record) -> (Bytes, Bytes) {
    match r {
        keyspace_records::Record::Table(t) => (keyspace_records::table_key(), keyspace_records::encode_table(t)),
        keyspace_records::Record::Keyspace(k) => {
            (keyspace_records::keyspace_key(k.id), keyspace_records::encode_keyspace(k))
        }
        keyspace_records::Record::Member(id, rest) => {
            ([&keyspace_records::member_prefix(*id)[..], rest].concat().into(), Bytes::new())
        }
    }
}

fn some_keyspace_record(u: &mut Unstructured<'_>) -> Result<keyspace_records::Record> {
    if u.arbitrary()? {
        let last_epochs = u.arbitrary::<[(u32, u32); 3]>()?.map(|(number, epoch)| (number, Epoch(epoch))).into();
        let table = TableRecord { next_serial: u.arbitrary()?, last_epochs };
        return Ok(keyspace_records::Record::Table(table));
    }
    let levels = [Isolation::Channel, Isolation::Die, Isolation::Software, Isolation::None];
    let log = |(node, vssd, drive)| (NodeId(node), LogRecord { vssd: VssdId(vssd), drive: DriveId(drive) });
    Ok(keyspace_records::Record::Keyspace(KeyspaceRecord {
        id: KeyspaceId(u.arbitrary()?),
        name: u.choose(&["orders", "a", "-"])?.to_string().into(),
        replicas: u.arbitrary()?,
        min_copies: u.arbitrary()?,
        isolation: *u.choose(&levels)?,
        units: u.arbitrary()?,
        epochs_before: Epoch(u.arbitrary()?),
        creator: (Incarnation(u.arbitrary()?), u.arbitrary()?),
        logs: u.arbitrary::<[(u32, u32, u64); 3]>()?.map(log).into(),
    }))
}

fn bytes(u: &mut Unstructured<'_>) -> Result<Bytes> {
    let n = u.int_in_range(0..=20usize)?.min(u.len());
    Ok(Bytes::copy_from_slice(u.bytes(n)?))
}

fn id(u: &mut Unstructured<'_>) -> Result<PutId> {
    let (client, incarnation) = (NodeId(u.arbitrary()?), Incarnation(u.arbitrary()?));
    Ok(PutId { client, incarnation, sequence: u.arbitrary()? })
}

fn at(u: &mut Unstructured<'_>) -> Result<Timestamp> {
    Ok(Timestamp { epoch: Epoch(u.arbitrary()?), counter: u.arbitrary()? })
}

fn verdict(u: &mut Unstructured<'_>) -> Result<Verdict> {
    Ok(if u.arbitrary()? { Verdict::Applied } else { Verdict::ConditionFailed })
}

fn option<T>(u: &mut Unstructured<'_>, of: impl FnOnce(&mut Unstructured<'_>) -> Result<T>) -> Result<Option<T>> {
    if u.arbitrary()? { of(u).map(Some) } else { Ok(None) }
}

fn some_undecided(u: &mut Unstructured<'_>) -> Result<Undecided> {
    let standing = match u.int_in_range(0..=2u8)? {
        0 => Standing::New,
        1 => Standing::Pending,
        _ => Standing::Committed(Commit { at: at(u)?, origin: origin(u)?, verdict: verdict(u)? }),
    };
    let (id, attempt, floor) = (id(u)?, u.arbitrary()?, u.arbitrary()?);
    let items = (0..u.int_in_range(0..=3u8)?).map(|_| some_item(u)).collect::<Result<_>>()?;
    let put = Put { id, attempt, floor, early: u.arbitrary()?, items };
    Ok(Undecided { put, standing })
}

fn some_item(u: &mut Unstructured<'_>) -> Result<Item> {
    let condition = match u.int_in_range(0..=3u8)? {
        0 => Condition::Always,
        1 => Condition::Absent,
        2 => Condition::Present,
        _ => Condition::VersionIs(at(u)?),
    };
    let expires = match u.int_in_range(0..=2u8)? {
        0 => Expires::Never,
        1 => Expires::At(u.arbitrary()?),
        _ => Expires::In(u.arbitrary()?),
    };
    let change = match u.int_in_range(0..=2u8)? {
        0 => None,
        1 => Some(Change::Set { value: bytes(u)?, expires }),
        _ => Some(Change::Delete),
    };
    Ok(Item { key: bytes(u)?, condition, change })
}

fn origin(u: &mut Unstructured<'_>) -> Result<Origin> {
    Ok(Origin { at: at(u)?, ms: u.arbitrary()? })
}

fn some_record(u: &mut Unstructured<'_>) -> Result<Record> {
    let p = Partition(u.arbitrary()?);
    Ok(match u.int_in_range(1..=4u8)? {
        1 => Record::Logged(p, some_undecided(u)?),
        2 => {
            let value = option(u, bytes)?;
            let expires = option(u, |u| u.arbitrary())?;
            let v = Version { at: at(u)?, origin: origin(u)?, by: id(u)?, value, expires };
            Record::Key(p, bytes(u)?, v)
        }
        3 => {
            let (incarnation, floor) = (Incarnation(u.arbitrary()?), u.arbitrary()?);
            let mut c = ClientState { incarnation, floor, ..ClientState::default() };
            for _ in 0..u.int_in_range(0..=4u8)? {
                let how = match u.arbitrary()? {
                    true => Finished::Committed(verdict(u)?),
                    false => Finished::Aborted(u.arbitrary()?),
                };
                c.finished.insert(u.arbitrary()?, Ending { epoch: Epoch(u.arbitrary()?), how });
            }
            Record::Client(p, NodeId(u.arbitrary()?), c)
        }
        _ => Record::Mark(p, bytes(u)?, at(u)?),
    })
}

fn epochs(u: &mut Unstructured<'_>) -> Result<Epochs> {
    let mut e = Epochs::none();
    for _ in 0..u.int_in_range(0..=3u8)? {
        let first = u.int_in_range(0..=1u32 << 30)?;
        e.add(Epoch(first), Epoch(first + u32::from(u.arbitrary::<u8>()?)));
    }
    Ok(e)
}

fn some_member(u: &mut Unstructured<'_>) -> Result<Member> {
    Ok(Member {
        node: NodeId(u.arbitrary()?),
        incarnation: Incarnation(u.arbitrary()?),
        drive: DriveId(u.arbitrary()?),
        role: *u.choose(&[Role::Home, Role::Handoff, Role::Leaving])?,
        holds: epochs(u)?,
        wants: epochs(u)?,
        since: Epoch(u.arbitrary()?),
        witness: u.arbitrary()?,
    })
}

fn some_member_record(u: &mut Unstructured<'_>) -> Result<MemberRecord> {
    Ok(match u.int_in_range(0..=2u8)? {
        0 => {
            let n = u.int_in_range(0..=6u8)?;
            MemberRecord::Ring((0..n).map(|_| u.arbitrary().map(NodeId)).collect::<Result<_>>()?)
        }
        1 => MemberRecord::Node(NodeId(u.arbitrary()?), Incarnation(u.arbitrary()?), DriveId(u.arbitrary()?)),
        _ => {
            let n = u.int_in_range(0..=3u8)?;
            let members = (0..n).map(|_| some_member(u)).collect::<Result<_>>()?;
            let (partition, epoch, primary) =
                (Partition(u.arbitrary()?), Epoch(u.arbitrary()?), NodeId(u.arbitrary()?));
            let view = View { partition, epoch, primary, active: Epoch(u.arbitrary()?), members };
            let holds = (0..n).map(|i| Ok((NodeId(u32::from(i)), (DriveId(u.arbitrary()?), epochs(u)?))));
            MemberRecord::Partition {
                view,
                holds: holds.collect::<Result<_>>()?,
                void: epochs(u)?,
                stopped: u.arbitrary()?,
                active: u.arbitrary()?,
                witnesses: [(NodeId(u.arbitrary()?), DriveId(u.arbitrary()?))].into(),
            }
        }
    })
}
