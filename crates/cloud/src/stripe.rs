//! Segments of a VDisk (DF6): its stripes in turn, so that sequential traffic reaches all proxies.

use rackweave_core::SECTOR;

use crate::types::Extent;

pub use rackweave_core::msg::cloud::{SEGMENTS_MAX, Shape};

pub const STRIPE_BYTES: u32 = 64 << 10;
pub const SEGMENT_BYTES: u64 = 64 << 30;

/// Why a VDisk cannot be divided so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StripingError {
    #[error("stripe of {stripe} bytes: a multiple of {SECTOR}, at most {STRIPE_BYTES}")]
    Stripe { stripe: u32 },
    #[error("segment of {segment} bytes: a multiple of the stripe, {stripe} bytes")]
    Segment { segment: u64, stripe: u32 },
    #[error("VDisk of {bytes} bytes: a multiple of {SECTOR}, at least one sector")]
    Size { bytes: u64 },
    #[error("segment of {segment} bytes: a VDisk of {bytes} bytes has at most {SEGMENTS_MAX} segments")]
    Segments { segment: u64, bytes: u64 },
    #[error("{segments} segments of at least {segment} bytes: at least one, and at most as many as {bytes} bytes have")]
    SegmentCount { segments: u32, segment: u64, bytes: u64 },
    #[error("{log_copies} copies of a log entry: 1 or 2")]
    LogCopies { log_copies: u8 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striping {
    sectors: u64,
    segments: u32,
    stripe: u32,
}

impl Striping {
    /// Of a new volume.
    ///
    /// # Errors
    /// The size that does not divide.
    pub fn new(bytes: u64, segment: u64, stripe: u32) -> Result<Striping, StripingError> {
        Striping::of(&Shape::new(bytes, segment, stripe, 1))
    }
    /// # Errors
    /// The size that does not divide, or another number of segments or log copies than there can be.
    pub fn of(shape: &Shape) -> Result<Striping, StripingError> {
        let Shape { bytes, segment, stripe, log_copies, segments } = *shape;
        if !(1..=2).contains(&log_copies) {
            return Err(StripingError::LogCopies { log_copies });
        }
        if stripe == 0 || !stripe.is_multiple_of(SECTOR) || stripe > STRIPE_BYTES {
            return Err(StripingError::Stripe { stripe });
        }
        if segment == 0 || !segment.is_multiple_of(stripe.into()) {
            return Err(StripingError::Segment { segment, stripe });
        }
        if bytes == 0 || !bytes.is_multiple_of(SECTOR.into()) {
            return Err(StripingError::Size { bytes });
        }
        if segments > SEGMENTS_MAX as u32 {
            return Err(StripingError::Segments { segment, bytes });
        }
        if segments == 0 || u64::from(segments) > bytes.div_ceil(segment) {
            return Err(StripingError::SegmentCount { segments, segment, bytes });
        }
        Ok(Striping { sectors: bytes / u64::from(SECTOR), segments, stripe: stripe / SECTOR })
    }
    /// The same stripes in the same segments, and more of them.
    pub fn grown(self, bytes: u64) -> Striping {
        Striping { sectors: self.sectors.max(bytes / u64::from(SECTOR)), ..self }
    }
    pub fn sectors(&self) -> u64 {
        self.sectors
    }
    pub fn segments(&self) -> u32 {
        self.segments
    }
    /// Number of stripes; the last may be shorter.
    pub fn stripes(&self) -> u64 {
        self.sectors.div_ceil(self.stripe.into())
    }
    /// A segment's stripe of this number, which may be beyond the volume's end.
    pub fn nth(&self, segment: u32, nth: u64) -> u64 {
        nth * u64::from(self.segments) + u64::from(segment)
    }
    /// The sectors of a stripe of the volume.
    pub fn extent(&self, stripe: u64) -> Extent {
        let whole = u64::from(self.stripe);
        let first = stripe * whole;
        Extent::new(first, (self.sectors - first).min(whole) as u32)
    }
    /// Sectors of a stripe.
    pub fn stripe(&self) -> u32 {
        self.stripe
    }
    pub fn segment_of(&self, sector: u64) -> u32 {
        (sector / u64::from(self.stripe) % u64::from(self.segments)) as u32
    }
    /// Number of a sector's stripe, and the sector's place in it.
    pub fn place(&self, sector: u64) -> (u64, u32) {
        (sector / u64::from(self.stripe), (sector % u64::from(self.stripe)) as u32)
    }
    pub fn contains(&self, extent: Extent) -> bool {
        extent.count > 0 && extent.first.checked_add(extent.count.into()).is_some_and(|end| end <= self.sectors)
    }
    /// Whether the extent lies in one stripe.
    pub fn is_piece(&self, extent: Extent) -> bool {
        self.contains(extent) && self.place(extent.first).0 == self.place(extent.end() - 1).0
    }
    /// The extent cut where stripes end.
    pub fn pieces(&self, extent: Extent) -> impl Iterator<Item = Extent> + use<> {
        let (mut at, end, stripe) = (extent.first, extent.end(), u64::from(self.stripe));
        std::iter::from_fn(move || {
            let next = ((at / stripe + 1) * stripe).min(end);
            let piece = (at < end).then(|| Extent::new(at, (next - at) as u32));
            at = next;
            piece
        })
    }
}
