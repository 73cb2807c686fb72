//! The list of every crate's trace points.

use rackweave_core::TracePoint;

/// The points of each crate that reports any.
const OF_CRATES: [&[TracePoint]; 10] = [
    rackweave_core::trace::ALL,
    rackweave_flash::trace::ALL,
    rackweave_link::trace::ALL,
    rackweave_switch::trace::ALL,
    rackweave_replica::trace::ALL,
    rackweave_server::trace::ALL,
    rackweave_meta::trace::ALL,
    rackweave_block::trace::ALL,
    rackweave_kv::trace::ALL,
    rackweave_sim::trace::ALL,
];

/// Every trace point of a rack's nodes.
pub fn all() -> impl Iterator<Item = TracePoint> {
    OF_CRATES.into_iter().flatten().copied()
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
