//! The file of rates (`data/flashblox-rates.toml`), which names their source.

use serde::Deserialize;

use super::Device;

/// Inputs of FlashBlox's ageing figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    pub device: Device,
    /// γ, bytes.
    pub gamma: u64,
    pub workloads: Vec<WorkloadRate>,
    /// Bytes erased per second by an attack on one channel; each die takes its share.
    pub channel_killer: f64,
}

/// One workload of Table 4.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadRate {
    pub name: String,
    /// Bytes erased per second.
    pub bytes_per_s: f64,
}

/// Why a file of rates was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RatesError {
    #[error("rates do not parse: {message}")]
    Syntax { message: String },
    #[error("{key} is {value}, but {rule}")]
    Value { key: String, value: f64, rule: &'static str },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    device: RawDevice,
    rates: RawRates,
    workload: Vec<RawWorkload>,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDevice {
    channels: u16,
    dies_per_channel: u16,
    die_gb: f64,
    endurance: u32,
    gamma_tb: f64,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRates {
    fastest_mb_s: f64,
    channel_killer_mb_s: f64,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWorkload {
    name: String,
    writes: f64,
    times_slower_than_tpcc: Option<f64>,
}

const TPCC: &str = "TPC-C";

pub(super) fn within(key: &str, value: f64, least: f64, most: f64, rule: &'static str) -> Result<f64, RatesError> {
    if (least..=most).contains(&value) { Ok(value) } else { Err(RatesError::Value { key: key.into(), value, rule }) }
}

impl Rates {
    /// The built-in file.
    ///
    /// # Errors
    /// None, as a test checks.
    pub fn builtin() -> Result<Rates, RatesError> {
        Rates::parse(include_str!("../../data/flashblox-rates.toml"))
    }

    /// Parses a file of rates.
    ///
    /// # Errors
    /// Not TOML, unknown keys, values out of range.
    pub fn parse(text: &str) -> Result<Rates, RatesError> {
        let raw: Raw = toml::from_str(text).map_err(|e| RatesError::Syntax { message: e.message().into() })?;
        let d = &raw.device;
        let units = "it must be 1 to 256";
        within("device.channels", f64::from(d.channels), 1.0, 256.0, units)?;
        within("device.dies_per_channel", f64::from(d.dies_per_channel), 1.0, 256.0, units)?;
        within("device.endurance", f64::from(d.endurance), 1.0, 1e6, "it must be 1 to 1000000")?;
        let die_gb = within("device.die_gb", d.die_gb, 0.001, 1e5, "it must be 0.001 to 100000")?;
        let gamma_tb = within("device.gamma_tb", d.gamma_tb, 0.001, 1e6, "it must be 0.001 to 1000000")?;
        let device = Device {
            channels: d.channels,
            dies_per_channel: d.dies_per_channel,
            die_bytes: (die_gb * 1e9) as u64,
            endurance: d.endurance,
        };
        let mb_s = "it must be 0.001 to 100000";
        let fastest = within("rates.fastest_mb_s", raw.rates.fastest_mb_s, 0.001, 1e5, mb_s)? * 1e6;
        let killer = within("rates.channel_killer_mb_s", raw.rates.channel_killer_mb_s, 0.001, 1e5, mb_s)? * 1e6;
        let tpcc = raw.workload.iter().find(|w| w.name == TPCC).map(|w| w.writes * fastest);
        let workloads = raw.workload.iter().map(|w| workload(w, fastest, tpcc)).collect::<Result<Vec<_>, _>>()?;
        if workloads.is_empty() {
            return Err(RatesError::Value { key: "workload".into(), value: 0.0, rule: "there must be one" });
        }
        Ok(Rates { device, gamma: (gamma_tb * 1e12) as u64, workloads, channel_killer: killer })
    }

    /// Bytes erased per second by each workload.
    pub fn bytes_per_s(&self) -> Vec<f64> {
        self.workloads.iter().map(|w| w.bytes_per_s).collect()
    }
}

fn workload(w: &RawWorkload, fastest: f64, tpcc: Option<f64>) -> Result<WorkloadRate, RatesError> {
    let writes = within(&format!("writes of {}", w.name), w.writes, 0.0, 1.0, "it must be 0 to 1")?;
    let bytes_per_s = match w.times_slower_than_tpcc {
        None => writes * fastest,
        Some(times) => {
            let key = format!("times_slower_than_tpcc of {}", w.name);
            let times = within(&key, times, 0.001, 1e6, "it must be 0.001 to 1000000")?;
            let rule = "there must be a workload TPC-C";
            tpcc.ok_or(RatesError::Value { key, value: times, rule })? / times
        }
    };
    Ok(WorkloadRate { name: w.name.clone(), bytes_per_s })
}
