//! Tests of the switch.

#[path = "../../fixtures/control.rs"]
mod control;
mod fixtures;
mod load;
mod model;
mod node;
mod queues;
mod racks;
mod random;
#[path = "../../fixtures/runner.rs"]
mod runner;
mod search;
mod support;
