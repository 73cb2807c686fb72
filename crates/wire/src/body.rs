//! Which bodies are which service's: decided by the operation in the header and the first byte of the body.
//!
//! RackBlox's numbers of operations came first, so the first services have all but 128 to 255 of the first bytes of `read`,
//! `write`, `reply`, `peer` and `control`. A further service takes some of these for each operation that it uses.

use std::ops::RangeInclusive;

use rackweave_core::msg::{self, Body, Op};

use crate::codec::{Reader, Writer};
use crate::error::DecodeError;

/// Operations, and of each the first bytes of its bodies. An empty body counts as one that begins with zero.
pub(crate) type Frames = &'static [(Op, RangeInclusive<u8>)];

/// All bodies of an operation.
pub(crate) const ANY: RangeInclusive<u8> = 0..=255;

/// The bodies of one service.
pub(crate) trait Codec: Sized {
    /// Those that are this service's; no two services share one.
    const FRAMES: Frames;
    /// Fails where the body does not belong to the operation.
    fn put(&self, op: Op, w: &mut Writer<'_>);
    /// `op` and the next byte are in [`Codec::FRAMES`].
    fn get(op: Op, r: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

const fn has(frames: Frames, op: Op, first: u8) -> bool {
    let mut i = 0;
    while i < frames.len() {
        let (of, range) = &frames[i];
        if *of as u8 == op as u8 && *range.start() <= first && first <= *range.end() {
            return true;
        }
        i += 1;
    }
    false
}

const fn assert_disjoint(services: &[Frames]) {
    let mut i = 0;
    while i < services.len() {
        let mut k = 0;
        while k < services[i].len() {
            let (op, range) = &services[i][k];
            let mut other = i + 1;
            while other < services.len() {
                let mut first = *range.start();
                loop {
                    assert!(!has(services[other], *op, first), "a body is of two services");
                    if first == *range.end() {
                        break;
                    }
                    first += 1;
                }
                other += 1;
            }
            k += 1;
        }
        i += 1;
    }
}

macro_rules! codecs {
    ($($(#[$m:meta])* $service:ident($module:ident)),* $(,)?) => {
        pub(crate) fn put(op: Op, body: &Body, w: &mut Writer<'_>) {
            match body {
                $(Body::$service(message) => Codec::put(message, op, w)),*
            }
        }

        pub(crate) fn get(op: Op, r: &mut Reader<'_>) -> Result<Body, DecodeError> {
            let first = r.peek().unwrap_or(0);
            $(if has(<msg::$module::$service as Codec>::FRAMES, op, first) {
                return Ok(Body::$service(Codec::get(op, r)?));
            })*
            Err(DecodeError::UnknownKind { what: "message", kind: first, offset: r.offset() })
        }

        const _: () = assert_disjoint(&[$(<msg::$module::$service as Codec>::FRAMES),*]);
    };
}
rackweave_core::services!(codecs);
