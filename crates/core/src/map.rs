//! Hash maps whose iteration order depends only on their contents and history, not on a random seed.

use foldhash::fast::FixedState;
pub use hashbrown::hash_map;

/// A hash map with a fixed seed.
pub type Map<K, V> = hashbrown::HashMap<K, V, FixedState>;
/// A hash set with a fixed seed.
pub type Set<K> = hashbrown::HashSet<K, FixedState>;

pub fn map<K, V>() -> Map<K, V> {
    Map::with_hasher(FixedState::with_seed(0))
}
pub fn set<K>() -> Set<K> {
    Set::with_hasher(FixedState::with_seed(0))
}
