//! A fault plan is data, drawn from the seed: it can be printed, edited, replayed, and shrunk by halving.

mod params;

use rackweave_core::{Rng, Span};
use serde::{Deserialize, Serialize};

use rackweave_config::policy::Policy;
use rackweave_config::racks::RacksSection;
use rackweave_config::{Isolation, Levels, OVERCOMMIT_MAX, RackConfig, Size};
use rackweave_rack::wire::TransportConfig;
use rackweave_sim::{Breakage, CutOdds, Latency, LinkFaults, Network};

use self::params::{draw_params, draw_usual_params, share};
use super::edit::Edit;

/// Fewest operations and faults of a seed ("How they are searched").
pub const OPERATIONS_MIN: u32 = 2_000;
pub const FAULTS_MIN: usize = 3;
/// Fraction of plans with moves in which a server is down for longer than the replacement time.
const LONG_CRASH_SHARE: f64 = 0.7;
/// Fraction of plans with moves that have channel groups, if their drives are large enough.
const GROUPED_SHARE: f64 = 0.5;
/// Distance from a seed whose rack runs full to the next one, for plans with moves.
const MOVING_STRIDE: u64 = 1_000_003;
/// Fraction of seeds whose clients keep few unflushed writes.
const SMALL_KEEP_SHARE: f64 = 0.25;
/// Fraction of seeds whose drives have failing blocks, and of programs that fail there.
const FLAWED_SHARE: f64 = 0.25;
const PROGRAM_FAILURES: f64 = 0.0005;
/// Fraction of seeds whose servers scrub all of their flash repeatedly.
const SCRUBBED_SHARE: f64 = 0.25;
/// Fraction of two-rack seeds with more copies away from home than there.
const FAR_SHARE: f64 = 0.3;

/// Parameters of a run besides its faults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Params {
    pub servers: u32,
    /// Copies of each set: losses by one server only show if no other has the data.
    #[serde(default = "usual_copies")]
    pub copies: u32,
    pub lease_ms: u64,
    pub drift_ppm: u32,
    pub clock_offset_ms: u64,
    pub profile: String,
    pub ssd_mib: u64,
    pub checkpoint_blocks: u32,
    pub cache_slots: u64,
    pub clients: u32,
    /// Requests that each client keeps in flight.
    pub depth: u32,
    pub timeout_ms: u64,
    pub operations: u32,
    /// Time over which the operations are spread.
    pub span_ms: u64,
    /// Blocks of each client's own volume, and of the shared one.
    pub own_blocks: u32,
    pub shared_blocks: u32,
    /// Whether contents are real bytes instead of identities.
    pub bytes: bool,
    pub latency_us: u64,
    pub jitter_us: u64,
    pub links: LinkFaults,
    pub cut: CutOdds,
    /// Volumes larger than the rack in total, and clients that fill them.
    pub full: bool,
    /// At the end every device fails.
    pub broken_end: bool,
    /// Unflushed writes that a client keeps.
    pub keep_kib: u64,
    /// Free slots of each drive; if there are any, servers that are down for a second are replaced, and one may be
    /// added.
    #[serde(default)]
    pub spare: u32,
    /// With more than one, this number of each set's copies lie in another rack.
    #[serde(default = "one_rack")]
    pub racks: u32,
    #[serde(default = "one_rack")]
    pub far_copies: u32,
    /// Additional delay between racks.
    #[serde(default)]
    pub between_racks_us: u64,
    /// The vSSDs of a drive are software-isolated, and collect as a channel group.
    #[serde(default)]
    pub grouped: bool,
    /// Fraction of programs that fail on every drive; four times as many erases do. Each failure costs its block.
    #[serde(default)]
    pub program_failures: f64,
    /// Period in which everything on flash is scrubbed; 0 is longer than a run.
    #[serde(default)]
    pub scrub_ms: u64,
    /// What a channel is erased by between swaps of dies; 0: as in a real rack, so that there are none.
    #[serde(default)]
    pub swap_kib: u64,
    /// Longest slice of a swap, and least time between two.
    #[serde(default = "one")]
    pub swap_slice_ms: u32,
    #[serde(default = "one")]
    pub swap_pause_ms: u32,
    /// Size of each volume in GiB, of which `own_blocks` or `shared_blocks` are used in a few places. 0: volumes have
    /// those sizes.
    #[serde(default)]
    pub sparse_gib: u64,
    /// Clients also have short-lived volumes.
    #[serde(default)]
    pub passing_volumes: bool,
    /// Partial blocks, trims and zeroes predominate.
    #[serde(default)]
    pub ragged: bool,
    /// Each start of a node draws a new clock, possibly behind the previous one.
    #[serde(default)]
    pub clocks_restart: bool,
    /// The rack's default policy, or RackBlox's, under which reads stay where they are sent unless that replica
    /// collects.
    #[serde(default = "rackblox")]
    pub policy: Policy,
    /// Packets cross the network as datagrams of the transport; `None` for plain packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<TransportConfig>,
}

