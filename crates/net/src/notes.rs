//! Parses the kernel's control messages that accompany a message from a socket or its error queue.

use super::udp::Ecn;
use rackweave_runtime::clock::nanos;

/// Contents of the control messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Wall-clock time of arrival or departure ([`nanos`]).
    pub wall: Option<u64>,
    /// Bytes per datagram of a train that GRO has merged.
    pub segment: Option<usize>,
    /// A switch on the path had a queue (ECN).
    pub marked: bool,
    /// The kernel's number of a datagram whose departure time was requested.
    pub number: Option<u32>,
}

impl Notes {
    pub fn of(h: &libc::msghdr) -> Notes {
        let mut notes = Notes::default();
        // SAFETY: the kernel filled the control buffer; the macros stay inside `msg_controllen`.
        unsafe {
            let mut c = libc::CMSG_FIRSTHDR(h);
            while !c.is_null() {
                let data = libc::CMSG_DATA(c);
                match ((*c).cmsg_level, (*c).cmsg_type) {
                    // The first of three: the kernel's software timestamp.
                    (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) => {
                        let t = data.cast::<libc::timespec>().read_unaligned();
                        let wall = nanos(&t);
                        notes.wall = Some(wall).filter(|w| *w > 0);
                    }
                    (libc::SOL_UDP, libc::UDP_GRO) => {
                        notes.segment = usize::try_from(data.cast::<i32>().read_unaligned()).ok();
                    }
                    (libc::IPPROTO_IP, libc::IP_TOS) => notes.marked = marked(*data),
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                        notes.marked = marked(data.cast::<i32>().read_unaligned() as u8);
                    }
                    (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                        let e = data.cast::<libc::sock_extended_err>().read_unaligned();
                        if e.ee_origin == libc::SO_EE_ORIGIN_TIMESTAMPING {
                            notes.number = Some(e.ee_data);
                        }
                    }
                    _ => {}
                }
                c = libc::CMSG_NXTHDR(h, c);
            }
        }
        notes
    }
}

fn marked(class: u8) -> bool {
    class & 0b11 == Ecn::Marked as u8
}
