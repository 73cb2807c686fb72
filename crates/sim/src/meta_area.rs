//! The checkpoint area of a simulated device. Few of its bytes are ever written, some at large offsets, so that only pages with a
//! written byte have memory. Images share pages until one changes.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;

const PAGE: usize = 4096;

#[derive(Clone, Debug, Default)]
pub(crate) struct MetaArea {
    pages: BTreeMap<usize, Rc<[u8; PAGE]>>,
    /// The end of what was written: nothing is read beyond it.
    len: usize,
}

impl MetaArea {
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let from = offset as usize;
        self.len = self.len.max(from + data.len());
        let mut rest = data;
        while let Some((page, at)) = (!rest.is_empty()).then(|| place(from + data.len() - rest.len())) {
            let (part, after) = rest.split_at(rest.len().min(PAGE - at));
            let bytes = Rc::make_mut(self.pages.entry(page).or_insert_with(|| Rc::new([0; PAGE])));
            bytes[at..at + part.len()].copy_from_slice(part);
            rest = after;
        }
    }
    /// Zeroes where nothing was written; fewer bytes at the end.
    pub fn read(&self, offset: u64, len: usize) -> Bytes {
        let from = (offset as usize).min(self.len);
        let to = (from + len).min(self.len);
        let mut bytes = vec![0; to - from];
        for (page, data) in self.pages.range(from / PAGE..to.div_ceil(PAGE)) {
            let (first, end) = (from.max(page * PAGE), to.min((page + 1) * PAGE));
            bytes[first - from..end - from].copy_from_slice(&data[first - page * PAGE..end - page * PAGE]);
        }
        bytes.into()
    }
    pub fn byte(&self, at: usize) -> u8 {
        let (page, at) = place(at);
        self.pages.get(&page).map_or(0, |p| p[at])
    }
    /// Numbers of the sectors of this many bytes, a divisor of a page, that have a byte other than zero.
    pub fn written(&self, sector: usize) -> Vec<usize> {
        let of_page = |(page, data): (&usize, &Rc<[u8; PAGE]>)| {
            let first = page * PAGE / sector;
            let written = |(_, s): &(usize, &[u8])| s.iter().any(|b| *b != 0);
            data.chunks(sector).enumerate().filter(written).map(|(i, _)| first + i).collect::<Vec<_>>()
        };
        self.pages.iter().flat_map(of_page).collect()
    }
}

fn place(at: usize) -> (usize, usize) {
    (at / PAGE, at % PAGE)
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rng;

    use super::*;

    #[test]
    fn the_area_is_as_one_vector_of_bytes() {
        let mut rng = Rng::stream(1, 1);
        let (mut area, mut plain): (MetaArea, Vec<u8>) = Default::default();
        for step in 0..2_000 {
            let (at, len) = (rng.below(40_000) as usize, rng.below(9_000) as usize);
            if rng.chance(0.3) {
                let data = vec![(step % 7) as u8; len];
                plain.resize(plain.len().max(at + len), 0);
                plain[at..at + len].copy_from_slice(&data);
                area.write(at as u64, &data);
            }
            let from = at.min(plain.len());
            assert_eq!(area.read(at as u64, len)[..], plain[from..(from + len).min(plain.len())], "step {step}");
            assert_eq!(area.byte(at), plain.get(at).copied().unwrap_or(0));
            let written = |s: &(usize, &[u8])| s.1.iter().any(|b| *b != 0);
            let sectors: Vec<usize> = plain.chunks(512).enumerate().filter(written).map(|s| s.0).collect();
            assert_eq!(area.written(512), sectors);
        }
    }
}
