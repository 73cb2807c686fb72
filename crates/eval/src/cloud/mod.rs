//! DiffForward's experiments: many cloud disks on a few servers, in virtual time.
//!
//! Reading order: [`params`] (the file of inputs), [`workload`] (generated disks), [`traffic`] (how even the servers' traffic
//! is), [`scheme`] (the compared systems), [`servers`] (links, cores, drives), [`logs`] (bursts' logs and the client's
//! index), [`run`] (the event loop); [`survey`] (the disks alone).

pub mod logs;
pub mod params;
pub mod run;
pub mod scheme;
pub mod servers;
pub mod survey;
pub mod traffic;
pub mod workload;

/// Servers with proxies (§5.1).
pub const SERVERS: usize = 5;
