//! The rack, the volumes and the network of a plan, drawn from its seed.

use rackweave_config::policy::Policy;
use rackweave_core::Rng;
use rackweave_sim::{CutOdds, LinkFaults};

use super::{OPERATIONS_MIN, Params, usual_copies};

/// Fraction of seeds whose rack runs full.
const FULL_SHARE: f64 = 0.2;
/// Blocks of all volumes in each set of such a rack; its devices hold 448.
const FULL_BLOCKS_PER_SET: (u64, u64) = (480, 620);

pub(super) fn draw_params(rng: &mut Rng) -> Params {
    let p = draw_usual_params(rng);
    if rng.chance(FULL_SHARE) { fill_up(p, rng) } else { p }
}

/// The same on smaller devices with larger volumes.
fn fill_up(mut p: Params, rng: &mut Rng) -> Params {
    p.full = true;
    p.servers = rng.between(3, 4) as u32;
    p.profile = (*rng.pick(&["femu", "intel-dc"])).into();
    p.ssd_mib = rng.between(16, 18);
    let blocks = p.servers * rng.between(FULL_BLOCKS_PER_SET.0, FULL_BLOCKS_PER_SET.1) as u32;
    p.own_blocks = blocks / (p.clients + 1);
    p.shared_blocks = p.own_blocks;
    p
}

pub(super) fn draw_usual_params(rng: &mut Rng) -> Params {
    Params {
        servers: rng.between(3, 5) as u32,
        copies: usual_copies(),
        lease_ms: rng.between(40, 120),
        drift_ppm: rng.between(0, 2000) as u32,
        clock_offset_ms: rng.between(0, 2000),
        profile: (*rng.pick(&["p-ssd", "femu"])).into(),
        ssd_mib: rng.between(32, 40),
        checkpoint_blocks: rng.between(3, 30) as u32,
        cache_slots: rng.between(288, 600),
        clients: rng.between(2, 3) as u32,
        depth: rng.between(1, 6) as u32,
        timeout_ms: *rng.pick(&[20, 60, 200]),
        operations: rng.between(u64::from(OPERATIONS_MIN), 2_400) as u32,
        span_ms: rng.between(2_500, 6_000),
        own_blocks: rng.between(64, 256) as u32,
        shared_blocks: rng.between(64, 256) as u32,
        bytes: rng.chance(0.12),
        latency_us: rng.between(3, 60),
        jitter_us: rng.between(1, 100),
        links: LinkFaults {
            loss: share(rng, 0.02),
            duplicate: share(rng, 0.02),
            reorder: share(rng, 0.1),
            reorder_extra_ns: rng.between(10_000, 3_000_000),
            duplicate_extra_ns: 0,
        },
        cut: CutOdds { drop: share(rng, 0.6), tear: share(rng, 0.3) },
        full: false,
        broken_end: rng.chance(0.1),
        keep_kib: 65_536,
        spare: 0,
        racks: 1,
        far_copies: 1,
        between_racks_us: 0,
        grouped: false,
        program_failures: 0.0,
        scrub_ms: 0,
        swap_kib: 0,
        swap_slice_ms: 1,
        swap_pause_ms: 1,
        sparse_gib: 0,
        passing_volumes: false,
        ragged: false,
        clocks_restart: false,
        policy: Policy::default(),
        transport: None,
    }
}

/// Up to `max`, in thousandths, so that it survives a round trip through text.
pub(super) fn share(rng: &mut Rng, max: f64) -> f64 {
    rng.below((max * 1000.0) as u64 + 1) as f64 / 1000.0
}
