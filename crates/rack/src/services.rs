//! The services on the vSSDs of a rack's servers.

use rackweave_config::RackConfig;
use rackweave_kv::replicated::{KeyService, LogService};
use rackweave_meta::ids;
use rackweave_server::block::BlockService;
use rackweave_server::service::MakeService;

use crate::cloud::{self, CloudServer};
use crate::keys;

/// A log vSSD has a server of cloud disks or a replica of keys, every other one is a replica of blocks. A new service is an arm
/// here: its vSSDs, and its constructor.
pub fn make(cfg: &RackConfig) -> MakeService {
    let keys = keys::config(cfg);
    let keyspaces = keys::keyspaces(cfg);
    let disks = cloud::server_config(cfg);
    MakeService::new(move |server, vssd, slot| match (vssd.is_log(), &keys, &disks) {
        (true, _, Some(disks)) if ids::is_cloud_log(vssd.set) => {
            Box::new(LogService::<CloudServer>::new(server, vssd, disks.clone()))
        }
        (true, keys, _) => {
            let keys = keys.as_ref().expect("a log vSSD is of cloud disks or of keys");
            let config = vssd.keyspace.map_or_else(
                || keys.clone(),
                |k| {
                    let value_max = keyspaces.value_max(k.isolation, u32::from(k.units));
                    keys.of_keyspace(k.keyspace, (k.min_copies, k.min_copies), value_max)
                },
            );
            Box::new(KeyService::new(server, vssd, config))
        }
        (false, ..) => BlockService::make(server, vssd, slot),
    })
}
