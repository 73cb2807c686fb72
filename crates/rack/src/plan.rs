//! The initial replica sets of a rack, for the metadata service, servers with an empty drive, and `status`. Later
//! locations of vSSDs are known only to the metadata service.

use rackweave_config::racks::Placement;
use rackweave_config::{Isolation, RackConfig};
use rackweave_core::{NodeId, SetId, VssdId};
use rackweave_meta::ids;

use crate::build::layout;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedSet {
    pub set: SetId,
    /// Isolation level of its vSSDs.
    pub level: Isolation,
    /// The rack with most of its replicas.
    pub home: u32,
    /// The first is in its drive's first slot for the level, the second in the second, and so on.
    pub members: Vec<(VssdId, NodeId)>,
}

/// For each level, a set begins at each server.
pub fn sets(cfg: &RackConfig) -> Vec<PlannedSet> {
    let (layout, placement) = (layout(cfg), Placement::of(cfg));
    let begin = (0..).zip(cfg.ssd.isolation.all()).flat_map(|(l, &level)| (0..cfg.servers).map(move |i| (l, level, i)));
    let set = |(set, (l, level, first)): (u32, (u32, Isolation, u32))| {
        let member = |slot| {
            let i = placement.server(first, slot);
            let node = layout.server(i).expect("a configuration's layout has its servers");
            (ids::first(placement.rack(i), i, l * cfg.replicas + slot), node)
        };
        let (home, members) = (placement.rack(first), (0..cfg.replicas).map(member).collect());
        PlannedSet { set: SetId(set), level, home, members }
    };
    (0..).zip(begin).map(set).collect()
}

#[cfg(test)]
mod tests {
    use rackweave_config::Levels;
    use rackweave_core::Layout;

    use super::*;

    /// Existing drives carry these ids.
    #[test]
    fn sets_and_ids_are_those_of_existing_racks() {
        let mut cfg = RackConfig { servers: 4, replicas: 3, ..RackConfig::default() };
        cfg.ssd.isolation = Levels::Several(vec![Isolation::Channel, Isolation::Die]);
        let (sets, layout) = (sets(&cfg), layout(&cfg));
        let set = |k: usize| (sets[k].level, sets[k].members.iter().map(|m| (m.0.0, m.1)).collect::<Vec<_>>());
        let on = |all: [(u32, u32); 3]| all.map(|(vssd, i)| (vssd, layout.server(i).expect("of four"))).to_vec();
        assert_eq!((sets.len(), Layout::server_number(sets[3].members[0].1)), (8, 3));
        assert_eq!(set(0), (Isolation::Channel, on([(1, 0), (18, 1), (35, 2)])));
        assert_eq!(set(3), (Isolation::Channel, on([(49, 3), (2, 0), (19, 1)])));
        assert_eq!(set(5), (Isolation::Die, on([(20, 1), (37, 2), (54, 3)])));
    }
}
