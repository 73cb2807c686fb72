//! Records of a [`crate::sender`]: datagrams on their way, begun messages, the next chunk, and changes by an
//! acknowledgement or a timer.

use rackweave_core::Time;

use crate::header::TransferId;
use crate::outgoing::Outgoing;

/// Bytes of the messages of several chunks that are being sent at once. Others wait until one of these has left: if all
/// were begun on a path that is too slow for all, none would be whole in time, and the receiver would have no room for
/// their parts.
const BEGUN_BYTES_MAX: usize = 256 << 10;
/// That many are begun whatever their length: one may wait for acknowledgements ([`crate::header::ACK_SPAN`]).
const BEGUN_MIN: usize = 2;

/// A datagram with a chunk that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub counter: u64,
    pub id: TransferId,
    pub chunk: u32,
    pub bytes: u32,
    pub at: Time,
    /// Departure time by the kernel if `stamped`; otherwise `at`.
    pub left: Time,
    pub stamped: bool,
    pub in_flight: bool,
    /// Sent once to a whole group.
    pub shared: bool,
    /// Of a chunk that was declared lost before.
    pub again: bool,
}

/// Messages of several chunks that are being sent.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    count: usize,
    bytes: usize,
}

impl Begun {
    pub fn full(&self) -> bool {
        self.count >= BEGUN_MIN && self.bytes >= BEGUN_BYTES_MAX && !mutant!("transport.begun.unbounded")
    }
    pub fn add(&mut self, o: &mut Outgoing) {
        o.begun = true;
        self.count += 1;
        self.bytes += o.message.len();
    }
    /// The message has left or was taken. Nothing changes if it was not begun.
    pub fn end(&mut self, o: &mut Outgoing) {
        if std::mem::take(&mut o.begun) {
            self.count -= 1;
            self.bytes -= o.message.len();
        }
    }
}

/// Changes by an acknowledgement or a timer.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Messages that have arrived whole.
    pub finished: Vec<Outgoing>,
    /// Datagrams to the peer alone.
    pub arrived: u32,
    /// All datagrams, and those to whole groups.
    pub lost: u32,
    pub lost_shared: u32,
    /// Datagrams declared lost that had arrived.
    pub spurious: u32,
    /// Entries of messages to groups without news.
    pub repeated: u32,
    /// A message to a group of which a shared datagram arrived; one of which one was lost, and when that was sent.
    pub shared_arrived: Option<u64>,
    pub shared_lost: Option<(u64, Time)>,
    /// Bytes of the largest datagram that arrived and of the largest lost, and when the last lost one was sent.
    pub largest_arrived: u32,
    pub largest_lost: u32,
    pub lost_sent: Time,
}

/// The next chunk to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    pub id: TransferId,
    pub chunk: u32,
    pub again: bool,
}
