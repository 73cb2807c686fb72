//! The fault search: a seed draws a rack, a workload and a schedule of faults. Safety is checked under the faults; then
//! they stop, and everything must complete.
//!
//! Reading order: [`plan`], [`workload`], [`run`], [`report`].

mod directed;
mod edit;
mod kind;
pub mod plan;
pub mod report;
pub mod run;
mod sets;
pub mod trace;
mod transport;
pub mod workload;

pub use edit::Edit;
pub use kind::{PlanKind, UnknownKind};
pub use plan::{Fault, FaultAt, Plan};
pub use report::{Failure, SimReport};
pub use run::{SimOptions, run_plan, run_seed, shrink};
