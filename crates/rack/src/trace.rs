//! The list of every crate's trace points.

use rackweave_core::TracePoint;

/// Of the crates that make a rack with direct volumes.
const OF_VOLUMES: [&[TracePoint]; 9] = [
    rackweave_core::trace::ALL,
    rackweave_flash::trace::ALL,
    rackweave_link::trace::ALL,
    rackweave_switch::trace::ALL,
    rackweave_replica::trace::ALL,
    rackweave_server::trace::ALL,
    rackweave_meta::trace::ALL,
    rackweave_block::trace::ALL,
    rackweave_sim::trace::ALL,
];

/// Of the other services.
const OF_SERVICES: [&[TracePoint]; 3] =
    [rackweave_kv::trace::ALL, rackweave_kv_replica::trace::ALL, rackweave_cloud::trace::ALL];

/// Every trace point of a rack's nodes that serve direct volumes.
pub fn of_volumes() -> impl Iterator<Item = TracePoint> {
    OF_VOLUMES.into_iter().flatten().copied()
}
/// Every trace point of a rack's nodes.
pub fn all() -> impl Iterator<Item = TracePoint> {
    of_volumes().chain(OF_SERVICES.into_iter().flatten().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_and_no_name_is_used_twice() {
        let points: Vec<TracePoint> = all().collect();
        for (i, p) in points.iter().enumerate() {
            let twin = points[..i].iter().find(|q| q.id() == p.id() || q.name() == p.name());
            assert_eq!(twin, None, "{p:?}");
        }
    }
}
