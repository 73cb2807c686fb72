//! The volume client against scripted replicas in virtual time.

mod control;
mod faults;
mod flush;
mod model;
mod order;
mod rack;
mod stripe;
