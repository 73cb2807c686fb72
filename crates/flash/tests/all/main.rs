//! Tests of the flash crate.

mod alloc;
mod api;
mod bad_blocks;
mod blockmap;
mod clear;
mod cut_search;
mod cuts;
mod dead;
mod device;
mod evidence;
mod formats;
mod gc;
mod identity;
mod logs;
mod owners;
mod power;
mod power_disk;
mod power_drive;
mod profiles;
mod rig;
mod search;
mod sharing;
mod short;
mod swap;
mod swap_time;
mod wear;
