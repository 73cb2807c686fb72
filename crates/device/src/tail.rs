//! The last pages of an erase block, which the file does not have yet.
//!
//! A program is durable after a sync only, so its write can wait for its neighbours': one large write instead of many
//! small ones. Contents go to the file in runs of [`RUN_BYTES`], spare areas when the block is full, and both with the
//! next sync.

use std::borrow::Cow;
use std::sync::Arc;

use rackweave_core::Payload;
use rackweave_core::device::Slot;

use super::SLOT;
use super::layout::Repr;

static ZERO_SLOT: [u8; SLOT] = [0; SLOT];

/// Contents written at once: the file system then keeps them in one large folio.
pub const RUN_BYTES: u32 = 64 << 10;

/// Programmed pages from [`Tail::first`] on, without a gap. NAND's pages are programmed in order, so they are all that
/// the file lacks of the block.
#[derive(Debug)]
pub(super) struct Tail {
    first: u16,
    spare_len: usize,
    /// Spare areas of all of them.
    spares: Vec<u8>,
    /// Slots of the last ones: contents of the pages before them are written.
    pages: Vec<Arc<[Slot]>>,
}

impl Tail {
    pub(super) fn new(first: u16, spare_len: usize) -> Tail {
        Tail { first, spare_len, spares: Vec::new(), pages: Vec::new() }
    }
    /// First page whose spare area is not written.
    pub(super) fn first(&self) -> u16 {
        self.first
    }
    /// The page that comes next.
    pub(super) fn end(&self) -> u16 {
        self.first + (self.spares.len() / self.spare_len) as u16
    }
    pub(super) fn push(&mut self, spare: &[u8], slots: Arc<[Slot]>) {
        self.spares.extend_from_slice(spare);
        self.pages.push(slots);
    }
    pub(super) fn spares(&self) -> &[u8] {
        &self.spares
    }
    /// The page's spare area, if it is not written.
    pub(super) fn spare(&self, page: u16) -> Option<&[u8]> {
        let at = usize::from(page.checked_sub(self.first)?) * self.spare_len;
        self.spares.get(at..at + self.spare_len)
    }
    /// First page whose contents are not written.
    fn pages_first(&self) -> u16 {
        self.end() - self.pages.len() as u16
    }
    /// The page's slots, if they are not written.
    pub(super) fn slots(&self, page: u16) -> Option<&[Slot]> {
        self.pages.get(usize::from(page.checked_sub(self.pages_first())?)).map(|p| &**p)
    }
    /// First page whose contents are not written, and the slots to be written from there on: up to the last slot with
    /// contents besides its record.
    pub(super) fn contents(&self, slots_per_page: usize) -> (u16, Vec<Cow<'_, [u8]>>) {
        let slots = || self.pages.iter().flat_map(|p| (0..slots_per_page).map(|i| p.get(i).map(|s| &s.data)));
        let held = |d: Option<&Payload>| d.is_some_and(|d| matches!(Repr::of(d), Repr::Bytes | Repr::Mixed));
        let n = slots().enumerate().filter(|(_, d)| held(*d)).last().map_or(0, |(i, _)| i + 1);
        (self.pages_first(), slots().take(n).map(slot_bytes).collect())
    }
    /// The contents are in the file.
    pub(super) fn contents_written(&mut self) {
        self.pages.clear();
    }
}

fn slot_bytes(data: Option<&Payload>) -> Cow<'_, [u8]> {
    if let Some(b) = data.and_then(Payload::bytes).filter(|b| b.len() == SLOT) {
        return Cow::Borrowed(b);
    }
    match data {
        Some(Payload::Mixed(ids)) => {
            let mut b = vec![0; SLOT];
            b.chunks_exact_mut(8).zip(ids.iter()).for_each(|(to, id)| to.copy_from_slice(&id.to_le_bytes()));
            Cow::Owned(b)
        }
        _ => Cow::Borrowed(&ZERO_SLOT),
    }
}
