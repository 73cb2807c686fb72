//! Statistics in `status` and the metrics. Each is declared once: its source, its JSON field and its metrics.

use rackweave_config::Size;
use rackweave_core::admin::{MemberStatus, OwnChange, OwnUnits, ServerStatus, SetStatus, SnapshotInfo, WearStatus};
use rackweave_core::msg::cloud::Shape;
use rackweave_core::msg::{Class, Role};
use rackweave_core::volume::VolumeInfo;
use rackweave_core::{BLOCK, Layout, Span, Time};
use rackweave_gateway::metrics::Kind as MetricKind;
use rackweave_server::{ServerReport, StoreStatus, VssdStatus};
use rackweave_transport::{Carrier, FlowStatus, PeerStatus};
use serde::{Deserialize, Serialize};

use crate::control::{Member, Memory, Wear};
use crate::network::Network;
use crate::status::{Facts, View};
use crate::tenants::{Clients, OwnVssds, Requests};

/// A metric: kind, name, help and value.
pub type Metric<T> = (MetricKind, &'static str, &'static str, fn(&T) -> f64);

/// How long a duplicate node is shown: longer than the time between two detections.
const TWINS_SHOWN: Span = Span::from_secs(15);

/// Declares a struct of `status`. Each field has the source of its value and, for each metric, its kind, name, help, and
/// value where that is not the field's.
macro_rules! exported {
    ($(#[$doc:meta])* pub struct $of:ident from $source:ty {
        $($(#[$m:meta])* $name:ident: $type:ty = $from:expr
            $(, $kind:ident $metric:literal $help:literal $(= $value:expr)?)*;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct $of { $($(#[$m])* pub $name: $type,)* }
        impl $of {
            pub(crate) fn of(source: &$source) -> $of {
                $(let $name = {
                    let from: fn(&$source) -> $type = $from;
                    from(source)
                };)*
                $of { $($name),* }
            }
            #[allow(clippy::unnecessary_cast, dead_code, reason = "some are fractions already, some have no metrics")]
            pub(crate) const METRICS: &[Metric<$of>] =
                &[$($((
                    rackweave_gateway::metrics::Kind::$kind,
                    $metric,
                    $help,
                    $crate::stats::exported!(@value $name $(, $value)?),
                ),)*)*];
        }
    };
    (@value $name:ident) => { |x| x.$name as f64 };
    (@value $name:ident, $value:expr) => { $value };
}

pub(crate) use exported;

fn flag(set: bool) -> f64 {
    f64::from(u8::from(set))
}

/// A rack, and the parts of its state that are no other's.
pub(crate) struct OfRack<'a> {
    pub view: &'a View<'a>,
    pub links_cut: Vec<String>,
    pub store_error: Option<String>,
}

exported! {
    pub struct RackFacts from OfRack<'_> {
        data: String = |s| s.view.facts.data.clone();
        pid: u32 = |_| std::process::id();
        uptime_s: f64 = |s| s.view.uptime.as_secs_f64(),
            Gauge "rackweave_uptime_seconds" "Time since the rack was started";
        /// Seconds skipped because the machine or the process did not run.
        standstill_s: f64 = |s| s.view.standstill.as_secs_f64(),
            Gauge "rackweave_standstill_seconds" "Time in which the machine was suspended or the process stopped";
        /// Mechanisms that poll sockets and sync files.
        driver: String = |s| s.view.facts.driver.clone();
        timing: String = |s| s.view.facts.timing.clone();
        nbd: Vec<String> = |s| s.view.facts.nbd.clone();
        /// Where Redis clients connect; empty without keys.
        #[serde(default)]
        resp: Vec<String> = |s| s.view.facts.resp.clone();
        http: Option<String> = |s| s.view.facts.http.clone();
        /// Bytes that all volumes on shared sets together may promise, and do promise.
        promise_limit: u64 = |s| s.view.rack.promise_limit,
            Gauge "rackweave_promise_limit_bytes" "Greatest sum of the sizes of all volumes on shared sets";
        promised: u64 = |s| s.view.rack.promised,
            Gauge "rackweave_promised_bytes" "Sum of the sizes of all volumes on shared sets, of frozen generations of what they hold";
        /// Bytes that all shared sets can hold, that they hold, and that can still be written to volumes on them.
        #[serde(default)]
        capacity: u64 = |s| s.view.rack.capacity,
            Gauge "rackweave_capacity_bytes" "Capacity of all shared replica sets, one copy counted";
        #[serde(default)]
        used: u64 = |s| s.view.rack.used, Gauge "rackweave_used_bytes" "Used part of the capacity, one copy counted";
        #[serde(default)]
        room: u64 = |s| s.view.rack.room,
            Gauge "rackweave_room_bytes" "Bytes that can be written now, anywhere in a volume on shared sets";
        /// The same of the volumes with units of their own, together. Their room is theirs alone.
        #[serde(default)]
        own_promised: u64 = |s| s.view.rack.own.promised,
            Gauge "rackweave_own_promised_bytes" "Sum of the sizes of the volumes with units of their own";
        #[serde(default)]
        own_capacity: u64 = |s| s.view.rack.own.capacity,
            Gauge "rackweave_own_capacity_bytes" "Capacity of these volumes' sets, one copy counted";
        #[serde(default)]
        own_used: u64 = |s| s.view.rack.own.used,
            Gauge "rackweave_own_used_bytes" "Used part of it, one copy counted";
        #[serde(default)]
        own_room: u64 = |s| s.view.rack.own.room,
            Gauge "rackweave_own_room_bytes" "Bytes of these volumes that are not written yet and can be";
        /// Wear balance of the servers' drives; `None` if they are not balanced.
        #[serde(default)]
        wear: Option<Wear> = |s| wear(&s.view.rack.wear);
        connections: u64 = |s| s.view.connections, Gauge "rackweave_connections" "NBD connections";
        /// Memory of all connections of the process.
        #[serde(default)]
        memory: Memory = |s| s.view.memory,
            Gauge "rackweave_memory_budget_bytes" "Limit of memory held by all connections" = |r| r.memory.budget as f64,
            Gauge "rackweave_memory_held_bytes" "Memory held by all connections" = |r| r.memory.held as f64,
            Gauge "rackweave_memory_waiting" "Connections that are not read until memory is free"
                = |r| r.memory.waiting as f64,
            Counter "rackweave_memory_closed_total" "Connections closed because they held memory that others waited for"
                = |r| r.memory.closed as f64;
        /// Links that are cut, by the names of both ends.
        #[serde(default)]
        links_cut: Vec<String> = |s| s.links_cut.clone();
        /// Why the metadata service cannot write.
        store_error: Option<String> = |s| s.store_error.clone(),
            Gauge "rackweave_store_failing" "1 while the metadata service cannot write" = |r| flag(r.store_error.is_some());
    }
}

fn wear(w: &WearStatus) -> Option<Wear> {
    w.balanced.then(|| Wear {
        lambda: f64::from(w.milli_lambda) / 1e3,
        swaps: w.swaps,
        given_up: w.given_up,
        erases: w.servers.iter().map(|s| (Layout::server_number(s.node), s.milli_erases as f64 / 1e3)).collect(),
    })
}

/// A server as the metadata service has it, and what its own process says.
pub(crate) struct OfNode<'a> {
    pub status: &'a ServerStatus,
    pub vssds: Vec<Vssd>,
    pub refused: Vec<(String, u64)>,
    pub drive_fault: Option<String>,
}

exported! {
    pub struct Server from OfNode<'_> {
        /// Server number, from 0.
        server: u32 = |s| Layout::server_number(s.status.node);
        alive: bool = |s| s.status.alive,
            Gauge "rackweave_server_alive" "1 while the server's heartbeats arrive" = |s| flag(s.alive);
        ssds: Vec<u32> = |s| s.status.ssds.iter().map(|i| i.0).collect();
        vssds: Vec<Vssd> = |s| s.vssds.clone();
        /// Refused requests, by reason; zero counts are left out.
        #[serde(default)]
        refused: Vec<(String, u64)> = |s| s.refused.clone();
        /// Fault of the host file that holds its drive, and the effect of the fault.
        #[serde(default)]
        drive_fault: Option<String> = |s| s.drive_fault.clone(),
            Gauge "rackweave_drive_failing"
                "1 while the file of the server's drive has no room on the host's disk, or has failed"
                = |s| flag(s.drive_fault.is_some());
    }
}

/// A set, and the members that it needs.
pub(crate) struct OfSet<'a> {
    pub set: &'a SetStatus,
    pub copies_missing: u32,
    /// Whose own set it is.
    pub volume: Option<&'a str>,
}

exported! {
    pub struct Set from OfSet<'_> {
        set: u32 = |s| s.set.set.0;
        epoch: u32 = |s| s.set.epoch.0, Gauge "rackweave_set_epoch" "Epoch of the replica set";
        /// The volume that the set belongs to alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        volume: Option<String> = |s| s.volume.map(Into::into);
        members: Vec<Member> = |s| s.set.members.iter().map(member).collect();
        /// Members missing to reach `min_copies`; writes wait for them.
        #[serde(default)]
        copies_missing: u32 = |s| s.copies_missing;
        /// Numbers of the servers that recovery of the crashed set waits for.
        waits_for: Vec<u32> = |s| {
            s.set.waits_for.iter().filter(|n| **n != Layout::META).map(|n| Layout::server_number(*n)).collect()
        };
        /// The whole set crashed and no remaining drive is a witness: recovery waits for the operator's decision.
        #[serde(default)]
        waits_for_word: bool = |s| s.set.waits_for.contains(&Layout::META);
    }
}

