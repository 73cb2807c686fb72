//! The rack under the fault search. `RACKWEAVE_SEEDS=300` runs more seeds, `RACKWEAVE_FIRST_SEED` begins elsewhere.

mod mutations;
mod search;
