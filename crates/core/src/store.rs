//! The API of the key-value stores on log vSSDs: operations on the store of one server. [`kv`](crate::kv) is that of clients.

use bytes::Bytes;

/// `store`: the number of the server that has it.
#[derive(Clone, Debug)]
pub enum Op {
    Get { store: u32, key: Bytes },
    Put { store: u32, key: Bytes, value: Bytes },
    Delete { store: u32, key: Bytes },
}

impl Op {
    pub fn store(&self) -> u32 {
        match self {
            Op::Get { store, .. } | Op::Put { store, .. } | Op::Delete { store, .. } => *store,
        }
    }
    pub fn key(&self) -> &Bytes {
        match self {
            Op::Get { key, .. } | Op::Put { key, .. } | Op::Delete { key, .. } => key,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// `None`: there is no such key.
    Value(Option<Bytes>),
    /// It is durable.
    Done,
    /// Durable; whether the key existed.
    Deleted { existed: bool },
}

/// Why an operation failed. Unless stated otherwise nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("there is no store {store}: this rack has {stores}")]
    NoStore { store: u32, stores: u32 },
    #[error("a key of {len} bytes: a key has 1 to {max}")]
    KeyLength { len: usize, max: u32 },
    #[error("a value of {len} bytes, the store takes {max}")]
    ValueTooLong { len: usize, max: u32 },
    #[error("store {store} is full: gets and deletes go on")]
    Full { store: u32 },
    /// It took effect before this answer, or never will.
    #[error("store {store} was restarted while the change was under way: it took effect, or never will")]
    InDoubt { store: u32 },
    #[error("the record in store {store} is corrupt, and there is no other copy")]
    Corrupt { store: u32 },
    /// A change under way took effect, or never will.
    #[error("the device of store {store} failed")]
    Device { store: u32 },
    #[error("{limit} requests are pending, the greatest number permitted")]
    Busy { limit: u32 },
    #[error("this node serves no keys")]
    NotServed,
}
