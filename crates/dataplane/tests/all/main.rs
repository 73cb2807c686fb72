//! Tests of the kernel data planes. Without root, BPF or clang each prints `SKIP name: reason` and passes.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "clocks, sockets and threads of real hosts")]

#[path = "../../../switch/fixtures/control.rs"]
mod control;
mod fixtures;
mod gateways;
mod load;
mod multicast;
mod namespaces;
mod ovs;
mod random;
mod rig;
#[path = "../../../switch/fixtures/runner.rs"]
mod runner;
mod slow_path;
#[allow(dead_code, reason = "the switch's own tests use all of it")]
#[path = "../../../switch/tests/all/support.rs"]
mod support;
mod tools;
mod wire;
