//! Programs and erases that fail, for simulations and trials.

use rackweave_core::device::{DeviceError, DeviceOp};
use rackweave_core::rng::mix64;

use crate::backend::block_of;

/// Which programs and erases of a drive fail, drawn from a seed: a block that fails does so however often it is asked, until
/// it is erased, which draws anew.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flaws {
    seed: u64,
    programs: f64,
    erases: f64,
}

impl Flaws {
    /// Of all programs and of all erases, the parts that fail: from 0 to 1.
    pub fn new(seed: u64, programs: f64, erases: f64) -> Flaws {
        Flaws { seed, programs, erases }
    }
    /// [`DeviceError::BadBlock`] if the command is to fail.
    ///
    /// # Errors
    /// That is it.
    pub fn check(&self, op: &DeviceOp) -> Result<(), DeviceError> {
        let fails = match op {
            DeviceOp::Program { page, image } => {
                self.draw(page.block, image.oob.erase_count, 1) < self.fails_by(u32::from(page.page) + 1)
            }
            DeviceOp::Erase { block, oob } => self.draw(*block, oob.erase_count, 2) < self.erases,
            _ => false,
        };
        let block = block_of(op).filter(|_| fails);
        block.map_or(Ok(()), |block| Err(DeviceError::BadBlock { block }))
    }
    /// How likely one of the first `pages` programs of a block fails; the ones behind it fail with it.
    fn fails_by(&self, pages: u32) -> f64 {
        1.0 - (1.0 - self.programs).powi(pages as i32)
    }
    /// Uniform in `[0, 1)`: of the block since the erase of this count.
    fn draw(&self, block: u32, erase_count: u16, what: u64) -> f64 {
        let of = u64::from(block) << 16 | u64::from(erase_count);
        (mix64(mix64(self.seed ^ mix64(of)).wrapping_add(what)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_core::device::{BlockOob, PageAddr, PageImage};

    fn program(block: u32, page: u16, erase_count: u16) -> DeviceOp {
        let oob = BlockOob { erase_count, ..BlockOob::default() };
        let image = Box::new(PageImage { sequence: 1, oob, slots: Vec::new().into() });
        DeviceOp::Program { page: PageAddr { block, page }, image }
    }

    #[test]
    fn as_many_fail_as_asked_and_what_failed_goes_on_failing() {
        let flaws = Flaws::new(7, 0.001, 0.01);
        let (mut cycles, mut erases) = (0, 0);
        for block in 0..10_000 {
            let ok: Vec<bool> = (0..64).map(|p| flaws.check(&program(block, p, 3)).is_ok()).collect();
            let first = ok.iter().position(|ok| !ok).unwrap_or(64);
            assert!(ok[first..].iter().all(|ok| !ok), "block {block}");
            cycles += u32::from(first < 64);
            let erase = DeviceOp::Erase { block, oob: BlockOob { erase_count: 4, ..BlockOob::default() } };
            let failed = flaws.check(&erase);
            assert!(failed.is_ok() || failed == Err(DeviceError::BadBlock { block }));
            erases += u32::from(failed.is_err());
        }
        // 1 − 0.999⁶⁴ of 10,000 is 620.
        assert!((540..700).contains(&cycles) && (70..130).contains(&erases), "{cycles} {erases}");
        let other = Flaws::new(8, 0.001, 0.01);
        let differs = |b| flaws.check(&program(b, 63, 3)).is_ok() != other.check(&program(b, 63, 3)).is_ok();
        assert!((0..10_000).any(differs), "the seed counts");
        assert!(
            (0..10_000).any(|b| flaws.check(&program(b, 63, 3)).is_ok() && flaws.check(&program(b, 63, 4)).is_err())
        );
    }
}
