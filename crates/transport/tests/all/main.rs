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
mod paths;
mod restarts;
mod routed;
mod switched;
mod trains;
mod twins;
mod world;
