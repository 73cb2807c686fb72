//! A volume's view: who serves it in one epoch (rules 1 and 25).
//!
//! One epoch covers a volume's client, log servers, merger and proxies. It changes when a client attaches, when a server is
//! lost or restarts, and when one comes back; each change seals all servers and decides what becomes of every log entry.

pub use rackweave_core::msg::cloud::{Adopted, Member, Placement, View};
