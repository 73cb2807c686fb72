//! Packets as a capture file that tcpdump and Wireshark read: Ethernet, IP and UDP around our bytes.
//!
//! A file is [`file_header`] and then a [`record`] for each packet of a simulated rack, or a [`datagram`] for each of a
//! live one. Addresses of simulated nodes are their virtual ones (10.0.0.0 + node + 1); Ethernet addresses are 02:00 and
//! the IP address's last four bytes. Times are of the run, or since 1970, to the nanosecond.
//!
//! Format: libpcap's classic file (draft-ietf-opsawg-pcap), nanosecond variant, little-endian.

use std::net::{IpAddr, SocketAddr};

use rackweave_core::msg::Packet;
use rackweave_core::{NodeId, Time};

use crate::error::EncodeError;

/// The port of our packets ("RW"), source and destination.
pub const UDP_PORT: u16 = 0x5257;
/// Most bytes of a frame that are kept, as capture tools do by default. Only a message of the metadata service can be
/// longer.
pub const SNAP_BYTES: u32 = 262_144;

const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINK_ETHERNET: u32 = 1;
const ETHERNET_BYTES: usize = 14;
const IP_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const RECORD_BYTES: usize = 16;
const PROTOCOL_UDP: u8 = 17;

/// The first 24 bytes of a file.
pub fn file_header() -> [u8; 24] {
    let mut h = [0; 24];
    h[..4].copy_from_slice(&MAGIC_NANOSECONDS.to_le_bytes());
    h[4..6].copy_from_slice(&2u16.to_le_bytes());
    h[6..8].copy_from_slice(&4u16.to_le_bytes());
    h[16..20].copy_from_slice(&SNAP_BYTES.to_le_bytes());
    h[20..].copy_from_slice(&LINK_ETHERNET.to_le_bytes());
    h
}

/// Appends the packet as it is seen at `now`. On an error `to` is as it was.
pub fn record(now: Time, packet: &Packet, to: &mut Vec<u8>) -> Result<(), EncodeError> {
    let place = |node| address(node).map(|a| SocketAddr::from((a, UDP_PORT)));
    let (from, dst) = (place(packet.src)?, place(packet.dst)?);
    let start = to.len();
    let result = frame(now, from, dst, 0, to, |to| crate::encode(packet, to));
    if result.is_err() {
        to.truncate(start);
    }
    result
}

/// Appends a datagram between two addresses of one family; `traffic_class` is DSCP and ECN.
pub fn datagram(now: Time, from: SocketAddr, dst: SocketAddr, traffic_class: u8, payload: &[u8], to: &mut Vec<u8>) {
    let result: Result<(), std::convert::Infallible> = frame(now, from, dst, traffic_class, to, |to| {
        to.extend_from_slice(payload);
        Ok(())
    });
    let Ok(()) = result;
}

fn frame<E>(
    now: Time,
    from: SocketAddr,
    dst: SocketAddr,
    traffic_class: u8,
    to: &mut Vec<u8>,
    put_payload: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let v6 = from.is_ipv6() || dst.is_ipv6();
    let start = to.len();
    let frame = start + RECORD_BYTES;
    let ip = frame + ETHERNET_BYTES;
    let udp = ip + if v6 { IPV6_BYTES } else { IP_BYTES };
    let payload = udp + UDP_BYTES;
    to.resize(payload, 0);
    put_payload(to)?;
    let len = to.len() - payload + UDP_BYTES;
    put_ethernet(&mut to[frame..], from.ip(), dst.ip());
    match (from.ip(), dst.ip()) {
        (IpAddr::V4(from), IpAddr::V4(dst)) => {
            put_ip(&mut to[ip..], from.octets(), dst.octets(), traffic_class, len + IP_BYTES);
        }
        (from, dst) => put_ipv6(&mut to[ip..], octets(from), octets(dst), traffic_class, len),
    }
    put_udp(&mut to[udp..], from.port(), dst.port(), len);
    let wire_len = (to.len() - frame) as u32;
    let kept = wire_len.min(SNAP_BYTES);
    to.truncate(frame + kept as usize);
    let (seconds, nanos) = ((now.0 / 1_000_000_000) as u32, (now.0 % 1_000_000_000) as u32);
    for (field, value) in [seconds, nanos, kept, wire_len].into_iter().enumerate() {
        to[start + field * 4..][..4].copy_from_slice(&value.to_le_bytes());
    }
    Ok(())
}

fn address(node: NodeId) -> Result<[u8; 4], EncodeError> {
    if node.0 >= 0xff_ffff {
        return Err(EncodeError::NoAddress { node });
    }
    Ok(node.ipv4().to_be_bytes())
}

fn octets(a: IpAddr) -> [u8; 16] {
    match a {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

fn put_ethernet(to: &mut [u8], src: IpAddr, dst: IpAddr) {
    for (at, address) in [(0, dst), (6, src)] {
        to[at] = 2;
        to[at + 2..at + 6].copy_from_slice(&octets(address)[12..]);
    }
    to[12..14].copy_from_slice(if src.is_ipv4() && dst.is_ipv4() { &[0x08, 0x00] } else { &[0x86, 0xdd] });
}

/// A simulated packet too long for the length fields (a whole message of 64 KiB) has the most there: what is beyond is in
/// the file, and readers show what fits.
fn length_field(len: usize, most: usize) -> [u8; 2] {
    (len.min(most) as u16).to_be_bytes()
}
const LENGTH_MAX: usize = u16::MAX as usize;

fn put_ipv6(to: &mut [u8], src: [u8; 16], dst: [u8; 16], traffic_class: u8, len: usize) {
    to[0] = 0x60 | traffic_class >> 4;
    to[1] = traffic_class << 4;
    to[4..6].copy_from_slice(&length_field(len, LENGTH_MAX));
    to[6] = PROTOCOL_UDP;
    to[7] = 64;
    to[8..24].copy_from_slice(&src);
    to[24..40].copy_from_slice(&dst);
}

fn put_ip(to: &mut [u8], src: [u8; 4], dst: [u8; 4], traffic_class: u8, len: usize) {
    to[0] = 0x45;
    to[1] = traffic_class;
    to[2..4].copy_from_slice(&length_field(len, LENGTH_MAX));
    // Don't fragment; 64 hops.
    to[6] = 0x40;
    to[8] = 64;
    to[9] = PROTOCOL_UDP;
    to[12..16].copy_from_slice(&src);
    to[16..20].copy_from_slice(&dst);
    let sum: u32 = to[..IP_BYTES].chunks_exact(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let sum = !((folded & 0xffff) + (folded >> 16)) as u16;
    to[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Without a checksum (RFC 768 allows zero): our own covers more.
fn put_udp(to: &mut [u8], from: u16, dst: u16, len: usize) {
    to[0..2].copy_from_slice(&from.to_be_bytes());
    to[2..4].copy_from_slice(&dst.to_be_bytes());
    to[4..6].copy_from_slice(&length_field(len, LENGTH_MAX - IP_BYTES));
}
