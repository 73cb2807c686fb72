//! Evaluation: the papers' figures, and the models that they run beside the rack of `rackweave-replay`.
//!
//! Start at [`experiment`] (the figures). The models: [`ageing`] (an SSD, or a rack of them, to its end of life),
//! [`tenants`] (several on one drive), [`cloud`] (DiffForward's cloud disks), [`nice`] (a key-value cluster),
//! [`transport`] (the transport over modelled links).

pub mod ageing;
pub mod cloud;
pub mod experiment;
pub mod nice;
pub mod tenants;
pub mod transport;
