//! Changing the policy of a running rack: the configuration keys that change, and whether they can.

use toml::{Table, Value};

use rackweave_config::policy::Policy;
use rackweave_config::{ConfigError, Problem, RackConfig, TimingConfig};

/// Keys that running nodes change. Servers read all others only at their start.
const LIVE: [&str; 3] = ["policy", "gc.policy", "switch.redirect"];

/// The key of a policy that a server reads at its start and keeps until it restarts.
pub fn made_with(cfg: &RackConfig) -> (&'static str, bool) {
    ("sched.coordinated", cfg.sched.coordinated)
}

/// Why a rack keeps its policy.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("policy {policy} is for evaluations: {key} would be {value}, and a running rack has real time")]
    Virtual { policy: Policy, key: String, value: String },
    #[error("policy {policy}: the switch in the kernel: {error}")]
    InKernel { policy: Policy, error: String },
    #[error("no node of this process has a policy")]
    Nobody,
}

/// Refuses what only virtual time has.
///
/// # Errors
/// [`ConfigError::Rules`]: drives whose collection takes no time.
pub fn in_real_time(cfg: &RackConfig) -> Result<(), ConfigError> {
    if cfg.ssd.timing != TimingConfig::IdealGc {
        return Ok(());
    }
    let (key, value) = match cfg.policy {
        Policy::Ideal => ("policy", cfg.policy.name()),
        _ => ("ssd.timing", cfg.ssd.timing.name()),
    };
    let rule = "for evaluations (`rackweave replay`): on the drives of a running rack collection takes time".into();
    Err(ConfigError::Rules(vec![Problem { key: key.into(), value: value.into(), rule }]))
}

/// `cfg` under another policy. Device timing belongs to the run, unless it is the subject of the policy.
pub fn with(cfg: &RackConfig, policy: Policy) -> RackConfig {
    let mut new = policy.apply(cfg);
    if new.ssd.timing == TimingConfig::Real && cfg.ssd.timing != TimingConfig::IdealGc {
        new.ssd.timing = cfg.ssd.timing;
    }
    new
}

/// The configuration under another policy, and the changed keys.
pub fn change(cfg: &RackConfig, policy: Policy) -> Result<(RackConfig, Vec<String>), PolicyError> {
    let new = with(cfg, policy);
    let changed = differences(cfg, &new);
    if let Some((key, _, value)) = changed.iter().find(|c| c.0 == "ssd.timing") {
        return Err(PolicyError::Virtual { policy, key: key.clone(), value: value.clone() });
    }
    let said = changed.into_iter().map(|(key, old, new)| {
        let when = if LIVE.contains(&key.as_str()) { "" } else { " (for servers that start later)" };
        format!("{key}: {old} -> {new}{when}")
    });
    Ok((new, said.collect()))
}

/// Keys that differ from the configuration's own policy, with their values.
pub fn otherwise(cfg: &RackConfig) -> Vec<String> {
    let differs = differences(&with(cfg, cfg.policy), cfg);
    differs.into_iter().map(|(key, _, value)| format!("{key} = {value}")).collect()
}

/// Keys that differ, with both values.
fn differences(old: &RackConfig, new: &RackConfig) -> Vec<(String, String, String)> {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    flatten("", &old.table(), &mut a);
    flatten("", &new.table(), &mut b);
    let value = |all: &[(String, String)], key: &str| {
        all.iter().find(|(k, _)| k == key).map_or("default".to_string(), |(_, v)| v.clone())
    };
    let mut keys: Vec<&String> = a.iter().chain(&b).map(|(k, _)| k).collect();
    keys.sort();
    keys.dedup();
    let both = keys.into_iter().map(|k| (k.clone(), value(&a, k), value(&b, k)));
    both.filter(|(_, old, new)| old != new).collect()
}

fn flatten(prefix: &str, table: &Table, out: &mut Vec<(String, String)>) {
    for (key, value) in table {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            Value::Table(t) => flatten(&key, t, out),
            v => out.push((key, v.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_said_and_what_needs_a_start_is_refused() {
        let mut cfg = Policy::Rackblox.apply(&RackConfig::default());
        cfg.ssd.timing = TimingConfig::None;
        let (base, said) = change(&cfg, Policy::Baseline).expect("live");
        assert!(said.contains(&"gc.policy: \"coordinated\" -> \"uncoordinated\"".to_string()), "{said:?}");
        assert!(said.contains(&"policy: \"rackblox\" -> \"baseline\"".to_string()), "{said:?}");
        let later = "sched.coordinated: true -> false (for servers that start later)";
        assert!(said.contains(&later.to_string()), "{said:?}");
        assert_eq!(base.ssd.timing, TimingConfig::None, "of this run only");
        assert_eq!(change(&base, Policy::Rackblox).expect("live").0, cfg);
        assert_eq!(change(&cfg, Policy::Rackblox).expect("live").1, Vec::<String>::new());
        let e = change(&cfg, Policy::Ideal).unwrap_err().to_string();
        assert!(e.contains("ideal") && e.contains("ssd.timing"), "{e}");
    }

    #[test]
    fn a_running_rack_has_real_time() {
        let refused = |cfg: &RackConfig| in_real_time(cfg).map_err(|e| e.to_string());
        let of = |policy: Policy| policy.apply(&RackConfig::default());
        for policy in Policy::ALL {
            assert_eq!(refused(&of(policy)).is_err(), policy == Policy::Ideal, "{policy}");
        }
        assert!(refused(&of(Policy::Ideal)).is_err_and(|e| e.contains("policy = ideal: for evaluations")));
        let mut timing = of(Policy::Rackweave);
        timing.ssd.timing = TimingConfig::IdealGc;
        assert!(refused(&timing).is_err_and(|e| e.contains("ssd.timing = ideal-gc: for evaluations")));
    }

    #[test]
    fn what_is_otherwise_than_the_policy_says_is_shown_until_it_is_set() {
        let mut cfg = Policy::Baseline.apply(&RackConfig::default());
        cfg.sched.coordinated = true;
        assert_eq!(otherwise(&cfg), ["sched.coordinated = true"]);
        let (set, said) = change(&cfg, Policy::Baseline).expect("live");
        assert_eq!(
            (otherwise(&set), said),
            (vec![], vec!["sched.coordinated: true -> false (for servers that start later)".to_string()])
        );
    }
}
