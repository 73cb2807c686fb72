//! The clients of one node: gateways and workloads use several APIs at one address. The client of each API is a node of
//! its own in here, with its own timer.

use rackweave_block::VolumeClient;
use rackweave_config::RackConfig;
use rackweave_core::msg::{Body, Control};
use rackweave_core::request::Op;
use rackweave_core::{Effects, Event, Node, Time};
use rackweave_kv_replica::KvClient;

use crate::build;

/// A client and the time of its timer.
pub struct Timed<C> {
    pub client: C,
    at: Time,
}

impl<C: Node> Timed<C> {
    /// Whether it set its timer.
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) -> bool {
        if matches!(event, Event::Timer) {
            self.at = Time::MAX;
        }
        self.client.handle(now, event, fx);
        fx.take_wake().map(|at| self.at = at).is_some()
    }
}

macro_rules! clients {
    ($($(#[$m:meta])* $client:ident: $type:ty = $make:expr, requests $op:pat, answers $body:pat,)*) => {
        pub struct Clients {
            $($(#[$m])* pub $client: Timed<$type>),*
        }

        impl Clients {
            /// The clients of client node `i`. `nonce` must differ in each run.
            pub fn new(cfg: &RackConfig, i: u32, nonce: u64) -> Clients {
                Clients { $($client: Timed { client: $make(cfg, i, nonce), at: Time::ZERO }),* }
            }
            fn next(&self) -> Time {
                Time::MAX$(.min(self.$client.at))*
            }
        }

        #[allow(clippy::match_single_binding, reason = "the last client takes the rest")]
        impl Node for Clients {
            fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
                // The driver's timer is the earliest one, possibly rounded by its clock.
                let due = now.max(self.next());
                let mut set = false;
                match event {
                    Event::Timer => {
                        $(if self.$client.at <= due {
                            set |= self.$client.handle(now, Event::Timer, fx);
                        })*
                        // Among those that are not due.
                        set |= self.next() < Time::MAX;
                    }
                    Event::Request(r) => match r.op {
                        $($op => set = self.$client.handle(now, Event::Request(r), fx)),*
                    },
                    // All clients of the node have one nonce and one incarnation.
                    Event::Packet(p) if matches!(p.body, Body::Control(Control::ClientWelcome { .. })) => {
                        $(set |= self.$client.handle(now, Event::Packet(p.clone()), fx);)*
                    }
                    Event::Packet(p) => match p.body {
                        $($body => set = self.$client.handle(now, Event::Packet(p), fx)),*
                    },
                    Event::Completion(_) | Event::Stored { .. } => {}
                }
                if set {
                    fx.wake_at(self.next());
                }
            }
        }
    };
}

// One line per client: its requests and messages. The volume client is last and takes the rest.
clients! {
    keys: KvClient = build::keys_client, requests Op::Kv(_), answers Body::Keys(_),
    volume: VolumeClient = build::client, requests _, answers _,
}
