//! Sizes of the replayed devices and volume.
//!
//! RB16 measures 50 to 100 GB of data on 64 to 128 GB vSSDs, so a rack's data takes [`UTILIZATION`] of its capacity. A
//! trace rarely touches that much: the volume is filled whole, and the trace runs inside it (untouched data is what
//! makes collection move pages, as on any device in use). So:
//!
//! 1. a device is large enough for the trace's footprint at this utilization,
//! 2. keeps all dies and planes of its profile, with at least [`PLANE_BLOCKS_MIN`] erase blocks each (a smaller one
//!    would be all open blocks and no spare ones),
//! 3. and has at most [`SSD_BYTES_DEFAULT_MAX`] unless rule 2 needs more: simulated flash costs memory.
//!
//! A volume smaller than the trace's address space takes its offsets modulo the device's region.

use rackweave_flash::Profile;

/// Fraction of the rack's capacity that the volume fills: 50 of 64 GB (RB16).
pub const UTILIZATION: f64 = 0.78;
/// Least erase blocks of a plane.
pub const PLANE_BLOCKS_MIN: u64 = 8;
/// A larger device must be requested explicitly (16 GiB of flash takes some 130 MB of maps).
pub const SSD_BYTES_DEFAULT_MAX: u64 = 16 << 30;
/// Approximate fraction of a device that a vSSD exports, for the first guess only: the volume's size is computed from
/// the devices as built.
const EXPORTED_GUESS: f64 = 0.9;
/// Granularity of chosen sizes.
const STEP: u64 = 1 << 30;

/// Bytes of each device for a trace that touches `footprint` bytes.
pub fn ssd_bytes(profile: &Profile, footprint: u64, servers: u32, replicas: u32, utilization: f64) -> u64 {
    let g = &profile.geometry;
    let planes = u64::from(g.channels) * u64::from(g.dies_per_channel) * u64::from(g.planes_per_die);
    let floor = planes * PLANE_BLOCKS_MIN * g.block_bytes();
    let room = footprint as f64 * f64::from(replicas) / f64::from(servers) / (utilization * EXPORTED_GUESS);
    let wanted = (room as u64).next_multiple_of(STEP).min(SSD_BYTES_DEFAULT_MAX);
    wanted.max(floor)
}