fn rackblox() -> Policy {
    Policy::Rackblox
}

fn one() -> u32 {
    1
}

fn one_rack() -> u32 {
    1
}

fn usual_copies() -> u32 {
    RackConfig::default().replicas
}

/// A fault, or an operation besides the workload.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// A server's process ends; its device keeps submitted commands.
    Crash {
        server: u32,
        down_ms: u64,
    },
    /// A server and its device lose power.
    PowerCut {
        server: u32,
        down_ms: u64,
    },
    /// All members of a set lose power together.
    SetPowerCut {
        set: u32,
        down_ms: u64,
    },
    /// Every server's process ends.
    RackCrash {
        down_ms: u64,
    },
    /// Every server, the switch and the metadata service lose power.
    RackPowerCut {
        down_ms: u64,
    },
    /// As [`Fault::RackPowerCut`]; before the restart one drive is replaced by an empty one, and part of another one's
    /// contents is damaged. Only while every copy is whole, so that each block has a good one.
    StandStill {
        damaged: u32,
        replaced: u32,
        /// Fraction of its stored copies.
        permille: u32,
        down_ms: u64,
    },
    SwitchRestart {
        down_ms: u64,
    },
    MetaRestart {
        down_ms: u64,
    },
    /// A client ends with its requests and restarts as another.
    ClientRestart {
        client: u32,
        down_ms: u64,
    },
    /// Drops all packets to and from the node.
    Isolate {
        node: u32,
        ms: u64,
    },
    /// Drops packets from one node to the other.
    Cut {
        from: u32,
        to: u32,
        ms: u64,
    },
    /// A server is cut off from the other servers and the metadata service, but not from clients: it must not serve
    /// beyond its lease.
    Sever {
        server: u32,
        ms: u64,
    },
    /// A server loses the connection to one peer, and soon after its process ends: writes stay half done.
    HalfCrash {
        server: u32,
        peer: u32,
        cut_ms: u64,
        down_ms: u64,
    },
    /// A server loses power and returns as a shadow that cannot reach the others to be filled, while clients cannot
    /// reach the metadata service and keep sending to it.
    BlindPowerCut {
        server: u32,
        down_ms: u64,
        ms: u64,
    },
    /// As [`Fault::StandStill`], but all of `copies` drives except one are replaced by empty ones: each set keeps one
    /// copy, with everything that was flushed. The drives are those of the servers from this one on.
    LastCopies {
        server: u32,
        down_ms: u64,
    },
    /// Packets from one node to the other are delayed; their order stays.
    Late {
        from: u32,
        to: u32,
        extra_ms: u64,
        ms: u64,
    },
    /// Links get worse for a while.
    Noise {
        links: LinkFaults,
        ms: u64,
    },
    /// Stored contents change without their checksum.
    Corrupt {
        server: u32,
    },
    /// A power cut, after which a byte of the device's checkpoints is wrong.
    TornCheckpoint {
        server: u32,
        down_ms: u64,
    },
    /// A device fails. Later it is replaced by an empty one (after a failed sync, its server is restarted). Only while
    /// every set has another copy, and only one at a time.
    BreakDevice {
        server: u32,
        how: Breakage,
        ms: u64,
    },
    /// The switch receives nothing from a server, which receives everything.
    Mute {
        server: u32,
        ms: u64,
    },
    /// The next server that begins to collect garbage ends meanwhile.
    CrashCollecting {
        down_ms: u64,
    },
    /// A rack's switch ends, and with it every connection to the rack's servers.
    SwitchLost {
        rack: u32,
        down_ms: u64,
    },
    /// A rack's servers and its switch lose power.
    OneRackPowerCut {
        rack: u32,
        down_ms: u64,
    },
    /// The link between the racks is cut; clients and the metadata service reach both.
    CutRacks {
        ms: u64,
    },
    /// A rack's servers reach neither the other rack nor the metadata service; clients reach them.
    SeverRack {
        rack: u32,
        ms: u64,
    },
    /// The rack stops, something is edited, and it starts; later the edit is undone. Only while every copy is whole.
    Edit {
        edit: Edit,
        servers_only: bool,
        down_ms: u64,
        /// Duration of the start with the edit.
        tried_ms: u64,
    },
    /// Part of the paths between nodes leads nowhere, with the transport.
    DarkPaths {
        permille: u64,
        ms: u64,
    },
    /// Longer datagrams vanish, with the transport.
    NarrowPaths {
        bytes: u32,
        ms: u64,
    },
    /// An attacker replays to a node what was sent to it before, in any of its incarnations.
    Replay {
        node: u32,
    },
    /// An attacker without the keys sends a node datagrams of its own, made after those that were sent to it.
    Forge {
        node: u32,
    },
    /// A node's incarnation counter is lost: its next run finds none.
    LoseCounter {
        node: u32,
    },
    /// Not a fault: the cluster key is rotated.
    Rekey,
    /// Not a fault: moves a member's vSSD to a server.
    Move {
        set: u32,
        member: u32,
        to: u32,
    },
    /// Not a fault: drains a server.
    Drain {
        server: u32,
    },
    /// Not a fault: adds a server.
    Add,
    /// Not a fault: another client attaches the shared volume and fences its writer.
    Steal {
        client: u32,
    },
    /// Not a fault: a client overwrites its whole own volume.
    Fill {
        client: u32,
    },
    /// Not a fault: a client trims its whole own volume.
    Empty {
        client: u32,
    },
    /// Not a fault: a client creates a short-lived volume and attaches it.
    Create {
        client: u32,
    },
    /// Not a fault: that volume grows by half.
    Grow {
        client: u32,
    },
    /// Not a fault: that volume is deleted, with `force` even while in use.
    Delete {
        client: u32,
        force: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultAt {
    /// Since the start of the workload.
    pub at_us: u64,
    pub fault: Fault,
}

/// Everything that determines a run together with its seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub seed: u64,
    pub params: Params,
    pub faults: Vec<FaultAt>,
}

