//! The part of a two-rack switch that is not in the kernel: it judges `gc_op`s, and exchanges states and requests with the other
//! rack's switch. [`Switch`] decides as where there is no kernel's data plane; its rows and states are written into the kernel's
//! tables, by which the programs forward reads and writes.

use rackweave_core::msg::{Op, Packet};
use rackweave_core::{Effects, Event, Incarnation, Node, Span, Time, VssdId};
use rackweave_switch::control::{Change, DataPlane, RowResult};
use rackweave_switch::{Counters, Switch, SwitchConfig};

use crate::kernel::{KernelFault, KernelSwitch};

/// The control plane's switch of one of two racks.
#[derive(Debug)]
pub struct SlowPath {
    switch: Switch,
}

impl SlowPath {
    /// `cfg` names the other rack's switch.
    pub fn new(cfg: SwitchConfig) -> SlowPath {
        SlowPath { switch: Switch::new(cfg) }
    }

    /// A state expires.
    pub fn timer(&mut self, now: Time, fx: &mut Effects) {
        self.switch.handle(now, Event::Timer, fx);
    }

    /// Handles a packet that the programs sent up. After a fault nothing is answered: senders repeat.
    pub fn packet(
        &mut self,
        kernel: &mut KernelSwitch,
        now: Time,
        p: Packet,
        fx: &mut Effects,
    ) -> Result<(), KernelFault> {
        // Reads, writes and loads are the programs' only.
        let announces = matches!(p.header.op, Op::CreateVssd | Op::DelVssd);
        if !announces && p.header.op != Op::GcOp {
            return Ok(());
        }
        let vssd = p.header.vssd;
        self.switch.handle(now, Event::Packet(p), fx);
        let followed = self.follow(kernel, now, vssd, announces);
        if followed.is_err() {
            fx.packets.clear();
        }
        followed
    }

    /// Makes the kernel's row, or its state alone, what it is here. Packets change no row but their own vSSD's.
    fn follow(&self, kernel: &mut KernelSwitch, now: Time, vssd: VssdId, announces: bool) -> Result<(), KernelFault> {
        if announces {
            let gone = Change::Delete { vssd, incarnation: Incarnation(u64::MAX) };
            let result = kernel.change(now, &self.switch.announced(vssd).map_or(gone, Change::Create))?;
            if result != RowResult::Done {
                return Err(KernelFault::NotFollowed { vssd, result });
            }
        }
        let Some(state) = self.switch.row_state(vssd) else { return Ok(()) };
        let expires_in = state.heard_until.map_or(Span::ZERO, |until| until.since(now));
        kernel.set_state(vssd, &state, expires_in)
    }

    /// When a state expires next: [`Event::Timer`] is then due. In the kernel it expires by itself.
    pub fn deadline(&self) -> Time {
        self.switch.deadline()
    }

    /// The kernel's, and what was decided here.
    pub fn counters(&self, kernel: &KernelSwitch) -> Result<Counters, KernelFault> {
        let (kernel, here) = (kernel.counters()?, *self.switch.counters());
        Ok(Counters {
            reads: kernel.reads,
            writes: kernel.writes,
            redirects: kernel.redirects,
            redirects_far: kernel.redirects_far,
            balanced: kernel.balanced,
            all_collecting: kernel.all_collecting,
            unknown_vssd: kernel.unknown_vssd + here.unknown_vssd,
            malformed: kernel.malformed + here.malformed,
            bad_checksum: kernel.bad_checksum,
            bad_mac: kernel.bad_mac,
            no_port: kernel.no_port,
            trains: kernel.trains,
            ring_packets: kernel.ring_packets,
            ..here
        })
    }
}
