//! vSSDs of one soft-plane each (FB2 "low"): a part of the erase blocks of a die, whose others are other vSSDs'. Each has its part of
//! the die's time ([`crate::timing`]).

use rackweave_core::VssdId;

use super::{AllocError, Share, Ssd};
use crate::isolation::Isolation;
use crate::table::{Entry, Extent};
use crate::vssd::{Place, checkpoint};

impl Ssd {
    /// The next soft-plane of the die of the last one, or the first of a free die.
    pub(super) fn alloc_soft_plane(&mut self, id: VssdId, of: u8) -> Result<(), AllocError> {
        let (g, parts) = (*self.geometry(), u32::from(of));
        if of < 2 || !g.blocks_per_die().is_multiple_of(parts) {
            return Err(AllocError::SoftPlanes { of, blocks: g.blocks_per_die() });
        }
        let number = |e: &Entry| e.units.first().filter(|u| u32::from(u.soft_planes) == parts).map(|u| u.number());
        let last = self.table.entries.last().and_then(number);
        let number = match last.map(|n| n + 1).filter(|n| !n.is_multiple_of(parts)) {
            Some(next) => next,
            None => {
                let run = self.units.run(Isolation::Die, 1);
                run.map_err(|longest| AllocError::NoDies { asked: 1, free: longest })? * parts
            }
        };
        let each = checkpoint::unit_bytes(&g, g.blocks_per_die() / parts);
        let area = Extent { at: Ssd::meta_bytes_by_die(&g) + u64::from(number) * each, len: each };
        let place = self.vssds.len();
        self.add(id, Share::SoftPlane { of }, Place { dies: [number].into(), own: 1, parts, area })?;
        self.units.take_dies([number / parts]);
        self.drive.clock.share_die(place as u8, number / parts, parts);
        Ok(())
    }
}
