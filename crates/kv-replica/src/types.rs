//! Identities, versions, conditions and views, which messages carry too.

pub use rackweave_core::msg::keys::{
    CLIENTS_PAGE_MAX, Change, Commit, Condition, Decision, Ending, Epochs, Expires, Finished, FinishedPuts, Found,
    ITEMS_MAX, Item, Member, Origin, PAGE_MAX, Partition, Put, PutId, REPLICAS_MAX, Role, Standing, Timestamp,
    Undecided, VALUE_MAX, Verdict, Version, View, page,
};

/// Longest key: its records' keys, which begin with a kind and a partition, are the longest of a store.
pub const KEY_MAX: usize = 1024 - 5;

/// Whether a key has a length that a store takes. Our clients send no other.
pub(crate) fn is_key(key: &[u8]) -> bool {
    (1..=KEY_MAX).contains(&key.len())
}
