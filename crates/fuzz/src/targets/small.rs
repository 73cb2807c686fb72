//! Parsers of a page: frames of the kernel's data plane, dumps of Open vSwitch, names.

use arbitrary::Unstructured;
use rackweave_config::{Policy, Size};
use rackweave_core::NodeId;
use rackweave_core::NodeName;
use rackweave_dataplane::{frame, rings_in};
use rackweave_search::fault::PlanKind;
use rackweave_sim::Network;

use crate::corrupt::{corrupt, rest};

/// Ethernet frames around datagrams.
pub(super) fn frame(input: &[u8]) {
    let mut u = Unstructured::new(input);
    let whole: bool = u.arbitrary().unwrap_or(false);
    let (src, dst) = (NodeId(u.arbitrary().unwrap_or(1)), NodeId(u.arbitrary().unwrap_or(2)));
    let corrupted: bool = u.arbitrary().unwrap_or(false);
    let n = u.int_in_range(0..=200usize).unwrap_or(0).min(u.len());
    let ours = u.bytes(n).unwrap_or_default().to_vec();
    let mut f = if whole { frame::around(src, dst, &ours) } else { ours };
    if corrupted {
        _ = corrupt(&mut u, &mut f);
    }
    _ = frame::parse(&f).map_err(|e| assert!(!e.to_string().is_empty()));
}

/// `dump-groups` and `dump-flows`.
pub(super) fn ovs(input: &[u8]) {
    let mut u = Unstructured::new(input);
    let mut groups =
        b"group_id=1,type=all,bucket=bucket_id:0,actions=set_field:10.82.0.2->ip_dst,output:2,bucket=bucket_id:1,\
        actions=set_field:10.82.0.3->ip_dst,output:3\n"
            .to_vec();
    let mut flows = b" priority=132,udp,nw_dst=10.82.9.1 actions=group:1\n priority=100,arp actions=NORMAL\n".to_vec();
    _ = corrupt(&mut u, &mut groups);
    _ = corrupt(&mut u, &mut flows);
    if u.arbitrary().unwrap_or(false) {
        groups.extend_from_slice(&rest(&mut u));
    }
    let (groups, flows) = (String::from_utf8_lossy(&groups), String::from_utf8_lossy(&flows));
    match rings_in(&groups, &flows) {
        Ok(rings) => assert!(rings.is_sorted_by_key(|r| r.prefix)),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

/// Names and sizes on a command line.
pub(super) fn text(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(s) = Size::parse(&text) {
        assert_eq!(Size::parse(&s.to_string()).as_ref(), Ok(&s), "{text}");
    }
    if let Ok(p) = text.parse::<Policy>() {
        assert_eq!(p.name(), text);
    }
    if let Ok(k) = text.parse::<PlanKind>() {
        assert_eq!(k.name(), text);
    }
    _ = text.parse::<NodeName>();
    _ = Network::parse(&text);
}
