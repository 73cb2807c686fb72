//! Hash maps. The iteration order of all but one depends only on their contents and history, not on a random seed.

use foldhash::fast::FixedState;
use foldhash::quality::RandomState;
pub use hashbrown::hash_map;

/// A hash map with a fixed seed.
pub type Map<K, V> = hashbrown::HashMap<K, V, FixedState>;
/// A hash set with a fixed seed.
pub type Set<K> = hashbrown::HashSet<K, FixedState>;
/// A hash map with a random seed, for keys that clients choose, who then do not know which keys collide. Its contents are sorted
/// before anything depends on their order.
pub type UnorderedMap<K, V> = hashbrown::HashMap<K, V, RandomState>;

pub fn map<K, V>() -> Map<K, V> {
    Map::with_hasher(FixedState::with_seed(0))
}
pub fn set<K>() -> Set<K> {
    Set::with_hasher(FixedState::with_seed(0))
}
