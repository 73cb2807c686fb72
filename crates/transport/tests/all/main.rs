//! The transport over modelled networks, in virtual time.

mod bottleneck;
mod classes;
mod delivery;
mod dissector;
mod failures;
mod golden;
mod group;
mod hostile;
mod incarnation;
mod memory;
mod packets;
mod restarts;
mod routed;
mod trains;
mod world;