/// As `2 channels in 3 replicas`.
fn units(own: &OwnUnits) -> String {
    format!("{} in {} replicas", own.unit.number(own.count), own.replicas.unwrap_or_default())
}

/// As `segments of 64G, 2 log copies`.
fn shape(c: &Shape) -> String {
    let copies = if c.log_copies == 1 { "copy" } else { "copies" };
    format!("segments of {}, {} log {copies}", Size(c.segment), c.log_copies)
}

fn member(m: &MemberStatus) -> Member {
    Member { vssd: m.vssd.0, server: Layout::server_number(m.server), role: role(Some(m.role)).into() }
}

exported! {
    pub struct Volume from (&VolumeInfo, &Facts) {
        id: u32 = |v| v.0.id.0;
        name: String = |v| v.0.name.to_string();
        size: u64 = |v| v.0.size, Gauge "rackweave_volume_size_bytes" "Size of the volume";
        /// Writer generation; zero before the first attach.
        attach: u32 = |v| v.0.attach;
        stripe_bytes: u64 = |v| u64::from(v.0.stripe_blocks) * u64::from(BLOCK);
        sets: Vec<u32> = |v| v.0.sets.iter().map(|s| s.0).collect();
        /// Traffic class of its I/O: `online` or `offline`.
        #[serde(default)]
        class: String = |v| if v.0.class == Class::Copper { "offline" } else { "online" }.into();
        /// Isolation of its vSSDs: a level, or `soft-plane`.
        #[serde(default)]
        isolation: String = |v| match v.0.own {
            Some(own) => own.unit.level().into(),
            None => v.0.sets.first().and_then(|s| v.1.sets.get(s)).map_or("", |l| l.name()).into(),
        };
        /// Units of its own, as `2 channels in 3 replicas`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        own: Option<String> = |v| v.0.own.map(|own| units(&own));
        /// Its own vSSDs get another number of units, as `1 of 3 copies have them`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        own_change: Option<Box<str>> = |v| v.0.own_change.map(|c| match c {
            OwnChange { copies, of } if copies < of => format!("{copies} of {of} copies have them").into(),
            _ => "all copies have them; the old ones are being erased".into(),
        });
        /// It is being flattened, as `1 of 4 segments share nothing`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        flattening: Option<Box<str>> = |v| v.0.flattening.map(|f| format!("{} of {} segments share nothing", f.segments, f.of).into());
        /// Of a cloud disk, as `segments of 64G, 2 log copies`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cloud: Option<String> = |v| v.0.cloud.map(|c| shape(&c));
        /// Limits of all its I/O, in requests and bytes per second; zero is unlimited.
        #[serde(default)]
        iops: u64 = |v| v.0.limits.iops;
        #[serde(default)]
        bytes_per_s: u64 = |v| v.0.limits.bytes_per_s;
        /// Bytes on flash, counting one copy.
        #[serde(default)]
        used: u64 = |v| v.0.used, Gauge "rackweave_volume_used_bytes" "Bytes of the volume on flash, one copy counted";
        /// Snapshots of a cloud disk, oldest first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        snapshots: Vec<SnapshotInfo> = |v| v.0.snapshots.clone(),
            Gauge "rackweave_volume_snapshots" "Snapshots of the volume" = |v| v.snapshots.len() as f64;
        /// In `status`: requests of its clients since the gateways' start; `None` if there were none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        clients: Option<Box<Clients>> = |_| None;
        /// In `status`: its own vSSDs together; `None` if it has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        own_vssds: Option<Box<OwnVssds>> = |_| None;
    }
}

