//! The services on the vSSDs of a rack's servers.

use rackweave_server::block::BlockService;
use rackweave_server::{ServerConfig, Service, VssdConfig};

/// Every vSSD is a replica of blocks. A new service is an arm here: its vSSDs, and its constructor.
pub fn make(server: &ServerConfig, vssd: &VssdConfig, slot: usize) -> Box<dyn Service> {
    BlockService::make(server, vssd, slot)
}
