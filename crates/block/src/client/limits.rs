//! Requests that wait for their volume's limits.

use rackweave_core::{Effects, Time};

use super::VolumeClient;

impl VolumeClient {
    /// Cuts a new request, or lets it wait.
    pub(super) fn admit(&mut self, now: Time, p: u32, bytes: u64) {
        let pending = &mut self.pending[p as usize];
        let (v, serial) = (pending.volume, pending.serial);
        let limiter = &mut self.volumes[v as usize].limiter;
        if limiter.take(now, bytes) {
            return self.begin(p);
        }
        pending.live += 1;
        self.stats.limited += 1;
        if limiter.wait((p, serial, bytes)) {
            self.limited.push(v);
        }
    }

    /// Cuts the requests that may go now; returns when the next may.
    pub(super) fn admit_due(&mut self, now: Time, fx: &mut Effects) -> Time {
        let mut next = Time::MAX;
        for v in std::mem::take(&mut self.limited) {
            while let Some((p, serial, bytes)) = self.volumes[v as usize].limiter.next(now) {
                // A request given up meanwhile has taken nothing.
                if self.pending.get(p as usize).is_none_or(|p| p.serial != serial) {
                    continue;
                }
                self.volumes[v as usize].limiter.charge(bytes);
                self.pending[p as usize].live -= 1;
                self.begin(p);
                self.finish_if_done(p, fx);
            }
            if let Some(at) = self.volumes[v as usize].limiter.ready_at() {
                next = next.min(at);
                self.limited.push(v);
            }
        }
        next
    }
}
