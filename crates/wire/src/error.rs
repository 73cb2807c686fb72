//! Why a packet has no bytes, or bytes are no packet.

use rackweave_core::msg::Op;
use rackweave_core::{Epoch, NodeId};

/// Why a packet cannot be encoded: it breaks a bound of the format. Trying again cannot help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    #[error("{count} {what} in one packet, {limit} fit")]
    TooMany { what: &'static str, count: usize, limit: u32 },
    #[error("a body of {len} bytes, {limit} fit")]
    BodyTooLong { len: usize, limit: u32 },
    #[error("contents of {len} bytes, not a multiple of 512")]
    UnalignedPayload { len: usize },
    #[error("the body does not belong to operation {op:?}")]
    BodyMismatch { op: Op },
    #[error("{node} has no virtual IPv4 address")]
    NoAddress { node: NodeId },
}

/// Why bytes are not a packet. Offsets count from the packet's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("{need} bytes needed at {offset}, {left} left")]
    Truncated { offset: usize, need: usize, left: usize },
    #[error("operation {op} is unknown")]
    UnknownOp { op: u8 },
    #[error("version {version} of the format is unknown")]
    UnknownVersion { version: u8 },
    #[error("traffic class {class} is unknown")]
    UnknownClass { class: u8 },
    #[error("flags {flags:#04x} are unknown, or do not fit the body")]
    BadFlags { flags: u8 },
    #[error("reserved byte at {offset} is {value:#04x}, not zero")]
    Reserved { offset: usize, value: u8 },
    #[error("the header speaks of a body of {len} bytes, {have} follow")]
    BodyLength { len: u32, have: usize },
    #[error("checksum {stored:#010x} in the header, {computed:#010x} computed")]
    Checksum { stored: u32, computed: u32 },
    #[error("{what} of kind {kind} at {offset} is unknown")]
    UnknownKind { what: &'static str, kind: u8, offset: usize },
    #[error("last recovery in epoch {} at {offset} is not between zero and the view's epoch {}", .recovered.0, .epoch.0)]
    BadRecovery { recovered: Epoch, epoch: Epoch, offset: usize },
    #[error("truth value {value} at {offset} is neither 0 nor 1")]
    BadBool { value: u8, offset: usize },
    #[error("{count} {what} at {offset}, {limit} are allowed")]
    TooMany { what: &'static str, count: u32, limit: u32, offset: usize },
    #[error("{count} {what} at {offset} cannot be in {left} bytes")]
    CountBeyondInput { what: &'static str, count: u32, left: usize, offset: usize },
    #[error("text of {len} bytes at {offset} is not UTF-8 from its byte {valid} on")]
    BadText { len: usize, valid: usize, offset: usize },
    #[error("the first volume's id that was not given out, at {offset}, is zero, which names none")]
    NoVolume { offset: usize },
    #[error("epochs {first} to {last} at {offset} are empty, or do not follow those before them with a gap")]
    BadEpochs { first: u32, last: u32, offset: usize },
    #[error("sectors {first} and {count} more at {offset} end beyond the last sector that has a number")]
    BadExtent { first: u64, count: u32, offset: usize },
    #[error("virtual IPv4 address {address:#010x} at {offset} is no node's")]
    BadAddress { address: u32, offset: usize },
    #[error("a request of kind {kind} may not be redirected, but its operation is read")]
    NotRedirectable { kind: u8 },
    #[error("{left} bytes left over after the body's end at {offset}")]
    Trailing { offset: usize, left: usize },
}
