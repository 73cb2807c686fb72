//! The fault search: plans drawn from a seed ([`fault`]), run on a simulated rack ([`rackweave_rack::sim`]) and judged by what
//! clients and members saw ([`check`]).
//!
//! Reading order: [`fault::Plan`], [`fault::run_plan`], [`check::History`].

pub mod check;
pub mod fault;