/// A vSSD as reported by its server.
pub(crate) struct OfServer<'a> {
    pub server: &'a ServerReport,
    pub vssd: &'a VssdStatus,
}

exported! {
    pub struct Vssd from OfServer<'_> {
        id: u32 = |s| s.vssd.vssd.0;
        set: u32 = |s| s.vssd.set.0;
        /// The volume that it belongs to alone; `None`: it is shared. Known to the metadata service ([`Status::join`]).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        volume: Option<String> = |_| None;
        /// `channel`, `die`, `software` or `none`, and its units by number on the drive.
        #[serde(default)]
        isolation: String = |s| s.vssd.isolation.map_or_else(String::new, |i| i.to_string());
        #[serde(default)]
        channels: Vec<u32> = |s| s.vssd.channels(),
            Gauge "rackweave_vssd_channels" "Channels with dies of the vSSD" = |v| v.channels.len() as f64;
        #[serde(default)]
        dies: Vec<u32> = |s| s.vssd.dies.to_vec(), Gauge "rackweave_vssd_dies" "Dies of the vSSD" = |v| v.dies.len() as f64;
        /// `member`, `shadow`, or `none` before it is in a view; `log` of a log vSSD, which is in none.
        role: String = |s| if s.vssd.store.is_some() { "log" } else { role(s.vssd.role) }.into();
        /// Whether it has a lease and serves reads and writes.
        serving: bool = |s| s.vssd.serving,
            Gauge "rackweave_vssd_serving" "1 while the vSSD has a lease and answers" = |v| flag(v.serving);
        epoch: u32 = |s| s.vssd.epoch.0;
        /// `idle`, `asking`, `delayed`, `granted`, `collecting`, `ending` or `finishing`.
        gc: String = |s| s.vssd.gc.name().into(),
            Gauge "rackweave_vssd_collecting" "1 while the vSSD collects garbage" = |v| flag(v.gc == "collecting");
        /// For software isolation: the channel group of its drive that it collects with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<u32> = |s| s.vssd.group;
        #[serde(default)]
        gc_runs: u64 = |s| s.vssd.victims(), Counter "rackweave_vssd_gc_runs_total" "Victim blocks collected";
        #[serde(default)]
        gc_episodes: u64 = |s| s.vssd.gc_episodes, Counter "rackweave_vssd_gc_episodes_total" "Episodes of collection";
        #[serde(default)]
        erases: u64 = |s| s.vssd.erases(), Counter "rackweave_vssd_erases_total" "Blocks erased";
        /// Erase blocks; mean and greatest erase count of a block, under earlier owners too.
        #[serde(default)]
        blocks: u64 = |s| s.vssd.wear.blocks.into();
        #[serde(default)]
        wear_mean: f64 = |s| s.vssd.wear.mean(),
            Gauge "rackweave_vssd_wear_mean" "Mean erase count of the vSSD's erase blocks";
        #[serde(default)]
        wear_max: u64 = |s| s.vssd.wear.most.into(),
            Gauge "rackweave_vssd_wear_max" "Greatest erase count of the vSSD's erase blocks";
        /// Time that its server's last start took to recover it from flash.
        #[serde(default)]
        recovery_ms: f64 = |s| s.vssd.recovery_took.0 as f64 / 1e6,
            Gauge "rackweave_vssd_recovery_seconds" "Time that the last start took to recover the vSSD from flash"
                = |v| v.recovery_ms / 1e3;
        /// Its answers to clients, from the request's arrival at the server.
        #[serde(default)]
        reads: Requests = |s| Requests::of(&s.vssd.requests.reads);
        #[serde(default)]
        writes: Requests = |s| Requests::of(&s.vssd.requests.writes);
        #[serde(default)]
        free_ratio: f64 = |s| s.vssd.free_ratio(), Gauge "rackweave_vssd_free_ratio" "Free blocks by spare blocks";
        #[serde(default)]
        blocks_borrowed: u64 = |s| s.vssd.loans.borrowed_blocks.into(),
            Gauge "rackweave_vssd_blocks_borrowed" "Erase blocks borrowed of its channel group";
        #[serde(default)]
        blocks_lent: u64 = |s| s.vssd.loans.lent_blocks.into(),
            Gauge "rackweave_vssd_blocks_lent" "Erase blocks lent to its channel group";
        #[serde(default)]
        mapped_bytes: u64 = |s| s.vssd.mapped_bytes(), Gauge "rackweave_vssd_mapped_bytes" "Bytes mapped to flash";
        /// Most bytes that it may map.
        #[serde(default)]
        exported_bytes: u64 = |s| s.vssd.exported_bytes();
        #[serde(default)]
        cache_used: u64 = |s| s.vssd.cache_used, Gauge "rackweave_vssd_cache_used_slots" "Write cache slots in use";
        /// Slots of the write cache.
        #[serde(default)]
        cache_slots: u64 = |s| s.vssd.cache_slots;
        #[serde(default)]
        waf: f64 = |s| s.vssd.waf(), Gauge "rackweave_vssd_write_amplification" "Slots programmed by slots written";
        #[serde(default)]
        host_slots: u64 = |s| s.vssd.flash.host_slots,
            Counter "rackweave_vssd_host_slots_total" "Slots programmed for the host";
        #[serde(default)]
        moved_slots: u64 = |s| s.vssd.flash.gc_slots + s.vssd.flash.range_slots,
            Counter "rackweave_vssd_moved_slots_total" "Slots programmed by collection and as range records";
        #[serde(default)]
        summed_slots: u64 = |s| s.vssd.flash.summed_slots,
            Counter "rackweave_vssd_summed_slots_total" "Slots programmed for the host whose CRC32C came with them";
        #[serde(default)]
        redirected_reads: u64 = |s| s.vssd.redirected_reads,
            Counter "rackweave_vssd_redirected_reads_total" "Reads redirected here";
        #[serde(default)]
        queued: u64 = |s| s.vssd.queued, Gauge "rackweave_vssd_queued" "Requests that wait for their turn";
        #[serde(default)]
        reads_held: u64 = |s| s.vssd.reads_held, Gauge "rackweave_vssd_reads_held" "Reads held back before their dies";
        #[serde(default)]
        pages_held: u64 = |s| s.vssd.pages_held, Gauge "rackweave_vssd_pages_held" "Pages held back before their dies";
        #[serde(default)]
        read_depth: u64 = |s| s.vssd.read_depth, Gauge "rackweave_vssd_read_depth" "Reads that Kyber lets be under way";
        #[serde(default)]
        page_depth: u64 = |s| s.vssd.page_depth, Gauge "rackweave_vssd_page_depth" "Pages that Kyber lets be under way";
        #[serde(default)]
        scrubbed: u64 = |s| s.vssd.replica.scrubbed, Counter "rackweave_vssd_scrubbed_total" "Blocks read in turn";
        #[serde(default)]
        healed: u64 = |s| s.vssd.replica.healed, Counter "rackweave_vssd_healed_total" "Blocks healed by another copy";
        #[serde(default)]
        scrub_lost: u64 = |s| s.vssd.replica.scrub_lost,
            Counter "rackweave_vssd_scrub_lost_total" "Blocks read in turn that no member could heal";
        #[serde(default)]
        lost_blocks: u64 = |s| s.vssd.lost_blocks, Gauge "rackweave_vssd_lost_blocks" "Blocks marked as lost";
        #[serde(default)]
        scrub_mismatches: u64 = |s| s.vssd.replica.scrub_mismatches,
            Counter "rackweave_vssd_scrub_mismatches_total" "Blocks on which members differed";
        #[serde(default)]
        scrub_undecided: u64 = |s| s.vssd.replica.scrub_undecided,
            Counter "rackweave_vssd_scrub_undecided_total" "Blocks on which members differed and nothing could decide";
        #[serde(default)]
        scrub_progress: f64 = |s| s.vssd.scrub_progress, Gauge "rackweave_vssd_scrub_progress" "Part read in this pass";
        #[serde(default)]
        blocks_retired: u64 = |s| s.vssd.blocks_retired.into(),
            Gauge "rackweave_vssd_blocks_retired" "Erase blocks that failed";
        #[serde(default)]
        blocks_reserve: u64 = |s| s.vssd.blocks_reserve.into(),
            Gauge "rackweave_vssd_blocks_reserve" "Erase blocks that may fail until the vSSD is worn out";
        #[serde(default)]
        blocks_unreadable: u64 = |s| s.vssd.flash.unreadable_blocks,
            Counter "rackweave_vssd_blocks_unreadable_total" "Erase blocks with a page that could not be read";
        /// The first blocks marked as lost: volume, and block of its share of the set.
        #[serde(default)]
        lost: Vec<(u32, u32)> = |s| s.vssd.lost.iter().map(|a| (a.volume.0, a.block)).collect();
        /// Complete scrubbing passes over the drive.
        #[serde(default)]
        scrub_passes: u64 = |s| s.server.scrub_passes;
        /// Of its drive, and so the same for all its vSSDs: swaps of dies.
        #[serde(default)]
        swaps_begun: u64 = |s| s.server.swaps.begun,
            Counter "rackweave_vssd_drive_swaps_begun_total" "Swaps of dies begun on its drive";
        #[serde(default)]
        swaps_ended: u64 = |s| s.server.swaps.ended,
            Counter "rackweave_vssd_drive_swaps_ended_total" "Swaps of dies ended on its drive";
        #[serde(default)]
        swap_slices: u64 = |s| s.server.swaps.slices,
            Counter "rackweave_vssd_drive_swap_slices_total" "Slices of swaps on its drive";
        #[serde(default)]
        swap_slices_refused: u64 = |s| s.server.swaps.refused,
            Counter "rackweave_vssd_drive_swap_slices_refused_total" "Slices of swaps that the switch refused";
        #[serde(default)]
        swapping: bool = |s| s.server.swaps.under_way,
            Gauge "rackweave_vssd_drive_swapping" "1 while dies of its drive trade places" = |v| flag(v.swapping);
        /// Too many erase blocks have failed; its contents are to be moved.
        #[serde(default)]
        worn_out: bool = |s| s.vssd.worn_out;
        /// Its device has failed for good.
        failed: bool = |s| s.server.failed;
        /// Of a log vSSD: the key-value store on it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        store: Option<Store> = |s| s.vssd.store.as_ref().map(Store::of);
    }
}

