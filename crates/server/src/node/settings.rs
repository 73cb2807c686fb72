//! What a driver may change while a server runs.

use rackweave_core::Time;

use super::Server;
use crate::config::GcConfig;
use crate::service::Freed;

impl Server {
    /// Sets whether each vSSD's pending reads are reported to the switch.
    pub fn set_reports_load(&mut self, tells: bool) {
        self.cfg.reports_load = tells;
    }
    /// Sets the wall clock at time zero, in milliseconds since 1970: values of keys expire by it. Initially 0. Its services
    /// learn of it with the next timer.
    pub fn set_unix_ms_at_zero(&mut self, ms: u64) {
        self.unix_ms_at_zero = ms;
        // Services are called once the drive is recovered.
        if self.booted {
            self.due[..self.vssds.len()].fill(Time::ZERO);
        }
    }
    /// Sets whether the host's disk has room for writes to the drive. Requests that wait for room continue with the
    /// next timer.
    pub fn set_host_room(&mut self, now: Time, room: bool) {
        if self.ssd.host_full() != room {
            return;
        }
        self.ssd.set_host_room(room);
        self.host_full_at = (!room).then_some(now);
        self.registration.hurry(now);
        for (i, v) in self.vssds.iter_mut().enumerate() {
            if room {
                v.service.handle_freed(Freed::Host);
            }
            self.touched |= 1 << i;
        }
        self.room.again_at = Time::ZERO;
    }
    /// Changes the collection parameters of its vSSDs, which check them with the next timer.
    pub fn set_gc(&mut self, now: Time, gc: GcConfig) {
        self.cfg.gc = gc;
        self.groups.iter_mut().for_each(|g| g.machine.set_config(now, gc));
        for (i, v) in self.vssds.iter_mut().enumerate() {
            v.gc.set_config(now, gc);
            self.due[i] = now;
        }
    }
}
