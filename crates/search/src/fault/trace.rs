//! Trace points of the search itself.

use rackweave_core::{TracePoint, trace_points};

trace_points! {
    /// A server lost power between a program and the mapping of its page.
    CRASH_BETWEEN_PROGRAM_AND_MAP: CrashBetweenProgramAndMap = 46,
    /// The same while a command of a swap of dies was under way.
    SWAP_CUT: SwapCut = 132,
}

/// Every trace point that a search must meet, except those that its suite excuses. Keys and cloud disks have searches of their own.
pub fn all() -> impl Iterator<Item = TracePoint> {
    rackweave_rack::trace::of_volumes().chain(ALL.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_searchs_own_numbers_and_names_are_no_nodes() {
        for own in ALL {
            assert!(rackweave_rack::trace::all().all(|p| p.id() != own.id() && p.name() != own.name()), "{own:?}");
        }
    }
}
