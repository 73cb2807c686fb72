//! Open-loop replay of a trace through the whole simulated rack, policy against policy.
//!
//! For each policy a new rack is built from the same seed, one volume is created, its devices are filled and aged
//! ([`age`]), and the trace is played by the volume's one writer ([`run`]) at its own times, whether or not earlier
//! requests are answered. Latency counts from a request's scheduled time to its answer.

pub(crate) mod age;
mod config;
pub(crate) mod run;
pub mod size;

use rackweave_config::{RackConfig, Size};
use rackweave_core::Span;
use rackweave_flash::Profile;

pub use config::{RATE_MAX, REQUESTS_DEFAULT, ReplayConfig, ReplayError, SPEED_MAX};
pub use rackweave_config::{Policy, UnknownPolicy};

use crate::report::{RackFacts, Report};
use crate::workload::Workload;

/// Messages that the replay's client may have in flight: the maximum, since an open loop never waits.
pub(crate) const WINDOW: u32 = 65_536;
/// Requests beyond the client's link rate wait at the link (and count as latency) instead of being dropped, which would
/// make the retry timeout the measured latency …
pub(crate) const LINK_QUEUE_MAX: Span = Span::from_secs(10);
/// … and are not resent because they waited.
pub(crate) const TIMEOUT_MS: u64 = 5_000;

/// Replays `cfg.trace` under each policy.
///
/// # Errors
/// The trace cannot be read or replayed, a setting makes no sense, or a rack could not keep up.
pub fn replay(cfg: &ReplayConfig) -> Result<Report, ReplayError> {
    cfg.validate()?;
    let workload = Workload::load(&cfg.trace, cfg.format)?;
    let rack = rack_for(cfg, &workload)?;
    nothing_overridden(cfg, &rack)?;
    // Each policy has its own rack, so they run in parallel.
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let (rack, workload) = (&rack, &workload);
        let start = |policy: &Policy| {
            let policy = *policy;
            scope.spawn(move || run::run(cfg, &policy.apply(rack), policy.name(), workload))
        };
        let running: Vec<_> = cfg.policies.iter().map(start).collect();
        running.into_iter().map(|r| r.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let mut policies = Vec::with_capacity(outcomes.len());
    let mut volume_bytes = 0;
    for outcome in outcomes {
        let outcome = outcome?;
        volume_bytes = outcome.volume_bytes;
        policies.push(outcome.report);
    }
    let survey = workload.survey();
    Ok(Report {
        trace: cfg.trace.file_name().unwrap_or_default().to_string_lossy().into(),
        format: workload.format(),
        network: cfg.network.name,
        seed: cfg.seed,
        speed: cfg.speed,
        rack: RackFacts {
            servers: rack.servers,
            ssd_bytes: rack.ssd.size.0,
            volume_bytes,
            footprint_bytes: survey.footprint_bytes,
            out_of_order: survey.out_of_order,
            devices: survey.devices.len() as u32,
        },
        policies,
    })
}

/// Options, by the configuration key that they set.
const OPTIONS: [(&str, &str); 4] = [
    ("gc.victims", "--gc-victims"),
    ("servers", "--servers"),
    ("ssd.blocking_unit", "--blocking-unit"),
    ("ssd.size", "--ssd-size"),
];

/// Checks that every key in the configuration file takes effect under every policy.
fn nothing_overridden(cfg: &ReplayConfig, rack: &RackConfig) -> Result<(), ReplayError> {
    let Some(written) = &cfg.written else { return Ok(()) };
    if let Some(key) = written.of_processes() {
        return Err(ReplayError::Unused { key });
    }
    if let Some(what) = written.overridden(rack).into_iter().next() {
        let option = OPTIONS.iter().find(|(key, _)| *key == what.key).map(|o| o.1);
        return Err(ReplayError::Overridden { what, by: option.unwrap_or("every replay").into() });
    }
    for policy in &cfg.policies {
        if let Some(what) = written.overridden(&policy.apply(rack)).into_iter().next() {
            return Err(ReplayError::Overridden { what, by: format!("policy {} (--policy)", policy.name()) });
        }
    }
    Ok(())
}

/// The rack of all policies.
fn rack_for(cfg: &ReplayConfig, workload: &Workload) -> Result<RackConfig, ReplayError> {
    let mut rack = cfg.rack.clone();
    let profile = Profile::builtin(&rack.ssd.profile).ok_or_else(|| ReplayError::Build {
        reason: format!("no device profile is named {:?}", rack.ssd.profile).into(),
    })?;
    let written = cfg.written.as_ref().is_some_and(|w| w.has("ssd.size"));
    let bytes = cfg.ssd_bytes.or(written.then_some(rack.ssd.size.0)).unwrap_or_else(|| {
        size::ssd_bytes(&profile, workload.survey().footprint_bytes, rack.servers, rack.replicas, cfg.utilization)
    });
    rack.ssd.size = Size(bytes);
    // Contents are discarded: there is nothing to verify.
    rack.ssd.verify = false;
    rack.client.window = WINDOW;
    // Traces have no flushes, and nothing fails in a replay.
    rack.client.keep_kib = 0;
    rack.client.timeout_ms = rack.client.timeout_ms.max(TIMEOUT_MS);
    rack.validate()?;
    Ok(rack)
}
