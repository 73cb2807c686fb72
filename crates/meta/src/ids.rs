//! Ids of vSSDs. They are allocated only here, and never reused (protocol rule 5).
//!
//! An id consists of the vSSD's rack (upper 8 bits, [`VssdId::rack`]) and a number (lower 24). Switches read the rack
//! from every packet. It is constant, because a move creates another vSSD with another id.

use rackweave_core::{SetId, VssdId};

/// Number of the first vSSD created at run time; initial ones are below.
pub const FIRST_MADE: u32 = 1 << 16;
/// Number of the last one: greater numbers stand for partitions of keys.
pub const LAST_MADE: u32 = VssdId::PARTITIONS - 1;
/// Numbers reserved for each server's initial vSSDs, those of shared sets: the most that it may have of these.
pub const PER_SERVER: u32 = 16;
/// Numbers of the sets of log vSSDs.
const LOG_SETS: u32 = 1 << 31;
/// Numbers of the sets of log vSSDs for cloud disks. Those of keyspaces' logs follow ([`rackweave_core::keyspace`]).
const CLOUD_SETS: u32 = LOG_SETS + (1 << 16);
const CLOUD_SETS_END: u32 = CLOUD_SETS + (1 << 16);

/// A server's initial vSSD in place `i` of its drive, counted without free places.
pub fn first(rack: u32, server: u32, i: u32) -> VssdId {
    in_rack(rack, 1 + server * PER_SERVER + i)
}
/// The log vSSD of a server's drive: in the last place, which initial vSSDs leave free on a drive with a log. It is the only one of
/// its set, whose number is above those of all other sets.
pub fn log(rack: u32, server: u32) -> (VssdId, SetId) {
    (first(rack, server, PER_SERVER - 1), SetId(LOG_SETS + server))
}
/// The log vSSD for cloud disks, in the place before.
pub fn cloud_log(rack: u32, server: u32) -> (VssdId, SetId) {
    (first(rack, server, PER_SERVER - 2), SetId(CLOUD_SETS + server))
}
/// Whether the set is that of a log vSSD for cloud disks.
pub fn is_cloud_log(set: SetId) -> bool {
    (CLOUD_SETS..CLOUD_SETS_END).contains(&set.0)
}
/// The log area of a server's drive, in the place before that.
pub fn log_area(rack: u32, server: u32) -> VssdId {
    first(rack, server, PER_SERVER - 3)
}
/// The vSSD created at run time with counter value `number`.
pub(crate) fn made(rack: u32, number: u32) -> VssdId {
    in_rack(rack, number)
}
pub(crate) fn is_made(vssd: VssdId) -> bool {
    vssd.0 % (1 << VssdId::NUMBER_BITS) >= FIRST_MADE
}

fn in_rack(rack: u32, number: u32) -> VssdId {
    VssdId(rack << VssdId::NUMBER_BITS | number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_logs_are_told_apart() {
        let keyspaces = |serial| rackweave_core::keyspace::KeyspaceId::new(serial, 0).log_set();
        assert!(is_cloud_log(cloud_log(0, 0).1) && is_cloud_log(cloud_log(0, 63).1));
        let last = keyspaces(rackweave_core::keyspace::KeyspaceId::SERIAL_MAX);
        assert!(![log(0, 63).1, keyspaces(1), last].into_iter().any(is_cloud_log));
        assert!(keyspaces(1) > SetId(CLOUD_SETS_END) && last < SetId(u32::MAX));
        assert_eq!([log(0, 3).0, cloud_log(0, 3).0, log_area(0, 3)], [VssdId(64), VssdId(63), VssdId(62)]);
    }
    #[test]
    fn ids_are_those_of_existing_drives_and_name_their_rack() {
        assert_eq!((first(0, 0, 0), first(0, 3, 2), first(1, 5, 0)), (VssdId(1), VssdId(51), VssdId(0x0100_0051)));
        assert_eq!((made(0, FIRST_MADE), made(1, FIRST_MADE)), (VssdId(0x1_0000), VssdId(0x0101_0000)));
        for (id, rack, later) in
            [(first(1, 63, 15), 1, false), (made(1, FIRST_MADE), 1, true), (made(0, 70_000), 0, true)]
        {
            assert_eq!((id.rack(), is_made(id)), (rack, later), "{id}");
        }
    }
}
