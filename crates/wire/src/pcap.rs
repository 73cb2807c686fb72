//! Packets as a capture file that tcpdump and Wireshark read: Ethernet, IPv4 and UDP around our bytes.
//!
//! A file is [`file_header`] and then a [`record`] for each packet. Addresses are the nodes' virtual ones
//! (10.0.0.0 + node + 1), Ethernet addresses 02:00 and the same four bytes. Times are of the run, to the nanosecond.
//!
//! Format: libpcap's classic file (draft-ietf-opsawg-pcap), nanosecond variant, little-endian.

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
    let (src, dst) = (address(packet.src)?, address(packet.dst)?);
    let start = to.len();
    let frame = start + RECORD_BYTES;
    let payload = frame + ETHERNET_BYTES + IP_BYTES + UDP_BYTES;
    to.resize(payload, 0);
    if let Err(e) = crate::encode(packet, to) {
        to.truncate(start);
        return Err(e);
    }
    let len = to.len() - payload;
    put_ethernet(&mut to[frame..], src, dst);
    put_ip(&mut to[frame + ETHERNET_BYTES..], src, dst, len + UDP_BYTES + IP_BYTES);
    put_udp(&mut to[frame + ETHERNET_BYTES + IP_BYTES..], len + UDP_BYTES);
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

fn put_ethernet(to: &mut [u8], src: [u8; 4], dst: [u8; 4]) {
    for (at, address) in [(0, dst), (6, src)] {
        to[at] = 2;
        to[at + 2..at + 6].copy_from_slice(&address);
    }
    to[12..14].copy_from_slice(&[8, 0]);
}

/// A datagram too long for its length field has length zero there, as captures of offloaded packets do.
fn length_field(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(0).to_be_bytes()
}

fn put_ip(to: &mut [u8], src: [u8; 4], dst: [u8; 4], len: usize) {
    to[0] = 0x45;
    to[2..4].copy_from_slice(&length_field(len));
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
fn put_udp(to: &mut [u8], len: usize) {
    to[0..2].copy_from_slice(&UDP_PORT.to_be_bytes());
    to[2..4].copy_from_slice(&UDP_PORT.to_be_bytes());
    to[4..6].copy_from_slice(&length_field(len));
}
