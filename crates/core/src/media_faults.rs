//! Failing programs and erases: drawn at random, or at the end of a block's life.

use crate::device::{DeviceError, DeviceOp};
use crate::rng::mix64;

/// Failures of programs and erases of a drive, drawn from a seed. A block that fails keeps failing until it is erased,
/// which draws again. A block at the end of its life fails every erase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MediaFaults {
    seed: u64,
    programs: f64,
    erases: f64,
    /// Erases that every block survives, and the greatest number that a block survives beyond.
    life: Option<(u32, u32)>,
}

impl MediaFaults {
    /// `programs`, `erases`: probability that one fails.
    pub fn new(seed: u64, programs: f64, erases: f64) -> MediaFaults {
        MediaFaults { seed, programs, erases, life: None }
    }
    /// No failures.
    pub fn none() -> MediaFaults {
        MediaFaults::new(0, 0.0, 0.0)
    }
    /// Every block survives between `least` and `least + spread` erases, by its number.
    pub fn end_of_life(self, least: u32, spread: u32) -> MediaFaults {
        MediaFaults { life: Some((least, spread)), ..self }
    }
    /// End of life on a drive with this endurance (FB1) in erases per block, and up to a tenth more (assumed).
    pub fn of_age(self, endurance: u32) -> MediaFaults {
        self.end_of_life(endurance, endurance / 10)
    }
    fn outlived(&self, block: u32, erase_count: u16) -> bool {
        let Some((least, spread)) = self.life else { return false };
        let more = mix64(u64::from(block)) % (u64::from(spread) + 1);
        u64::from(erase_count) > u64::from(least) + more
    }
    /// # Errors
    /// [`DeviceError::BadBlock`] if the command is drawn to fail.
    pub fn check(&self, op: &DeviceOp) -> Result<(), DeviceError> {
        let fails = match op {
            DeviceOp::Program { page, image } => {
                self.programs > 0.0
                    && self.draw(page.block, image.oob.erase_count, 1) < self.fails_by(u32::from(page.page) + 1)
            }
            DeviceOp::Erase { block, oob } => {
                self.outlived(*block, oob.erase_count) || self.draw(*block, oob.erase_count, 2) < self.erases
            }
            _ => false,
        };
        let block = op.block().filter(|_| fails);
        block.map_or(Ok(()), |block| Err(DeviceError::BadBlock { block }))
    }
    /// Probability that one of the first `pages` programs of a block fails; later ones fail with it.
    fn fails_by(&self, pages: u32) -> f64 {
        1.0 - (1.0 - self.programs).powi(pages as i32)
    }
    /// Uniform in `[0, 1)`, for a block since the erase of this count.
    fn draw(&self, block: u32, erase_count: u16, what: u64) -> f64 {
        let of = u64::from(block) << 16 | u64::from(erase_count);
        (mix64(mix64(self.seed ^ mix64(of)).wrapping_add(what)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{BlockOob, PageAddr, PageImage};

    fn program(block: u32, page: u16, erase_count: u16) -> DeviceOp {
        let oob = BlockOob { erase_count, ..BlockOob::default() };
        let image = Box::new(PageImage { sequence: 1, oob, slots: Vec::new().into() });
        DeviceOp::Program { page: PageAddr { block, page }, image }
    }

    #[test]
    fn no_block_outlives_its_endurance_by_more_than_a_tenth() {
        let flaws = MediaFaults::none().of_age(10_000);
        let erase = |block, erase_count| {
            flaws.check(&DeviceOp::Erase { block, oob: BlockOob { erase_count, ..BlockOob::default() } })
        };
        let mut lives = std::collections::BTreeSet::new();
        for block in 0..500 {
            assert_eq!((erase(block, 10_000), erase(block, 11_001)), (Ok(()), Err(DeviceError::BadBlock { block })));
            let dead: Vec<u16> = (10_000..11_002).filter(|n| erase(block, *n).is_err()).collect();
            assert!(dead.windows(2).all(|w| w[1] == w[0] + 1) && dead.last() == Some(&11_001), "once dead always dead");
            lives.insert(dead[0]);
            assert_eq!(flaws.check(&program(block, 3, 12_000)), Ok(()), "what is on it can be written to the end");
        }
        assert!(lives.len() > 250, "each has its own life: {}", lives.len());
    }

    #[test]
    fn the_configured_share_fails_and_goes_on_failing() {
        let flaws = MediaFaults::new(7, 0.001, 0.01);
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
        let other = MediaFaults::new(8, 0.001, 0.01);
        let differs = |b| flaws.check(&program(b, 63, 3)).is_ok() != other.check(&program(b, 63, 3)).is_ok();
        assert!((0..10_000).any(differs), "the seed counts");
        assert!(
            (0..10_000).any(|b| flaws.check(&program(b, 63, 3)).is_ok() && flaws.check(&program(b, 63, 4)).is_err())
        );
    }
}
