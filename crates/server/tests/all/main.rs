//! Servers with real metadata and switch nodes, in a small virtual-time loop.

mod classes;
mod control;
mod die_queues;
mod faults;
mod gc;
mod logs;
mod rack;
mod reports;
mod services;
mod serving;
mod store;
mod swaps;
mod writes;
