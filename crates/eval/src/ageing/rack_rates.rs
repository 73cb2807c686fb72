//! The file of a rack's rates (`data/rackblox-wear.toml`), which names their source.

use rackweave_core::{Rng, Span};
use serde::Deserialize;

use super::rates::{RatesError, within};
use super::{DAY_S, YEAR_S};

/// Inputs of the rack's wear figures.
#[derive(Clone, Debug, PartialEq)]
pub struct RackRates {
    pub rack: RackShape,
    pub change: ChangeShape,
    pub workloads: Vec<RackWorkload>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RackShape {
    pub servers: usize,
    pub ssds_per_server: usize,
    pub vssds_per_ssd: usize,
    /// Erases of each block.
    pub endurance: u32,
    /// Lifetime of an SSD whose vSSDs only write.
    pub full_life_years: f64,
}

/// Periodic changes of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeShape {
    pub every_days: f64,
    pub workloads_part: f64,
    pub ssds_part: f64,
}

/// One workload of Table 2.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RackWorkload {
    pub name: String,
    /// Least and greatest fraction of its operations that write.
    pub writes: [f64; 2],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    rack: RackShape,
    change: ChangeShape,
    workload: Vec<RackWorkload>,
}

impl RackRates {
    /// The built-in file.
    ///
    /// # Errors
    /// None, as a test checks.
    pub fn builtin() -> Result<RackRates, RatesError> {
        RackRates::parse(include_str!("../../data/rackblox-wear.toml"))
    }

    /// Parses a file of rates.
    ///
    /// # Errors
    /// Not TOML, unknown keys, values out of range.
    pub fn parse(text: &str) -> Result<RackRates, RatesError> {
        let raw: Raw = toml::from_str(text).map_err(|e| RatesError::Syntax { message: e.message().into() })?;
        let r = &raw.rack;
        let units = [
            ("rack.servers", r.servers),
            ("rack.ssds_per_server", r.ssds_per_server),
            ("rack.vssds_per_ssd", r.vssds_per_ssd),
        ];
        for (key, n) in units {
            within(key, n as f64, 1.0, 256.0, "it must be 1 to 256")?;
        }
        within("rack.endurance", f64::from(r.endurance), 1.0, 1e6, "it must be 1 to 1000000")?;
        within("rack.full_life_years", r.full_life_years, 0.001, 1e3, "it must be 0.001 to 1000")?;
        within("change.every_days", raw.change.every_days, 0.001, 1e6, "it must be 0.001 to 1000000")?;
        let part = "it must be 0 to 1";
        within("change.workloads_part", raw.change.workloads_part, 0.0, 1.0, part)?;
        within("change.ssds_part", raw.change.ssds_part, 0.0, 1.0, part)?;
        for w in &raw.workload {
            let key = format!("writes of {}", w.name);
            within(&key, w.writes[0], 0.0, 1.0, part)?;
            within(&key, w.writes[1], w.writes[0], 1.0, "it must be the least part, up to 1")?;
        }
        if raw.workload.is_empty() {
            return Err(RatesError::Value { key: "workload".into(), value: 0.0, rule: "there must be one" });
        }
        Ok(RackRates { rack: raw.rack, change: raw.change, workloads: raw.workload })
    }

    /// Erases per block of its SSD and per second, for a vSSD with a uniformly drawn workload.
    pub fn draw(&self, rng: &mut Rng) -> f64 {
        let [least, most] = rng.pick(&self.workloads).writes;
        let full = f64::from(self.rack.endurance) / (self.rack.full_life_years * YEAR_S);
        (least + (most - least) * rng.unit()) * full / self.rack.vssds_per_ssd as f64
    }
    /// Period of a rack's changes.
    pub fn change_every(&self) -> Span {
        Span((self.change.every_days * DAY_S * 1e9) as u64)
    }
}
