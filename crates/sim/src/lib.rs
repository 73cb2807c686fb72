//! Nodes on virtual time: one thread, deterministic; a seed names a run. The engine runs any [`rackweave_core::Node`]s, which exchange
//! any [`Message`]s, with the links between them, their clocks, and the devices and stores under them.
//!
//! Reading order: [`Engine`], [`net`], [`disk`], [`trace`]; [`scripted`] is for tests.

pub mod clock;
mod cpu;
pub mod disk;
pub mod engine;
mod message;
pub mod net;
pub mod queue;
pub mod scripted;
mod store;
pub mod trace;

pub use disk::{Breakage, CutOdds, CutReport, Disk, FaultDisk};
pub use engine::{Engine, Recorder};
pub use message::Message;
pub use net::{Latency, LinkFaults, NetState, Network, NetworkError};
pub use scripted::{AnyNode, Inbox};
pub use trace::{Costs, Step, TraceHash};