impl Plan {
    /// The plan of a seed.
    pub fn draw(seed: u64) -> Plan {
        let mut rng = Rng::stream(seed, 0x706c_616e);
        let mut params = draw_params(&mut rng);
        let mut more = Rng::stream(seed, 0x6b65_6570);
        if more.chance(SMALL_KEEP_SHARE) {
            params.keep_kib = more.below(256);
        }
        if more.chance(0.5) {
            params.policy = Policy::Rackblox;
        }
        if more.chance(FLAWED_SHARE) {
            params.program_failures = PROGRAM_FAILURES;
        }
        if more.chance(SCRUBBED_SHARE) {
            params.scrub_ms = more.between(100, 1_000);
        }
        let count = rng.between(FAULTS_MIN as u64 + 1, 10);
        let slice = params.span_ms * 1000 / count;
        let mut faults: Vec<FaultAt> = (0..count)
            .map(|i| FaultAt { at_us: slice * i + rng.below(slice), fault: draw_fault(&params, &mut rng) })
            .collect();
        draw_rarer(&params, &mut rng, &mut faults);
        for _ in 0..rng.between(1, 4) {
            let at_us = rng.below(params.span_ms * 1000);
            faults.push(FaultAt { at_us, fault: Fault::Steal { client: rng.below(u64::from(params.clients)) as u32 } });
        }
        faults.sort_by_key(|f| f.at_us);
        Plan { seed, params, faults }
    }