exported! {
    /// The keys on a log vSSD.
    pub struct Store from StoreStatus {
        /// What the log has: `keys` or `cloud disks`.
        #[serde(default)]
        contents: String = |s| s.contents.into();
        /// Number of the keyspace whose keys it has; 0 is the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keyspace: Option<u32> = |s| s.keyspace;
        /// Blocks of its log.
        blocks: u32 = |s| s.blocks, Gauge "rackweave_key_log_blocks" "Erase blocks of the log";
        blocks_free: u32 = |s| s.blocks_free, Gauge "rackweave_key_log_blocks_free" "Free erase blocks of the log";
        block_bytes: u64 = |s| s.block_bytes;
        /// Bytes of current records.
        #[serde(default)]
        live_bytes: u64 = |s| s.live_bytes, Gauge "rackweave_key_log_live_bytes" "Bytes of the log's current records";
        /// Bytes of further records that it can take.
        #[serde(default)]
        room_bytes: u64 = |s| s.room_bytes, Gauge "rackweave_key_log_room_bytes" "Bytes of further records that the log can take";
        keys: u64 = |s| s.keys, Gauge "rackweave_keys" "Keys with a value that the server has a copy of";
        /// Partitions that the server has a copy of, and those of which it is the primary.
        #[serde(default)]
        partitions: u64 = |s| s.partitions, Gauge "rackweave_key_partitions" "Partitions of whose views the server is a member";
        #[serde(default)]
        primary_of: u64 = |s| s.primary_of, Gauge "rackweave_key_partitions_primary" "Partitions whose primary the server is";
        /// Puts in its log without a decision.
        #[serde(default)]
        undecided: u64 = |s| s.undecided, Gauge "rackweave_key_puts_undecided" "Puts in the log without a decision";
        gets: u64 = |s| s.gets, Counter "rackweave_key_gets_total" "Gets that the server answered";
        /// Answered as the primary; deletes are puts.
        puts: u64 = |s| s.puts, Counter "rackweave_key_puts_total" "Puts and deletes that the server answered as the primary";
        /// Puts refused because a store is full.
        refused: u64 = |s| s.refused,
            Counter "rackweave_key_puts_refused_total" "Puts that the server refused as the primary, since a store is full";
        /// Bytes written to its log, compaction and checkpoints included.
        written_bytes: u64 = |s| s.written_bytes, Counter "rackweave_key_log_written_bytes_total" "Bytes written to the log";
    }
}

