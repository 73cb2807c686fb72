//! Cloud disks: their data structures against models, and nodes on virtual time.

mod basic;
mod search;
mod structures;
mod world;
