//! The rack under the fault search. `RACKWEAVE_SEEDS=3000` runs more seeds (300 else), `RACKWEAVE_FIRST_SEED` begins elsewhere.

mod drives;
mod egress;
mod evidence;
mod leases;
mod limits;
mod moves;
mod overload;
mod regressions;
mod rig;
mod room;
mod search;
mod start;
mod two_racks;
mod wear;
mod whole_set;