fn role(role: Option<Role>) -> &'static str {
    match role {
        Some(Role::Member) => "member",
        Some(Role::Shadow) => "shadow",
        None => "none",
    }
}

/// A process that has a node of its own, by name and address.
pub(crate) struct OfProcess<'a> {
    pub name: String,
    pub address: String,
    pub view: &'a View<'a>,
    pub net: &'a dyn Network,
}

exported! {
    /// One process of a rack with a process per node.
    pub struct Process from OfProcess<'_> {
        /// Name of its node: `meta`, `switch`, `server-0`, `gateway-0`.
        name: String = |s| s.name.clone();
        /// Address at which other nodes reach it.
        address: String = |s| s.address.clone();
        /// Process id; zero if it does not answer.
        pid: u32 = |_| std::process::id();
        uptime_s: f64 = |s| s.view.uptime.as_secs_f64();
        /// Ids of the cluster keys it accepts; it sends with the first.
        #[serde(default)]
        keys: Vec<u8> = |s| s.view.keys.clone();
        /// Why it does not answer.
        error: Option<String> = |_| None;
        /// Clocks that timestamp datagrams on arrival and departure.
        #[serde(default)]
        timestamps: String = |s| s.net.timestamps();
        /// The nodes it communicates with.
        #[serde(default)]
        peers: Vec<Peer> = |s| {
            let name = |p: &PeerStatus| s.view.facts.name(p.peer);
            let of = |peer: &PeerStatus| Peer::of(&OfPeer { now: s.view.now, name: name(peer), peer });
            s.net.peers().iter().map(of).collect()
        }, Gauge "rackweave_network_peers" "Connected nodes" = |p| p.peers.len() as f64;
        /// Open sockets of its network. Their number does not depend on the number of peers or clients (PN6).
        #[serde(default)]
        sockets: u64 = |s| s.net.sockets() as u64, Gauge "rackweave_network_sockets" "Open sockets between nodes";
        /// Network counters, by name; zero counts are left out.
        #[serde(default)]
        network: Vec<(String, u64)> = |s| s.view.counted.clone();
    }
}

