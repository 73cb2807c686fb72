//! What a server tells of its flash's wear, with its heartbeats (RackBlox §3.6).

use rackweave_core::msg::Control;
use rackweave_core::msg::control::VssdWear;
use rackweave_core::{Effects, Span, Time};

use crate::node::Server;

/// Told at most so often: it is looked at every few days, and every block is counted for it.
const TELL_EVERY: Span = Span::from_secs(1);

/// When it is told, and what was.
#[derive(Debug, Default)]
pub struct Told {
    again_at: Time,
    erases: Option<u64>,
}

impl Server {
    /// Told when anything was erased since, and once in each life, which is told as nothing else is.
    pub(crate) fn tell_wear(&mut self, now: Time, fx: &mut Effects) {
        if now < self.wear.again_at || self.registration.incarnation.is_none() {
            return;
        }
        self.wear.again_at = now + TELL_EVERY;
        let (mut blocks, mut erases, mut vssds) = (0, 0, Vec::new());
        for v in &self.vssds {
            let mut own = 0;
            for count in self.ssd.erase_counts(v.cfg.id) {
                (blocks, own) = (blocks + 1, own + u64::from(count));
            }
            erases += own;
            if !v.is_free() {
                vssds.push(VssdWear { vssd: v.cfg.id, erases: own });
            }
        }
        if self.wear.erases.replace(erases) != Some(erases) {
            self.to_meta(Control::Wear { blocks, erases, vssds }, fx);
        }
    }
}
