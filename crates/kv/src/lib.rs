//! Key-value storage as a pure state machine: [`store`] is a log-structured store on FlashBlox's calls (FB3, FB10), the
//! storage below a node of the key-value service. It decides what is appended, read and freed; whoever owns the drive
//! executes its commands and hands back the answers. [`driver`] runs one on a backend, a call at a time.

pub mod driver;
pub mod store;
