//! The fault search: plans drawn from a seed ([`fault`]), run on a simulated rack ([`rackweave_rack::sim`]) and checked
//! by the observations of clients and members ([`check`]).
//!
//! Reading order: [`fault::Plan`], [`fault::run_plan`], [`check::History`].

pub mod check;
pub mod cloud;
pub mod fault;
pub mod keys;
