//! The services that a rack's servers have on their vSSDs.

use rackweave_server::block::BlockService;
use rackweave_server::{ServerConfig, Service, VssdConfig};

/// Every vSSD is a replica of blocks. A new service is an arm here: its vSSDs, and how it is made.
pub fn make(server: &ServerConfig, vssd: &VssdConfig, slot: usize) -> Box<dyn Service> {
    BlockService::make(server, vssd, slot)
}
