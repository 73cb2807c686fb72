//! Driver on virtual time: the whole rack in one thread, deterministic; a seed names a run.

pub mod clock;
mod cpu;
pub mod disk;
pub mod engine;
pub mod net;
pub mod queue;
pub mod rack;
pub mod trace;

pub use disk::{Breakage, CutOdds, CutReport, Disk, FaultDisk};
pub use engine::Engine;
pub use net::{Latency, LinkFaults, Network, NetworkError};
pub use rack::{Contents, RackNode, Sim, SimConfig};
pub use trace::{Costs, Coverage, KINDS, Step, TraceHash};