    /// The plan of a seed with channel groups; every second one runs full, so that it collects.
    pub fn draw_grouped(seed: u64) -> Plan {
        let full = seed.is_multiple_of(2);
        let mut bases = (0..).map(|i| Plan::draw(seed.wrapping_add(i * MOVING_STRIDE)));
        let fits = |p: &mut Plan| {
            // With so few blocks, one that fails leaves a vSSD read-only, and none of these drives is replaced.
            (p.params.grouped, p.params.program_failures) = (true, 0.0);
            // A small drive has few dies, with few blocks each.
            p.params.full == full && rackweave_rack::build::server(&p.rack(), 0, 1).is_ok()
        };
        let mut plan = bases.find_map(|mut p| fits(&mut p).then_some(p)).expect("some do");
        plan.seed = seed;
        plan
    }

    /// The plan of a seed with two racks.
    pub fn draw_two_racks(seed: u64) -> Plan {
        let mut rng = Rng::stream(seed, 0x7261_636b);
        let mut plan = Plan::draw(seed);
        let p = &mut plan.params;
        if p.full {
            // Volumes that fill a rack are drawn for its sets.
            *p = Params { full: false, keep_kib: p.keep_kib, ..draw_usual_params(&mut rng) };
        }
        // Devices may fail at home before the far copy receives a write: alone, it rightly waits (rule 4).
        p.broken_end = false;
        (p.racks, p.servers) = (2, 2 * rng.between(2, 3) as u32);
        p.far_copies = if rng.chance(FAR_SHARE) { 2 } else { 1 };
        p.between_racks_us = rng.between(10, 2_000);
        let count = rng.between(FAULTS_MIN as u64 + 1, 8);
        let slice = p.span_ms * 1000 / count;
        let usual = (0..count).map(|i| (slice * i, slice, draw_fault(p, &mut rng))).collect::<Vec<_>>();
        let count = rng.between(2, 4);
        let slice = p.span_ms * 1000 / count;
        let of_racks = (0..count).map(|i| (slice * i, slice, draw_rack_fault(&mut rng))).collect::<Vec<_>>();
        plan.faults.retain(|f| matches!(f.fault, Fault::Steal { .. }));
        for f in &mut plan.faults {
            f.fault = Fault::Steal { client: rng.below(u64::from(p.clients)) as u32 };
        }
        for (from, slice, fault) in usual.into_iter().chain(of_racks) {
            plan.faults.push(FaultAt { at_us: from + rng.below(slice), fault });
        }
        let p = &plan.params;
        draw_rarer(p, &mut rng, &mut plan.faults);
        plan.faults.sort_by_key(|f| f.at_us);
        plan
    }

    /// The plan of a seed with moves: servers are down for longer than the replacement time, drained and added.
    pub fn draw_moving(seed: u64) -> Plan {
        let mut rng = Rng::stream(seed, 0x6d6f_7665);
        let bases = (0..).map(|i| Plan::draw(seed.wrapping_add(i * MOVING_STRIDE)));
        // Volumes that fill a rack are drawn for its sets.
        let mut plan = bases.into_iter().find(|p| !p.params.full).expect("most are not");
        plan.seed = seed;
        let p = &mut plan.params;
        p.broken_end = false;
        (p.servers, p.copies, p.spare) = (rng.between(4, 5) as u32, 2, 1);
        // A worn-out vSSD occupies a slot that the moves need.
        p.program_failures = 0.0;
        let (servers, span_us) = (u64::from(p.servers), p.span_ms * 1000);
        let mut add = |rng: &mut Rng, fault| plan.faults.push(FaultAt { at_us: rng.below(span_us), fault });
        for _ in 0..rng.between(3, 8) {
            let (set, member, to) = (rng.below(servers), rng.below(3), rng.below(servers + 1));
            add(&mut rng, Fault::Move { set: set as u32, member: member as u32, to: to as u32 });
        }
        if rng.chance(LONG_CRASH_SHARE) {
            let server = rng.below(servers) as u32;
            let down_ms = rng.between(1_200, 3_000);
            add(&mut rng, Fault::Crash { server, down_ms });
        }
        if rng.chance(0.5) {
            add(&mut rng, Fault::Add);
        }
        if rng.chance(0.4) {
            let server = rng.below(servers) as u32;
            add(&mut rng, Fault::Drain { server });
        }
        plan.faults.sort_by_key(|f| f.at_us);
        if Rng::stream(seed, 0x6772_6f75).chance(GROUPED_SHARE) {
            plan.params.grouped = true;
            // A small drive has too few dies.
            plan.params.grouped = rackweave_rack::build::server(&plan.rack(), 0, 1).is_ok();
        }
        plan
    }

