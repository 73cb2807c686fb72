//! Reads of several gateways at once, on real hosts: one array of counts serves them all.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rackweave_core::msg::{Body, GcField, Op, Packet, ReadLoad, Table};
use rackweave_core::{Layout, NodeId, Time};
use rackweave_dataplane::netns::{Star, address};
use rackweave_dataplane::{Hook, KernelConfig, KernelSwitch, PortPlace};
use rackweave_switch::{Change, DataPlane, Redirect};
use rackweave_wire::pcap::UDP_PORT;

use crate::control::announcement;
use crate::namespaces::{receive, skip, socket};
use crate::rig::bytes;
use crate::support::{gc, packet, read};

const GATEWAYS: [NodeId; 3] = [NodeId(100), NodeId(101), NodeId(102)];
/// Of vSSDs 1, 2 and 3, a set.
const SERVERS: [NodeId; 3] = [NodeId(2), NodeId(3), NodeId(4)];
/// Reads of each gateway.
const READS: usize = 200;
const IN_FLIGHT: usize = 60;
const PATIENCE: Duration = Duration::from_secs(20);

fn send(from: &UdpSocket, p: &Packet) {
    from.send_to(&bytes(p), (address(Layout::SWITCH), UDP_PORT)).unwrap();
}

struct Rack {
    _star: Star,
    switch: KernelSwitch,
    gateways: Vec<UdpSocket>,
    servers: Vec<UdpSocket>,
}

impl Rack {
    /// Its tables' time stands still, so that no count is too old on a slow machine.
    fn new(hook: Hook) -> Rack {
        let star = Star::new(Layout::SWITCH, &[GATEWAYS, SERVERS].concat()).unwrap();
        if hook == Hook::Xdp {
            // It cannot complete the checksums that hosts of this machine leave open.
            star.offloads(false).unwrap();
        }
        let cfg = KernelConfig { rows_max: 16, manual_clock: true, ..KernelConfig::new(Layout::SWITCH) };
        let mut switch = KernelSwitch::load(KernelConfig { hook, redirect: Redirect::Load, ..cfg }).unwrap();
        star.attach(&mut switch, PortPlace::Peer).unwrap();
        let places = |v: u32| (1..=3).filter(move |&p| p != v).map(|p| (p, p + 1));
        for v in 1..=3 {
            let peers: Vec<_> = places(v).collect();
            switch.change(Time::ZERO, &Change::Create(announcement(v, v + 1, &peers))).unwrap();
        }
        let sockets = |nodes: [NodeId; 3]| nodes.map(|n| socket(&star, n)).into();
        let rack = Rack { gateways: sockets(GATEWAYS), servers: sockets(SERVERS), switch, _star: star };
        for (v, server) in (1..).zip(&rack.servers) {
            send(server, &gc(GcField::Idle, v, v + 1, 1, 1));
            receive(server);
        }
        rack
    }

    /// A read for vSSD 1 by a gateway.
    fn read(&self, gateway: usize, request: u64) {
        let mut p = read(1, request);
        p.src = GATEWAYS[gateway];
        send(&self.gateways[gateway], &p);
    }
    /// The next read that came to a vSSD is this gateway's.
    fn reaches(&self, vssd: u32, gateway: usize) {
        let (p, from) = receive(&self.servers[vssd as usize - 1]);
        assert_eq!((p.header.vssd.0, p.header.original_vssd.0, from), (vssd, 1, GATEWAYS[gateway]));
    }
    fn report(&self, vssd: u32, answered: u64, waiting: u32) {
        let load = ReadLoad { answered, waiting, erasing: false, collecting: 0 };
        send(&self.servers[vssd as usize - 1], &packet(Op::Load, vssd + 1, vssd, Body::Table(Table::Load(load))));
    }

    /// All gateways read at once. Returns the number of reads that each server gets.
    fn flood(&self) -> Vec<usize> {
        let all = GATEWAYS.len() * READS;
        let (came, begin) = (AtomicUsize::new(0), Instant::now());
        std::thread::scope(|s| {
            let counting = self.servers.iter().map(|server| {
                let came = &came;
                s.spawn(move || {
                    server.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
                    let mut here = 0;
                    while came.load(Ordering::Relaxed) < all && begin.elapsed() < PATIENCE {
                        let got = usize::from(server.recv(&mut [0; 2048]).is_ok());
                        here += got;
                        came.fetch_add(got, Ordering::Relaxed);
                    }
                    here
                })
            });
            let counting: Vec<_> = counting.collect();
            for gateway in 0..GATEWAYS.len() {
                let came = &came;
                s.spawn(move || {
                    for sent in 0..READS {
                        // A link's queue is short.
                        let full = || sent * GATEWAYS.len() > came.load(Ordering::Relaxed) + IN_FLIGHT;
                        while full() && begin.elapsed() < PATIENCE {
                            std::thread::yield_now();
                        }
                        self.read(gateway, sent as u64);
                    }
                });
            }
            counting.into_iter().map(|c| c.join().unwrap()).collect()
        })
    }
}

fn share_the_counts(hook: Hook) {
    let rack = Rack::new(hook);
    // Each finds the reads of the ones before it counted.
    for (gateway, vssd) in [(0, 1), (1, 2), (2, 3), (2, 1), (0, 2), (1, 3)] {
        rack.read(gateway, 0);
        rack.reaches(vssd, gateway);
    }
    // Reads that two processors decide about at the same time may take the same replica; the next ones make up for it.
    let shares = rack.flood();
    let each = READS * GATEWAYS.len() / SERVERS.len();
    assert_eq!(shares.iter().sum::<usize>(), READS * GATEWAYS.len(), "none is lost");
    assert!(shares.iter().all(|n| n.abs_diff(each) <= 8), "{shares:?}");
    // One server has answered all, to whomever; the others report that theirs wait.
    let waiting = 2 * READS as u32;
    for (vssd, answered, waiting) in [(1, 0, waiting), (2, 0, waiting), (3, 0, 0)] {
        rack.report(vssd, answered, waiting);
    }
    let shares = rack.flood();
    assert_eq!(shares.iter().sum::<usize>(), READS * GATEWAYS.len());
    // The third catches up with the others' 400, then all three have the rest: 467 + 67 + 67.
    assert!(shares[2].abs_diff(467) <= 12 && shares[0].abs_diff(shares[1]) <= 8, "{shares:?}");
    let c = DataPlane::counters(&rack.switch).unwrap();
    assert_eq!((c.reads, c.malformed, c.redirects), (6 + 2 * (READS * GATEWAYS.len()) as u64, 0, 0));
}

#[test]
fn netns_tc_gateways_share_the_counts() {
    if !skip("netns_tc_gateways_share_the_counts") {
        share_the_counts(Hook::Tc);
    }
}

#[test]
fn netns_xdp_gateways_share_the_counts() {
    if !skip("netns_xdp_gateways_share_the_counts") {
        share_the_counts(Hook::Xdp);
    }
}
