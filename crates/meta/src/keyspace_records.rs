//! Durable records of keyspaces. Their keys begin with `ksp/`; integers are as in [`rackweave_core::records`].
//!
//! | key | record |
//! |---|---|
//! | `t` | version u8, serial number of the next keyspace u32; by number of a keyspace that is gone, the last epoch of its partitions: u32 × [number u32, epoch u32] |
//! | `k` id u32 | version u8, name, replicas u8, replicas that a put needs u8, isolation u8 (as FlashBlox's level), units u32, the last epoch before it u32, the request that made it [incarnation u64, request u64], its logs: u32 × [node u32, vSSD u32, the drive that has it u64, 0 if none is known to] |
//! | `m` id u32 | a record of its membership service, whose key follows |

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::admin::{Isolation, NAME_MAX};
use rackweave_core::keyspace::KeyspaceId;
use rackweave_core::records::{Reader, Writer};
use rackweave_core::{DriveId, Epoch, Incarnation, NodeId, VssdId};

/// Their keys begin so.
pub const PREFIX: &[u8] = b"ksp/";
const VERSION: u8 = 1;

/// `t`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRecord {
    pub next_serial: u32,
    /// By number.
    pub last_epochs: BTreeMap<u32, Epoch>,
}

impl Default for TableRecord {
    fn default() -> TableRecord {
        TableRecord { next_serial: 1, last_epochs: BTreeMap::new() }
    }
}

/// A keyspace's log on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord {
    pub vssd: VssdId,
    /// The drive that has it, once a server has reported that.
    pub drive: DriveId,
}

/// `k`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceRecord {
    pub id: KeyspaceId,
    pub name: Box<str>,
    pub replicas: u8,
    pub min_copies: u8,
    pub isolation: Isolation,
    pub units: u32,
    pub epochs_before: Epoch,
    pub creator: (Incarnation, u64),
    pub logs: BTreeMap<NodeId, LogRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Table(TableRecord),
    Keyspace(KeyspaceRecord),
    Member(KeyspaceId, Bytes),
}

fn key(kind: u8, id: KeyspaceId) -> Vec<u8> {
    [PREFIX, &[kind], &id.0.to_be_bytes()].concat()
}
pub fn table_key() -> Bytes {
    [PREFIX, b"t"].concat().into()
}
pub fn keyspace_key(id: KeyspaceId) -> Bytes {
    key(b'k', id).into()
}
/// What the keys of its membership service's records begin with.
pub fn member_prefix(id: KeyspaceId) -> Vec<u8> {
    key(b'm', id)
}

pub fn encode_table(t: &TableRecord) -> Bytes {
    let w = Writer::default().u8(VERSION).u32(t.next_serial).u32(t.last_epochs.len() as u32);
    t.last_epochs.iter().fold(w, |w, (number, epoch)| w.u32(*number).u32(epoch.0)).end()
}
pub fn encode_keyspace(k: &KeyspaceRecord) -> Bytes {
    let w = Writer::default().u8(VERSION).bytes(k.name.as_bytes()).u8(k.replicas).u8(k.min_copies);
    let w = w.u8(k.isolation.level()).u32(k.units).u32(k.epochs_before.0).u64(k.creator.0.0).u64(k.creator.1);
    let w = w.u32(k.logs.len() as u32);
    k.logs.iter().fold(w, |w, (n, log)| w.u32(n.0).u32(log.vssd.0).u64(log.drive.0)).end()
}

fn table(r: &mut Reader<'_>) -> Option<TableRecord> {
    let next_serial = r.u32()?;
    let last_epochs = (0..r.u32()?).map(|_| Some((r.u32()?, Epoch(r.u32()?)))).collect::<Option<_>>()?;
    Some(TableRecord { next_serial, last_epochs })
}
fn keyspace(id: KeyspaceId, r: &mut Reader<'_>) -> Option<KeyspaceRecord> {
    let name = r.bytes(NAME_MAX)?;
    let (name, replicas, min_copies) = (std::str::from_utf8(&name).ok()?.into(), r.u8()?, r.u8()?);
    let level = r.u8()?;
    let levels = [Isolation::Channel, Isolation::Die, Isolation::Software, Isolation::None];
    let isolation = levels.into_iter().find(|l| l.level() == level)?;
    let (units, epochs_before) = (r.u32()?, Epoch(r.u32()?));
    let creator = (Incarnation(r.u64()?), r.u64()?);
    let log =
        |r: &mut Reader<'_>| Some((NodeId(r.u32()?), LogRecord { vssd: VssdId(r.u32()?), drive: DriveId(r.u64()?) }));
    let logs = (0..r.u32()?).map(|_| log(r)).collect::<Option<_>>()?;
    Some(KeyspaceRecord { id, name, replicas, min_copies, isolation, units, epochs_before, creator, logs })
}

/// Reads a record with its whole key. `None`: it is of no kind that this version knows, or damaged.
pub fn read(key: &Bytes, value: &Bytes) -> Option<Record> {
    let mut k = Reader { rest: key.strip_prefix(PREFIX)? };
    let kind = k.u8()?;
    if kind == b'm' {
        let id = KeyspaceId(k.big32()?);
        return Some(Record::Member(id, Bytes::copy_from_slice(k.rest)));
    }
    let mut r = Reader { rest: value };
    r.u8().filter(|v| *v == VERSION)?;
    let record = match kind {
        b't' => Record::Table(table(&mut r)?),
        b'k' => Record::Keyspace(keyspace(KeyspaceId(k.big32()?), &mut r)?),
        _ => return None,
    };
    (k.rest.is_empty() && r.rest.is_empty()).then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_written_and_no_shorter_or_longer_ones() {
        let table = TableRecord { next_serial: 9, last_epochs: [(3, Epoch(70)), (4, Epoch(1))].into() };
        let log = |n: u32| (NodeId(n), LogRecord { vssd: VssdId(65_536 + n), drive: DriveId(u64::from(n)) });
        let keyspace = KeyspaceRecord {
            id: KeyspaceId::new(8, 3),
            name: "orders".into(),
            replicas: 3,
            min_copies: 2,
            isolation: Isolation::Die,
            units: 2,
            epochs_before: Epoch(70),
            creator: (Incarnation(5), 6),
            logs: (2..6).map(log).collect(),
        };
        let all = [
            (table_key(), encode_table(&table), Record::Table(table)),
            (keyspace_key(keyspace.id), encode_keyspace(&keyspace), Record::Keyspace(keyspace)),
        ];
        for (key, value, record) in all {
            assert_eq!(read(&key, &value), Some(record));
            assert_eq!(read(&key, &value.slice(..value.len() - 1)), None);
            assert_eq!(read(&key, &[&value[..], &[0]].concat().into()), None);
        }
        let member = [&member_prefix(KeyspaceId::new(8, 3))[..], b"r"].concat().into();
        assert_eq!(read(&member, &Bytes::new()), Some(Record::Member(KeyspaceId::new(8, 3), Bytes::from_static(b"r"))));
    }
}
