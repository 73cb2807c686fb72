//! The services that a server has.

use crate::block::BlockService;
use crate::config::{ServerConfig, VssdConfig};
use crate::service::Service;

/// Every vSSD is a replica of blocks.
pub fn make(server: &ServerConfig, vssd: &VssdConfig, slot: usize) -> Box<dyn Service> {
    Box::new(BlockService::new(server, vssd, slot))
}
