//! Reads that a server forwards to another replica while its own vSSD collects: RackBlox in software (§4.1), where the
//! switch only forwards and the controller's grant names the replica. Off by default.

use rackweave_core::msg::Packet;
use rackweave_core::{NodeId, VssdId};

use crate::gc::{GcMonitor, GcState, Grant};
use crate::service::Context;

/// Destination of a vSSD's reads meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Forwarding {
    to: Option<(VssdId, NodeId)>,
}

impl Forwarding {
    /// The controller answered and named `peer`, or the vSSD itself if no replica is idle.
    pub(crate) fn granted(&mut self, peer: VssdId, peers: &[(VssdId, NodeId)]) {
        self.to = peers.iter().copied().find(|p| p.0 == peer);
    }

    /// Destination of reads while the vSSD collects or its dies trade places; `None` serves them here.
    pub(crate) fn target(&self, gc: &GcMonitor) -> Option<(VssdId, NodeId)> {
        let collects = matches!(gc.state(), GcState::Collecting | GcState::Ending);
        self.to.filter(|_| collects || gc.grant() == Grant::Granted)
    }
}

impl Context<'_> {
    /// The read as forwarded to the other replica; `None` serves it here. A read that another replica forwarded here
    /// stays.
    pub fn forwarded(&self, p: &Packet) -> Option<Packet> {
        let (vssd, server) = self.forward_to?;
        let mut header = p.header;
        (header.original_vssd == header.vssd).then(|| {
            header.vssd = vssd;
            Packet { dst: server, header, ..p.clone() }
        })
    }
}
