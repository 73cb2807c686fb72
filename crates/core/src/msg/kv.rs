//! Messages of a client with the key-value store on one log vSSD, which has one copy.
//!
//! A change names the epoch of the store in its header: the incarnation of the store's server. A store refuses another epoch and
//! answers with its own. It deduplicates changes (protocol rule 7) as long as its epoch lasts, so a change that was sent in an
//! earlier epoch and not answered is *in doubt*: it took effect before that epoch ended, or never.

use bytes::Bytes;

use super::{Mutation, ServiceMessage};

/// Most bytes of a key, which has at least one.
pub const KEY_MAX: u32 = 1024;
/// Most bytes of a value: as of the contents of a message of blocks. A store with small blocks takes less.
pub const VALUE_MAX: u32 = crate::MESSAGE_MAX;

#[derive(Clone, Debug, PartialEq)]
pub enum Kv {
    Get {
        key: Bytes,
    },
    Put(Box<KvPut>),
    Delete(Box<KvDelete>),
    /// Answers a get; `None`: there is no such key.
    Got(Result<Option<Bytes>, KvError>),
    /// Answers a put, or a delete: whether the key existed (after a put, true). It is durable.
    Changed(Result<bool, KvError>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct KvPut {
    pub key: Bytes,
    pub mutation: Mutation,
    pub value: Bytes,
}

#[derive(Clone, Debug, PartialEq)]
pub struct KvDelete {
    pub key: Bytes,
    pub mutation: Mutation,
}

/// Why a request failed. Nothing was changed, unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// Not recovered, not registered, or too much is pending: a retry may help.
    #[error("the store does not serve now")]
    NotServing,
    /// The header of the answer has the store's epoch.
    #[error("the request is of another epoch of the store")]
    Epoch,
    #[error("the store is full: gets and deletes go on")]
    Full,
    #[error("a value of {len} bytes, with this key the store takes {max}")]
    ValueTooLong { len: u32, max: u32 },
    #[error("a key of {len} bytes: a key has 1 to {KEY_MAX}")]
    KeyLength { len: u32 },
    #[error("the stored record is corrupt, and there is no other copy")]
    Corrupt,
    /// A change under way took effect, or never will.
    #[error("the device failed")]
    Device,
}

impl ServiceMessage for Kv {
    fn bytes(&self) -> u32 {
        let len = match self {
            Kv::Get { key } => key.len(),
            Kv::Put(p) => p.key.len() + p.value.len(),
            Kv::Delete(d) => d.key.len(),
            Kv::Got(Ok(Some(value))) => value.len(),
            Kv::Got(_) | Kv::Changed(_) => 0,
        };
        len as u32
    }
    fn answers_read(&self) -> bool {
        matches!(self, Kv::Got(_))
    }
    fn writes(&self) -> bool {
        matches!(self, Kv::Put(_) | Kv::Delete(_))
    }
    fn refuses(&self) -> bool {
        matches!(self, Kv::Got(Err(_)) | Kv::Changed(Err(_)))
    }
}
