//! Keyspaces: keys of their own in partitions of their own, whose logs are on vSSDs of their own.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::SetId;
use crate::msg::keys::Partition;

/// Identity of a keyspace: a serial number, which is never used again, above a number among those that a rack has at one time, by
/// which the switch knows its partitions. 0 is the rack's first keyspace, which it always has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyspaceId(pub u32);

/// Name of the rack's first.
pub const FIRST_NAME: &str = "default";

/// Whether this is a permitted name of a keyspace. It begins with a letter, since SELECT takes numbers too.
pub fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && crate::admin::is_name(name)
}

impl KeyspaceId {
    /// Bits of the number of one of its partitions.
    pub const PARTITION_BITS: u32 = 6;
    /// Keyspaces that a rack has at one time.
    pub const MAX: u32 = Partition::ADDRESSED_MAX >> KeyspaceId::PARTITION_BITS;
    /// The rack's first.
    pub const FIRST: KeyspaceId = KeyspaceId(0);
    /// The last serial number.
    pub const SERIAL_MAX: u32 = (u32::MAX >> KeyspaceId::PARTITION_BITS) / KeyspaceId::MAX;

    /// `number` is below [`KeyspaceId::MAX`].
    pub fn new(serial: u32, number: u32) -> KeyspaceId {
        debug_assert!(serial <= KeyspaceId::SERIAL_MAX && number < KeyspaceId::MAX, "{serial}, {number}");
        KeyspaceId(serial * KeyspaceId::MAX + number)
    }
    pub fn serial(self) -> u32 {
        self.0 / KeyspaceId::MAX
    }
    /// As clients of RESP select it.
    pub fn number(self) -> u32 {
        self.0 % KeyspaceId::MAX
    }
    /// Whether it is the rack's first.
    pub fn is_first(&self) -> bool {
        self.0 == 0
    }
    /// Its first partition; the others follow.
    pub fn first_partition(self) -> Partition {
        Partition(self.0 << KeyspaceId::PARTITION_BITS)
    }
}

impl KeyspaceId {
    /// Numbers of the sets of keyspaces' logs: above those of the logs that servers have from the start.
    const LOG_SETS: u32 = (1 << 31) + (1 << 17);

    /// The set of its logs: one on each server that has any. Those of the first are of sets of their own.
    pub fn log_set(self) -> SetId {
        SetId(KeyspaceId::LOG_SETS + self.serial())
    }
}

impl fmt::Display for KeyspaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "keyspace {}", self.number())
    }
}

/// What a client of a keyspace must know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Keyspace {
    pub id: KeyspaceId,
    /// Replicas of each key.
    pub replicas: u8,
    /// Bytes of the longest value.
    pub value_max: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_has_the_partitions_from_zero_and_none_share_any() {
        assert_eq!(KeyspaceId::FIRST.first_partition(), Partition(0));
        let later = KeyspaceId::new(9, 3);
        assert_eq!((later.serial(), later.number()), (9, 3));
        assert_eq!(later.first_partition().keyspace(), later);
        assert_eq!(Partition(later.first_partition().0 + 63).keyspace(), later);
        assert_eq!(Partition(later.first_partition().0 + 64).keyspace(), KeyspaceId::new(9, 4));
        let last = KeyspaceId::new(KeyspaceId::SERIAL_MAX, KeyspaceId::MAX - 1);
        assert_eq!(last.first_partition().0, u32::MAX - 63);
    }
    #[test]
    fn keyspaces_of_one_number_have_the_same_addresses_one_after_the_other() {
        let (old, new) = (KeyspaceId::new(1, 5).first_partition(), KeyspaceId::new(70, 5).first_partition());
        assert_ne!(old, new);
        assert_eq!((old.multicast(), old.row(2)), (new.multicast(), new.row(2)));
        assert_ne!(old.multicast(), KeyspaceId::new(1, 6).first_partition().multicast());
    }
}
