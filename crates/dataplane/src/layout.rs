//! The maps' values as `bpf/tables.h` and `bpf/rows.h` lay them out. Native byte order.

use aya::Pod;
use rackweave_core::msg::PEERS_MAX;
use rackweave_core::{Time, VssdId};
use rackweave_switch::RowState;
use rackweave_switch::control::{Announcement, Change};
use rackweave_switch::pipeline::Counters;

pub const READABLE: u64 = 1;
pub const REPLICA_GC: u64 = 2;
pub const DESTINATION_GC: u64 = 4;
pub const HEARD: u64 = 8;
const SWAPS: u64 = 16;
const FLAGS: u64 = 31;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Destination {
    pub word: u64,
    pub server: u32,
    pub vssd: u32,
    /// Pending reads: the program's alone.
    loads: [u64; 6],
}

impl Destination {
    /// The bits as they count at `now_ns`.
    pub fn flags_at(&self, now_ns: u64) -> u64 {
        if self.word & !FLAGS > now_ns { self.word & FLAGS } else { self.word & READABLE }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Peer {
    pub vssd: u32,
    pub server: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Row {
    pub incarnation: u64,
    pub sequence: u64,
    pub request: u64,
    pub epoch: u32,
    pub answer: u8,
    pub has_last: u8,
    pub peer_count: u8,
    pub popped: u8,
    pub peers: [Peer; PEERS_MAX],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Control {
    pub lock: u32,
    pub checked: u32,
    pub slots: u32,
    pub rows: u32,
    pub start_until: u64,
    pub now: u64,
    pub changes: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PortValue {
    pub ifindex: u32,
    pub mac: [u8; 6],
    pub place: u8,
    pub ways: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PortKey {
    pub ip: u32,
    pub way: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyOf {
    pub incarnation: u64,
    pub node: u32,
    pub key_id: u32,
}

/// Most replicas of a ring's group.
pub const REPLICAS_MAX: usize = rackweave_switch::rings::MEMBERS_MAX;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RingValue {
    pub multicast: u8,
    pub count: u8,
    pub zero: [u8; 2],
    pub members: [u32; REPLICAS_MAX],
}

// SAFETY: fixed layout, every bit pattern is a value, no padding (checked against the maps' value sizes when loaded).
unsafe impl Pod for Destination {}
// SAFETY: as above.
unsafe impl Pod for Row {}
// SAFETY: as above.
unsafe impl Pod for Control {}
// SAFETY: as above.
unsafe impl Pod for PortValue {}
// SAFETY: as above.
unsafe impl Pod for PortKey {}
// SAFETY: as above.
unsafe impl Pod for KeyOf {}
// SAFETY: as above.
unsafe impl Pod for RingValue {}

/// Answer of `change_row`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeResult {
    Done,
    Stale,
    Full,
    /// There is no row.
    NotThere,
    Bad(u32),
}

impl ChangeResult {
    pub fn from_code(code: u32) -> ChangeResult {
        match code {
            0 | 1 | 2 | 5 => ChangeResult::Done,
            3 => ChangeResult::Stale,
            4 => ChangeResult::Full,
            6 => ChangeResult::NotThere,
            code => ChangeResult::Bad(code),
        }
    }
}

/// Length of `struct change`, which is given to `change_row` as a packet.
const CHANGE_BYTES: usize = 88;

/// `struct change` of a row.
pub fn change_bytes(change: &Change) -> [u8; CHANGE_BYTES] {
    let mut b = [0; CHANGE_BYTES];
    let mut put = |at: usize, bytes: &[u8]| b[at..at + bytes.len()].copy_from_slice(bytes);
    match change {
        Change::Create(Announcement { vssd, incarnation, epoch, request, row }) => {
            put(16, &1u32.to_ne_bytes());
            put(20, &vssd.0.to_ne_bytes());
            put(24, &incarnation.0.to_ne_bytes());
            put(32, &request.to_ne_bytes());
            put(40, &epoch.0.to_ne_bytes());
            put(44, &row.server.ipv4().to_ne_bytes());
            put(48, &u32::from(row.readable).to_ne_bytes());
            put(52, &(row.peers.len() as u32).to_ne_bytes());
            for (i, (vssd, server)) in row.peers.iter().enumerate() {
                put(56 + 8 * i, &vssd.0.to_ne_bytes());
                put(60 + 8 * i, &server.ipv4().to_ne_bytes());
            }
        }
        Change::Delete { vssd, incarnation } => {
            put(16, &2u32.to_ne_bytes());
            put(20, &vssd.0.to_ne_bytes());
            put(24, &incarnation.0.to_ne_bytes());
        }
    }
    b
}

/// `struct change` of a state that expires at `until` by the kernel's clock.
pub fn state_bytes(vssd: VssdId, state: &RowState, until: Time) -> [u8; CHANGE_BYTES] {
    let bit = |on, bits| if on { bits } else { 0 };
    let flags = bit(state.readable, READABLE)
        | bit(state.collecting, REPLICA_GC | DESTINATION_GC)
        | bit(state.heard_until.is_some(), HEARD)
        | bit(state.swaps, SWAPS);
    let mut b = [0; CHANGE_BYTES];
    b[16..20].copy_from_slice(&3u32.to_ne_bytes());
    b[20..24].copy_from_slice(&vssd.0.to_ne_bytes());
    b[24..32].copy_from_slice(&state.incarnation.0.to_ne_bytes());
    b[80..].copy_from_slice(&(until.0 & !FLAGS | flags).to_ne_bytes());
    b
}

/// Length of `enum counter`.
pub const COUNTERS: usize = 28;

/// In the order of `enum counter`.
pub fn counters(n: &[u64; COUNTERS]) -> Counters {
    Counters {
        reads: n[0],
        writes: n[1],
        redirects: n[2],
        all_collecting: n[3],
        gc_accepted: n[4],
        gc_delayed: n[5],
        gc_delayed_after_start: n[6],
        gc_regular: n[7],
        gc_background: n[8],
        gc_finished: n[9],
        gc_heartbeats: n[10],
        gc_idles: n[11],
        gc_duplicates: n[12],
        gc_stale: n[13],
        gc_foreign: n[14],
        rows_created: n[15],
        rows_deleted: n[16],
        rows_stale: n[17],
        rows_refused: n[18],
        unknown_vssd: n[19],
        malformed: n[20],
        bad_checksum: n[21],
        bad_mac: n[22],
        no_port: n[23],
        trains: n[24],
        ring_packets: n[25],
        balanced: n[26],
        redirects_far: n[27],
        // Decided by the control plane.
        ..Counters::default()
    }
}
