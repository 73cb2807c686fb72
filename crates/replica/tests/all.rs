//! Replicas over an in-memory store and a simulated network.

mod basic;
mod cluster;
mod faults;
mod linear;
mod memory;
mod single;
