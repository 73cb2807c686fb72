//! Nodes of a key-value store on virtual time.

mod basic;
mod client;
mod expiry;
mod hashing;
mod history;
mod room;
mod rules;
mod search;
mod stop;
mod sweep;
mod undecided;
mod views;
mod world;
