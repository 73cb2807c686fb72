//! Tests of the switch.

mod fixtures;
mod model;
mod node;
mod random;
mod support;
