//! Nodes on virtual time: single-threaded and deterministic; a seed identifies a run. The engine runs any
//! [`rackweave_core::Node`]s that exchange any [`rackweave_core::Message`]s, with links between them, their clocks, devices and stores.
//!
//! Reading order: [`Engine`], [`net`], [`disk`], [`trace`]; [`scripted`] and [`storm`] are for tests.

pub mod clock;
mod cpu;
pub mod disk;
pub mod engine;
mod meta_area;
pub mod net;
pub mod queue;
pub mod scripted;
mod single;
mod store;
pub mod storm;
pub mod trace;

pub use disk::{Breakage, CutOdds, CutReport, Disk, FaultDisk};
pub use engine::{Engine, Recorder};
pub use net::{Latency, LinkFaults, NetState, Network, NetworkError};
pub use scripted::{AnyNode, Inbox};
pub use single::Single;
pub use trace::{Costs, Step, TraceHash};
