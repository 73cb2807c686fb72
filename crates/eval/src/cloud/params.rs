//! The file of inputs (`data/diffforward.toml`), which names the source of each value.

use serde::Deserialize;

use super::SERVERS;

/// Inputs of DiffForward's figures.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    pub load: Load,
    pub disks: Disks,
    pub sizes: Sizes,
    pub stable: Stable,
    pub burst: Burst,
    pub read: Read,
    pub model: Model,
}

/// Traffic of the two traces (table 1).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    pub hours: f64,
    pub w1_read_gib: f64,
    pub w1_write_gib: f64,
    pub w2_read_gib: f64,
    pub w2_write_gib: f64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disks {
    pub count: usize,
    pub rate_sigma: f64,
    /// Highest rate, times the mean.
    pub rate_cap: f64,
    pub capacities_gib: Vec<u64>,
}

/// Distribution of the lengths of requests.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sizes {
    pub kib: Vec<u32>,
    pub weights: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stable {
    pub streams: usize,
    pub append_kib: u32,
    pub random_share: f64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// Of written bytes.
    pub share: f64,
    /// Rate of a burst, times the disk's mean.
    pub factor_min: f64,
    pub factor_max: f64,
    pub length_ms_min: u64,
    pub length_ms_max: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    pub recent_share: f64,
}

/// Servers and links. The file says what each value is and where it is from.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    pub utilization: f64,
    pub storage_copies: usize,
    pub one_way_us: u64,
    pub message_cpu_us: f64,
    pub cpu_us_per_kib: f64,
    pub ssd_write_us: u64,
    pub ssd_read_us: u64,
    pub ssd_write_mb_s: u64,
    pub ssd_read_mb_s: u64,
    pub chunk_mib: u64,
    pub window_kib: u64,
    pub map_kib: u64,
    pub proxy_replicas: usize,
    pub merge_window_kib: u64,
    pub ewma_alpha: f64,
}

/// Why a file of inputs was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParamsError {
    #[error("inputs do not parse: {message}")]
    Syntax { message: String },
    #[error("{key} is {value}, but it must be {least} to {most}")]
    Value { key: &'static str, value: f64, least: f64, most: f64 },
    #[error("sizes has {sizes} lengths and {weights} weights, but they must be as many, and at least one")]
    Sizes { sizes: usize, weights: usize },
}

impl Params {
    /// The built-in file.
    ///
    /// # Errors
    /// None, as a test checks.
    pub fn builtin() -> Result<Params, ParamsError> {
        Params::parse(include_str!("../../data/diffforward.toml"))
    }

    /// Parses a file of inputs.
    ///
    /// # Errors
    /// Not TOML, unknown keys, values out of range.
    pub fn parse(text: &str) -> Result<Params, ParamsError> {
        let p: Params = toml::from_str(text).map_err(|e| ParamsError::Syntax { message: e.message().into() })?;
        p.check()?;
        Ok(p)
    }

