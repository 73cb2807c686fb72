//! Experiments of the storage network (PN of the papers; `docs/experiments.md` lists them): `scripts/bench pn-NAME`.
//!
//! [`model`] runs the transport's endpoints over modelled links in virtual time; `live` runs the drivers' loop between
//! two processes, beside kernel TCP and an RPC with the same request code. Never part of the product.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "benchmarks read clocks and open sockets")]

pub mod live;
pub mod model;
pub mod report;
