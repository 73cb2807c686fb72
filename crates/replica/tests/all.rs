//! Replicas over an in-memory store and a simulated network.

mod basic;
mod cluster;
mod compare;
mod credit;
mod evidence;
mod faults;
mod fences;
mod handover;
mod heal;
mod linear;
mod lost;
mod members;
mod memory;
mod net;
mod reach;
mod rules;
mod search;
mod single;
