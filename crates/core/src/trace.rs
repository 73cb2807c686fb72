//! Situations that nodes report, for the trace hash, the coverage of a fault search, timelines and metrics.
//!
//! A crate declares its own with [`trace_points!`](crate::trace_points) in a module `trace`. Numbers are unique in the
//! rack: `rackweave_rack::trace` lists and checks them. A new point takes the next free number.

/// A situation, by its number in the trace hash and its name in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TracePoint {
    id: u16,
    name: &'static str,
}

/// All numbers are below this one; counters are kept in an array.
pub const POINTS_MAX: u16 = 1024;

impl TracePoint {
    pub const fn new(id: u16, name: &'static str) -> TracePoint {
        assert!(id < POINTS_MAX, "the number of a trace point is too large");
        TracePoint { id, name }
    }
    pub const fn id(self) -> u16 {
        self.id
    }
    pub const fn name(self) -> &'static str {
        self.name
    }
}

/// Declares the trace points of a crate: a constant each, `NAME: DisplayedName = number`, and the list `ALL`.
#[macro_export]
macro_rules! trace_points {
    ($($(#[$m:meta])* $constant:ident: $name:ident = $id:literal),* $(,)?) => {
        $($(#[$m])* pub const $constant: $crate::TracePoint = $crate::TracePoint::new($id, stringify!($name));)*
        /// Every point declared here.
        pub const ALL: &[$crate::TracePoint] = &[$($constant),*];
    };
}

// Points that several crates report.
trace_points! {
    /// A read went to another replica because its own was collecting. a: vSSD that the client addressed, b: serving
    /// vSSD.
    REDIRECT: Redirect = 0,
    /// A view changed. a: set, b: epoch.
    SHADOW_ADDED: ShadowAdded = 32,
    SHADOW_COMPLETE: ShadowComplete = 33,
    MEMBER_REMOVED: MemberRemoved = 34,
    SET_RECOVERED: SetRecovered = 36,
    /// A block failed its checksum. a: block address (at the page layer: vSSD); b: erase block.
    CRC_MISMATCH: CrcMismatch = 41,
}

/// Number of reports of each point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(Vec<Option<(TracePoint, u64)>>);

impl Coverage {
    pub fn count(&mut self, p: TracePoint) {
        self.add(p, 1);
    }
    fn add(&mut self, p: TracePoint, n: u64) {
        let i = usize::from(p.id);
        if i >= self.0.len() {
            self.0.resize(i + 1, None);
        }
        self.0[i].get_or_insert((p, 0)).1 += n;
    }
    pub fn get(&self, p: TracePoint) -> u64 {
        self.0.get(usize::from(p.id)).copied().flatten().map_or(0, |(_, n)| n)
    }
    pub fn merge(&mut self, other: &Coverage) {
        other.seen().for_each(|(p, n)| self.add(p, n));
    }
    /// Every reported point with its count, by number.
    pub fn seen(&self) -> impl Iterator<Item = (TracePoint, u64)> + '_ {
        self.0.iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_counts_by_point_and_lists_by_number() {
        let (mut a, mut b) = (Coverage::default(), Coverage::default());
        a.count(SET_RECOVERED);
        b.count(SET_RECOVERED);
        b.count(REDIRECT);
        a.merge(&b);
        assert_eq!(a.seen().collect::<Vec<_>>(), [(REDIRECT, 1), (SET_RECOVERED, 2)]);
        assert_eq!((a.get(SET_RECOVERED), a.get(MEMBER_REMOVED)), (2, 0));
    }
}
