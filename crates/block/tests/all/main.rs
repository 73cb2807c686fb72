//! The volume client against scripted replicas in virtual time.

mod attach;
mod control;
mod faults;
mod flush;
mod garbage;
mod limits;
mod model;
mod order;
mod rack;
mod recovery;
mod stripe;
