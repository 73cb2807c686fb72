//! The command as a user has it: child processes, real sockets, files in a directory of their own.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a driver's tests: files, sockets, clocks")]

#[path = "all/bad_input.rs"]
mod bad_input;
#[path = "all/clock.rs"]
mod clock;
#[path = "all/convert.rs"]
mod convert;
#[path = "all/damage.rs"]
mod damage;
#[path = "all/edits.rs"]
mod edits;
#[path = "all/eval.rs"]
mod eval;
#[path = "all/faults.rs"]
mod faults;
#[path = "all/hangs.rs"]
mod hangs;
#[path = "all/harness.rs"]
mod harness;
#[path = "all/heal.rs"]
mod heal;
#[path = "all/hostile.rs"]
mod hostile;
#[path = "all/killed.rs"]
mod killed;
#[path = "all/kv.rs"]
mod kv;
#[path = "all/live.rs"]
mod live;
#[path = "all/modes.rs"]
mod modes;
#[path = "all/nbd.rs"]
mod nbd;
#[path = "all/netns.rs"]
mod netns;
#[path = "all/options.rs"]
mod options;
#[path = "all/own.rs"]
mod own;
#[path = "all/power.rs"]
mod power;
#[path = "all/processes.rs"]
mod processes;
#[path = "all/refused.rs"]
mod refused;
#[path = "all/restart.rs"]
mod restart;
#[path = "all/security.rs"]
mod security;
#[path = "all/tools.rs"]
mod tools;
#[path = "all/volumes.rs"]
mod volumes;
#[path = "all/vssd.rs"]
mod vssd;
#[path = "all/world.rs"]
mod world;
