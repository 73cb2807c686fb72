//! The services on the vSSDs of a rack's servers.

use rackweave_config::RackConfig;
use rackweave_kv::replicated::KeyService;
use rackweave_kv::service::KvService;
use rackweave_server::block::BlockService;
use rackweave_server::service::MakeService;

use crate::keys;

/// A log vSSD has a replica of keys, every other one is a replica of blocks. A new service is an arm here: its vSSDs, and its
/// constructor.
pub fn make(cfg: &RackConfig) -> MakeService {
    let keys = keys::config(cfg);
    MakeService::new(move |server, vssd, slot| match (vssd.is_log(), &keys) {
        (true, Some(keys)) => Box::new(KeyService::new(server, vssd, keys.clone())),
        (true, None) => KvService::make(server, vssd, slot),
        (false, _) => BlockService::make(server, vssd, slot),
    })
}
