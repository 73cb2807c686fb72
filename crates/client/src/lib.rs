//! The client of replica sets, under every API's client: sends a message to a member of its set and sees it through.
//!
//! [`SetClient`] keeps, per set, its members and the windows of messages in flight ([`set`]); per message, its tries, and
//! which members refused or failed it. It gives each mutation an identity that replicas deduplicate by (protocol rule 7),
//! tries the next member with the same mutation when one refuses or stays silent, and pays for retries from a budget
//! ([`budget`]). It registers with the metadata service and follows the rack's map.
//!
//! It never sends by itself: its methods say which message is to be sent now, and the API's client composes it. That
//! client also judges answers, orders messages, and fails them.
//!
//! Reading order: [`set`], [`set_client`], [`registration`].

/// Brings [`rackweave_core::mutant`] to every module.
#[macro_use]
extern crate rackweave_core;

pub mod budget;
pub mod config;
pub mod registration;
pub mod set;
pub mod set_client;
pub mod timers;

pub use config::SetClientConfig;
pub use set::SetState;
pub use set_client::{Composed, Failure, META, Message, Sent, SetClient, SetMessage, SetStats, State};
