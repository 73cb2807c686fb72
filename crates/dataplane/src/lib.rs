//! The switch in the kernel: data planes that need an operating system, behind the control interface of
//! [`rackweave_switch::control`].
//!
//! [`KernelSwitch`] is the switch's program, Algorithm 1 and the choice by load, as BPF programs, tc or XDP (`bpf/`, in C). They run on
//! the ports of a host that other hosts are connected to. Reading order: `bpf/wire.h`, `bpf/tables.h`, `bpf/load.h`,
//! `bpf/algorithm1.h`, `bpf/switch_tc.c` (or `switch_xdp.c`), then [`kernel`]. With two racks a [`SlowPath`] in the control plane judges
//! `gc_op`s.
//!
//! [`ovs`] implements NICE's rings by OpenFlow. [`netns`] makes hosts and links for tests of both.
//!
//! The crate is separate from `rackweave-switch` because that one is pure, and this one consists of system calls.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a driver: clocks, files, threads")]

pub mod frame;
pub mod interface;
pub mod kernel;
mod layout;
pub mod netns;
pub mod ovs;
mod ovs_dump;
mod slow_path;
pub mod testrack;

pub use kernel::{Hook, KernelConfig, KernelFault, KernelSwitch, LoadError, Port, PortPlace, TwoRacks, WAYS_MAX};
pub use layout::REPLICAS_MAX;
pub use ovs_dump::{DumpError, rings_in};
pub use rackweave_switch::rings::{self, Prefix, Reach, Ring};
pub use slow_path::SlowPath;
