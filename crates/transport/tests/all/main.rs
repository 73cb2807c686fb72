//! The transport over modelled networks, in virtual time.

mod delivery;
mod routed;
mod world;
