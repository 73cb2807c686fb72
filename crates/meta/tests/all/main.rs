//! The metadata service under scripted servers, in virtual time.

mod codec;
mod deletion;
mod flattening;
mod harness;
mod kept;
mod keyspaces;
mod listing;
mod membership;
mod moves;
mod no_room;
mod own;
mod recovery;
mod restart;
mod search;
mod search_room;
mod search_snapshots;
mod search_units;
mod search_volumes;
mod snapshots;
mod sweeps;
mod units;
mod volumes;
