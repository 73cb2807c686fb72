//! Key-value storage as a pure state machine: [`store`] is a log-structured store on FlashBlox's calls (FB3, FB10), the
//! storage below a node of the key-value service. It decides about appends, reads and frees; the owner of the drive
//! executes its commands and returns the answers. [`driver`] runs one on a backend, one call at a time. [`keys`] serves the key API on a
//! store: conditions, versions, expiry.

#[macro_use]
extern crate rackweave_core;

pub mod driver;
pub mod keys;
pub mod replicated;
pub mod store;
pub mod trace;
