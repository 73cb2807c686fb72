//! Frames as hosts send them: Ethernet, IPv4 and UDP around a packet, with real checksums.

use std::fmt;

use rackweave_core::NodeId;
use rackweave_core::msg::Packet;
use rackweave_wire::pcap::UDP_PORT;

/// Bytes before the packet's header.
pub const HEAD_BYTES: usize = 42;
const IP_AT: usize = 14;
const UDP_AT: usize = 34;

/// The Ethernet address of a node: 02:00 and its virtual IPv4 address.
pub fn mac(node: NodeId) -> [u8; 6] {
    let ip = node.ipv4().to_be_bytes();
    [2, 0, ip[0], ip[1], ip[2], ip[3]]
}

/// Reason why bytes are not a frame of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameError {
    Short { bytes: usize },
    NotOurs,
    IpChecksum,
    UdpChecksum { stored: u16, computed: u16 },
    Addresses { ip: u32, ethernet: [u8; 6] },
    Decode(rackweave_wire::DecodeError),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Short { bytes } => write!(f, "{bytes} bytes are not a frame"),
            FrameError::NotOurs => write!(f, "not IPv4, UDP, port {UDP_PORT}"),
            FrameError::IpChecksum => write!(f, "wrong checksum of the IPv4 header"),
            FrameError::UdpChecksum { stored, computed } => {
                write!(f, "UDP checksum {stored:#06x}, {computed:#06x} would be right")
            }
            FrameError::Addresses { ip, ethernet } => write!(f, "IPv4 {ip:#010x} sent to {ethernet:02x?}"),
            FrameError::Decode(e) => e.fmt(f),
        }
    }
}
impl std::error::Error for FrameError {}

/// Ones' complement sum of big-endian words, folded (RFC 1071).
fn sum(words: &[u8], seed: u32) -> u16 {
    let mut s = seed;
    for w in words.chunks(2) {
        s += u32::from(w[0]) << 8 | u32::from(w.get(1).copied().unwrap_or(0));
    }
    while s > 0xffff {
        s = (s & 0xffff) + (s >> 16);
    }
    s as u16
}

/// Of the pseudo header: addresses, protocol, length.
fn pseudo(frame: &[u8]) -> u32 {
    u32::from(sum(&frame[IP_AT + 12..IP_AT + 20], 17 + (frame.len() - UDP_AT) as u32))
}

/// The frame of a packet's bytes from one node to another.
pub fn around(src: NodeId, dst: NodeId, ours: &[u8]) -> Vec<u8> {
    let mut f = vec![0; HEAD_BYTES];
    f.extend_from_slice(ours);
    let len = f.len();
    f[..6].copy_from_slice(&mac(dst));
    f[6..12].copy_from_slice(&mac(src));
    f[12..14].copy_from_slice(&[8, 0]);
    f[IP_AT] = 0x45;
    f[IP_AT + 2..IP_AT + 4].copy_from_slice(&((len - IP_AT) as u16).to_be_bytes());
    f[IP_AT + 6] = 0x40;
    f[IP_AT + 8] = 64;
    f[IP_AT + 9] = 17;
    f[IP_AT + 12..IP_AT + 16].copy_from_slice(&src.ipv4().to_be_bytes());
    f[IP_AT + 16..IP_AT + 20].copy_from_slice(&dst.ipv4().to_be_bytes());
    let ip_sum = !sum(&f[IP_AT..UDP_AT], 0);
    f[IP_AT + 10..IP_AT + 12].copy_from_slice(&ip_sum.to_be_bytes());
    f[UDP_AT..UDP_AT + 2].copy_from_slice(&UDP_PORT.to_be_bytes());
    f[UDP_AT + 2..UDP_AT + 4].copy_from_slice(&UDP_PORT.to_be_bytes());
    f[UDP_AT + 4..UDP_AT + 6].copy_from_slice(&((len - UDP_AT) as u16).to_be_bytes());
    let udp_sum = match !sum(&f[UDP_AT..], pseudo(&f)) {
        0 => 0xffff,
        s => s,
    };
    f[UDP_AT + 6..UDP_AT + 8].copy_from_slice(&udp_sum.to_be_bytes());
    f
}

/// The packet in a frame, every checksum and address of which is right.
pub fn parse(f: &[u8]) -> Result<Packet, FrameError> {
    if f.len() < HEAD_BYTES {
        return Err(FrameError::Short { bytes: f.len() });
    }
    if f[12..14] != [8, 0]
        || f[IP_AT] != 0x45
        || f[IP_AT + 9] != 17
        || f[UDP_AT + 2..UDP_AT + 4] != UDP_PORT.to_be_bytes()
    {
        return Err(FrameError::NotOurs);
    }
    if sum(&f[IP_AT..UDP_AT], 0) != 0xffff {
        return Err(FrameError::IpChecksum);
    }
    let stored = u16::from_be_bytes([f[UDP_AT + 6], f[UDP_AT + 7]]);
    if stored != 0 && sum(&f[UDP_AT..], pseudo(f)) != 0xffff {
        let mut without = f.to_vec();
        without[UDP_AT + 6..UDP_AT + 8].fill(0);
        let computed = !sum(&without[UDP_AT..], pseudo(f));
        return Err(FrameError::UdpChecksum { stored, computed });
    }
    let ip = u32::from_be_bytes([f[IP_AT + 16], f[IP_AT + 17], f[IP_AT + 18], f[IP_AT + 19]]);
    let packet = rackweave_wire::decode(&f[HEAD_BYTES..]).map_err(FrameError::Decode)?;
    if NodeId::from_ipv4(ip) != Some(packet.dst) || f[..6] != mac(packet.dst) {
        let ethernet = [f[0], f[1], f[2], f[3], f[4], f[5]];
        return Err(FrameError::Addresses { ip, ethernet });
    }
    Ok(packet)
}
