//! Statistics of vSSDs and peers in `status` and the metrics. Each is declared once: its source, its JSON field and its
//! metric.

use rackweave_core::msg::Role;
use rackweave_core::{Span, Time};
use rackweave_gateway::metrics::Kind;
use rackweave_server::{ServerReport, VssdStatus};
use rackweave_transport::{Carrier, FlowStatus, PeerStatus};
use serde::{Deserialize, Serialize};

/// A metric: kind, name, help and value.
pub type Metric<T> = (Kind, &'static str, &'static str, fn(&T) -> f64);

/// How long a duplicate node is shown: longer than the time between two detections.
const TWINS_SHOWN: Span = Span::from_secs(15);

/// Declares a struct of `status`. Each field has the source of its value and, for a metric, its kind, name, help, and
/// value where that is not the field's.
macro_rules! exported {
    ($(#[$doc:meta])* pub struct $of:ident from $source:ty {
        $($(#[$m:meta])* $name:ident: $type:ty = $from:expr
            $(, $kind:ident $metric:literal $help:literal $(= $value:expr)?)?;)*
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
            #[allow(clippy::unnecessary_cast, reason = "some are fractions already")]
            pub(crate) const METRICS: &[Metric<$of>] =
                &[$($((Kind::$kind, $metric, $help, exported!(@value $name $(, $value)?)),)?)*];
        }
    };
    (@value $name:ident) => { |x| x.$name as f64 };
    (@value $name:ident, $value:expr) => { $value };
}

fn flag(set: bool) -> f64 {
    f64::from(u8::from(set))
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
        /// `member`, `shadow`, or `none` before it is in a view.
        role: String = |s| role(s.vssd.role).into();
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
        gc_runs: u64 = |s| s.vssd.flash.gc_victims, Counter "rackweave_vssd_gc_runs_total" "Victim blocks collected";
        #[serde(default)]
        gc_episodes: u64 = |s| s.vssd.gc_episodes, Counter "rackweave_vssd_gc_episodes_total" "Episodes of collection";
        #[serde(default)]
        erases: u64 = |s| s.vssd.flash.erases, Counter "rackweave_vssd_erases_total" "Blocks erased";
        #[serde(default)]
        free_ratio: f64 = |s| s.vssd.space.free_ratio(), Gauge "rackweave_vssd_free_ratio" "Free blocks by spare blocks";
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
        waf: f64 = |s| s.vssd.flash.waf(), Gauge "rackweave_vssd_write_amplification" "Slots programmed by slots written";
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
        /// Too many erase blocks have failed; its contents are to be moved.
        #[serde(default)]
        worn_out: bool = |s| s.vssd.worn_out;
        /// Its device has failed for good.
        failed: bool = |s| s.server.failed;
    }
}

fn role(role: Option<Role>) -> &'static str {
    match role {
        Some(Role::Member) => "member",
        Some(Role::Shadow) => "shadow",
        None => "none",
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

    use super::*;

    /// Programs depend on these names, users on this order.
    #[test]
    fn json_has_its_fields_in_order() {
        let vssd = concat!(
            r#"{"id":0,"set":0,"role":"","serving":false,"epoch":0,"gc":"","gc_runs":0,"gc_episodes":0,"erases":0,"#,
            r#""free_ratio":0.0,"blocks_borrowed":0,"blocks_lent":0,"mapped_bytes":0,"exported_bytes":0,"cache_used":0,"#,
            r#""cache_slots":0,"waf":0.0,"host_slots":0,"moved_slots":0,"summed_slots":0,"redirected_reads":0,"queued":0,"#,
            r#""reads_held":0,"pages_held":0,"read_depth":0,"page_depth":0,"scrubbed":0,"healed":0,"scrub_lost":0,"#,
            r#""lost_blocks":0,"scrub_mismatches":0,"scrub_undecided":0,"scrub_progress":0.0,"blocks_retired":0,"#,
            r#""blocks_reserve":0,"blocks_unreadable":0,"lost":[],"scrub_passes":0,"worn_out":false,"failed":false}"#,
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
            vssds: Vec::new(),
        };
        let v = Vssd::of(&OfServer { server: &server, vssd: &vssd });
        assert_eq!((v.blocks_retired, v.gc_episodes, v.gc_runs, v.moved_slots), (3, 4, 5, 13));
        assert_eq!((v.healed, v.scrubbed, v.blocks_lent, v.mapped_bytes), (8, 9, 10, 8192));
        assert_eq!((v.failed, v.scrub_passes, v.role.as_str()), (true, 11, "none"));
        let lent = Vssd::METRICS.iter().find(|m| m.1 == "rackweave_vssd_blocks_lent").expect("it is one");
        assert_eq!((lent.3)(&v), 10.0);
    }
}
