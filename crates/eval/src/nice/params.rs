//! Parameters of NICE's cluster, with their sources: P the paper, A an assumption.

use rackweave_core::Span;

use super::host::HostConfig;
use super::net::LinkConfig;

/// Bits of a partition's number.
pub const BITS: u32 = 6;
/// Virtual nodes of a server on the ring.
pub const POINTS: u32 = 64;
/// P: 15 storage nodes.
pub const SERVERS: u32 = 15;
/// P: replication level unless otherwise specified.
pub const REPLICAS: usize = 3;
/// P: 1 Gb/s. A: 5 µs a link.
pub const LINKS: LinkConfig = LinkConfig { bits_per_ns: 1.0, latency: Span::from_micros(5) };
/// The time that [`HOST`]'s cost of a message is calibrated to: a put of 4 B by NOOB-RAC with primary-backup, R = 3. The paper
/// has no number for it: Swift completes in 24 ms with one replica and in 47 ms with nine (figure 10), NICE is 23 times faster, and
/// primary-backup comparable with NICE; 24 ÷ 23 and 47 ÷ 23, interpolated to three replicas.
pub const CALIBRATED_US: f64 = 1290.0;
/// A: SATA's 500 MB/s; 20 µs a forced write, as the buffered write of profile `intel-dc`.
pub const HOST: HostConfig =
    HostConfig { message: Span::from_micros(100), force: Span::from_micros(20), drive_bytes_per_us: 500 };