    /// The rack's configuration.
    pub fn rack(&self) -> RackConfig {
        let p = &self.params;
        let c = RackConfig { servers: p.servers, cache_slots: p.cache_slots, ..RackConfig::default() };
        let mut c = p.policy.apply(&c);
        c.replicas = p.copies;
        c.min_copies = c.min_copies.min(p.copies);
        c.ssd.profile.clone_from(&p.profile);
        c.ssd.size = Size::mib(p.ssd_mib);
        c.ssd.checkpoint_blocks = p.checkpoint_blocks;
        (c.ssd.program_failures, c.ssd.erase_failures) = (p.program_failures, 4.0 * p.program_failures);
        c.ssd.failure_seed = self.seed;
        c.gc.background = !p.grouped;
        if p.scrub_ms > 0 {
            c.scrub.every_days = p.scrub_ms as f64 / 86_400e3;
        }
        if p.grouped {
            c.ssd.isolation = Levels::One(Isolation::Software);
            // Few enough for a drive of this size to have a die on each for each vSSD.
            c.ssd.channels = Some(2);
        }
        if p.swap_kib > 0 {
            c.wear.swap_erased = Some(Size(p.swap_kib << 10));
            (c.wear.swap_slice_ms, c.wear.swap_pause_ms) = (p.swap_slice_ms, p.swap_pause_ms);
        }
        c.lease.span_ms = p.lease_ms;
        c.lease.drift_ppm = p.drift_ppm;
        c.client.timeout_ms = p.timeout_ms;
        c.client.keep_kib = p.keep_kib;
        if p.sparse_gib > 0 {
            c.overcommit = OVERCOMMIT_MAX;
        }
        if p.spare > 0 {
            (c.ssd.spare, c.servers_max, c.repair.replace_after_s) = (Some(p.spare), Some(p.servers + 1), 1);
        }
        if p.racks > 1 {
            c.racks = RacksSection { count: p.racks, far_replicas: Some(p.far_copies) };
        }
        c
    }

    pub fn network(&self) -> Network {
        let p = &self.params;
        let latency =
            Latency::Exponential { base: Span::from_micros(p.latency_us), mean: Span::from_micros(p.jitter_us) };
        let between_racks = Span::from_micros(p.between_racks_us);
        Network { name: "drawn", latency, faults: p.links, between_racks, ..Network::constant(Span::ZERO) }
    }

    /// Plans with some of the faults left out: halves first, then quarters, down to single ones.
    pub fn smaller(&self) -> Vec<Plan> {
        let n = self.faults.len();
        let mut out = Vec::new();
        let mut part = n.div_ceil(2);
        while part >= 1 && n > 0 {
            for from in (0..n).step_by(part) {
                let mut p = self.clone();
                p.faults.drain(from..(from + part).min(n));
                out.push(p);
            }
            if part == 1 {
                break;
            }
            part = part.div_ceil(2);
        }
        out
    }
}

/// 5 ms to 640 ms, logarithmically uniform.
fn draw_ms(rng: &mut Rng) -> u64 {
    (5.0 * 128f64.powf(rng.unit())) as u64
}

