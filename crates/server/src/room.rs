//! Reports of each vSSD's room, by which writes are admitted ([`crate::Service::room`]), and of the blocks of each
//! volume.

use rackweave_core::msg::Control;
use rackweave_core::msg::control::{ROOM_VOLUMES_MAX, VssdRoom};
use rackweave_core::{Effects, Span, Time, VolumeId};

use crate::node::Server;
use crate::service::Room;

/// Interval of the reports, and so the age of the metadata service's statement of room.
const REPORT_INTERVAL: Span = Span::from_secs(1);

/// When the next report is due, and its first volume, by slot.
#[derive(Debug, Default)]
pub struct RoomReport {
    pub(crate) again_at: Time,
    from: Vec<VolumeId>,
}

impl Server {
    pub(crate) fn report_room(&mut self, now: Time, fx: &mut Effects) {
        if now < self.room.again_at || self.registration.incarnation.is_none() {
            return;
        }
        self.room.again_at = now + REPORT_INTERVAL;
        self.room.from.resize(self.vssds.len(), VolumeId(0));
        for i in (0..self.vssds.len()).filter(|&i| !self.vssds[i].is_free() && !self.vssds[i].is_log()) {
            let (vssd, from) = (self.vssds[i].cfg.id, self.room.from[i]);
            let Room { capacity, used } = self.vssds[i].service.room(&self.ssd);
            let mut volumes = self.ssd.used_from(vssd, from);
            let some: Box<[(VolumeId, u64)]> = volumes.by_ref().take(ROOM_VOLUMES_MAX as usize).collect();
            let (until, next) = match volumes.next() {
                Some((v, _)) => (VolumeId(v.0 - 1), v),
                None => (VolumeId(u32::MAX), VolumeId(0)),
            };
            self.room.from[i] = next;
            let room = VssdRoom { vssd, capacity, used, from, until, volumes: some };
            self.to_meta(Control::Room(Box::new(room)), fx);
        }
    }
}