/// A peer as seen by this process's network.
pub(crate) struct OfPeer<'a> {
    pub now: Time,
    pub name: String,
    pub peer: &'a PeerStatus,
}

exported! {
    /// One node as seen by another through its network (docs/transport.md).
    pub struct Peer from OfPeer<'_> {
        node: String = |s| s.name.clone();
        /// Silent on every path.
        down: bool = |s| s.peer.down,
            Gauge "rackweave_peer_down" "1 while the peer is silent over every path" = |p| flag(p.down);
        /// Two processes recently claimed to be this node.
        #[serde(default)]
        twins: bool = |s| s.peer.twins.is_some_and(|t| s.now.since(t) < TWINS_SHOWN);
        /// `datagrams`, `stream`, or `stream wanted` while one is opened.
        carrier: String = |s| carrier(s.peer.carrier).into(),
            Gauge "rackweave_peer_stream" "1 while a stream is used instead of datagrams" = |p| flag(p.carrier == "stream");
        stream_uses: u64 = |s| s.peer.stream_uses, Counter "rackweave_peer_stream_uses_total" "Changes to a stream";
        /// Number of the source port in use, number of changes, and number of blacklisted ports.
        path: u16 = |s| s.peer.path;
        path_changes: u64 = |s| s.peer.path_changes,
            Counter "rackweave_peer_path_changes_total" "Changes of the source port";
        /// Longest time without an acknowledgement before the path was changed.
        #[serde(default)]
        path_change_max_us: f64 = |s| s.peer.path_change_max.0 as f64 / 1e3,
            Gauge "rackweave_peer_path_change_max_seconds" "Longest time without an acknowledgement until the path was changed"
                = |p| p.path_change_max_us / 1e6;
        bad_paths: Vec<u16> = |s| s.peer.bad_paths.clone(),
            Gauge "rackweave_peer_bad_paths" "Source ports on the blacklist" = |p| p.bad_paths.len() as f64;
        /// Largest datagram known to get through.
        datagram_bytes: u64 = |s| s.peer.datagram_bytes as u64,
            Gauge "rackweave_peer_datagram_bytes" "Largest datagram known to arrive";
        queued_bytes: u64 = |s| s.peer.queued_bytes as u64,
            Gauge "rackweave_peer_queued_bytes" "Bytes that wait or are unacknowledged";
        classes: Vec<PeerClass> = |s| CLASSES.into_iter().zip(&s.peer.flows).map(|f| PeerClass::of(&f)).collect();
    }
}