    fn check(&self) -> Result<(), ParamsError> {
        let (s, sizes) = (&self.sizes, self.sizes.kib.len());
        if sizes == 0 || sizes != s.weights.len() {
            return Err(ParamsError::Sizes { sizes, weights: s.weights.len() });
        }
        let l = &self.load;
        for (key, value, least, most) in [
            ("load.hours", l.hours, 0.01, 1e4),
            ("load.w1_read_gib", l.w1_read_gib, 0.0, 1e9),
            ("load.w1_write_gib", l.w1_write_gib, 0.001, 1e9),
            ("load.w2_read_gib", l.w2_read_gib, 0.0, 1e9),
            ("load.w2_write_gib", l.w2_write_gib, 0.001, 1e9),
            ("disks.count", self.disks.count as f64, 1.0, 1e5),
            ("disks.rate_sigma", self.disks.rate_sigma, 0.0, 10.0),
            ("disks.rate_cap", self.disks.rate_cap, 1.0, 1e6),
            ("number of disks.capacities_gib", self.disks.capacities_gib.len() as f64, 1.0, 1e3),
            (
                "least of disks.capacities_gib",
                self.disks.capacities_gib.iter().min().map_or(0.0, |c| *c as f64),
                1.0,
                1e6,
            ),
            ("least of sizes.kib", s.kib.iter().min().map_or(0.0, |k| f64::from(*k)), 1.0, 1024.0),
            ("greatest of sizes.kib", s.kib.iter().max().map_or(0.0, |k| f64::from(*k)), 1.0, 1024.0),
            ("sum of sizes.weights", s.weights.iter().map(|w| f64::from(*w)).sum(), 1.0, 1e6),
            ("stable.streams", self.stable.streams as f64, 1.0, 1e3),
            ("stable.append_kib", f64::from(self.stable.append_kib), 4.0, 1024.0),
            ("stable.random_share", self.stable.random_share, 0.0, 1.0),
            ("burst.share", self.burst.share, 0.0, 1.0),
            ("burst.factor_min", self.burst.factor_min, 1.0, 1e4),
            ("burst.factor_max", self.burst.factor_max, self.burst.factor_min, 1e4),
            ("burst.length_ms_min", self.burst.length_ms_min as f64, 1.0, 1e5),
            ("burst.length_ms_max", self.burst.length_ms_max as f64, self.burst.length_ms_min as f64, 1e5),
            ("read.recent_share", self.read.recent_share, 0.0, 1.0),
            ("model.utilization", self.model.utilization, 0.01, 1.0),
            ("model.storage_copies", self.model.storage_copies as f64, 1.0, SERVERS as f64),
            ("model.ssd_write_mb_s", self.model.ssd_write_mb_s as f64, 1.0, 1e6),
            ("model.ssd_read_mb_s", self.model.ssd_read_mb_s as f64, 1.0, 1e6),
            ("model.chunk_mib", self.model.chunk_mib as f64, 1.0, 1e6),
            ("model.window_kib", self.model.window_kib as f64, 1.0, 1e9),
            ("model.map_kib", self.model.map_kib as f64, 1.0, 1e9),
            ("model.proxy_replicas", self.model.proxy_replicas as f64, 1.0, SERVERS as f64),
            ("model.merge_window_kib", self.model.merge_window_kib as f64, 1.0, 1e9),
            ("model.ewma_alpha", self.model.ewma_alpha, 0.001, 1.0),
            ("model.message_cpu_us", self.model.message_cpu_us, 0.0, 1e6),
            ("model.cpu_us_per_kib", self.model.cpu_us_per_kib, 0.0, 1e6),
        ] {
            if !(least..=most).contains(&value) {
                return Err(ParamsError::Value { key, value, least, most });
            }
        }
        Ok(())
    }

    /// Mean length of a steady write, bytes.
    pub fn step_bytes(&self) -> f64 {
        let random = self.stable.random_share;
        random * self.sizes.mean_bytes() + (1.0 - random) * f64::from(self.stable.append_kib << 10)
    }
}

impl Sizes {
    /// Mean length of a request, bytes.
    pub fn mean_bytes(&self) -> f64 {
        let total: u32 = self.weights.iter().sum();
        let sum: f64 = self.kib.iter().zip(&self.weights).map(|(k, w)| f64::from(*k) * f64::from(*w)).sum();
        sum * 1024.0 / f64::from(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_file_is_valid_and_keeps_what_the_paper_says() {
        let p = Params::builtin().expect("valid");
        let small: u32 = p.sizes.kib.iter().zip(&p.sizes.weights).filter(|(k, _)| **k <= 16).map(|(_, w)| *w).sum();
        assert_eq!(small * 100 / p.sizes.weights.iter().sum::<u32>(), 75);
        assert!(p.burst.factor_min >= 10.0 && p.disks.count == 1000);
    }

    #[test]
    fn wrong_files_are_refused_with_key_and_value() {
        let text = include_str!("../../data/diffforward.toml");
        for (from, to, said) in [
            ("hours = 2.0", "hours = 0.0", "load.hours is 0"),
            ("kib = [4,", "kib = [", "7 lengths and 8 weights"),
            ("length_ms_max = 500", "length_ms_max = 50", "burst.length_ms_max is 50, but it must be 100"),
            ("[read]", "[red]", "unknown field `red`"),
        ] {
            let e = Params::parse(&text.replace(from, to)).expect_err("refused").to_string();
            assert!(e.contains(said), "{e}");
        }
    }
}