/// Faults of a whole rack.
fn draw_rack_fault(rng: &mut Rng) -> Fault {
    let (rack, ms) = (rng.below(2) as u32, 2 * draw_ms(rng));
    match rng.below(8) {
        0..3 => Fault::SwitchLost { rack, down_ms: ms },
        3..5 => Fault::CutRacks { ms },
        5..7 => Fault::SeverRack { rack, ms: 200 + ms },
        _ => Fault::OneRackPowerCut { rack, down_ms: ms },
    }
}

fn draw_fault(p: &Params, rng: &mut Rng) -> Fault {
    let nodes = u64::from(1 + p.racks + p.servers + p.clients);
    let server = rng.below(u64::from(p.servers)) as u32;
    let ms = draw_ms(rng);
    match rng.below(38) {
        0..4 => Fault::Crash { server, down_ms: ms },
        4..8 => Fault::PowerCut { server, down_ms: ms },
        8..10 => Fault::SetPowerCut { set: server, down_ms: ms },
        10 => Fault::RackCrash { down_ms: ms },
        11 => Fault::RackPowerCut { down_ms: ms },
        12..14 => Fault::SwitchRestart { down_ms: ms },
        14..16 => Fault::MetaRestart { down_ms: ms },
        16..18 => Fault::ClientRestart { client: rng.below(u64::from(p.clients)) as u32, down_ms: ms },
        18..20 => Fault::Isolate { node: rng.below(nodes) as u32, ms },
        20..22 => {
            let from = rng.below(nodes) as u32;
            Fault::Cut { from, to: (from + 1 + rng.below(nodes - 1) as u32) % nodes as u32, ms }
        }
        22..25 => {
            let links = LinkFaults {
                loss: share(rng, 0.3),
                duplicate: share(rng, 0.3),
                reorder: share(rng, 0.5),
                reorder_extra_ns: rng.between(100_000, 20_000_000),
                duplicate_extra_ns: 0,
            };
            Fault::Noise { links, ms }
        }
        25..29 => Fault::Sever { server, ms: 200 + ms },
        29..33 => {
            let peer = (server + 1 + rng.below(u64::from(p.servers - 1)) as u32) % p.servers;
            Fault::HalfCrash { server, peer, cut_ms: rng.between(2, 25), down_ms: 100 + ms }
        }
        33..37 => Fault::BlindPowerCut { server, down_ms: rng.between(5, 60), ms: 200 + ms },
        _ => Fault::Corrupt { server },
    }
}

/// Rare faults, each of which needs a situation that may not occur.
fn draw_rarer(p: &Params, rng: &mut Rng, faults: &mut Vec<FaultAt>) {
    let at = |rng: &mut Rng| rng.below(p.span_ms * 1000);
    let server = |rng: &mut Rng| rng.below(u64::from(p.servers)) as u32;
    if rng.chance(0.4) {
        let fault = Fault::TornCheckpoint { server: server(rng), down_ms: draw_ms(rng) };
        faults.push(FaultAt { at_us: at(rng), fault });
    }
    if rng.chance(0.4) {
        let how = *rng.pick(&[Breakage::Everything, Breakage::Writes, Breakage::Sync]);
        let fault = Fault::BreakDevice { server: server(rng), how, ms: 200 + 2 * draw_ms(rng) };
        faults.push(FaultAt { at_us: at(rng), fault });
    }
    if rng.chance(0.3) {
        let fault = Fault::Mute { server: server(rng), ms: rng.between(200, 1500) };
        faults.push(FaultAt { at_us: at(rng), fault });
    }
    if rng.chance(0.3) {
        let fault = Fault::CrashCollecting { down_ms: rng.between(900, 1600) };
        faults.push(FaultAt { at_us: at(rng), fault });
    }
    if !p.full {
        return;
    }
    for client in 0..p.clients {
        faults.push(FaultAt { at_us: at(rng) / 4, fault: Fault::Fill { client } });
        for _ in 0..rng.between(1, 3) {
            faults.push(FaultAt { at_us: at(rng), fault: Fault::Fill { client } });
        }
        if rng.chance(0.5) {
            faults.push(FaultAt { at_us: at(rng), fault: Fault::Empty { client } });
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