/// In the order of [`PeerStatus::flows`].
const CLASSES: [&str; 3] = ["gold", "silver", "copper"];

fn carrier(carrier: Carrier) -> &'static str {
    match carrier {
        Carrier::Datagrams => "datagrams",
        Carrier::StreamWanted => "stream wanted",
        Carrier::Stream => "stream",
    }
}

exported! {
    /// One traffic class of a connection.
    pub struct PeerClass from (&str, &FlowStatus) {
        /// `gold`, `silver` or `copper`.
        class: String = |f| f.0.into();
        /// Smoothed and lowest round trip, excluding host time as far as the kernel reports it; zero before the first.
        rtt_us: f64 = |f| f.1.rtt.0 as f64 / 1e3,
            Gauge "rackweave_class_rtt_seconds" "Smoothed round trip" = |c| c.rtt_us / 1e6;
        rtt_min_us: f64 = |f| f.1.rtt_min.0 as f64 / 1e3,
            Gauge "rackweave_class_rtt_min_seconds" "Lowest round trip" = |c| c.rtt_min_us / 1e6;
        /// Round trips measured, and those with the kernel's transmit timestamp.
        samples: u64 = |f| f.1.counts.samples;
        samples_stamped: u64 = |f| f.1.counts.stamped;
        window_bytes: u64 = |f| f.1.window_bytes, Gauge "rackweave_class_window_bytes" "Congestion window";
        in_flight_bytes: u64 = |f| f.1.in_flight_bytes;
        /// Data datagrams sent, retransmitted, and declared lost, and timeouts.
        sent: u64 = |f| f.1.counts.sent, Counter "rackweave_class_sent_total" "Datagrams with data";
        sent_again: u64 = |f| f.1.counts.sent_again, Counter "rackweave_class_sent_again_total" "Datagrams retransmitted";
        lost: u64 = |f| f.1.counts.lost, Counter "rackweave_class_lost_total" "Datagrams considered lost";
        timeouts: u64 = |f| f.1.counts.timeouts, Counter "rackweave_class_timeouts_total" "Timeouts";
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::{NodeId, SsdId};
    use rackweave_server::SwapStatus;

    use super::*;

    macro_rules! requests {
        () => {
            concat!(r#"{"count":0,"mean_us":0.0,"p50_us":0.0,"p90_us":0.0,"p99_us":0.0,"p999_us":0.0,"max_us":0.0}"#)
        };
    }

    /// Programs depend on these names, users on this order.
    #[test]
    fn json_has_its_fields_in_order() {
        let vssd = concat!(
            r#"{"id":0,"set":0,"isolation":"","channels":[],"dies":[],"role":"","serving":false,"epoch":0,"gc":"","gc_runs":0,"gc_episodes":0,"erases":0,"#,
            r#""blocks":0,"wear_mean":0.0,"wear_max":0,"recovery_ms":0.0,"reads":"#,
            requests!(),
            r#","writes":"#,
            requests!(),
            r#","free_ratio":0.0,"blocks_borrowed":0,"blocks_lent":0,"mapped_bytes":0,"exported_bytes":0,"cache_used":0,"#,
            r#""cache_slots":0,"waf":0.0,"host_slots":0,"moved_slots":0,"summed_slots":0,"redirected_reads":0,"queued":0,"#,
            r#""reads_held":0,"pages_held":0,"read_depth":0,"page_depth":0,"scrubbed":0,"healed":0,"scrub_lost":0,"#,
            r#""lost_blocks":0,"scrub_mismatches":0,"scrub_undecided":0,"scrub_progress":0.0,"blocks_retired":0,"#,
            r#""blocks_reserve":0,"blocks_unreadable":0,"lost":[],"scrub_passes":0,"swaps_begun":0,"#,
            r#""swaps_ended":0,"swap_slices":0,"swap_slices_refused":0,"swapping":false,"worn_out":false,"failed":false}"#,
        );
        assert_eq!(serde_json::to_string(&Vssd::default()).expect("JSON"), vssd);
        let peer = concat!(
            r#"{"node":"","down":false,"twins":false,"carrier":"","stream_uses":0,"path":0,"path_changes":0,"#,
            r#""path_change_max_us":0.0,"bad_paths":[],"datagram_bytes":0,"queued_bytes":0,"classes":[{"class":"","#,
            r#""rtt_us":0.0,"rtt_min_us":0.0,"samples":0,"samples_stamped":0,"window_bytes":0,"in_flight_bytes":0,"#,
            r#""sent":0,"sent_again":0,"lost":0,"timeouts":0}]}"#,
        );
        let one = Peer { classes: vec![PeerClass::default()], ..Peer::default() };
        assert_eq!(serde_json::to_string(&one).expect("JSON"), peer);
    }

    #[test]
    fn a_vssd_shows_what_its_parts_counted() {
        let mut vssd = VssdStatus { blocks_retired: 3, gc_episodes: 4, ..VssdStatus::default() };
        (vssd.flash.gc_victims, vssd.flash.gc_slots, vssd.flash.range_slots) = (5, 6, 7);
        (vssd.replica.healed, vssd.replica.scrubbed, vssd.loans.lent_blocks) = (8, 9, 10);
        vssd.space.mapped_slots = 2;
        let server = ServerReport {
            node: NodeId(2),
            ssd: SsdId(0),
            incarnation: None,
            recovered: true,
            failed: true,
            lease_until: Time::ZERO,
            scrub_passes: 11,
            swaps: SwapStatus { begun: 12, slices: 13, ..SwapStatus::default() },
            vssds: Vec::new(),
        };
        let v = Vssd::of(&OfServer { server: &server, vssd: &vssd });
        assert_eq!((v.blocks_retired, v.gc_episodes, v.gc_runs, v.moved_slots), (3, 4, 5, 13));
        assert_eq!((v.healed, v.scrubbed, v.blocks_lent, v.mapped_bytes), (8, 9, 10, 8192));
        assert_eq!((v.failed, v.scrub_passes, v.role.as_str()), (true, 11, "none"));
        assert_eq!((v.swaps_begun, v.swap_slices), (12, 13));
        let lent = Vssd::METRICS.iter().find(|m| m.1 == "rackweave_vssd_blocks_lent").expect("it is one");
        assert_eq!((lent.3)(&v), 10.0);
    }
}
