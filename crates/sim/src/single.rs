//! One node and its device, without a network: a drive that is measured or tested alone.

use rackweave_core::{Effects, Layout, Node, NodeId, Span, SsdId, Time};

use crate::disk::Disk;
use crate::engine::Engine;
use crate::net::{NetState, Network};

/// An [`Engine`] with one node, which always runs.
pub struct Single<N> {
    engine: Engine<N>,
}

const NODE: NodeId = Layout::META;
const RUNS: &str = "the node runs from the beginning";

impl<N: Node> Single<N> {
    /// The node with the device that it calls `ssd`.
    pub fn new(node: N, ssd: SsdId, disk: Disk) -> Single<N> {
        let net = NetState::new(Network::constant(Span::ZERO), Layout::new(1, 0), 0);
        let mut engine = Engine::new(net, 0);
        engine.put_disk(ssd, disk);
        engine.start(NODE, node);
        Single { engine }
    }
    pub fn now(&self) -> Time {
        self.engine.now()
    }
    pub fn node(&self) -> &N {
        self.engine.node(NODE).expect(RUNS)
    }
    pub fn node_mut(&mut self) -> &mut N {
        self.engine.node_mut(NODE).expect(RUNS)
    }
    /// As [`Engine::act`].
    pub fn act<R>(&mut self, what: impl FnOnce(&mut N, Time, &mut Effects) -> R) -> R {
        self.engine.act(NODE, what).expect(RUNS)
    }
    pub fn next_time(&self) -> Option<Time> {
        self.engine.next_time()
    }
    /// As [`Engine::step`].
    pub fn step(&mut self) -> bool {
        self.engine.step()
    }
    /// As [`Engine::run_until`].
    pub fn run_until(&mut self, until: Time) {
        self.engine.run_until(until);
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Event;
    use rackweave_core::device::{DeviceCommand, DeviceOp};

    use super::*;
    use crate::disk::FaultDisk;

    /// Syncs its device at each timer, and sets the next when that is done.
    #[derive(Default)]
    struct Syncs(Vec<Time>);

    impl Node for Syncs {
        fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
            match event {
                Event::Completion(_) => {
                    self.0.push(now);
                    fx.wake_at(now + Span(30));
                }
                _ => fx.command(DeviceCommand { ssd: SsdId(4), tag: 1, op: DeviceOp::Sync, done_at: now + Span(70) }),
            }
        }
    }

    #[test]
    fn a_node_alone_has_its_device_and_its_timer() {
        let mut single = Single::new(Syncs::default(), SsdId(4), Disk::Fault(Box::new(FaultDisk::new())));
        single.run_until(Time(299));
        assert_eq!((single.node().0.as_slice(), single.now()), (&[Time(70), Time(170), Time(270)][..], Time(299)));
        single.act(|_, _, fx| fx.wake_at(Time::MAX));
        single.run_until(Time(1_000));
        assert_eq!(single.node().0.len(), 3, "the timer was cancelled");
    }
}
