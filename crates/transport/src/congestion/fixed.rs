//! A constant window without control, for comparison.

use rackweave_core::Time;

use super::{Acked, Congestion};

#[derive(Debug)]
pub struct Fixed {
    window: u64,
}

impl Fixed {
    pub fn new(window: u64) -> Fixed {
        Fixed { window }
    }
}

impl Congestion for Fixed {
    fn acked(&mut self, _: &Acked) {}
    fn lost(&mut self, _: Time, _: Time) {}
    fn timed_out(&mut self, _: Time) {}
    fn window(&self) -> u64 {
        self.window
    }
}
