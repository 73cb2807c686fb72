//! Cloud disks: their data structures against models, and nodes on virtual time.

mod basic;
mod checks;
mod epochs;
mod lost;
mod replica_sets;
mod rest;
mod rules;
mod search;
mod slow;
mod snapshots;
mod storage;
mod structures;
mod world;
