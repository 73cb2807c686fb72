//! The services on the vSSDs of a rack's servers.

use rackweave_kv::service::KvService;
use rackweave_server::block::BlockService;
use rackweave_server::{ServerConfig, Service, VssdConfig};

/// A log vSSD has a key-value store, every other one is a replica of blocks. A new service is an arm here: its vSSDs, and its
/// constructor.
pub fn make(server: &ServerConfig, vssd: &VssdConfig, slot: usize) -> Box<dyn Service> {
    match vssd.is_log() {
        true => KvService::make(server, vssd, slot),
        false => BlockService::make(server, vssd, slot),
    }
}
