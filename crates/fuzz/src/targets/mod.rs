//! The targets, a file for each group of parsers.

mod blockmap;
mod cloud;
mod config;
mod control;
mod device;
mod flash;
mod http;
mod keys;
mod kv;
mod meta;
mod nbd;
mod resp;
mod small;
mod stored;
mod trace;
mod transport;
mod vlfs;
mod wire;

use crate::Target;

/// Inputs of parsers of one message or record.
const SHORT: usize = 4 << 10;
/// Inputs that are scripts of several.
const LONG: usize = 16 << 10;

const fn target(name: &'static str, run: fn(&[u8]), len_max: usize, cost: u64) -> Target {
    Target { name, run, len_max, cost }
}

pub(crate) const ALL: &[Target] = &[
    target("wire", wire::run, SHORT, 1),
    target("transport_header", transport::header, SHORT, 1),
    target("transport_endpoint", transport::endpoint, LONG, 1),
    target("transport_stream", transport::stream, SHORT, 1),
    target("nbd_handshake", nbd::handshake, SHORT, 1),
    target("nbd_transmission", nbd::transmission, LONG, 1),
    target("resp", resp::run, LONG, 1),
    target("http", http::run, SHORT, 1),
    target("config", config::rack, SHORT, 1),
    target("profile", config::profile, SHORT, 1),
    target("rates", config::rates, SHORT, 1),
    target("fault_plan", config::plan, SHORT, 1),
    target("trace_reader", trace::run, SHORT, 1),
    target("device_file", device::run, LONG, 1),
    target("flash_format", flash::formats, SHORT, 1),
    target("drive_record", flash::record, SHORT, 1),
    target("blockmap", blockmap::run, LONG, 1),
    target("blockmap_summary", blockmap::summary, LONG, 1),
    target("kv_format", kv::format, LONG, 1),
    target("kv_store", kv::store, LONG, 1),
    target("cloud_record", cloud::record, SHORT, 1),
    target("keys_record", keys::record, SHORT, 1),
    target("vlfs_format", vlfs::format, SHORT, 1),
    target("vlfs_mount", vlfs::mount, LONG, 1),
    target("meta_record", meta::record, SHORT, 1),
    target("meta_start", meta::start, LONG, 1),
    target("control_json", control::run, SHORT, 1),
    target("frame", small::frame, SHORT, 1),
    target("ovs_dump", small::ovs, SHORT, 1),
    target("text", small::text, SHORT, 1),
];
