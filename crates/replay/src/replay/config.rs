//! Configuration of a replay, and its errors.

use std::path::PathBuf;

use rackweave_config::Policy;
use rackweave_config::{ConfigError, Overridden, RackConfig, Written};
use rackweave_core::Span;
use rackweave_core::{admin, volume};
use rackweave_rack::capture::CaptureError;
use rackweave_sim::Network;

use super::size::UTILIZATION;
use crate::trace::Format;
use crate::workload::WorkloadError;

/// Default number of measured requests: enough for a thousand beyond the 99.9th percentile.
pub const REQUESTS_DEFAULT: u64 = 1_000_000;
/// Greatest speed and rate: beyond them the clock would merge requests by rounding.
pub const SPEED_MAX: f64 = 1e6;
pub const RATE_MAX: f64 = 1e9;

/// One replay: a trace, policies, and the rack they run on.
#[derive(Clone, Debug)]
pub struct ReplayConfig {
    pub trace: PathBuf,
    /// Detected from the trace if `None`.
    pub format: Option<Format>,
    pub policies: Vec<Policy>,
    pub seed: u64,
    /// Speed-up of the trace's times.
    pub speed: f64,
    /// Poisson arrivals at this number of requests per second, instead of the trace's times.
    pub rate: Option<f64>,
    /// Requests to measure; the trace is looped to reach this number.
    pub requests: u64,
    /// The rack. The replay sets policy, size and contents of its devices.
    pub rack: RackConfig,
    /// Keys in its configuration file: the replay is refused if it would override one of them.
    pub written: Option<Written>,
    pub network: Network,
    /// Bytes of each device; by [`super::size`]'s rule if `None`.
    pub ssd_bytes: Option<u64>,
    /// Fraction of the rack's capacity that the volume fills.
    pub utilization: f64,
    /// Where to write the packets of the measured part.
    pub pcap: Option<PathBuf>,
}

impl ReplayConfig {
    /// All policies on `trace`, with defaults for everything else.
    pub fn new(trace: impl Into<PathBuf>) -> ReplayConfig {
        ReplayConfig {
            trace: trace.into(),
            format: None,
            policies: Policy::ALL.to_vec(),
            seed: 1,
            speed: 1.0,
            rate: None,
            requests: REQUESTS_DEFAULT,
            rack: RackConfig::default(),
            written: None,
            network: Network::fast(Network::excerpt()),
            ssd_bytes: None,
            utilization: UTILIZATION,
            pcap: None,
        }
    }

    /// # Errors
    /// The first invalid setting.
    pub fn validate(&self) -> Result<(), ReplayError> {
        let bad = |name, value: String, rule| Err(ReplayError::Setting { name, value, rule });
        if self.policies.is_empty() {
            return bad("policies", String::new(), "at least one");
        }
        for (i, p) in self.policies.iter().enumerate() {
            if self.policies[..i].contains(p) {
                return bad("policies", p.name().into(), "each at most once");
            }
        }
        if let Some(path) = self.pcap.as_ref().filter(|_| self.policies.len() > 1) {
            return bad("pcap", path.display().to_string(), "of one policy: choose it with --policy");
        }
        if !(self.speed > 0.0 && self.speed <= SPEED_MAX) {
            return bad("speed", self.speed.to_string(), "more than 0, at most 1000000");
        }
        if let Some(r) = self.rate.filter(|r| !(*r > 0.0 && *r <= RATE_MAX)) {
            return bad("rate", r.to_string(), "more than 0, at most 1000000000 requests a second");
        }
        if self.requests == 0 {
            return bad("requests", "0".into(), "at least 1");
        }
        if !(self.utilization >= 0.01 && self.utilization <= 0.99) {
            return bad("utilization", self.utilization.to_string(), "0.01 to 0.99");
        }
        Ok(())
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    #[error("{name} {value:?}: must be {rule}")]
    Setting { name: &'static str, value: String, rule: &'static str },
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("configuration: {what} by {by}: leave it out")]
    Overridden { what: Overridden, by: String },
    #[error("configuration: {key}: a simulated rack has no such thing: leave it out")]
    Unused { key: String },
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The rack could not be built from its configuration.
    #[error("the rack cannot be built: {reason}")]
    Build { reason: Box<str> },
    #[error("the rack did not come up within {waited} of its time")]
    NotUp { waited: Span },
    #[error("the volume could not be made: {0}")]
    Create(admin::Error),
    #[error("the volume could not be attached: {0}")]
    Volume(volume::Error),
    #[error("devices of {ssd_bytes} bytes leave no room for a volume; give larger ones")]
    NoRoom { ssd_bytes: u64 },
    /// More requests arrive than the rack answers; a lower speed or rate helps.
    #[error("under {policy}, {outstanding} requests were unanswered {at} into the replay: it is overloaded")]
    Overloaded { policy: &'static str, outstanding: usize, at: Span },
    /// No event is pending, and requests are unanswered: a defect of the rack.
    #[error("under {policy}, {outstanding} requests were never answered")]
    Stuck { policy: &'static str, outstanding: usize },
}
