//! Keyspaces: as operators make, see and delete them.

use super::Isolation;
use crate::keyspace::{Keyspace, KeyspaceId};

/// A keyspace as the metadata service sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceInfo {
    pub id: KeyspaceId,
    pub name: Box<str>,
    /// Replicas of each key, and those that a put needs.
    pub replicas: u8,
    pub min_copies: u8,
    /// Of its logs from the other vSSDs of their drives.
    pub isolation: Isolation,
    /// Channels or dies of each log.
    pub units: u32,
    /// Bytes of the longest value.
    pub value_max: u32,
    /// Servers that have its log, of those that are to have it.
    pub logs: u32,
    pub logs_of: u32,
    /// Partitions whose primary decides, of all.
    pub serving: u32,
    pub partitions: u32,
}

impl KeyspaceInfo {
    pub fn keyspace(&self) -> Keyspace {
        Keyspace { id: self.id, replicas: self.replicas, value_max: self.value_max }
    }
    /// Whether every key can be read and written.
    pub fn serves(&self) -> bool {
        self.serving == self.partitions
    }
}

/// Why an operation on a keyspace failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyspaceError {
    #[error("no keyspace is named {name:?}, or has that number")]
    Unknown { name: Box<str> },
    #[error("a keyspace named {name:?} exists already")]
    Duplicate { name: Box<str> },
    #[error("keyspace name {name:?} is not 1 to 64 characters of a-z, A-Z, 0-9, '.', '_' and '-', the first a letter")]
    BadName { name: Box<str> },
    #[error("this rack has no keys: kv.channels of its configuration is 0")]
    NoKeys,
    #[error("keyspace {name:?} is the rack's first, which stays: its log is that of kv.channels")]
    First { name: Box<str> },
    #[error("{replicas} replicas of each key: 1 to {most} are possible on {servers} running servers")]
    Replicas { replicas: u32, most: u32, servers: u32 },
    #[error("isolation {level} of a keyspace's logs: channel and die are possible")]
    Isolation { level: Isolation },
    #[error(
        "{units} units of isolation {isolation} for a log on each server: {free} are free of those that kv.own_channels = {set_aside} \
         sets aside"
    )]
    Room { isolation: Isolation, units: u32, free: u32, set_aside: u32 },
    #[error("{units} units of isolation {isolation} are too small for a log: it needs at least {least}")]
    TooSmall { isolation: Isolation, units: u32, least: u32 },
    #[error("the rack has {limit} keyspaces, the greatest number permitted")]
    TooMany { limit: u32 },
}
