//! The rack under the fault search. `RACKWEAVE_SEEDS=3000` sets the number of seeds (default 150),
//! `RACKWEAVE_FIRST_SEED` the first.

mod cloud;
mod drives;
mod egress;
mod evidence;
mod keys;
mod leases;
mod limits;
mod many;
mod moves;
mod noise;
mod overload;
mod own;
mod planes;
mod regressions;
mod rig;
mod room;
mod search;
mod start;
mod two_racks;
mod wear;
mod whole_set;
mod width;
