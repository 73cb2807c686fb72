//! Reports of the flash's wear, with the heartbeats (RackBlox §3.6).

use rackweave_core::msg::Control;
use rackweave_core::msg::control::VssdWear;
use rackweave_core::{Effects, Span, Time, VssdId};

use crate::node::Server;

/// Shortest interval of the reports: wear changes within days.
const REPORT_INTERVAL: Span = Span::from_secs(1);

/// When the next report is due, and the last one.
#[derive(Debug, Default)]
pub struct WearReport {
    again_at: Time,
    erases: Option<u64>,
}

impl Server {
    /// A block of the vSSD was erased or failed. The contents of a worn-out vSSD must move while it still takes writes,
    /// so that is reported at once.
    pub(crate) fn note_worn(&mut self, now: Time, i: usize) {
        let v = &mut self.vssds[i];
        if v.is_log() {
            return;
        }
        let (worn_out, read_only) = (self.ssd.worn_out(v.cfg.id), self.ssd.read_only(v.cfg.id));
        if (v.worn_out, v.read_only) != (worn_out, read_only) {
            (v.worn_out, v.read_only) = (worn_out, read_only);
            self.wear.again_at = now;
            self.registration.hurry(now);
        }
    }

    /// Reports if anything was erased since the last report, and once in each incarnation.
    pub(crate) fn report_wear(&mut self, now: Time, fx: &mut Effects) {
        if now < self.wear.again_at || self.registration.incarnation.is_none() {
            return;
        }
        self.wear.again_at = now + REPORT_INTERVAL;
        let worn: Vec<VssdId> = self.vssds.iter().filter(|v| v.worn_out && !v.is_free()).map(|v| v.cfg.id).collect();
        if !worn.is_empty() {
            self.to_meta(Control::WornOut { vssds: worn }, fx);
        }
        let (mut blocks, mut erases, mut vssds) = (0, 0, Vec::new());
        for v in self.vssds.iter().filter(|v| !v.is_log()) {
            let (n, own) = self.ssd.erases(v.cfg.id);
            (blocks, erases) = (blocks + u64::from(n), erases + own);
            if !v.is_free() {
                vssds.push(VssdWear { vssd: v.cfg.id, erases: own });
            }
        }
        if self.wear.erases.replace(erases) != Some(erases) {
            self.to_meta(Control::Wear { blocks, erases, vssds }, fx);
        }
    }
}
