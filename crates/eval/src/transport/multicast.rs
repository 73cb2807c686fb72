//! `pn-multicast`: a put to three replicas, sent once to their group (NI3) and sent to each of them.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Span, Time};
use rackweave_transport::{Config, Event, GroupOptions};

use super::fabric::{Fabric, Happening, LinkConfig};
use super::{message, request};

const CLIENT: NodeId = NodeId(2);
const MEMBERS: [NodeId; 3] = [NodeId(3), NodeId(4), NodeId(5)];
const GROUP: NodeId = NodeId(0x000a_ffff);
const CLASS: Class = Class::Silver;

/// Way of sending a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// One message to the group, which this number of members must receive.
    Group { quorum: usize },
    /// A message to each.
    Each,
}

/// Result of a run of puts.
#[derive(Debug, Default)]
pub struct Puts {
    /// Time until a quorum of replicas had each put whole, in order.
    pub took: Vec<Span>,
    /// Bytes of datagrams on the client's link.
    pub sent_bytes: u64,
    pub gbps: f64,
    /// Puts that every replica has, and puts sent.
    pub everywhere: usize,
    pub sent: usize,
}

impl Puts {
    pub fn median_us(&self) -> f64 {
        let mut all = self.took.clone();
        all.sort_unstable();
        all.get(all.len() / 2).map_or(f64::NAN, |s| s.0 as f64 / 1000.0)
    }
}

/// Sends puts of `bytes` with `depth` in flight for `span`, then lets pending ones complete. Datagrams are lost with
/// probability `loss` on the way to each replica and back; the last replica's host processes them after `slow`.
pub fn puts(seed: u64, way: Replication, bytes: usize, depth: usize, loss: f64, slow: Span, span: Span) -> Puts {
    let link = |loss| LinkConfig { loss, ..LinkConfig::default() };
    // A link to and from each host.
    let links = [0.0, 0.0].into_iter().chain([loss; 6]).map(link).collect();
    let up = |n: NodeId| 2 * (n.0 as usize - 2);
    let routes = move |from: NodeId, to: NodeId, _: u16| match to {
        GROUP => vec![up(from)],
        to => vec![up(from), up(to) + 1],
    };
    let mut f = Fabric::new(seed, links, Box::new(routes));
    for node in [CLIENT].into_iter().chain(MEMBERS) {
        f.add(node, Config::default());
    }
    f.slow(MEMBERS[2], slow);
    f.set_group(CLIENT, GROUP, &MEMBERS);
    f.run_until(f.now + Span::from_millis(10), |_, _| {});
    let needed = if let Replication::Group { quorum } = way { quorum } else { MEMBERS.len() };
    let (start, before) = (f.now, f.carried(up(CLIENT)));
    let end = start + span;
    // Send time of each put, and number of replicas that have it.
    let mut sent: BTreeMap<u64, (Time, usize)> = BTreeMap::new();
    let mut out = Puts::default();
    let put = |f: &mut Fabric, sent: &mut BTreeMap<u64, (Time, usize)>| {
        let number = sent.len() as u64;
        let m = message(Op::Write, CLASS, CLIENT, number, 40, Bytes::from(vec![number as u8; bytes]));
        let taken = match way {
            Replication::Group { quorum } => {
                f.send_group(CLIENT, GROUP, m, GroupOptions { quorum, deadline: Time::MAX, token: number }).is_ok()
            }
            Replication::Each => MEMBERS.iter().all(|n| f.send(CLIENT, *n, m.clone(), Time::MAX).is_ok()),
        };
        if taken {
            sent.insert(number, (f.now, 0));
        }
    };
    (0..depth).for_each(|_| put(&mut f, &mut sent));
    let mut done_in_time = 0;
    // Pending messages at the end are awaited, so that everything sent is known to arrive.
    f.run_until(end + Span::from_secs(5), |f, h| {
        let Happening::Event(node, Event::Delivered(d)) = h else { return };
        let Some((at, have)) = sent.get_mut(&request(&d.message)).filter(|_| MEMBERS.contains(&node)) else { return };
        *have += 1;
        let (took, have) = (f.now.since(*at), *have);
        out.everywhere += usize::from(have == MEMBERS.len());
        if have == needed {
            out.took.push(took);
            if f.now < end {
                done_in_time += 1;
                put(f, &mut sent);
            }
        }
    });
    out.sent = sent.len();
    out.sent_bytes = f.carried(up(CLIENT)) - before;
    out.gbps = done_in_time as f64 * bytes as f64 * 8.0 / span.0 as f64;
    out
}

/// Least share of lossless goodput, as for one connection.
pub const BARS: [(f64, f64); 3] = super::loss::BARS;
/// Bar for the bytes sent, as a fraction of three messages: a third, plus headers.
pub const BYTES_BAR: f64 = 0.40;
/// Bar for the time of any two of three with a slow third, relative to the same without a slow one.
pub const ANY_BAR: f64 = 1.1;
